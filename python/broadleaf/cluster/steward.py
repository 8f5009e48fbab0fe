"""Keeps a cluster at the wanted size: checks its state, and submits and releases blocks."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from broadleaf.cluster.control import ControlLink, RunningCluster
from broadleaf.cluster.engine_sets.base import Block, block_and_life
from broadleaf.cluster.scaling import Aim, Decision, Load, Retries, Starts, Unit, decide
from broadleaf.errors import BroadleafError, ClusterStartError
from broadleaf.private_files import open_private
from broadleaf.requests import RequestFailed
from broadleaf.serialize.search_path import search_path
from broadleaf.state import files
from broadleaf.state.directories import ClusterFileError, read_json, write_json

_LOOK_EVERY_S = 0.25
_GOING = ("draining", "leaving", "dying")
# A job without any of its hosts: its scheduler has this long to notice that it is over. One that was put back into the
# queue has to be told from one that only holds its nodes.
_EMPTY_S = 30.0


class Steward:
    """See the module. A cluster that was scaled has one."""

    def __init__(
        self,
        cluster: RunningCluster,
        aim: Aim,
        *,
        one_at_a_time: bool,
        within_s: float | None = None,
        on_paused: Callable[[str], None] = lambda _why: None,
    ) -> None:
        self._on_paused = on_paused
        self._cluster = cluster
        self._aim = aim
        self._one_at_a_time = one_at_a_time
        self._within_s = within_s
        self._starts = Starts()
        self._retries = Retries()
        self._short = ""
        """Why there can never be as many engines as wanted."""
        self._reviving: dict[int, int] = {}
        """Engines that are started again on their hosts, and how often each was before."""
        self._empty_since: dict[str, float] = {}
        self._up_since: dict[str, float] = {}
        self._submitted_at: dict[str, float] = {}
        self._had_s: dict[str, float] = {}
        # Earlier failures say nothing about what is tried now.
        self._ended: set[str] = {block.id for block in cluster.all_blocks() if block.is_over}
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def why_paused(self) -> str:
        """Why engines are missing for which nothing is requested now; '' if there are none."""
        return "; ".join(filter(None, (self._starts.why_paused, self._retries.why, self._short)))

    def start(self, awaits_engines: bool) -> None:
        """Runs on a thread from now on, until `stop`, or until the cluster has stopped."""
        control = self._connect(awaits_engines)
        self._thread = threading.Thread(
            target=self._run, args=(control, awaits_engines), name="broadleaf-steward", daemon=True
        )
        self._thread.start()

    def run(self, awaits_engines: bool, on_ready: Callable[[], None]) -> None:
        """Maintains the size on this thread, until `end`, or until the cluster has stopped. Calls `on_ready` when it is
        connected."""
        control = self._connect(awaits_engines)
        on_ready()
        self._run(control, awaits_engines)

    def end(self) -> None:
        """Makes it end soon."""
        self._stopped.set()

    def stop(self) -> None:
        """Ends the thread, and returns when it has ended. Must not be called while holding the cluster's lock."""
        self.end()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _connect(self, awaits_engines: bool) -> ControlLink:
        control = self._cluster.control()
        if awaits_engines:
            control.await_engines()
        return control

    def _run(self, control: ControlLink, awaits_engines: bool) -> None:
        told = ""
        try:
            while not self._stopped.wait(_LOOK_EVERY_S) and self._cluster.running:
                if told != self.why_paused:
                    told = self.why_paused
                    self._on_paused(told)
                try:
                    self.step(control)
                except ClusterStartError as error:
                    self._starts.failed(str(error))
                except (BroadleafError, TimeoutError, OSError):
                    control.close()
                    if self._stopped.wait(_LOOK_EVERY_S) or not self._cluster.running:
                        return
                    control = self._connect(awaits_engines)
        except (BroadleafError, TimeoutError, OSError):
            pass  # the cluster ends
        finally:
            control.close()

    def step(self, control: ControlLink, *, may_fall_short: bool = True) -> Decision:
        """Checks the state, decides and acts. Raises `ClusterStartError` when a submission is refused, and unless it
        `may_fall_short` also when there can never be as many engines as wanted."""
        cluster = self._cluster
        with cluster.lock:
            status = control.status()
            blocks = self._look(status)
            seen = _Seen(status, blocks)
            size, refusal = self._block_engines()
            decision = decide(
                self._aim,
                self._units(status, seen, blocks),
                _load(status),
                block_engines=size,
                start_s=self._starts.start_s,
                one_at_a_time=self._one_at_a_time and cluster.engines_from.is_remote,
            )
            self._short = str(refusal) if decision.n_short > self._n_later(blocks) else ""
            if self._short and refusal is not None and not may_fall_short:
                raise refusal
            if self._starts.why_paused:
                decision = decision._replace(submit=(), revive=())
            self._act(control, decision, status, seen, {block.id: block for block in blocks})
        return decision

    def _block_engines(self) -> tuple[int | None, ClusterStartError | None]:
        """Number of engines in a new block, None for as many as requested; or 0, and why there can be none."""
        if not self._cluster.engines_from.is_remote:
            return 1, None
        first = next((block.n_engines for block in self._cluster.all_blocks() if block.n_engines), 0)
        try:
            return self._cluster.engines_from.block_engines(first), None
        except ClusterStartError as error:
            return 0, error

    def _look(self, status: Mapping[str, Any]) -> list[Block]:
        """The blocks; those that were drained, or have lost all their hosts, are ended for good."""
        cluster, now = self._cluster, time.monotonic()
        blocks = cluster.look_at_blocks(status)
        seen = _Seen(status, blocks)
        self._look_at_empty(blocks, seen, now)
        for block in blocks:
            submitted_at = self._submitted_at.setdefault(block.id, now)
            if block.engines and submitted_at < now and block.id not in self._had_s:
                self._had_s[block.id] = block.deadline - time.time() if block.deadline is not None else 0.0
                self._starts.came_up(now - submitted_at)
                self._retries.came_up(_place(block))
            if block.is_over and block.id not in self._ended:
                self._ended.add(block.id)
                if not block.draining:
                    self._note_failure(block, now)
            waits = not block.is_over and block.id not in self._had_s and block.state == "pending"
            if waits and now - submitted_at > cluster.engines_from.queue_timeout_s:
                self._end([block], block.reason or "it was pending for too long")
                self._ended.add(block.id)
                self._note_failure(block, now)
        gone = [b for b in blocks if b.draining and not b.is_over and not b.hosts and not seen.living(b)]
        self._end(gone, "it was released")
        self._look_at_revived(status)
        return [*blocks, *cluster.spare_blocks()]

    def _note_failure(self, block: Block, now: float) -> None:
        if self._cluster.engines_from.keeps_hosts:
            self._retries.failed(_place(block), now, block.reason)
        elif block.id not in self._had_s:
            self._starts.failed(block.reason)

    def _look_at_empty(self, blocks: Sequence[Block], seen: _Seen, now: float) -> None:
        """Asks at once about blocks that have lost their last host, and ends those that stay without any."""
        kind = self._cluster.engines_from
        empty = [b for b in blocks if b.state == "running" and not b.draining and not b.hosts and seen.members(b)]
        self._empty_since = {block.id: self._empty_since.get(block.id, now) for block in empty}
        if any(since == now for since in self._empty_since.values()):
            kind.look_now()
            kind.poll(empty)
        patience_s = 0.0 if kind.keeps_hosts else _EMPTY_S
        lost = [b for b in empty if b.state == "running" and now - self._empty_since[b.id] >= patience_s]
        self._end(lost, "it has lost all its hosts")

    def _look_at_revived(self, status: Mapping[str, Any]) -> None:
        """Notes which engines that were started again are up, and which have died before."""
        for engine in status["engines"]:
            before = self._reviving.get(engine["engine"])
            if before is None:
                continue
            if engine["up"]:
                del self._reviving[engine["engine"]]
            elif engine["state"] == "gone" and engine["restarts"] > before:
                del self._reviving[engine["engine"]]
                death = engine["last_death"]
                self._starts.failed(
                    f"engine {engine['engine']} on {death['host']} died at its start ({death['cause']})"
                )

    def _n_later(self, blocks: Sequence[Block]) -> int:
        """Engines of blocks that can be started again, but not yet."""
        if not self._cluster.engines_from.keeps_hosts:
            return 0
        now = time.monotonic()
        waits = (b for b in blocks if b.draining or (b.is_over and not self._retries.is_due(_place(b), now)))
        return sum(block.n_engines or 1 for block in waits)

    def _end(self, blocks: Sequence[Block], reason: str) -> None:
        if blocks:
            self._cluster.engines_from.cancel(blocks)
            for block in blocks:
                block.state, block.reason = "ended", reason
            self._cluster.write_cluster_file()

    def _units(self, status: Mapping[str, Any], seen: _Seen, blocks: Iterable[Block]) -> list[Unit]:
        if not self._cluster.engines_from.is_remote:
            remote = {host["name"] for host in status["hosts"]}
            own = [engine for engine in status["engines"] if engine["host"] not in remote]
            return [_unit(str(e["engine"]), 1, [e], None) for e in own if e["state"] not in (*_GOING, "gone")]
        return [unit for block in blocks if (unit := self._block_unit(seen, block)) is not None]

    def _block_unit(self, seen: _Seen, block: Block) -> Unit | None:
        """What a block is for the decision; None if it neither has engines nor can be started again now."""
        now, kind = time.monotonic(), self._cluster.engines_from
        if block.is_over:
            is_lost = kind.keeps_hosts and self._retries.is_due(_place(block), now)
            return Unit(block.id, block.n_engines or len(seen.members(block)) or 1, "lost") if is_lost else None
        if block.draining:
            return None
        lasts_s = None
        if block.deadline is not None:
            left_s = block.deadline - time.time()
            # As at the controller: a block takes no new tasks for its last `drain_s`, at most a tenth of its time.
            drain_s = self._cluster.settings["drain_s"]
            lasts_s = left_s - min(drain_s, self._had_s.get(block.id, left_s) / 10)
        if not block.hosts:
            self._up_since.pop(block.id, None)
        up_for_s = now - self._up_since.setdefault(block.id, now) if block.hosts else 0.0
        living, members = seen.living(block), seen.members(block)
        n = len(living) + len(seen.coming(block))
        # Until all its engines have been up, or had the time for it, the others are expected.
        are_expected = len(members) < (block.n_engines or 1) and up_for_s < self._cluster.settings["start_timeout_s"]
        if block.state == "pending" or are_expected:
            n = max(n, block.n_engines or 1)
        n_dead = 0 if kind.restarts_blocks else len(seen.dead(block))
        return _unit(block.id, n, living, lasts_s)._replace(n_dead=n_dead)

    def _act(
        self,
        control: ControlLink,
        decision: Decision,
        status: Mapping[str, Any],
        seen: _Seen,
        blocks: Mapping[str, Block],
    ) -> None:
        cluster = self._cluster
        if not cluster.engines_from.is_remote:
            if decision.submit:
                control.add_engines(sum(decision.submit))
            if going := [int(one) for one in (*decision.cancel, *decision.drain)]:
                _drain(control, going, (), self._within_s, self._aim.stateless)
            return
        self._end([blocks[one] for one in decision.cancel], "it was not needed any more")
        for one in decision.drain:
            engines = [engine["engine"] for engine in seen.living(blocks[one])]
            hosts = [host["host"] for host in status["hosts"] if host["name"] in blocks[one].hosts]
            blocks[one].draining = _drain(control, engines, hosts, self._within_s, self._aim.stateless)
        for one, n in decision.revive:
            self._revive(control, seen, blocks[one], n)
        for n in decision.submit:
            now = time.monotonic()
            before = {block.id for block in cluster.all_blocks()}
            cluster.start_engines_sync(n)
            for block in cluster.all_blocks():
                if block.id not in before:
                    self._submitted_at[block.id] = now
        if decision.drain:
            cluster.write_cluster_file()

    def _revive(self, control: ControlLink, seen: _Seen, block: Block, n: int) -> None:
        """Starts a lost block again, or the engines that died on hosts of one that lives."""
        if block.is_over:
            self._ended.discard(block.id)
            self._had_s.pop(block.id, None)
            self._submitted_at[block.id] = time.monotonic()
            self._cluster.start_block_again(block)
            return
        dead = seen.dead(block)[:n]
        self._reviving |= {engine["engine"]: engine["restarts"] for engine in dead}
        control.restart_engines([engine["engine"] for engine in dead])


class _Seen:
    """The engines of each block, as the controller's status has them.

    Those of a job that was put back into the queue and has come up again are others than those of its earlier life.
    """

    def __init__(self, status: Mapping[str, Any], blocks: Iterable[Block]) -> None:
        by_id = {block.id: block for block in blocks}
        self._lives: dict[str, int] = {}
        found: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for host in status["hosts"]:
            self._note(by_id, host["name"])
        for engine in status["engines"]:
            host = engine["host"] or (engine["last_death"] or {}).get("host", "")
            if (owner := self._note(by_id, host)) is not None:
                found.setdefault(owner, []).append(engine)
        self._members = {
            block_id: engines for (block_id, life), engines in found.items() if life == self._lives[block_id]
        }

    def _note(self, by_id: Mapping[str, Block], host: str) -> tuple[str, int] | None:
        if (owner := block_and_life(host, by_id)) is None:
            return None
        block, life = owner
        self._lives[block.id] = max(life, self._lives.get(block.id, 0))
        return block.id, life

    def members(self, block: Block) -> list[dict[str, Any]]:
        """All that it has had, dead or alive."""
        return self._members.get(block.id, [])

    def living(self, block: Block) -> list[dict[str, Any]]:
        """Those that have said hello and are alive."""
        return [engine for engine in self.members(block) if engine["host"] and engine["state"] != "gone"]

    def coming(self, block: Block) -> list[dict[str, Any]]:
        """Those that were up before, and are being started again."""
        return [engine for engine in self.members(block) if engine["state"] in ("starting", "restarting")]

    def dead(self, block: Block) -> list[dict[str, Any]]:
        """Those that died, and were not stopped, on hosts that live: they can be started again."""
        gone = (engine for engine in self.members(block) if engine["state"] == "gone")
        return [
            engine
            for engine in gone
            if engine["last_death"]["host"] in block.hosts
            and engine["last_death"]["cause"] not in ("stopped", "host_gone")
        ]


def _place(block: Block) -> str:
    """Where a block is, for people; its id where its set does not say."""
    return str(block.facts.get("host", block.id))


def _drain(
    control: ControlLink, engines: Sequence[int], hosts: Sequence[int], within_s: float | None, stateless: bool
) -> bool:
    """Whether they are being released; data that arrived a moment ago keeps them."""
    try:
        control.drain(engines, hosts, within_s, stateless)
    except RequestFailed:
        return False
    return True


def _unit(name: str, n_engines: int, engines: Sequence[Mapping[str, Any]], lasts_s: float | None) -> Unit:
    up = [engine for engine in engines if engine["up"]]
    return Unit(
        name,
        n_engines,
        "running" if up else "pending",
        n_busy=sum(engine["idle_s"] is None for engine in up),
        idle_s=min((engine["idle_s"] or 0.0 for engine in up), default=0.0),
        holds_data=any(engine["holds_data"] for engine in up),
        lasts_s=lasts_s,
    )


def _load(status: Mapping[str, Any]) -> Load:
    """Number of tasks that no engine runs, and the mean time of tasks that ran."""
    engines = [engine for engine in status["engines"] if engine["completed"]]
    behind = sum(max(0, engine["outstanding"] - 1) for engine in status["engines"])
    done = sum(engine["completed"] for engine in engines)
    mean_s = sum(engine["busy_ns"] for engine in engines) / done / 1e9 if done else None
    return Load(status["controller"]["ready"] + behind, mean_s)


# A steward in a separate process: it keeps a detached cluster at the wanted size when no client is left.


_BOOT = "import sys; sys.path[:] = sys.argv.pop().split('\\n'); from broadleaf.cluster.run_steward import main; main()"
_STOP_GRACE_S = 15.0
_PROCESS_LOOK_EVERY_S = 0.02


class StewardProcess:
    """The steward of a detached cluster, as other processes see it. There is at most one, whoever started it."""

    def __init__(self, cluster_dir: Path) -> None:
        self._lock = cluster_dir / files.STEWARD_LOCK
        self._state = cluster_dir / files.STEWARD_FILE
        self._log = cluster_dir / files.STEWARD_LOG

    def start(self, cluster: RunningCluster, aim: Aim, *, one_at_a_time: bool, within_s: float | None) -> None:
        """Starts it. It ends with its cluster, or with `stop`. Raises `ClusterStartError` with the end of its log."""
        import subprocess

        order = {"aim": aim._asdict(), "one_at_a_time": one_at_a_time, "within_s": within_s}
        log = files.open_log(self._log)
        try:
            child = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, cluster.cluster_file, "\n".join(search_path())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | {"BROADLEAF_CLUSTER_ID": cluster.cluster_id},
                start_new_session=True,  # it is not for the terminal's Ctrl-C
            )
        finally:
            os.close(log)
        if child.stdin is None or child.stdout is None:
            raise AssertionError("invariant: both are pipes")
        with child.stdin, child.stdout:
            try:
                child.stdin.write(json.dumps(order).encode())
                child.stdin.close()
            except BrokenPipeError:
                pass  # it died without a message
            is_ready = child.stdout.readline() == b"ready\n"
        if not is_ready:
            child.wait()
            said = self._log.read_text(errors="replace").strip()
            raise ClusterStartError("the steward, which scales the cluster, did not start", said)
        child.returncode = 0  # it continues without this process

    @property
    def is_running(self) -> bool:
        """Whether the cluster has one."""
        return self._pid() is not None

    @property
    def why_paused(self) -> str:
        """Why no more blocks are requested; '' if they are."""
        if not self.is_running:
            return ""
        try:
            return str(read_json(self._state)["why_paused"])
        except (ClusterFileError, KeyError):
            return ""  # it has only just begun

    def stop(self) -> None:
        """Ends it, and returns when it is gone. Does nothing if there is none."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            give_up_at = time.monotonic() + _STOP_GRACE_S
            if (pid := self._pid()) is None:
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            while self._pid() == pid and time.monotonic() < give_up_at:
                time.sleep(_PROCESS_LOOK_EVERY_S)

    def _pid(self) -> int | None:
        """Its process: the one that holds the lock."""
        try:
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        except BlockingIOError:
            text = os.pread(descriptor, 32, 0).strip()
            return int(text) if text.isdigit() else None
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """In the steward's process: makes it the cluster's steward. Raises BlockingIOError if there is another."""
        descriptor = open_private(self._lock, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            yield
        finally:
            os.close(descriptor)

    def tell(self, why_paused: str) -> None:
        """In the steward's process: publishes its state for other processes."""
        write_json(self._state, {"why_paused": why_paused})
