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
    state: Literal["pending", "running"]
    n_busy: int = 0
    """Engines that have something to do."""
    idle_s: float = 0.0
    """Time for which all its engines have had nothing to do, in seconds."""
    holds_data: bool = False
    lasts_s: float | None = None
    """Time until it takes no new tasks because its job ends, in seconds; None if it does not end by itself."""


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

    `units` are those that are not being released. New blocks have `block_engines` engines, or as many as are asked for.
    A block that ends within `start_s`, the seconds that a new one takes to start, does not count, so it is replaced
    before it ends. Beyond the minimum, `one_at_a_time` requests no block while another is pending.
    """
    wanted = wanted_engines(aim, units, load)
    lasting = [unit for unit in units if unit.lasts_s is None or unit.lasts_s > start_s]
    n = sum(unit.n_engines for unit in lasting)
    if n < wanted:
        return Decision(submit=_blocks(aim, lasting, n, wanted, block_engines, one_at_a_time))
    gone, kept = list[str](), list[str]()
    for unit in sorted(lasting, key=_order_of_release):
        if n - unit.n_engines < wanted or not unit.n_engines:
            continue
        if unit.state == "running":
            if aim.idle_s is not None and (unit.n_busy or unit.idle_s < aim.idle_s):
                continue
            if unit.holds_data and not aim.stateless:
                kept.append(unit.id)
                continue
        n -= unit.n_engines
        gone.append(unit.id)
    pending = {unit.id for unit in lasting if unit.state == "pending"}
    return Decision(
        cancel=tuple(one for one in gone if one in pending),
        drain=tuple(one for one in gone if one not in pending),
        kept_for_data=tuple(kept),
    )


def _blocks(
    aim: Aim, lasting: Sequence[Unit], n: int, wanted: int, block_engines: int | None, one_at_a_time: bool
) -> tuple[int, ...]:
    is_pending = any(unit.state == "pending" for unit in lasting)
    if block_engines is None:
        if one_at_a_time and is_pending and n >= aim.minimum:
            return ()
        return (wanted - n,)
    blocks = list[int]()
    while n < wanted:
        is_beyond_minimum = n >= aim.minimum
        if is_beyond_minimum and (n + block_engines > aim.maximum or (one_at_a_time and (is_pending or blocks))):
            break
        blocks.append(block_engines)
        n += block_engines
    return tuple(blocks)


def _order_of_release(unit: Unit) -> tuple[bool, bool, int, float, int]:
    """Pending ones first, then those without data, longest idle first; among equals the youngest."""
    number = int("".join(filter(str.isdigit, unit.id)) or 0)
    return unit.state == "running", unit.holds_data, unit.n_busy, -unit.idle_s, -number


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
        return f"{len(self._failed)} blocks in a row did not start, the last one because: {self._failed[-1]}"
