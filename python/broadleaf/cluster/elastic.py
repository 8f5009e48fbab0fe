"""The part of `Cluster` that changes its size while it runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from broadleaf.cluster.control import ControlLink, Targets
from broadleaf.cluster.engine_sets import Block, EngineSet
from broadleaf.cluster.engine_sets.base import block_and_life
from broadleaf.cluster.scaling import Aim
from broadleaf.cluster.steward import Order, Steward, StewardProcess
from broadleaf.errors import BroadleafError

if TYPE_CHECKING:
    from pathlib import Path

    from broadleaf.cluster.started_sets import StartedSets
    from broadleaf.state.files import ClusterFile, StateLock

_LOOK_EVERY_S = 0.05


class ScalingError(BroadleafError, RuntimeError):
    """The cluster cannot have the requested size: engines that would have to go may hold data of clients."""


class Elastic:
    """Scaling up and down, and releasing engines with care."""

    lock: StateLock
    detached: bool
    _file: ClusterFile
    n: int
    engines_from: EngineSet
    _started_sets: StartedSets
    _steward: Steward | None

    if TYPE_CHECKING:

        @property
        def running(self) -> bool: ...
        @property
        def cluster_dir(self) -> Path: ...
        def control(self, timeout_s: float = 10.0) -> ControlLink: ...
        def write_cluster_file(self) -> None: ...

    def all_blocks(self) -> list[Block]:
        """The blocks of all sets, as last checked.

        Returns:
            The blocks in the order of their submission.
        """
        return self._started_sets.blocks()

    def spare_blocks(self) -> list[Block]:
        """Blocks on hosts of the engine set that have had none.

        Returns:
            The blocks, which are not started.
        """
        return self._started_sets.spare_blocks()

    def start_block_again(self, block: Block) -> None:
        """Starts a block that is over, or a spare one, where it was; only for sets whose hosts are given.

        Args:
            block: The block.

        Raises:
            ClusterStartError: It does not start.
        """
        with self.lock:
            self._started_sets.start_again(block)
            self.write_cluster_file()

    def blocks(self) -> list[Block]:
        """The batch jobs or connections that started the cluster's engines on other hosts.

        Returns:
            The blocks, each with its current state and the reason for it, its hosts, engines and deadline.

        Raises:
            ClusterConnectionError: The cluster has stopped.
        """
        with self.lock:
            if not self.running or not self.all_blocks():
                blocks = self.all_blocks()
                self.engines_from.poll(blocks)
                return blocks
            with self.control() as control:
                return self.look_at_blocks(control.status())

    def look_at_blocks(self, status: Mapping[str, Any], *, asks: bool = True) -> list[Block]:
        """The blocks of all sets, checked just now.

        Args:
            status: The controller's status, as `status_sync` returns it.
            asks: Whether the engine set checks them as well.

        Returns:
            The blocks in the order of their submission.
        """
        blocks = self._started_sets.blocks()
        if asks:
            self.engines_from.poll(blocks)
        by_id = {block.id: block for block in blocks}
        for block in blocks:
            block.hosts, block.engines, block.deadline = [], [], None
        for host in status["hosts"]:
            if (owner := block_and_life(host["name"], by_id)) is not None:
                its, _ = owner
                its.hosts.append(host["name"])
                its.draining |= host["draining"]
                if host["ends_in_s"] is not None:
                    its.deadline = min(its.deadline or float("inf"), time.time() + host["ends_in_s"])
        for engine in status["engines"]:
            is_there = engine["host"] and engine["state"] != "gone"
            if is_there and (owner := block_and_life(engine["host"], by_id)) is not None:
                owner[0].engines.append(engine["engine"])
        for block in blocks:
            if block.state == "pending" and (block.hosts or block.engines):
                block.state, block.reason = "running", ""
            elif block.state == "pending":
                block.draining = False  # it was put back into the queue
        return blocks

    def drain_sync(
        self, targets: Targets | Block = None, *, within_s: float | None = None, stateless: bool = False
    ) -> None:
        """Releases engines: they take no new tasks, finish those that they have, and stop for good.

        Returns when they are gone. Queued tasks that may run elsewhere do.

        Args:
            targets: An engine's id, several ids, 'all' (the default), the name of a host, the id of an engine set
                or of a block, or a block.
            within_s: Seconds after which engines are stopped even if their tasks have not ended; None: never.
            stateless: Whether data that clients may have left on the engines may go with them.

        Raises:
            RequestFailed: Clients may have left data on one of the engines. Nothing is released.
            KeyError: There is no host, block or engine set of that name.
            ClusterConnectionError: The cluster has stopped.
        """
        with self.control() as control:
            with self.lock:
                engines, hosts, blocks = self._meant(control.status(), targets)
                control.drain(engines, hosts, within_s, stateless)
                for block in blocks:
                    block.draining = block.is_released = True
            while any(e["state"] != "gone" for e in control.status()["engines"] if e["engine"] in engines):
                time.sleep(_LOOK_EVERY_S)
        with self.lock:
            self._started_sets.leave_out(engines)
            if blocks:
                self.engines_from.cancel(blocks)
            self.write_cluster_file()

    def _meant(self, status: Mapping[str, Any], targets: Targets | Block) -> tuple[list[int], list[int], list[Block]]:
        """Engines, hosts by number, and whole blocks. Raises KeyError for unknown targets."""
        blocks = self.look_at_blocks(status)
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
            raise KeyError(f"no host, block or engine set {targets!r}; there are {', '.join(known) or 'none'}")
        own = {engine for block in chosen for engine in block.engines}
        engines = [e["engine"] for e in there if e["engine"] in own or e["host"] in names]
        return engines, [h["host"] for h in status["hosts"] if h["name"] in names], chosen

    def scale_sync(self, n: int, *, stateless: bool = False, within_s: float | None = None) -> None:
        """Scales the cluster to `n` engines: requests more, or releases some as `drain_sync` does.

        Returns before they are up or gone. On other hosts, whole blocks are started and released, so there may be more
        than `n` engines. From then on the number is maintained: blocks that end are replaced, and blocks whose job will
        end soon are replaced in advance. A steward does that: a thread of this process, or a separate process for a
        detached cluster whose engine set allows it.

        Args:
            n: Number of engines.
            stateless: Whether data that clients may have left on the engines may go with them.
            within_s: Seconds after which released engines are stopped even if their tasks have not ended; None: never.

        Raises:
            ScalingError: Clients may have left data on engines that would have to go. Others have gone.
            ClusterStartError: A submission was refused, or there can be no more engines.
            ValueError: `n` is negative.
            ClusterConnectionError: The cluster has stopped.
        """
        if n < 0:
            raise ValueError(f"n must not be negative, but is {n}")
        self.stop_steward()
        aim = Aim(n, n, None, stateless)
        steward = Steward(self._as_cluster(), aim, one_at_a_time=False, within_s=within_s)
        with self.control() as control:
            decision = steward.step(control, may_fall_short=False)
        self.n = n
        if self.engines_from.is_remote:
            self._keep(steward, Order(aim, one_at_a_time=False, within_s=within_s))
        if decision.kept_for_data:
            what = "blocks" if self.engines_from.is_remote else "engines"
            raise ScalingError(
                f"clients may have left data on {what} {', '.join(decision.kept_for_data)}, which were sent tasks by "
                "name (push, scatter, execute, apply of a direct view), and more engines than those must go: gather "
                "it, or pass stateless=True to discard it"
            )

    def adapt_sync(self, minimum: int, maximum: int, *, idle_s: float = 300.0, stateless: bool = False) -> None:
        """Makes the number of engines follow the queue.

        A steward does that for as long as this process lives or, if the cluster is detached and its engine set supports
        a steward in a separate process (`keeps_its_size`), for as long as the cluster lives.

        When tasks wait, blocks are requested one after the other; pending blocks that are no longer needed are
        cancelled; idle blocks are released. Tasks wait while there are no engines. After three consecutive failed
        starts nothing more is requested: `scaling_paused` says why. `scale_sync`, or another call of this method, ends
        that state.

        Args:
            minimum: Minimum number of engines.
            maximum: Maximum number of engines.
            idle_s: Seconds without a task after which a block is released.
            stateless: Whether data that clients may have left on the engines may go with them. Otherwise those engines
                stay.

        Raises:
            ValueError: They are not 0 <= `minimum` <= `maximum`.
        """
        if not 0 <= minimum <= maximum:
            raise ValueError(f"minimum and maximum must satisfy 0 <= minimum <= maximum, not {minimum} and {maximum}")
        self.stop_steward()
        aim = Aim(minimum, maximum, idle_s, stateless)
        self._keep(Steward(self._as_cluster(), aim, one_at_a_time=True), Order(aim, one_at_a_time=True))

    def _keep(self, steward: Steward, order: Order) -> None:
        if self.may_have_steward_process:
            StewardProcess(self.cluster_dir).have(self._as_cluster(), order)
            return
        steward.start(awaits_engines=order.aim is not None and order.aim.maximum > 0)
        self._steward = steward

    def look_after_jobs(self) -> None:
        """Starts the steward of a cluster whose engines come with jobs: it tells everybody what becomes of them, and
        cancels those that nobody needs any more."""
        if self.may_have_steward_process:
            StewardProcess(self.cluster_dir).have(self._as_cluster(), Order(None), waits=False)

    @property
    def may_have_steward_process(self) -> bool:
        """Whether a process of its own can scale the cluster: any process can take over the blocks of its engine set.
        Engines of the controller's host need one only if the cluster outlives the program that started it."""
        kind = self.engines_from
        return kind.is_adoptable and (kind.is_remote or self.detached)

    def share_state(self) -> None:
        """Shares the lock with a steward in another process, and takes over what that one changes."""
        if self.may_have_steward_process:
            self.lock.share(self.cluster_dir, self._take_over_changes)

    def _take_over_changes(self) -> None:
        if (state := self._file.changed()) is not None:
            self.n = state["n"]
            self._started_sets.from_dict(state["engine_sets"])

    @property
    def keeps_its_size(self) -> bool:
        """Whether a process of its own scales the cluster, so that this one may end."""
        return self.may_have_steward_process and StewardProcess(self.cluster_dir).scales

    @property
    def scaling_paused(self) -> str:
        """Why engines are missing although the cluster is scaled, in the scheduler's words; '' if none are, or if they
        were requested and are awaited."""
        if self.may_have_steward_process:
            return StewardProcess(self.cluster_dir).why_paused
        return self._steward.why_paused if self._steward is not None else ""

    def stop_steward(self) -> None:
        """Keeps the cluster at its current size from now on, whoever scaled it before."""
        if self.engines_from.is_remote and self.may_have_steward_process:
            with self.lock:  # it is not in the middle of a step
                StewardProcess(self.cluster_dir).order(Order(None))
            return
        self._end_steward()

    def _end_steward(self) -> None:
        steward, self._steward = self._steward, None
        if steward is not None:
            steward.stop()
        if self.may_have_steward_process:
            StewardProcess(self.cluster_dir).stop()

    def cancel_blocks(self) -> None:
        """Ends all blocks of a cluster whose controller has stopped.

        Raises:
            BroadleafError: Their scheduler does not do so; `cluster_file` still has them.
        """
        with self.lock:
            self._started_sets.cancel()
            with contextlib.suppress(FileNotFoundError):  # it was removed, and had no jobs
                self.write_cluster_file()

    def _as_cluster(self) -> Any:
        return self
