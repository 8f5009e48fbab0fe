"""Decides which of two commands is faster, and by how much: pairs are made until that is known or the time is up."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from broadleaf.lab.analysis.pairs.intervals import Interval, fails_more_p, trimmed_interval
from broadleaf.lab.analysis.verdict import word_for
from broadleaf.lab.comparisons.versus.commands import Clock, Commands, Pair, processors
from broadleaf.lab.errors import RunError

FIRST_LOOK = 10
_GROWTH = 1.4
_EARLY_ALPHA, _FINAL_ALPHA = 0.0005, 0.04
"""Looks before the end each spend little of the 5 % by which a verdict may be wrong (Haybittle and Peto), twenty of
them 1 %; the look at the end spends the rest, so waiting for it costs next to nothing."""
_MOST_EARLY_LOOKS = 20
_MOST_PAIRS = FIRST_LOOK * 1000
_HOPELESS = 5
EXIT_CODES = {"faster": 0, "no practical difference": 0, "slower": 1, "fails more": 1, "undecided": 2}


@dataclass(frozen=True, slots=True)
class Duel:
    """What was found. Ratios are time of B over time of A: below 1, B is faster. `clock` says which time."""

    a: str
    b: str
    word: str
    interval: Interval
    pairs: tuple[Pair, ...]
    clock: Clock
    side_by_side: bool
    elapsed_s: float
    rope_pct: float

    @property
    def exit_code(self) -> int:
        """0 B is faster or makes no practical difference, 1 B is slower or fails more, 2 undecided."""
        return EXIT_CODES[self.word]

    @property
    def failed(self) -> tuple[int, int]:
        """How many runs of A, and of B, failed."""
        return sum(p.a_s is None for p in self.pairs), sum(p.b_s is None for p in self.pairs)

    @property
    def medians_s(self) -> tuple[float, float]:
        """The median time of A's runs, and of B's, that ended well."""
        a, b = (
            [t for t in times if t is not None] for times in zip(*((p.a_s, p.b_s) for p in self.pairs), strict=True)
        )
        return statistics.median(a), statistics.median(b)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The verdict first. Failures come before speed."""
        it = self.interval
        change = abs(100 * math.expm1(it.estimate))
        low, high = (100 * math.expm1(x) for x in (it.low, it.high))
        size = f"{change:.2f} % {'less' if it.estimate < 0 else 'more'} time, 95 % interval {low:+.2f} to {high:+.2f} %"
        verdict = {
            "faster": f"B is faster than A: {size}.",
            "slower": f"B is slower than A: {size}.",
            "no practical difference": f"No practical difference: B takes {size}, within {self.rope_pct:g} %.",
        }.get(speed_word(it, self.rope_pct), f"Undecided: B takes {size}; within {self.rope_pct:g} % does not matter.")
        said = []
        failed_a, failed_b = self.failed
        if failed_a or failed_b:
            why = next((p.b_error or p.a_error for p in self.pairs if p.b_error or p.a_error), "")
            head = "B fails more than A: " if self.word == "fails more" else "Runs failed: "
            said.append(f"{head}{failed_b} of {len(self.pairs)} runs of B and {failed_a} of A ({why}).")
            verdict = f"Where both ended well: {verdict}"
        how = "side by side on one processor" if self.side_by_side else "one after the other"
        which = "processor time" if self.clock == "cpu" else "time by the clock"
        a_s, b_s = self.medians_s
        return (*said, verdict, f"{it.n} pairs {how}; {which}, median {_seconds(a_s)} for A and {_seconds(b_s)} for B.")

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        it = self.interval
        return {
            "a": self.a,
            "b": self.b,
            "verdict": self.word,
            "exit_code": self.exit_code,
            "ratio": math.exp(it.estimate),
            "ratio_low": math.exp(it.low),
            "ratio_high": math.exp(it.high),
            "rope_pct": self.rope_pct,
            "clock": self.clock,
            "side_by_side": self.side_by_side,
            "elapsed_s": self.elapsed_s,
            "failed": {"a": self.failed[0], "b": self.failed[1]},
            "sentences": list(self.sentences),
            "pairs_s": [[p.a_s, p.b_s] for p in self.pairs],
        }


def duel(
    commands: Commands,
    *,
    rope_pct: float = 1.0,
    budget_s: float = 120.0,
    max_pairs: int = _MOST_PAIRS,
    on_look: Callable[[Interval, int, float], None] | None = None,
) -> Duel:
    """Compares the commands until it is decided, `budget_s` is spent or `max_pairs` are made. Side by side, every
    processor this process may use has pairs of its own. `on_look` gets the interval so far, the pairs and the seconds
    left. RunError if a command fails from the start, or too few pairs could be made."""
    begin = time.monotonic()
    commands.look()
    table = _Table(max_pairs, begin + budget_s)
    places: Sequence[int | None] = processors() if commands.side_by_side else (None,)
    with ThreadPoolExecutor(len(places)) as pool:
        made = [pool.submit(table.fill, commands, cpu) for cpu in places]
        look, looks = FIRST_LOOK, 0
        try:
            while table.wait(look):
                interval = trimmed_interval(table.ratios(), _EARLY_ALPHA)
                if on_look is not None:
                    on_look(interval, interval.n, table.left_s)
                if speed_word(interval, rope_pct) != "undecided" and not _failing(table.pairs()):
                    break
                looks += 1
                look = max(look + 1, math.ceil(look * _GROWTH)) if looks < _MOST_EARLY_LOOKS else max_pairs + 1
        finally:
            table.stop()
        for future in made:
            future.result()
    pairs, ratios = table.pairs(), table.ratios()
    if len(ratios) < FIRST_LOOK // 2:
        failed = [p for p in pairs if p.a_error or p.b_error]
        why = f" {len(failed)} failed: {failed[-1].a_error or failed[-1].b_error}" if failed else ""
        raise RunError(
            f"only {len(ratios)} pairs ended well in {budget_s:g} s, {FIRST_LOOK // 2} are needed.{why} Allow more "
            f"time with --budget, or make the commands do less."
        )
    # The interval told is the one that looking often allows for.
    interval = trimmed_interval(ratios, _FINAL_ALPHA)
    word = speed_word(interval, rope_pct)
    if _failing(pairs):
        word = "fails more"
    elif word == "faster" and sum(p.b_s is None for p in pairs) > sum(p.a_s is None for p in pairs):
        word = "undecided"
    return Duel(
        *commands.texts, word, interval, tuple(pairs), commands.clock, commands.side_by_side,
        time.monotonic() - begin, rope_pct,
    )  # fmt: skip


def speed_word(interval: Interval, rope_pct: float) -> str:
    """`faster`, `slower`, `no practical difference` or `undecided`, of B."""
    word = word_for(interval.low, interval.high, interval.estimate, rope_pct)
    return {"helps": "faster", "hinders": "slower", "unknown": "undecided"}.get(word, word)


def _failing(pairs: Sequence[Pair]) -> bool:
    """Whether it is proven, at 5 %, that B fails more than A."""
    only_a = sum(p.a_s is None and p.b_s is not None for p in pairs)
    only_b = sum(p.b_s is None and p.a_s is not None for p in pairs)
    return fails_more_p(only_a, only_b) <= 0.05


class _Table:
    """The pairs made so far, by several threads."""

    def __init__(self, most: int, deadline: float) -> None:
        self._pairs: list[Pair] = []
        self._changed = threading.Condition()
        self._most, self._deadline = most, deadline
        self._stopped = False
        self._at_work = 0

    @property
    def left_s(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def fill(self, commands: Commands, cpu: int | None) -> None:
        """Makes pairs until there are enough. A pair that would end after the time is up is not begun."""
        longest = 0.0
        with self._changed:
            self._at_work += 1
        try:
            while not self._over(longest):
                begin = time.monotonic()
                made = commands.pair(cpu)
                longest = max(longest, time.monotonic() - begin)
                with self._changed:
                    self._pairs.append(made)
                    self._changed.notify_all()
        except BaseException:
            self.stop()
            raise
        finally:
            with self._changed:
                self._at_work -= 1
                self._changed.notify_all()

    def _over(self, longest: float) -> bool:
        with self._changed:
            ended = [p for p in self._pairs if p.a_s is not None and p.b_s is not None]
            hopeless = len(self._pairs) >= 2 * _HOPELESS and len(ended) < _HOPELESS
            return self._stopped or hopeless or len(self._pairs) >= self._most or self.left_s <= longest

    def wait(self, pairs: int) -> bool:
        """Until so many pairs ended well; whether they did before the work was over."""
        with self._changed:
            # A thread of the pool that has not begun yet is no end of the work: it begins within the wait.
            while self._ended() < pairs:
                self._changed.wait(0.2)
                if self._stopped or (self._pairs and not self._at_work) or (self.left_s <= 0 and not self._at_work):
                    return self._ended() >= pairs
            return not self._stopped

    def _ended(self) -> int:
        return sum(p.a_s is not None and p.b_s is not None for p in self._pairs)

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def pairs(self) -> list[Pair]:
        with self._changed:
            return list(self._pairs)

    def ratios(self) -> list[float]:
        """The log ratios, B over A, of pairs of which both ended well."""
        return [math.log(p.b_s / p.a_s) for p in self.pairs() if p.a_s is not None and p.b_s is not None]


def _seconds(value: float) -> str:
    return f"{1000 * value:,.3g} ms" if value < 1 else f"{value:,.4g} s"
