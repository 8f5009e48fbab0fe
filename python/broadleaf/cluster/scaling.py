"""Decides how many engines to request, and which blocks to release: from its inputs alone, without clock or cluster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

# Work that justifies a new engine: the queue should be finished within this time.
GROW_S = 10.0
# Number of consecutive failed starts that pauses scaling.
_FAILED_STARTS = 3


class Aim(NamedTuple):
    """The wanted size: at least `minimum` engines and at most `maximum`, and in between as many as the queue needs."""

    minimum: int
    maximum: int
    idle_s: float | None = None
    """Time that a block must have been idle, in seconds, before it is released; None to release busy ones as well."""
    stateless: bool = False
    """Whether engines may be released that hold what clients have put there."""


class Unit(NamedTuple):
    """A unit that is started and released as a whole: a block, or an engine on the controller's own host."""

    id: str
    n_engines: int
    """Engines that are up or coming; of one that is lost, those that it would bring back."""
    state: Literal["pending", "running", "lost"]
    """'lost': it is over, and can be started again where it was."""
    n_busy: int = 0
    """Engines that have something to do."""
    idle_s: float = 0.0
    """Time for which all its engines have had nothing to do, in seconds."""
    holds_data: bool = False
    lasts_s: float | None = None
    """Time until it takes no new tasks because its job ends, in seconds; None if it does not end by itself."""
    n_dead: int = 0
    """Engines that died while their host lives, and can be started again there."""
    is_late: bool = False
    """Whether it ran, and was put back into the queue: schedulers let such jobs wait longer than new ones."""


class Load(NamedTuple):
    """The work that the cluster has."""

    n_waiting: int
    """Tasks that no engine runs."""
    mean_task_s: float | None
    """How long tasks take, in seconds; None where that is not known."""


class Decision(NamedTuple):
    """The next steps."""

    submit: tuple[int, ...] = ()
    """Engines of each block to ask for."""
    revive: tuple[tuple[str, int], ...] = ()
    """Lost units and those with dead engines, and how many engines to start again there."""
    n_short: int = 0
    """Engines that are wanted and cannot be had."""
    cancel: tuple[str, ...] = ()
    """Pending units that are not needed any more."""
    drain: tuple[str, ...] = ()
    """Running units to release."""
    kept_for_data: tuple[str, ...] = ()
    """Running units that would be released if they did not hold data."""


def wanted_engines(aim: Aim, units: Sequence[Unit], load: Load) -> int:
    """Number of engines that there should be: busy ones, and enough for waiting tasks."""
    extra = load.n_waiting
    if load.mean_task_s is not None:
        extra = min(extra, math.ceil(load.n_waiting * load.mean_task_s / GROW_S))
    n_busy = sum(unit.n_busy for unit in units)
    return max(aim.minimum, min(aim.maximum, n_busy + extra))


def decide(
    aim: Aim,
    units: Sequence[Unit],
    load: Load,
    *,
    block_engines: int | None,
    start_s: float,
    one_at_a_time: bool = True,
) -> Decision:
    """The steps to get as many engines as wanted.

    `units` are those that are not being released. What was lost is brought back where it was, if that is possible. New
    blocks have `block_engines` engines, or as many as are asked for if that is None; 0: there can be none. A block that
    ends within `start_s`, the seconds that a new one takes to start, does not count, so it is replaced before it ends.
    Nor does one that was put back into the queue: it is cancelled when others are up in its place, if it is not first.
    Beyond the minimum, `one_at_a_time` requests no block while another is pending.
    """
    wanted = wanted_engines(aim, units, load)
    there = [unit for unit in units if unit.state != "lost" and not unit.is_late]
    lasting = [unit for unit in there if unit.lasts_s is None or unit.lasts_s > start_s]
    n = sum(unit.n_engines for unit in lasting)
    if n < wanted:
        return _grow(aim, units, lasting, n, wanted, block_engines, one_at_a_time)
    gone, kept = list[str](), list[str]()
    n_running = sum(unit.n_engines for unit in lasting if unit.state == "running")
    for unit in sorted(lasting, key=_order_of_release):
        if n - unit.n_engines < wanted or not unit.n_engines:
            continue
        if unit.state == "running":
            if n_running - unit.n_engines < wanted:
                continue  # what is pending may stay so for long
            if aim.idle_s is not None and (unit.n_busy or unit.idle_s < aim.idle_s):
                continue
            if unit.holds_data and not aim.stateless:
                kept.append(unit.id)
                continue
            n_running -= unit.n_engines
        n -= unit.n_engines
        gone.append(unit.id)
    pending = {unit.id for unit in lasting if unit.state == "pending"}
    late = [unit.id for unit in units if unit.is_late and n_running >= wanted]
    return Decision(
        cancel=(*(one for one in gone if one in pending), *late),
        drain=tuple(one for one in gone if one not in pending),
        kept_for_data=tuple(kept),
    )


def _grow(
    aim: Aim,
    units: Sequence[Unit],
    lasting: Sequence[Unit],
    n: int,
    wanted: int,
    block_engines: int | None,
    one_at_a_time: bool,
) -> Decision:
    revive, submit = list[tuple[str, int]](), list[int]()
    for unit in lasting:
        if n_back := min(unit.n_dead, wanted - n):
            revive.append((unit.id, n_back))
            n += n_back
    # One that has lost its engines, and whose end its scheduler has not told yet, brings none.
    is_pending = any(unit.state == "pending" and unit.n_engines for unit in lasting)
    lost = [unit for unit in units if unit.state == "lost"]
    while n < wanted and (lost or block_engines != 0):
        size = lost[0].n_engines if lost else wanted - n if block_engines is None else block_engines
        if n >= aim.minimum and ((one_at_a_time and is_pending) or n + size > aim.maximum):
            return Decision(submit=tuple(submit), revive=tuple(revive))
        if lost:
            revive.append((lost.pop(0).id, size))
        else:
            submit.append(size)
        is_pending = True
        n += size
    return Decision(submit=tuple(submit), revive=tuple(revive), n_short=max(0, wanted - n))


def _order_of_release(unit: Unit) -> tuple[bool, bool, int, float, int]:
    """Pending ones first, then those without data, longest idle first; among equals the youngest."""
    number = int("".join(filter(str.isdigit, unit.id)) or 0)
    return unit.state == "running", unit.holds_data, unit.n_busy, -unit.idle_s, -number


# Time after a failure until a host is tried again: each time twice as long.
_FIRST_RETRY_S, _LAST_RETRY_S = 0.5, 4.0


class Retries:
    """When to try again to start what was lost, where it was: each place by itself. Times are in seconds."""

    def __init__(self) -> None:
        self._failed: dict[str, tuple[float, float, str]] = {}

    def failed(self, place: str, now: float, reason: str) -> None:
        """It has failed: this is known for the first time."""
        _, waited_s, _ = self._failed.get(place, (0.0, _FIRST_RETRY_S / 2, ""))
        wait_s = min(2 * waited_s, _LAST_RETRY_S)
        self._failed[place] = now + wait_s, wait_s, reason

    def came_up(self, place: str) -> None:
        """It is up: earlier failures count no more."""
        self._failed.pop(place, None)

    def is_due(self, place: str, now: float) -> bool:
        """Whether to try now."""
        return place not in self._failed or now >= self._failed[place][0]

    @property
    def why(self) -> str:
        """Why places have no engines; '' where none has failed since it was last up."""
        return "; ".join(f"{place} will be tried again: {reason}" for place, (_, _, reason) in self._failed.items())


class Starts:
    """A record of block starts: how long they take, and whether to continue."""

    def __init__(self) -> None:
        self.start_s: float = 5.0
        """Time from a submission to engines that are up, in seconds: the longest recent one, or a guess."""
        self._failed = list[str]()

    def came_up(self, took_s: float) -> None:
        """A block's engines are up, this many seconds after it was submitted."""
        self._failed.clear()
        self.start_s = max(took_s, 0.8 * self.start_s)

    def failed(self, reason: str) -> None:
        """A block was refused, or has ended without an engine. Preemption says nothing about the next block."""
        if "preempted" not in reason.lower():
            self._failed.append(reason)

    @property
    def why_paused(self) -> str:
        """Why no more blocks are requested; '' if they are."""
        if len(self._failed) < _FAILED_STARTS:
            return ""
        return f"{len(self._failed)} blocks in a row did not start; the last one: {self._failed[-1]}"
