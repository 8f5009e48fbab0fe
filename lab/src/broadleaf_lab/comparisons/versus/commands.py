"""Runs two commands in pairs, so that other load on the machine affects both alike."""

from __future__ import annotations

import math
import os
import random
import shlex
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from broadleaf_lab.errors import RunError
from broadleaf_lab.run.process import (
    PADDING,
    Finished,
    clean_environment,
    last_words,
    padding,
    run_command,
    run_directory,
)

Clock = Literal["cpu", "wall"]
_SHELL = set("|&;<>()$`*?[~#\n")
_BUSY = 0.9
_LOOKS = 4
_LONG_S = 10.0
"""A command that takes longer than this is looked at only once."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """Commands run before and after each timed run, untimed, and in its directory; empty for none."""

    prepare: str = ""
    cleanup: str = ""

    def __bool__(self) -> bool:
        return bool(self.prepare or self.cleanup)


@dataclass(frozen=True, slots=True)
class Pair:
    """One run of each: seconds of processor time or elapsed time; None if it failed, and then why."""

    a_s: float | None
    b_s: float | None
    a_error: str = ""
    b_error: str = ""

    @property
    def log_ratio(self) -> float | None:
        """The logarithm of B's time over A's; None if one failed."""
        return None if self.a_s is None or self.b_s is None else math.log(self.b_s / self.a_s)


class Commands:
    """Both commands, and how a pair of runs of them is made. `clock` and `side_by_side` are chosen by `look`."""

    def __init__(
        self,
        a: str,
        b: str,
        *,
        hooks: Hooks | None = None,
        timeout_s: float = 600.0,
        clock: Clock | None = None,
        side_by_side: bool | None = None,
        seed: int | None = None,
    ) -> None:
        self.texts: tuple[str, str] = (a, b)
        self.words: tuple[list[str], list[str]] = (words_of(a), words_of(b))
        self.hooks: Hooks = hooks or Hooks()
        self.timeout_s = timeout_s
        self.clock: Clock = clock or "cpu"
        self.side_by_side: bool = bool(side_by_side)
        self._asked = clock, side_by_side
        self._cwd = Path.cwd()
        self._rng = random.Random(seed)

    def look(self) -> None:
        """Runs each alone, at most a few times, and chooses how to measure. A single-threaded program that never sleeps
        is measured by its processor time, beside the other on one processor; everything else by elapsed time, one after
        the other. Raises RunError if one fails: a command that never works cannot be compared.
        """
        looked = [self._never_waits(text, words) for text, words in zip(self.texts, self.words, strict=True)]
        clock, side_by_side = self._asked
        self.clock = clock or ("cpu" if all(looked) else "wall")
        # Commands that need prepared files would disturb each other's, and with elapsed time they would share the
        # processor.
        self.side_by_side = side_by_side if side_by_side is not None else self.clock == "cpu" and not self.hooks

    def _never_waits(self, text: str, words: Sequence[str]) -> bool:
        """Whether a command has one thread and only computes. Other load can make such a command look as if it waited,
        but nothing makes waiting look like computing: one run out of several that shows it suffices.
        """
        for _ in range(_LOOKS):
            finished = self._run(words, self._environment(), None)
            if error := _error(finished, self.timeout_s):
                raise RunError(f"{text!r} fails: {error}")
            if self._asked[0] is not None:
                break
            waited_s = finished.duration_s - finished.cpu_s - finished.queued_s - finished.late_s
            one_thread = finished.main_cpu_s >= _BUSY * finished.cpu_s
            if one_thread and waited_s <= (1 - _BUSY) * finished.duration_s:
                return True
            if finished.duration_s > _LONG_S:
                break
        return False

    def pair(self, cpu: int | None = None) -> Pair:
        """Runs both, in random order, or at once on the processor `cpu`. Both get the same environment, including the
        random choices that Python and the stack derive from it: otherwise these would be noise between them.
        """
        environment = self._environment()
        order = [0, 1]
        self._rng.shuffle(order)
        cpus = None if cpu is None else {cpu}
        if self.side_by_side:
            with ThreadPoolExecutor(2) as pool:
                made = {i: pool.submit(self._run, self.words[i], environment, cpus) for i in order}
                done = [made[0].result(), made[1].result()]
        else:
            found = {i: self._run(self.words[i], environment, cpus) for i in order}
            done = [found[0], found[1]]
        errors = [_error(it, self.timeout_s) for it in done]
        times = [None if error else self._time_s(it) for it, error in zip(done, errors, strict=True)]
        return Pair(times[0], times[1], errors[0], errors[1])

    def _time_s(self, finished: Finished) -> float:
        # A ratio needs a time above zero.
        return max(finished.cpu_s if self.clock == "cpu" else finished.duration_s, 1e-6)

    def _environment(self) -> dict[str, str]:
        drawn = {PADDING: padding(self._rng), "PYTHONHASHSEED": str(self._rng.randrange(1, 1 << 32))}
        return drawn | clean_environment()

    def _run(self, words: Sequence[str], environment: dict[str, str], cpus: Collection[int] | None) -> Finished:
        self._hook("prepare", environment)
        with run_directory() as run_dir:
            finished = run_command(
                words, cwd=self._cwd, env=environment, timeout_s=self.timeout_s, run_dir=run_dir, cpus=cpus
            )
        self._hook("cleanup", environment)
        return finished

    def _hook(self, name: Literal["prepare", "cleanup"], environment: dict[str, str]) -> None:
        text: str = getattr(self.hooks, name)
        if not text:
            return
        with run_directory() as run_dir:
            finished = run_command(
                words_of(text), cwd=self._cwd, env=environment, timeout_s=self.timeout_s, run_dir=run_dir
            )
        if error := _error(finished, self.timeout_s):
            raise RunError(f"the {name} command {text!r} failed: {error}")


def words_of(text: str) -> list[str]:
    """A command line as arguments; it goes through /bin/sh only if it contains something that only a shell understands,
    because starting a shell takes time too. Raises RunError if it is empty or a quote is not closed.
    """
    try:
        words = shlex.split(text)
        # Within quotes such characters need no shell.
        lexer = shlex.shlex(text, posix=False, punctuation_chars=True)
        lexer.whitespace_split = True
        bare = [token for token in lexer if token[:1] not in "'\""]
    except ValueError as error:
        raise RunError(f"cannot read the command {text!r}: {error}") from None
    if not words:
        raise RunError("a command is empty: give two commands, each as one quoted argument.")
    sets_variable = "=" in words[0]
    return ["/bin/sh", "-c", text] if sets_variable or any(_SHELL & set(token) for token in bare) else words


def processors() -> list[int]:
    """The processors this process may use."""
    return sorted(os.sched_getaffinity(0))


def _error(finished: Finished, timeout_s: float) -> str:
    if finished.error:
        return finished.error
    if finished.timed_out:
        return f"killed after {timeout_s:g} s"
    if finished.exit_code != 0:
        words = last_words(finished)
        return f"exit code {finished.exit_code}" + (f": {words}" if words else "")
    return ""
