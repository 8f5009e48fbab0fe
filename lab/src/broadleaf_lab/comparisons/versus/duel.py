"""Decides which of two is faster, and by how much: makes pairs of runs until that is known or the time is up."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from broadleaf_lab.analysis.pairs.intervals import Interval, fails_more_p, trimmed_interval
from broadleaf_lab.analysis.verdict import word_for
from broadleaf_lab.comparisons.exit_codes import HARM, NO_HARM, UNDECIDED
from broadleaf_lab.comparisons.versus.commands import Clock, Pair, processors
from broadleaf_lab.errors import RunError

FIRST_LOOK = 10
_GROWTH = 1.4
_EARLY_ALPHA, _FINAL_ALPHA = 0.0005, 0.04
"""Looks before the end each spend little of the 5 % by which a verdict may be wrong (Haybittle and Peto), twenty of
them 1 %; the look at the end spends the rest, so waiting for it costs next to nothing."""
_MAX_EARLY_LOOKS = 20
_MAX_PAIRS = FIRST_LOOK * 1000
_HOPELESS = 5
EXIT_CODES = {
    "faster": NO_HARM,
    "no practical difference": NO_HARM,
    "slower": HARM,
    "fails more": HARM,
    "undecided": UNDECIDED,
}


class Contest(Protocol):
    """The two sides of a comparison, and how a pair of runs of them is made. `clock` and `side_by_side` are valid after
    `look`.
    """

    texts: tuple[str, str]
    clock: Clock
    side_by_side: bool

    def look(self) -> None:
        """Runs each a few times and chooses how to measure."""

    def pair(self, cpu: int | None = None) -> Pair:
        """Runs both; on the processor `cpu` if they run side by side."""
        ...


@dataclass(frozen=True, slots=True, repr=False)
class Duel:
    """The result. Ratios are time of B over time of A: below 1, B is faster. `clock` says which time."""

    a: str
    b: str
    word: str
    interval: Interval
    pairs: tuple[Pair, ...]
    clock: Clock
    side_by_side: bool
    elapsed_s: float
    rope_pct: float

    def __str__(self) -> str:
        return " ".join(self.sentences)

    def __repr__(self) -> str:
        # Shown by a failed `assert` in a test; the pairs would fill a page.
        return f"<Duel: {self}>"

    @property
    def faster(self) -> bool:
        """Whether it is proven that B is faster, by more than the practical difference."""
        return self.word == "faster"

    @property
    def slower(self) -> bool:
        """Whether it is proven that B is slower, or fails more."""
        return EXIT_CODES[self.word] == HARM

    @property
    def no_slower(self) -> bool:
        """Whether it is proven that B is faster or makes no practical difference. If undecided, neither this nor
        `slower` is true.
        """
        return EXIT_CODES[self.word] == NO_HARM

    @property
    def exit_code(self) -> int:
        """0 B is faster or makes no practical difference, 1 B is slower or fails more, 4 undecided."""
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
        }.get(
            speed_word(it, self.rope_pct), f"Undecided: B takes {size}; less than {self.rope_pct:g} % does not matter."
        )
        said = []
        failed_a, failed_b = self.failed
        if failed_a or failed_b:
            why = next((p.b_error or p.a_error for p in self.pairs if p.b_error or p.a_error), "")
            head = "B fails more than A: " if self.word == "fails more" else "Runs failed: "
            said.append(f"{head}{failed_b} of {len(self.pairs)} runs of B and {failed_a} of A ({why}).")
            verdict = f"Where both succeeded: {verdict}"
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
    contest: Contest,
    *,
    rope_pct: float = 1.0,
    budget_s: float = 120.0,
    max_pairs: int = _MAX_PAIRS,
    on_look: Callable[[Interval, int, float], None] | None = None,
) -> Duel:
    """Compares both until it is decided, `budget_s` is spent or `max_pairs` are made. `on_look` gets the interval so
    far, the number of pairs and the seconds left. Raises RunError as `measured` does.
    """
    begin = time.monotonic()

    def decided(interval: Interval, pairs: Sequence[Pair]) -> bool:
        return _word(interval, pairs, rope_pct) not in ("undecided", "fails more")

    interval, pairs = measured(contest, decided, budget_s=budget_s, max_pairs=max_pairs, on_look=on_look)
    return Duel(
        *contest.texts, _word(interval, pairs, rope_pct), interval, tuple(pairs), contest.clock, contest.side_by_side,
        time.monotonic() - begin, rope_pct,
    )  # fmt: skip


def measured(
    contest: Contest,
    decided: Callable[[Interval, Sequence[Pair]], bool],
    *,
    budget_s: float,
    max_pairs: int,
    on_look: Callable[[Interval, int, float], None] | None = None,
) -> tuple[Interval, list[Pair]]:
    """Pairs of runs until an interval is `decided`, `budget_s` is spent or `max_pairs` are made, and the interval that
    is valid despite repeated looks. Side by side, every processor that this process may use runs pairs of its own.
    Raises RunError if a side fails from the start, or too few pairs could be made.
    """
    begin = time.monotonic()
    contest.look()
    table = _Table(max_pairs, begin + budget_s)
    with _making(table, contest) as have_made:
        for look in looks(max_pairs):
            if not have_made(look):
                break
            interval = trimmed_interval(table.ratios(), _EARLY_ALPHA)
            if on_look is not None:
                on_look(interval, interval.n, table.left_s)
            if decided(interval, table.pairs()):
                break
    pairs, ratios = table.pairs(), table.ratios()
    if len(ratios) < FIRST_LOOK // 2:
        failed = [p for p in pairs if p.a_error or p.b_error]
        why = f" {len(failed)} failed: {failed[-1].a_error or failed[-1].b_error}" if failed else ""
        raise RunError(
            f"only {len(ratios)} pairs finished successfully in {budget_s:g} s, but {FIRST_LOOK // 2} are needed.{why} "
            "Allow more time (--budget, budget_s), or let each run do less."
        )
    return trimmed_interval(ratios, _FINAL_ALPHA), pairs


def looks(max_pairs: int) -> Iterator[int]:
    """After how many pairs it is checked whether they decide: early ones, and one past the end."""
    look = FIRST_LOOK
    for _ in range(_MAX_EARLY_LOOKS):
        yield look
        look = max(look + 1, math.ceil(look * _GROWTH))
    yield max_pairs + 1


def speed_word(interval: Interval, rope_pct: float) -> str:
    """`faster`, `slower`, `no practical difference` or `undecided`, about B."""
    word = word_for(interval.low, interval.high, interval.estimate, rope_pct)
    return {"helps": "faster", "hinders": "slower", "unknown": "undecided"}.get(word, word)


def _word(interval: Interval, pairs: Sequence[Pair], rope_pct: float) -> str:
    """The verdict on what was measured so far. If B is faster when it works but failed more often, the result is
    undecided until it is proven to fail more, or shown not to.
    """
    if _failing(pairs):
        return "fails more"
    word = speed_word(interval, rope_pct)
    failed_more = sum(p.b_s is None for p in pairs) > sum(p.a_s is None for p in pairs)
    return "undecided" if word == "faster" and failed_more else word


def _failing(pairs: Sequence[Pair]) -> bool:
    """Whether it is proven, at 5 %, that B fails more than A."""
    only_a = sum(p.a_s is None and p.b_s is not None for p in pairs)
    only_b = sum(p.b_s is None and p.a_s is not None for p in pairs)
    return fails_more_p(only_a, only_b) <= 0.05


@contextmanager
def _making(table: _Table, contest: Contest) -> Iterator[Callable[[int], bool]]:
    """A function to call for this many pairs; it returns whether they were completed before the work was over. In turn,
    the caller makes them, because functions may belong to its thread.
    """
    if not contest.side_by_side:
        yield lambda pairs: table.fill(contest, None, pairs)
        return
    cpus = processors()
    with ThreadPoolExecutor(len(cpus)) as pool:
        made = [pool.submit(table.fill, contest, cpu) for cpu in cpus]
        try:
            yield table.wait
        finally:
            table.stop()
        for future in made:
            future.result()


class _Table:
    """The pairs made so far, by one thread or several."""

    def __init__(self, max_pairs: int, deadline: float) -> None:
        self._pairs: list[Pair] = []
        self._changed = threading.Condition()
        self._max_pairs, self._deadline = max_pairs, deadline
        self._stopped = False
        self._at_work = 0
        self._longest_s = 0.0
        self._ended_well = 0

    @property
    def left_s(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def fill(self, contest: Contest, cpu: int | None, pairs: int | None = None) -> bool:
        """Makes pairs until this many ended well, or until there are enough anyway; returns whether the former
        happened. A pair that would end after the time is up is not started.
        """
        with self._changed:
            self._at_work += 1
        try:
            while not self._over() and (pairs is None or self._ended_well < pairs):
                begin = time.monotonic()
                made = contest.pair(cpu)
                with self._changed:
                    self._longest_s = max(self._longest_s, time.monotonic() - begin)
                    self._pairs.append(made)
                    self._ended_well += made.log_ratio is not None
                    self._changed.notify_all()
            return pairs is not None and self._ended_well >= pairs
        except BaseException:
            self.stop()
            raise
        finally:
            with self._changed:
                self._at_work -= 1
                self._changed.notify_all()

    def _over(self) -> bool:
        with self._changed:
            hopeless = len(self._pairs) >= 2 * _HOPELESS and self._ended_well < _HOPELESS
            return self._stopped or hopeless or len(self._pairs) >= self._max_pairs or self.left_s <= self._longest_s

    def wait(self, pairs: int) -> bool:
        """Until this many pairs ended well; returns whether they did before the work was over."""
        with self._changed:
            # A thread of the pool that has not started yet does not mean the end of the work: it starts during the
            # wait.
            while self._ended_well < pairs:
                self._changed.wait(0.2)
                if self._stopped or (self._pairs and not self._at_work) or (self.left_s <= 0 and not self._at_work):
                    return self._ended_well >= pairs
            return not self._stopped

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def pairs(self) -> list[Pair]:
        with self._changed:
            return list(self._pairs)

    def ratios(self) -> list[float]:
        """The log ratios, B over A, of pairs in which both runs ended well."""
        return [p.log_ratio for p in self.pairs() if p.log_ratio is not None]


def _seconds(value: float) -> str:
    if value >= 1:
        return f"{value:,.4g} s"
    return f"{1e3 * value:,.3g} ms" if value >= 1e-3 else f"{1e6 * value:,.3g} us"
