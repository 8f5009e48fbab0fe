"""Changes the size of a cluster while it runs, and has a steward keep it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

from broadleaf.cluster.control import RunningCluster, Targets
from broadleaf.cluster.engine_sets import Block
from broadleaf.cluster.scaling import Aim
from broadleaf.cluster.started_sets import StartedSets
from broadleaf.cluster.steward import Order, Steward, StewardProcess
from broadleaf.errors import BroadleafError
from broadleaf.state.files import can_be_resumed, process_of_cluster

_LOOK_EVERY_S = 0.05


class ScalingError(BroadleafError, RuntimeError):
    """The cluster cannot have the requested size: engines that would have to go may hold data of clients."""


class SizedCluster(RunningCluster, Protocol):
    """What `Elastic` uses of a cluster."""

    n: int
    detached: bool


class Elastic:
    """Scales a cluster up and down, and releases engines with care: see the methods of `Cluster`."""

    def __init__(self, cluster: SizedCluster, started_sets: StartedSets) -> None:
        self._cluster = cluster
        self._started_sets = started_sets
        self._steward: Steward | None = None

    def drain(self, targets: Targets | Block = None, *, within_s: float | None = None, stateless: bool = False) -> None:
        """Releases engines, and returns when they are gone."""
        with self._cluster.control() as control:
            with self._cluster.lock:
                engines, hosts, blocks = self._meant(control.status(), targets)
                control.drain(engines, hosts, within_s, stateless)
                for block in blocks:
                    block.draining = block.is_released = True
            while any(e["state"] != "gone" for e in control.status()["engines"] if e["engine"] in engines):
                time.sleep(_LOOK_EVERY_S)
        with self._cluster.lock:
            self._started_sets.leave_out(engines)
            self._cluster.n = max(0, self._cluster.n - len(engines))
            if blocks:
                self._cluster.engines_from.cancel(blocks)
            self._cluster.write_cluster_file()

    def _meant(self, status: Mapping[str, Any], targets: Targets | Block) -> tuple[list[int], list[int], list[Block]]:
        """Engines, hosts by number, and whole blocks. Raises KeyError for unknown targets."""
        blocks = self._started_sets.look_at(status, asks=True)
        there = [entry for entry in status["engines"] if entry["state"] != "gone"]
        if targets is None or targets == "all":
            return [e["engine"] for e in there], [h["host"] for h in status["hosts"]], blocks
        if isinstance(targets, Block):
            targets = targets.id
        if not isinstance(targets, str):
            return [targets] if isinstance(targets, int) else list(targets), [], []
        chosen = [block for block in blocks if block.id == targets]
        if targets in self._started_sets.living():
            chosen = list(self._started_sets.living()[targets].blocks)
            if not chosen:
                return self._started_sets.living()[targets].engine_ids, [], []
        names = [name for block in chosen for name in block.hosts]
        if not chosen:
            names = [h["name"] for h in status["hosts"] if targets in (h["name"], h["name"].partition(":")[0])]
        if not chosen and not names:
            known = [block.id for block in blocks] + [host["name"] for host in status["hosts"]]
            raise KeyError(f"unknown host, block or engine set {targets!r}; known: {', '.join(known) or 'none'}")
        own = {engine for block in chosen for engine in block.engines}
        engines = [e["engine"] for e in there if e["engine"] in own or e["host"] in names]
        return engines, [h["host"] for h in status["hosts"] if h["name"] in names], chosen

    def scale(self, n: int, *, stateless: bool = False, within_s: float | None = None) -> None:
        """Scales the cluster to `n` engines, and has the number kept."""
        if n < 0:
            raise ValueError(f"n must not be negative, but is {n}")
        self.stop_steward()
        aim = Aim(n, n, None, stateless)
        steward = Steward(self._cluster, aim, one_at_a_time=False, within_s=within_s)
        with self._cluster.control() as control:
            decision = steward.step(control, may_fall_short=False)
        self._cluster.n = n
        if self._cluster.engines_from.is_remote:
            self._keep(steward, Order(aim, one_at_a_time=False, within_s=within_s))
        if decision.kept_for_data:
            what = "blocks" if self._cluster.engines_from.is_remote else "engines"
            raise ScalingError(
                f"clients may have left data on {what} {', '.join(decision.kept_for_data)}, because they sent tasks "
                "directly to them (with push, scatter, execute, or apply of a direct view). There are too few other "
                "engines to release: gather the data, or pass stateless=True to discard it"
            )

    def adapt(self, minimum: int, maximum: int, *, idle_s: float = 300.0, stateless: bool = False) -> None:
        """Makes the number of engines follow the queue."""
        if not 0 <= minimum <= maximum:
            raise ValueError(f"minimum and maximum must satisfy 0 <= minimum <= maximum, not {minimum} and {maximum}")
        self.stop_steward()
        aim = Aim(minimum, maximum, idle_s, stateless)
        self._keep(Steward(self._cluster, aim, one_at_a_time=True), Order(aim, one_at_a_time=True))

    def _keep(self, steward: Steward, order: Order) -> None:
        if self.may_have_steward_process:
            StewardProcess(self._cluster.cluster_dir).have(self._cluster, order)
            return
        steward.start(awaits_engines=order.aim is not None and order.aim.maximum > 0)
        self._steward = steward

    def look_after(self, *, resumes: bool = False) -> None:
        """Starts the steward of a cluster that needs one although nobody has scaled it. Where the controller `resumes`
        its work, so does the steward."""
        if self._always_has_process:
            process = StewardProcess(self._cluster.cluster_dir)
            if not resumes or not process.resume(self._cluster):
                process.have(self._cluster, Order(None), waits=False)

    @property
    def _always_has_process(self) -> bool:
        """Whether there is a steward's process as long as the cluster runs. Where engines come with jobs, it tells
        everybody what becomes of them, and cancels those that nobody needs any more."""
        return self.resumes_controller or (self._cluster.engines_from.is_remote and self.may_have_steward_process)

    @property
    def resumes_controller(self) -> bool:
        """Whether the steward's process starts the controller again when it is killed. A controller that ends with its
        program can only be started by that one."""
        return self._cluster.detached and self._cluster.settings["journal"] != "off"

    @property
    def brings_controller_back(self) -> bool:
        """Whether the steward's process is about to start the controller, which has ended, again."""
        if not (self.resumes_controller and can_be_resumed(self._cluster.cluster_dir)):
            return False
        pid = StewardProcess(self._cluster.cluster_dir).pid()
        return pid is not None and process_of_cluster(pid, self._cluster.cluster_id)  # it may be another host's

    @property
    def may_have_steward_process(self) -> bool:
        """Whether a process of its own can scale the cluster: any process can take over the blocks of its engine set.
        Engines of the controller's host need one only if the cluster outlives the program that started it."""
        kind = self._cluster.engines_from
        return kind.is_adoptable and (kind.is_remote or self._cluster.detached)

    @property
    def has_steward_process(self) -> bool:
        """Whether there is such a process now."""
        return self.may_have_steward_process and StewardProcess(self._cluster.cluster_dir).is_running

    @property
    def keeps_its_size(self) -> bool:
        """Whether a process of its own scales the cluster, so that this one may end."""
        return self.may_have_steward_process and StewardProcess(self._cluster.cluster_dir).scales

    @property
    def why_paused(self) -> str:
        """Why engines are missing although the cluster is scaled, in the scheduler's words; '' if none are, or if they
        were requested and are awaited."""
        may_have_process = self._always_has_process or self.may_have_steward_process
        why = StewardProcess(self._cluster.cluster_dir).why_paused if may_have_process else ""
        return why or (self._steward.why_paused if self._steward is not None else "")

    def stop_steward(self) -> None:
        """Keeps the cluster at its current size from now on, whoever scaled it before."""
        if not self._always_has_process:
            self.end()
            return
        self._end_thread()
        with self._cluster.lock:  # it is not in the middle of a step
            StewardProcess(self._cluster.cluster_dir).order(Order(None))

    def end(self) -> None:
        """Ends the steward, and returns when it has ended."""
        self._end_thread()
        if self._always_has_process or self.may_have_steward_process:
            StewardProcess(self._cluster.cluster_dir).stop()

    def _end_thread(self) -> None:
        steward, self._steward = self._steward, None
        if steward is not None:
            steward.stop()
