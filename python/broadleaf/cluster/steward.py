"""Keeps a cluster at the wanted size: checks its state, and submits and releases blocks."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from broadleaf.cluster.control import ControlLink, RunningCluster
from broadleaf.cluster.engine_sets.base import Block, block_and_life
from broadleaf.cluster.scaling import Aim, Decision, Load, Retries, Starts, Unit, decide
from broadleaf.cluster.started_sets import waited_for, with_log
from broadleaf.errors import BroadleafError, ClusterStartError
from broadleaf.private_files import open_private
from broadleaf.requests import STEWARD, WAITING, RequestFailed
from broadleaf.serialize.search_path import search_path
from broadleaf.state import files
from broadleaf.state.directories import ClusterFileError, read_json, write_json

if TYPE_CHECKING:
    import subprocess

_LOOK_EVERY_S = 0.25
# Where only jobs are looked after: what happens to engines wakes it.
_WATCH_EVERY_S = 60.0
_WATCH_PENDING_EVERY_S = 2.0
# Until then, whoever has submitted jobs looks after them.
_ASK_PENDING_AFTER_S = 10.0
_ALERT_S = 15.0
_GOING = ("draining", "leaving", "dying")
# A job without any of its hosts: its scheduler has this long to notice that it is over. One that was put back into the
# queue has to be told from one that only holds its nodes.
_EMPTY_S = 30.0
# A job that has not brought a host by then may never do so: its host may be down.
_LATE_S = 2.5


class Order(NamedTuple):
    """What a steward is to do."""

    aim: Aim | None
    """The size to keep; None to leave it as it is, and only look after jobs."""
    one_at_a_time: bool = False
    within_s: float | None = None
    set_options: Mapping[str, Any] = {}
    """Options of the engine set, where a program has changed them since the cluster was started."""

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return self._asdict() | {"aim": None if self.aim is None else self.aim._asdict()}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Order:
        """Restores what `to_dict` returned."""
        aim = None if state["aim"] is None else Aim(**state["aim"])
        return cls(aim, state["one_at_a_time"], state["within_s"], state["set_options"])


class Steward:
    """See the module. A cluster that was scaled has one, and so has every cluster with jobs."""

    def __init__(
        self,
        cluster: RunningCluster,
        aim: Aim | None,
        *,
        one_at_a_time: bool,
        within_s: float | None = None,
        on_paused: Callable[[str], None] = lambda _why: None,
        new_order: Callable[[], Order | None] = lambda: None,
        on_order: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_paused = on_paused
        self._new_order, self._on_order = new_order, on_order
        self._cluster = cluster
        self._stopped = False
        self._awaits_controller = False
        self._alert_until = 0.0
        self._pending_since: float | None = None
        self._woken = threading.Event()
        self._thread: threading.Thread | None = None
        self._verdicts = Verdicts(cluster)
        self._begin(Order(aim, one_at_a_time, within_s))

    def _begin(self, order: Order) -> None:
        self._aim, self._one_at_a_time, self._within_s, set_options = order
        for name, value in set_options.items():
            setattr(self._cluster.engines_from, name, value)
        self._starts = Starts()
        self._retries = Retries()
        self._short = ""
        """Why there can never be as many engines as wanted."""
        self._reviving: dict[int, int] = {}
        """Engines that are started again on their hosts, and how often each was before."""
        self._empty_since: dict[str, float] = {}
        self._up_since: dict[str, float] = {}
        self._submitted_at: dict[str, float] = {}
        self._running_since: dict[str, float] = {}
        self._put_back: set[str] = set()
        """Blocks that ran, and were put back into the queue."""
        self._late: set[str] = set()
        """Blocks without hosts whose scheduler was asked early."""
        self._had_s: dict[str, float] = {}
        # Earlier failures say nothing about what is tried now.
        self._found: set[str] = {block.id for block in self._cluster.all_blocks()}
        """Blocks that somebody else has submitted. They may have had engines when this one did not look."""
        self._ended: set[str] = {block.id for block in self._cluster.all_blocks() if block.is_over}

    @property
    def why_paused(self) -> str:
        """Why engines are missing for which nothing is requested now; '' if there are none."""
        return "; ".join(filter(None, (self._starts.why_paused, self._retries.why, self._short)))

    def start(self, awaits_engines: bool) -> None:
        """Runs on a thread from now on, until `stop`, or until the cluster has stopped."""
        self._awaits_controller = True  # another process may start it again
        control = self._connect()
        control.await_engines(awaits_engines)
        self._thread = threading.Thread(target=self._run, args=(control,), name="broadleaf-steward", daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Works on this thread, until `end`, or until the cluster has stopped."""
        self._run(None)

    def stand_by(self) -> None:
        """Does nothing on this thread, until `end`, or until the cluster has stopped."""
        while self._waits(None):
            pass

    def wake(self) -> None:
        """Makes it look now."""
        self._woken.set()

    def end(self) -> None:
        """Makes it end soon."""
        self._stopped = True
        self._woken.set()

    def stop(self) -> None:
        """Ends the thread, and returns when it has ended. Must not be called while holding the cluster's lock."""
        self.end()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _connect(self) -> ControlLink:
        control = self._cluster.control()
        control.call_on_death(self._woken.set)
        return control

    def _run(self, control: ControlLink | None) -> None:
        told, pause_s = "", 0.0
        try:
            while self._waits(pause_s):
                if told != self.why_paused:
                    told = self.why_paused
                    self._on_paused(told)
                try:
                    if control is None:
                        control = self._connect()
                        self._await_engines(control)
                        self._verdicts = Verdicts(self._cluster)  # it may be another controller, which was told nothing
                    pause_s = self._look_after(control)
                except ClusterStartError as error:
                    self._starts.failed(str(error))
                except (BroadleafError, TimeoutError, OSError):
                    # The cluster ends, or it is tried again.
                    if control is not None:
                        control.close()
                    control, pause_s = None, _LOOK_EVERY_S
        finally:
            if control is not None:
                control.close()

    def _waits(self, pause_s: float | None) -> bool:
        """Whether to go on, after this time or as soon as something has happened."""
        if self._woken.wait(pause_s):
            # Engines end before their host does, and hosts of a job one after the other.
            self._alert_until = time.monotonic() + _ALERT_S
        self._woken.clear()
        if self._stopped or self._cluster.running:
            return not self._stopped
        return self._awaits_controller and self._cluster.is_coming_back

    def _await_engines(self, control: ControlLink) -> None:
        control.await_engines(self._aim is not None and self._aim.maximum > 0)

    def _look_after(self, control: ControlLink) -> float:
        """A look at the cluster, and what follows from it. Returns the time until the next one, in seconds."""
        with self._cluster.lock:
            if (order := self._new_order()) is not None:
                self._begin(order)
                self._await_engines(control)
                self._on_order()
            if self._aim is not None:
                self.step(control)
                return _LOOK_EVERY_S
            status = control.status()
            blocks = self._cluster.look_at_blocks(status, asks=False)
            self._verdicts.look(control, status, blocks)
            are_pending = any(block.state == "pending" for block in blocks)
            now = time.monotonic()
            self._pending_since = (self._pending_since or now) if are_pending else None
            if self._pending_since is not None and now - self._pending_since >= _ASK_PENDING_AFTER_S:
                self._cluster.engines_from.poll(blocks)
            if self._verdicts.are_open or now < self._alert_until:
                return _LOOK_EVERY_S
            return _WATCH_PENDING_EVERY_S if are_pending else _WATCH_EVERY_S

    def step(self, control: ControlLink, *, may_fall_short: bool = True) -> Decision:
        """Checks the state, decides and acts. Raises `ClusterStartError` when a submission is refused, and unless it
        `may_fall_short` also when there can never be as many engines as wanted."""
        cluster, aim = self._cluster, self._aim
        assert aim is not None  # invariant: a steward that keeps a size has one
        with cluster.lock:
            status = control.status()
            blocks = self._look(status)
            self._verdicts.look(control, status, blocks)
            seen = _Seen(status, blocks)
            size, refusal = self._block_engines()
            decision = decide(
                aim,
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
            self._act(control, aim, decision, status, seen, {block.id: block for block in blocks})
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
                if not block.is_released:
                    has_run = block.id in self._found and bool(seen.members(block))
                    self._note_failure(block, self._reason_with_log(block), now, has_run=has_run)
            self._look_at_late(block, now)
            waits = not block.is_over and block.id not in self._had_s and block.state == "pending"
            if waits and now - submitted_at > cluster.engines_from.queue_timeout_s:
                self._end([block], block.reason or "it was pending for too long")
                self._ended.add(block.id)
                self._note_failure(block, block.reason, now, has_run=False)
        gone = [b for b in blocks if b.is_released and not b.is_over and not b.hosts and not seen.living(b)]
        self._end(gone, "it was released")
        self._look_at_revived(status)
        return [*blocks, *cluster.spare_blocks()]

    def _look_at_late(self, block: Block, now: float) -> None:
        """Has the scheduler asked, once, about a block that should have a host by now."""
        if block.state == "running":
            self._running_since.setdefault(block.id, now)
        elif block.state == "pending" and self._running_since.pop(block.id, None) is not None:
            self._put_back.add(block.id)
        is_new = block.id not in self._found and block.id not in self._late
        if is_new and not block.is_over and not block.hosts and now - self._submitted_at[block.id] > _LATE_S:
            self._late.add(block.id)
            self._cluster.engines_from.look_now()

    def _reason_with_log(self, block: Block) -> str:
        """Why a block is over; its scheduler does not know what went wrong in a job that has had no engine."""
        kind = self._cluster.engines_from
        if kind.keeps_hosts or block.id in self._had_s:
            return block.reason
        return with_log(block.reason, kind.log(block) or kind.why_silent(block))

    def _note_failure(self, block: Block, reason: str, now: float, *, has_run: bool) -> None:
        if self._cluster.engines_from.keeps_hosts:
            self._retries.failed(_place(block), now, reason)
        elif not has_run and block.id not in self._had_s:
            self._starts.failed(reason)

    def _look_at_empty(self, blocks: Sequence[Block], seen: _Seen, now: float) -> None:
        """Asks at once about blocks that have lost their last host, and ends those that stay without any."""
        kind = self._cluster.engines_from
        empty = [b for b in blocks if b.state == "running" and not b.is_released and not b.hosts and self._had(seen, b)]
        self._empty_since = {block.id: self._empty_since.get(block.id, now) for block in empty}
        if any(since == now for since in self._empty_since.values()):
            kind.look_now()
            kind.poll(empty)
        patience_s = 0.0 if kind.keeps_hosts else _EMPTY_S
        lost = [b for b in empty if b.state == "running" and now - self._empty_since[b.id] >= patience_s]
        self._end(lost, "it has lost all its hosts")

    def _had(self, seen: _Seen, block: Block) -> bool:
        """Whether a block without hosts has had some since it was started, or should have by now."""
        now = time.monotonic()
        waited_s = max(
            time.time() - block.facts.get("started_at", time.time()), now - self._running_since.get(block.id, now)
        )
        return bool(seen.members(block)) or waited_s > self._cluster.settings["start_timeout_s"]

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
        waits_in_vain = not block.hosts and block.state == "running" and self._had(seen, block)
        if (block.state == "pending" or are_expected) and not block.is_ending and not waits_in_vain:
            n = max(n, block.n_engines or 1)
        n_dead = 0 if kind.restarts_blocks else len(seen.dead(block))
        is_late = block.state == "pending" and (bool(members) or block.id in self._put_back)
        return _unit(block.id, n, living, lasts_s)._replace(n_dead=n_dead, is_late=is_late)

    def _act(
        self,
        control: ControlLink,
        aim: Aim,
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
                _drain(control, going, (), self._within_s, aim.stateless)
            return
        self._end([blocks[one] for one in decision.cancel], "it was not needed any more")
        for one in decision.drain:
            engines = [engine["engine"] for engine in seen.living(blocks[one])]
            hosts = [host["host"] for host in status["hosts"] if host["name"] in blocks[one].hosts]
            blocks[one].draining = _drain(control, engines, hosts, self._within_s, aim.stateless)
            blocks[one].is_released = blocks[one].draining
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
            self._running_since.pop(block.id, None)
            self._put_back.discard(block.id)
            self._submitted_at[block.id] = time.monotonic()
            self._cluster.start_block_again(block)
            return
        dead = seen.dead(block)[:n]
        self._reviving |= {engine["engine"]: engine["restarts"] for engine in dead}
        control.restart_engines([engine["engine"] for engine in dead])


class _Seen:
    """The engines of each block, as the controller's status has them.

    Those of a job that was put back into the queue and has come up again are others than those of its earlier life, and
    so are those of a block that was started again.
    """

    def __init__(self, status: Mapping[str, Any], blocks: Iterable[Block]) -> None:
        by_id = {block.id: block for block in blocks}
        self._lives: dict[str, int] = {}
        found: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for host in status["hosts"]:
            self._note(by_id, host["name"])
        for engine in status["engines"]:
            host = engine["host"] or (engine["last_death"] or {}).get("host", "")
            owner = self._note(by_id, host)
            if owner is None or _died_before(engine, by_id[owner[0]].facts.get("started_at", 0.0)):
                continue
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


def _died_before(engine: Mapping[str, Any], at: float) -> bool:
    """Whether an engine is dead since before a time, in seconds since 1970."""
    return bool(engine["state"] == "gone" and time.time() - engine["last_death"]["ago_s"] < at)


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


# Why hosts are gone.


# Times after which a scheduler is asked about a job that has lost a host: it notices later than we do.
_ASK_AFTER_S = (0.7, 2.0, 4.0)
_ANSWER_AFTER_S = 5.0


class Verdicts:
    """Tells every client why hosts are gone, and what engines wait for. Whoever runs the scheduler's commands knows."""

    def __init__(self, cluster: RunningCluster) -> None:
        self._cluster = cluster
        self._hosts: dict[str, Block] = {}
        self._lost: dict[str, tuple[float, Block]] = {}
        """Hosts that are gone without a reason so far, since when, and their blocks."""
        self._n_asked = 0
        self._told: dict[str, str] = {}

    @property
    def are_open(self) -> bool:
        """Whether a reason has yet to be found."""
        return bool(self._lost)

    def look(self, control: ControlLink, status: Mapping[str, Any], blocks: Sequence[Block]) -> None:
        """Compares the hosts with those of the last look, asks the scheduler, and tells what is known."""
        now = time.monotonic()
        if self._cluster.engines_from.is_remote:  # otherwise there is nothing that only a steward knows
            self._tell(control, STEWARD, self._cluster.engines_from.name)
        by_id = {block.id: block for block in blocks}
        hosts = {}
        for host in status["hosts"]:
            if (owner := block_and_life(host["name"], by_id)) is not None:
                hosts[host["name"]] = owner[0]
        gone = dict(self._hosts)
        for engine in status["engines"]:  # hosts that nobody has looked at in time
            death = engine["last_death"] if engine["state"] == "gone" else None
            if death is not None and death["cause"] == "host_gone":
                owner = block_and_life(death["host"], by_id)
                gone |= {death["host"]: owner[0]} if owner is not None else {}
        for name, block in gone.items():
            is_known = name in hosts or name in self._lost or self._told.get(name)
            if not is_known and not block.is_released:
                self._lost[name] = now, block
                self._n_asked = 0
        for name in hosts:
            self._lost.pop(name, None)
            self._tell(control, name, "")  # it is there again
        self._hosts = hosts
        self._ask(now)
        for name, (since, block) in list(self._lost.items()):
            if why := _why_gone(block, now - since, self._n_asked):
                self._tell(control, name, why)
                del self._lost[name]
        self._tell(control, WAITING, waited_for(blocks))

    def _ask(self, now: float) -> None:
        if not self._lost:
            return
        kind = self._cluster.engines_from
        longest_s = now - min(since for since, _ in self._lost.values())
        if self._n_asked < len(_ASK_AFTER_S) and longest_s >= _ASK_AFTER_S[self._n_asked]:
            self._n_asked += 1
            kind.look_now()
        kind.poll(list({block.id: block for _, block in self._lost.values()}.values()))

    def _tell(self, control: ControlLink, about: str, text: str) -> None:
        if self._told.get(about, "") != text:
            control.tell(about, text)
            self._told[about] = text


def _why_gone(block: Block, since_s: float, n_asked: int) -> str:
    """Why a host of a block is gone; '' as long as the scheduler, asked `n_asked` times so far, may still say it."""
    if block.is_over:
        return block.reason
    # Some schedulers show a job that is ending as queued for a moment, so they are asked twice.
    if block.state == "pending" and since_s >= _ASK_AFTER_S[1]:
        return f"it was put back into the queue ({block.reason})"
    if since_s < _ANSWER_AFTER_S or n_asked < len(_ASK_AFTER_S):
        return ""
    return f"the relay there ended, or the connection to it was lost, but {block.id} is still running"


# A steward in a separate process: it outlives the program that started the cluster.


# It leaves the processor to others, except for its main thread: a controller that is started there must not inherit
# that. SIGUSR1, which says that there is a new order, is blocked until there is a handler.
_BOOT = """\
import os, sys, threading
sys.path[:] = sys.argv.pop().split("\\n")
def load():
    os.nice(5)
    import broadleaf.cluster.run_steward
thread = threading.Thread(target=load)
thread.start()
thread.join()
from broadleaf.cluster.run_steward import main
main()
"""
_STOP_GRACE_S = 15.0
_PROCESS_LOOK_EVERY_S = 0.01
_KILLED = "the steward, which kept the cluster's size, was killed: scale the cluster again"


class StewardWarning(UserWarning):
    """Nobody looks after a cluster's jobs."""


class StewardProcess:
    """The steward of a cluster, as other processes see it. There is at most one, whoever started it."""

    def __init__(self, cluster_dir: Path) -> None:
        self._lock = cluster_dir / files.STEWARD_LOCK
        self._state = cluster_dir / files.STEWARD_FILE
        self._log = cluster_dir / files.STEWARD_LOG
        self._order = cluster_dir / files.STEWARD_ORDER
        self._seen = 0

    def have(self, cluster: RunningCluster, order: Order, *, waits: bool = True) -> None:
        """Has the steward follow an order, and starts it if there is none; returns once it does, if it `waits`.

        It ends with its cluster, or with `stop`. Raises `ClusterStartError` with the end of its log.
        """
        number = self.order(order._replace(set_options=cluster.engines_from.options()))
        if not self.is_running:
            self._start(cluster, is_awaited=waits)
        while waits and self._of_state("order", 0) != number:
            if not self.is_running:
                raise ClusterStartError("the steward, which scales the cluster, did not start", self._said())
            time.sleep(_PROCESS_LOOK_EVERY_S)

    def resume(self, cluster: RunningCluster) -> bool:
        """Has the steward follow the order that it had, if there is one; returns at once."""
        if not self._read(self._order):
            return False
        if not self.is_running:
            self._start(cluster)
        return True

    def order(self, order: Order) -> int:
        """Writes an order for the steward, if there is one or will be; returns its number."""
        number = int(self._read(self._order).get("number", 0)) + 1
        write_json(self._order, order.to_dict() | {"number": number})
        if (pid := self.pid()) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        return number

    def _said(self) -> str:
        try:
            return self._log.read_text(errors="replace").strip()
        except FileNotFoundError:
            return ""  # the cluster is just ending

    def _start(self, cluster: RunningCluster, *, is_awaited: bool = False) -> None:
        import subprocess

        descriptor = open_private(self._lock, os.O_RDWR)
        log = files.open_log(self._log)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            child = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, cluster.cluster_file, str(descriptor), "\n".join(search_path())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[descriptor],
                env=os.environ | {"BROADLEAF_CLUSTER_ID": cluster.cluster_id},
                start_new_session=True,  # it is not for the terminal's Ctrl-C
            )
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(child.pid).encode(), 0)
            _children.append(child)
            threading.Thread(target=self._watch, args=(child, cluster, is_awaited), daemon=True).start()
        except BlockingIOError:
            pass  # another process has just started it
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(log)
            os.close(descriptor)

    def _watch(self, child: subprocess.Popen[bytes], cluster: RunningCluster, is_awaited: bool) -> None:
        """Waits for its end, and starts another one if it was killed and has work: its orders are on disk.

        Of one that has failed it warns, unless whoever started it waits for it and says so.
        """
        code = child.wait()
        if not self._read(self._order) or not (cluster.running or files.can_be_resumed(cluster.cluster_dir)):
            return
        if code < 0:
            with contextlib.suppress(OSError):  # the cluster is just ending
                self._start(cluster)
        elif code and not is_awaited:
            kind = cluster.engines_from
            missing = f"a controller that is killed will not be started again: {self._said()}"
            if kind.leaves_jobs:
                missing = (
                    f"the jobs of engine set {kind.name!r} are no longer managed, because its steward has failed: "
                    f"errors will not contain the scheduler's reasons, and lost jobs will not be replaced: "
                    f"{self._said()}"
                )
            warnings.warn(missing, StewardWarning, stacklevel=1)

    @property
    def is_running(self) -> bool:
        """Whether the cluster has one."""
        return self.pid() is not None

    @property
    def scales(self) -> bool:
        """Whether there is one that keeps the cluster's size."""
        return self.is_running and self._read(self._order).get("aim") is not None

    @property
    def why_paused(self) -> str:
        """Why no more blocks are requested; '' if they are. Also why the controller is not started again."""
        if self.is_running:
            return str(self._of_state("why_paused", ""))
        if why := str(self._of_state(files.WHY_GIVEN_UP, "")):
            return why
        return _KILLED if self._read(self._order).get("aim") is not None else ""

    def _of_state(self, name: str, default: object) -> object:
        return self._read(self._state).get(name, default)

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            return read_json(path)
        except ClusterFileError:
            return {}  # it has only just begun

    def stop(self) -> None:
        """Ends it, and returns when it is gone. Does nothing if there is none."""
        for path in (self._order, self._state):  # without orders, nobody starts it again
            path.unlink(missing_ok=True)
        for number in (signal.SIGTERM, signal.SIGKILL):
            give_up_at = time.monotonic() + _STOP_GRACE_S
            if (pid := self.pid()) is None:
                break
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            while self.pid() == pid and time.monotonic() < give_up_at:
                time.sleep(_PROCESS_LOOK_EVERY_S)
        _children[:] = [child for child in _children if child.poll() is None]

    def pid(self) -> int | None:
        """Its process: the one that holds the lock. None if there is none."""
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

    def new_order(self) -> Order | None:
        """In the steward's process: the latest order, if it is new."""
        state = self._read(self._order)
        if state.get("number", 0) == self._seen:
            return None
        self._seen = state.pop("number")
        return Order.from_dict(state)

    def tell(self, why_paused: str) -> None:
        """In the steward's process: publishes its state, and which order it follows, for other processes."""
        write_json(self._state, {"why_paused": why_paused, "order": self._seen})

    def tell_why_given_up(self, why: str) -> None:
        """In the steward's process: publishes, as the last thing, why the controller is not started again."""
        write_json(self._state, {files.WHY_GIVEN_UP: why})


# Those that this process has started, until they are gone.
_children: list[subprocess.Popen[bytes]] = []
