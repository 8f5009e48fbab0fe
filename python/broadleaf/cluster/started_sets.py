"""The engines of a cluster that were started together, under one id, and their blocks."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from broadleaf.cluster.control import ControlLink, RunningCluster, Targets
from broadleaf.cluster.engine_sets.base import Block, BlockRequest, block_and_life
from broadleaf.errors import ClusterStartError
from broadleaf.requests import WaitingLine, deaths_at_start, died
from broadleaf.text import warn_once

_LOOK_EVERY_S = 0.02
# The same while engines announce themselves: only failures have to be looked for.
_LOOK_FOR_FAILURES_S = 0.1
# Programs that hold blocks end a moment after their relays. Short, because somebody waits for this.
_ENDING_S = 5.0
# How long a scheduler may take to accept a job.
_SUBMITTING_S = 60.0


class EnginesMissingWarning(UserWarning):
    """Some hosts did not come up, and the cluster runs without them."""


class PendingBlockWarning(UserWarning):
    """A block waits for something that is up to the site, perhaps for long."""


class StartedSet:
    """Engines of one cluster that were started together."""

    def __init__(
        self, cluster: RunningCluster, engine_set_id: str, engine_ids: Sequence[int], blocks: list[Block]
    ) -> None:
        self.cluster = cluster
        self.engine_set_id = engine_set_id
        self.blocks = blocks
        """What brought them; none for engines of the controller's own host."""
        self._engine_ids = list(engine_ids)

    @property
    def engine_ids(self) -> list[int]:
        """Ids of its engines; on other hosts, only those that are up."""
        if not self.blocks:
            return list(self._engine_ids)
        with self.cluster.control() as control:
            return [engine for engine, _, _, host in control.engines() if _block_of(host, self.blocks) is not None]

    @property
    def n(self) -> int:
        """Number of its engines."""
        return len(self.engine_ids)

    def leave_out(self, engine_ids: Iterable[int]) -> None:
        """Records that these engines were stopped for good."""
        gone = set(engine_ids)
        self._engine_ids = [engine for engine in self._engine_ids if engine not in gone]

    def get_output(self) -> str:
        """The output of its blocks and engines outside of tasks: their logs, one after the other."""
        if self.blocks:
            return "".join(self.cluster.engines_from.log(block) for block in self.blocks)
        logs = [self.cluster.log_path(engine) for engine in self.engine_ids]
        return "".join(log.read_text(errors="replace") for log in logs if log.exists())

    def signal(self, signum: int) -> None:
        """Sends a signal to its engines."""
        self.cluster.signal_engines_sync(signum, self.engine_set_id)

    def stop(self) -> None:
        """Stops its engines for good."""
        self.cluster.stop_engines_sync(self.engine_set_id)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"engine_ids": self._engine_ids, "blocks": [dataclasses.asdict(block) for block in self.blocks]}

    def __repr__(self) -> str:
        return f"<StartedSet({self.engine_set_id!r}, engines={self.engine_ids})>"


class StartedSets:
    """The engine sets of one cluster."""

    def __init__(self, cluster: RunningCluster) -> None:
        self._cluster = cluster
        self._sets: dict[str, StartedSet] = {}
        self._up: set[str] = set()
        """Ids of the blocks that have been up."""
        self.submitting_since: float | None = None
        """When a submission began whose jobs are not recorded yet, in seconds since 1970. It may have been cut
        short."""

    def living(self) -> dict[str, StartedSet]:
        """The sets that have engines, by id."""
        return dict(self._sets)

    def blocks(self) -> list[Block]:
        """The blocks of all sets."""
        return [block for one in self._sets.values() for block in one.blocks]

    def look_at(self, status: Mapping[str, Any], *, asks: bool) -> list[Block]:
        """The blocks of all sets, as the controller's status has them, and as their scheduler says if it `asks`."""
        blocks = self.blocks()
        if asks:
            self._cluster.engines_from.poll(blocks)
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

    def block_of(self, host: str) -> Block | None:
        """The block whose relay is called `host`."""
        return _block_of(host, self.blocks())

    def spare_blocks(self) -> list[Block]:
        """Blocks that can be started although there has been none of them."""
        kind = self._cluster.engines_from
        return kind.spare_blocks(self.request(0, self._next_block()), self.blocks()) if kind.keeps_hosts else []

    def _unused(self, n: int) -> list[Block]:
        """Blocks on given hosts that have no engines, enough for `n` of them; all where that is 0."""
        kind, blocks = self._cluster.engines_from, self.blocks()
        if not kind.keeps_hosts or not blocks:
            return []
        kind.poll(blocks)
        chosen, n_chosen = list[Block](), 0
        for block in [*(block for block in blocks if block.is_over), *self.spare_blocks()]:
            if not n or n_chosen < n:
                chosen.append(block)
                n_chosen += block.n_engines or 1
        return chosen

    def _next_block(self) -> int:
        """A number that none of the blocks has, for sets that number theirs."""
        blocks = self.blocks()
        found = (re.search(r"\d+$", block.id) for block in blocks)
        return max([len(blocks), *(int(number[0]) + 1 for number in found if number)])

    def start_again(self, block: Block) -> None:
        """Starts a block that is over, or a spare one."""
        block.draining = block.is_released = False
        block.facts["started_at"] = time.time()
        self._cluster.engines_from.start_again(block, self.request(block.n_engines or 0))
        if block not in self.blocks():
            self._add(_new_id(), [], [block])

    def leave_out(self, engine_ids: Iterable[int]) -> None:
        """Records that these engines were stopped for good; sets without engines are forgotten."""
        for one in self._sets.values():
            one.leave_out(engine_ids)
        self._sets = {set_id: one for set_id, one in self._sets.items() if one.blocks or one.n}

    def started(self, n_engines: int) -> None:
        """Records the engines on the controller's host with which a cluster was started."""
        self._sets = {}
        self._up = set()
        if n_engines:
            self._add(_new_id(), range(n_engines), [])

    def start(self, n: int, set_id: str | None) -> str:
        """Starts `n` engines as a set; returns its id. Raises ValueError for an id in use.

        On other hosts, 0 means as many as the engine set's options say.
        """
        set_id = _new_id() if set_id is None else set_id
        if set_id in self._sets:
            raise ValueError(f"engine set {set_id!r} already exists")
        if self._cluster.engines_from.is_remote:
            unused = self._unused(n)
            for one in self._sets.values():
                one.blocks = [block for block in one.blocks if block not in unused]
            self._add(set_id, [], unused or self._submit(n))
            self.submitting_since = None
            for block in unused:
                self.start_again(block)
            return set_id
        with self._cluster.control() as control:
            known = {engine["engine"] for engine in control.status()["engines"]}
            control.add_engines(n)
            now = {engine["engine"] for engine in control.status()["engines"]}
        self._add(set_id, sorted(now - known), [])
        return set_id

    def _submit(self, n: int) -> list[Block]:
        kind = self._cluster.engines_from
        if kind.leaves_jobs:
            self.find_unrecorded()
            # If this process is killed or interrupted now, others know that there may be a job.
            self.submitting_since = time.time()
            self._cluster.write_cluster_file()
        try:
            return kind.submit(self.request(n, self._next_block()))
        except ClusterStartError:
            self.submitting_since = None
            raise

    def find_unrecorded(self) -> None:
        """Records the job of a submission that was cut short. Raises `BroadleafError` if its scheduler does not
        answer."""
        if self.submitting_since is None:
            return
        known = {block.id for block in self.blocks()}
        found = [b for b in self._cluster.engines_from.jobs_of(self.request(0)) if b.id not in known]
        if found:
            self._add(_new_id(), [], found)
        # The program that submits may have outlived the one that started it.
        if found or time.time() - self.submitting_since > _SUBMITTING_S:
            self.submitting_since = None

    def request(self, n: int, first_block: int = 0) -> BlockRequest:
        """The request to the cluster's engine set to start `n` engines."""
        cluster = self._cluster
        path = Path(cluster.relay_file)
        connection = json.loads(path.read_text()) if path.exists() else {}
        return BlockRequest(cluster.cluster_id, cluster.cluster_dir, n or None, connection, first_block)

    def stop(self, targets: Targets) -> None:
        """Stops engines for good, and forgets sets without engines."""
        every = targets is None or targets == "all"
        chosen = list(self._sets) if every else [targets] if isinstance(targets, str) else []
        ended = [block for set_id in chosen if set_id in self._sets for block in self._sets[set_id].blocks]
        resolved = self.resolve(targets)
        with self._cluster.control() as control:
            control.stop_engines(resolved)
        if ended:
            self._cluster.engines_from.cancel(ended)
        if every:
            self._sets = {}
            return
        stopped = [resolved] if isinstance(resolved, int) else [one for one in resolved or () if isinstance(one, int)]
        self.leave_out(stopped)
        self._sets = {
            set_id: one for set_id, one in self._sets.items() if (set_id not in chosen if one.blocks else one.n)
        }

    def restart(self, targets: Targets) -> None:
        """Restarts engines with the same ids; for engines that only end together, all of a block."""
        kind = self._cluster.engines_from
        if not kind.restarts_blocks:
            with self._cluster.control() as control:
                control.restart_engines(self.resolve(targets))
            if kind.keeps_hosts:
                self._restart_lost(targets)
            return
        chosen = self._blocks_of(targets)
        with self._cluster.control() as control:
            for block in chosen:
                here = [engine for engine, host in _hosts_of(control).items() if _block_of(host, [block])]
                control.stop_engines([engine for engine, *_ in control.engines() if engine in here])
        kind.cancel(chosen)
        self._wait_until_gone(chosen)
        for block in chosen:
            kind.start_again(block, self.request(block.n_engines or 0))

    def _restart_lost(self, targets: Targets) -> None:
        """Starts the blocks of hosts that were lost."""
        blocks = self._blocks_of(targets)
        self._cluster.engines_from.poll(blocks)
        for block in blocks:
            if block.state == "failed":
                self.start_again(block)

    def _blocks_of(self, targets: Targets) -> list[Block]:
        """The blocks of a set's engines. Raises KeyError for an unknown set."""
        if targets is None or targets == "all":
            return self.blocks()
        if isinstance(targets, str):
            self.resolve(targets)
            return list(self._sets[targets].blocks)
        wanted = {targets} if isinstance(targets, int) else set(targets)
        with self._cluster.control() as control:
            hosts = _hosts_of(control)
        blocks = self.blocks()
        found = [_block_of(hosts[engine], blocks) for engine in sorted(wanted & hosts.keys())]
        return list({block.id: block for block in found if block is not None}.values())

    def _wait_until_gone(self, blocks: Sequence[Block]) -> None:
        def is_left(entry: dict[str, Any]) -> bool:
            return entry["state"] != "gone" and _block_of(entry["host"], blocks) is not None

        with self._cluster.control() as control:
            while any(map(is_left, control.status()["engines"])):
                time.sleep(_LOOK_EVERY_S)

    def cancel(self) -> None:
        """Ends all blocks of a cluster whose controller has stopped. Raises `BroadleafError` if their scheduler does
        not."""
        self.find_unrecorded()
        if blocks := self.blocks():
            self._cluster.engines_from.cancel(blocks)
        for block in blocks:
            if not block.is_over:
                block.state, block.reason = "ended", "its cluster has stopped"

    def resolve(self, targets: Targets) -> Targets:
        """`targets` with a set's id replaced by its engines. Raises KeyError for an unknown set."""
        if not isinstance(targets, str) or targets == "all":
            return targets
        if targets not in self._sets:
            known = ", ".join(self._sets) or "none"
            raise KeyError(f"unknown engine set {targets!r}; known: {known}")
        return self._sets[targets].engine_ids

    def wait_for_blocks(self, start_timeout_s: float) -> int:
        """Waits until every block has all its engines, or has failed; returns how many engines are up.

        A block has `start_timeout_s` from the moment it runs; the set's `queue_timeout_s` limits its time in the queue.
        Raises `ClusterStartError` with the reason of each block that failed, unless there are at least `min_engines`
        without them: then it warns.
        """
        kind, blocks = self._cluster.engines_from, self.blocks()
        progress = {block.id: _Progress(block) for block in blocks}
        with self._cluster.control() as control, contextlib.closing(WaitingLine()) as line:
            # Blocks that were up are being restarted: their engines' ends do not count.
            ended = {_life(entry) for entry in died(control.status()["engines"]) if self._was_up(entry)}
            while True:
                engines, status = control.engines(), control.status()
                hosts = [str(host["name"]) for host in status["hosts"]]
                dead = [entry for entry in died(status["engines"]) if _life(entry) not in ended]
                kind.poll(blocks)
                for warning in {block.warning for block in blocks} - {""}:
                    limit = f"it may wait for {kind.queue_timeout_s:g} s (queue_timeout_s)"
                    warn_once(f"{warning}; {limit}", PendingBlockWarning)
                line.tell(waited_for(blocks))
                going = [
                    block
                    for block in blocks
                    if not progress[block.id].is_settled(
                        [host for host in hosts if _block_of(host, [block])],
                        sum(_block_of(host, [block]) is not None for *_, host in engines),
                        [entry for entry in dead if _block_of(entry["last_death"]["host"], [block])],
                        start_timeout_s,
                        kind.queue_timeout_s,
                        partial(kind.log, block),
                        partial(kind.why_silent, block),
                    )
                ]
                if not going:
                    break
                missing = [progress[block.id].missing for block in going]
                if None in missing:
                    time.sleep(_LOOK_EVERY_S)
                else:
                    control.wait_until_up(len(engines) + sum(n or 0 for n in missing), _LOOK_FOR_FAILURES_S)
        self._up.update(block.id for block in blocks if not progress[block.id].failure)
        failures = [f"{block.id}: {said}" for block in blocks if (said := progress[block.id].failure)]
        n_up = sum(_block_of(host, blocks) is not None for *_, host in engines)
        if failures:
            message = f"{len(failures)} of {len(blocks)} blocks of {kind.name} did not start; {n_up} engines are up:\n"
            message += "\n".join(failures)
            if not kind.min_engines or n_up < kind.min_engines:
                raise ClusterStartError(message)
            warnings.warn(message, EnginesMissingWarning, stacklevel=3)
        return n_up

    def _was_up(self, dead: dict[str, Any]) -> bool:
        """Whether a dead engine was up, or others of its block were."""
        block = self.block_of(dead["last_death"]["host"])
        return block is not None and block.id in self._up

    def to_dict(self) -> dict[str, Any]:
        """The sets by id, ready for JSON."""
        return {set_id: one.to_dict() for set_id, one in self._sets.items()}

    def from_dict(self, state: dict[str, Any], submitting_since: float | None) -> None:
        """Restores what `to_dict` returned, and `submitting_since`."""
        self.submitting_since = submitting_since
        known = {block.id: block for block in self.blocks()}
        self._sets = {}
        for set_id, one in state.items():
            blocks = [Block(**block) for block in one["blocks"]]
            # Who holds a block sees what becomes of it.
            for block in blocks:
                vars(known.setdefault(block.id, block)).update(vars(block))
            self._add(set_id, one["engine_ids"], [known[block.id] for block in blocks])
        # Whoever hears of them from another process cannot know.
        self._up = {block.id for block in self.blocks()}
        if blocks := self.blocks():
            self._cluster.engines_from.adopt(blocks)

    def _add(self, set_id: str, engine_ids: Sequence[int], blocks: list[Block]) -> None:
        self._sets[set_id] = StartedSet(self._cluster, set_id, engine_ids, blocks)


class _Progress:
    """How far a block has started."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._since = time.monotonic()
        self._was = block.state
        self.failure = ""
        """Why it did not come up."""
        self.missing: int | None = None
        """Engines that are not up yet; None where the number of all is not known."""

    def is_settled(
        self,
        hosts: Sequence[str],
        n_up: int,
        dead: list[dict[str, Any]],
        start_timeout_s: float,
        queue_timeout_s: float,
        log: Callable[[], str],
        why_silent: Callable[[], str],
    ) -> bool:
        """Whether it is up or has failed, given its hosts and engines that have joined, and engines that died first."""
        block = self._block
        if self.failure:
            return True
        if hosts and block.state == "pending":
            block.state, block.reason = "running", ""
        if block.state != self._was:
            self._was, self._since = block.state, time.monotonic()
        expected = block.n_engines
        if expected is None and block.n_hosts is not None and len(hosts) == block.n_hosts:
            expected = _told_engines(log(), len(hosts))
        self.missing = expected - n_up if expected is not None else None
        if self.missing is not None and self.missing <= 0:
            return True
        waited_s = time.monotonic() - self._since
        if block.is_over:
            self.failure = with_log(block.reason, log() or why_silent())
        elif expected is not None and dead and n_up + len(dead) >= expected:
            self.failure = str(deaths_at_start(dead, n_up, expected))
        elif block.state == "pending" and waited_s > queue_timeout_s:
            self.failure = f"{block.reason or 'it is pending'}, after {queue_timeout_s:g} s"
        elif block.state == "running" and waited_s > start_timeout_s:
            of = f" of {expected}" if expected is not None else ""
            is_open = expected is None and block.n_hosts is None
            unknown = "; how many there will be is not known: specify n" if is_open else ""
            self.failure = with_log(f"{n_up}{of} engines came up within {start_timeout_s:g} s{unknown}", log())
        return bool(self.failure)


def waited_for(blocks: Sequence[Block]) -> str:
    """What blocks are pending for, in one line; '' if none is, or if that is not known yet."""
    reasons = [block.reason for block in blocks if block.state == "pending" and ": " in block.reason]
    return reasons[0] + (f"; and {len(reasons) - 1} more" if len(reasons) > 1 else "") if reasons else ""


def _told_engines(log: str, n_hosts: int) -> int | None:
    """Number of engines in the block, as its relays reported in its log; None until all have."""
    told = [int(line.split()[-2]) for line in log.splitlines() if line.startswith("broadleaf: host ")]
    return sum(told) if len(told) >= n_hosts else None


def with_log(reason: str, log: str) -> str:
    """Why a block is over, and the end of what it has written."""
    lines = [line for line in log.strip().splitlines()[-12:] if line.strip() and line.strip() not in reason]
    return "\n  | ".join([reason, *lines])


def _life(dead: dict[str, Any]) -> tuple[int, int]:
    """Engine and process of a dead engine."""
    return dead["engine"], dead["last_death"]["pid"]


def _block_of(host: str, blocks: Sequence[Block]) -> Block | None:
    """The block whose relay is called `host`."""
    found = block_and_life(host, {block.id: block for block in blocks})
    return None if found is None else found[0]


def _hosts_of(control: ControlLink) -> dict[int, str]:
    """The host of each engine, or its last host if it died."""
    hosts = {entry["engine"]: death["host"] for entry in control.status()["engines"] if (death := entry["last_death"])}
    return hosts | {engine: host for engine, _, _, host in control.engines()}


def _new_id() -> str:
    return f"{int(time.time())}-{os.urandom(2).hex()}"


def why_gone(cluster: RunningCluster, host: str) -> str:
    """Why the block of a host has ended, for a set that asks no scheduler; '' if it has not, or nobody knows."""
    block = _block_of(host, [block for one in cluster.engines.values() for block in one.blocks])
    if block is None:
        return ""
    give_up_at = time.monotonic() + (0 if block.facts.get("asked") else _ENDING_S)
    cluster.engines_from.look_now()
    cluster.engines_from.poll([block])
    while block.state == "running" and time.monotonic() < give_up_at:
        time.sleep(_LOOK_FOR_FAILURES_S)
        cluster.engines_from.poll([block])
    if block.state == "pending":
        return f"it was put back into the queue ({block.reason})"
    block.facts["asked"] = True  # one host is gone but its block is not: nobody waits for that again
    return block.reason if block.is_over else ""
