"""Every run of a tuning goes through this: it is feasible, it is recorded, and it is within the budget."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from broadleaf_lab.errors import DesignError
from broadleaf_lab.spec.constraints import Constraints
from broadleaf_lab.spec.factors import Config, Factor, Level, config_id, describe


class Evaluate(Protocol):
    """Measures one configuration once: its time per task in microseconds (or any positive quantity of which less is
    better), None for a run that failed. `purpose` and `block` are for the record.
    """

    def __call__(self, config: Config, /, *, purpose: str, block: int) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Trial:
    """One run. `time_us` is None if it failed."""

    config: dict[str, Level]
    config_id: str
    time_us: float | None
    purpose: str
    block: int

    @property
    def log(self) -> float:
        """Logarithm of the time; only for runs that did not fail."""
        if self.time_us is None:
            raise DesignError(f"the run of {self.config_id} failed and has no time.")
        return math.log(self.time_us)


@dataclass(frozen=True, slots=True)
class Budget:
    """What a tuning may use: a number of runs, or of seconds, or both."""

    runs: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.runs is None and self.seconds is None:
            raise DesignError("tuning needs a budget: a number of runs, or a time such as 30m.")


@dataclass
class Meter:
    """Runs configurations, and keeps account."""

    evaluate: Evaluate
    factors: tuple[Factor, ...]
    constraints: Constraints
    budget: Budget
    clock: Callable[[], float] = time.monotonic
    known: list[Trial] = field(default_factory=list)
    """Runs made before that ended well: they guide the search, and prove nothing."""
    known_failed: list[Trial] = field(default_factory=list)
    """Runs made before that failed."""
    trials: list[Trial] = field(default_factory=list)
    began: float = field(init=False)
    _block: int = field(init=False, default=0)
    _seen: dict[str, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.began = self.clock()

    def id_of(self, config: Config) -> str:
        """The name of a configuration."""
        return config_id(config, self.factors)

    def new_block(self) -> int:
        """The number of the block that the next runs belong to."""
        self._block += 1
        return self._block

    def measure(self, config: Config, purpose: str) -> Trial:
        """Runs `config` once. Raises DesignError instead of running a configuration that the constraints forbid."""
        if broken := self.constraints.violated(config):
            raise DesignError(
                f"a configuration that violates {', '.join(broken)} was about to run: "
                f"{describe(config, self.factors)}. This is a bug in the search. Please report it."
            )
        name = self.id_of(config)
        time_us = self.evaluate(config, purpose=purpose, block=self._block)
        if time_us is not None and not (time_us > 0 and math.isfinite(time_us)):
            time_us = None
        trial = Trial(dict(config), name, time_us, purpose, self._block)
        self.trials.append(trial)
        self._seen[name] = self._seen.get(name, 0) + 1
        return trial

    def times_seen(self, config: Config) -> int:
        """How often `config` was run."""
        return self._seen.get(self.id_of(config), 0)

    def left(self) -> int:
        """Runs that the budget still allows, at the mean duration of those made."""
        found: list[float] = []
        if self.budget.runs is not None:
            found.append(self.budget.runs - len(self.trials))
        if self.budget.seconds is not None:
            spent_s = self.clock() - self.began
            mean_s = max(spent_s / len(self.trials), 1e-6) if self.trials else self.budget.seconds / 100
            found.append((self.budget.seconds - spent_s) / mean_s)
        return max(0, math.floor(min(found)))

    def total(self) -> int:
        """Runs that the whole budget allows, at the mean duration of those made."""
        return len(self.trials) + self.left()

    def succeeded(self) -> list[Trial]:
        """The runs that did not fail."""
        return [trial for trial in self.trials if trial.time_us is not None]

    def everything(self) -> list[Trial]:
        """All runs, including those known before, failed or not."""
        return [*self.known, *self.known_failed, *self.trials]

    def explored(self) -> list[Trial]:
        """The runs that did not fail, including those known before."""
        return [*self.known, *self.succeeded()]
