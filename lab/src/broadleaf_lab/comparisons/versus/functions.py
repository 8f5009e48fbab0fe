"""Two Python functions against each other, in this process: what the fixture `versus` runs."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from broadleaf_lab.comparisons.versus.commands import Clock, Pair
from broadleaf_lab.errors import RunError

_MIN_S = 0.002
"""A function is called as many times in a row as take at least this long: far more than a clock's tick."""
_MAX_CALLS = 1_000_000
_BUSY = 0.9
_LOOKS = 4
_ROUNDS = (0, 1, 1, 0)
"""Within a pair each is timed twice, so that what changes steadily meanwhile meets both alike."""


class Functions:
    """Two functions without arguments, and how a pair of runs of them is made. If one raises, that exception ends the
    comparison.
    """

    def __init__(
        self,
        a: Callable[[], Any],
        b: Callable[[], Any],
        *,
        clock: Clock | None = None,
        seed: int | None = None,
    ) -> None:
        for function in (a, b):
            if not callable(function):
                raise RunError(
                    f"{function!r} is not a function. Give two functions without arguments, or two commands."
                )
        self.texts: tuple[str, str] = (name_of(a), name_of(b))
        self.clock: Clock = clock if clock is not None else "cpu"
        self.side_by_side: bool = False
        self.calls: int = 1
        self._functions = (a, b)
        self._asked: Clock | None = clock
        self._rng = random.Random(seed)

    def look(self) -> None:
        """Calls both until the faster one takes 2 ms in a row, and chooses the clock: processor time if a call only
        computes, otherwise elapsed time.
        """
        with _undisturbed():
            computing = [False, False]
            for _ in range(_LOOKS):
                for which in (0, 1):
                    wall_s, cpu_s = self._timed(which)
                    computing[which] |= cpu_s >= _BUSY * wall_s
            while self.calls < _MAX_CALLS and min(self._timed(which)[0] for which in (0, 1)) < _MIN_S:
                self.calls *= 2
        chosen: Clock = "cpu" if all(computing) else "wall"
        self.clock = self._asked or chosen

    def pair(self, cpu: int | None = None) -> Pair:
        """The time of a call of each, from two turns each in the order A B B A, or B A A B."""
        first = self._rng.randrange(2)
        spent = [0.0, 0.0]
        with _undisturbed():
            for turn in _ROUNDS:
                which = turn ^ first
                wall_s, cpu_s = self._timed(which)
                spent[which] += cpu_s if self.clock == "cpu" else wall_s
        a_s, b_s = (max(total, 1e-9) / (2 * self.calls) for total in spent)
        return Pair(a_s, b_s)

    def _timed(self, which: int) -> tuple[float, float]:
        """Elapsed time and processor time of `calls` calls, in seconds."""
        function, calls = self._functions[which], range(self.calls)
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in calls:
            function()
        return time.perf_counter() - wall, time.process_time() - cpu


def name_of(function: object) -> str:
    """The name of a function in a report."""
    inner = getattr(function, "func", function)
    return str(getattr(inner, "__qualname__", type(inner).__name__)).rpartition("<locals>.")[2]


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Without garbage collection, as in `timeit`: otherwise the garbage of one would be collected in the time of the
    other.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
