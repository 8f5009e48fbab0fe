"""Treatment factors: anything that may make a workload faster or slower, and the configurations that they span."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from broadleaf_lab.errors import DesignError

Level: TypeAlias = bool | int | float | str
Config: TypeAlias = Mapping[str, Level]
"""A level of every factor, by name."""

KINDS = (
    "flag",
    "env",
    "config",
    "argument",
    "file",
    "patch",
    "git",
    "python",
    "keyword",
    "wrapper",
    "placebo",
)

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


@dataclass(frozen=True, slots=True)
class Factor:
    """One treatment factor.

    `levels` are in order, `default` is the level of the baseline. `tier` says how readily one would apply it: 1 a safe
    setting, 2 a source change that keeps features, 3 a setting that drops some, 4 a source change that drops some;
    `loses` says which. `when` is an expression over other factors outside which this one does not exist: there it is at
    its default. `setting` is the value of `set` in the study file; a map from level to value gives each level its
    value.
    """

    name: str
    kind: str
    levels: tuple[Level, ...] = (False, True)
    default: Level = False
    scale: Literal["linear", "log2"] | None = None
    tier: int = 1
    loses: str = ""
    when: str | None = None
    setting: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise DesignError(f"factor {self.name!r}: unknown kind {self.kind!r}. Choose one of {', '.join(KINDS)}.")
        if len(self.levels) < 2 or len({column_value(level) for level in self.levels}) < len(self.levels):
            raise DesignError(f"factor {self.name!r} needs at least two different levels, but has {list(self.levels)}.")
        if self.default not in self.levels or not any(_same(level, self.default) for level in self.levels):
            raise DesignError(
                f"factor {self.name!r}: default {self.default!r} is not one of its levels {list(self.levels)}."
            )
        if self.scale is not None and not self._numbers():
            raise DesignError(f"factor {self.name!r}: scale {self.scale!r} needs levels that are numbers.")
        if self.scale == "log2" and any(float(level) < 0 for level in self.levels):
            raise DesignError(f"factor {self.name!r}: scale 'log2' needs levels of 0 or more.")

    def _numbers(self) -> bool:
        return all(isinstance(level, int | float) and not isinstance(level, bool) for level in self.levels)

    @property
    def is_bool(self) -> bool:
        """Whether it is off or on."""
        return all(isinstance(level, bool) for level in self.levels)

    @property
    def is_numeric(self) -> bool:
        """Whether its levels lie on a scale, so that a curve through them is meaningful."""
        return self.scale is not None

    @property
    def is_categorical(self) -> bool:
        """Whether it is neither off/on nor on a scale."""
        return not self.is_bool and not self.is_numeric

    @property
    def column(self) -> str:
        """Its column in runs.csv."""
        return self.name

    @property
    def on(self) -> Level:
        """The level at the treated end of a path: the last one, or the first if the last is the default."""
        return self.levels[0] if _same(self.levels[-1], self.default) else self.levels[-1]

    @property
    def others(self) -> tuple[Level, ...]:
        """Every level but the default."""
        return tuple(level for level in self.levels if not _same(level, self.default))

    def position(self, level: Level) -> float:
        """The position of a numeric factor's level on its scale. On log2, a level of 0 lies one step below the smallest
        positive one (the mean step between the others), because off is not infinitely far from little.
        """
        if self.scale is None:
            raise DesignError(f"factor {self.name!r} has no scale.")
        value = float(level)
        if self.scale == "linear":
            return value
        import math

        if value > 0:
            return math.log2(value)
        positive = sorted(math.log2(float(other)) for other in self.levels if float(other) > 0)
        if not positive:
            return 0.0
        step = (positive[-1] - positive[0]) / (len(positive) - 1) if len(positive) > 1 else 1.0
        return positive[0] - step

    def parse(self, text: object) -> Level:
        """The level that a cell of runs.csv or a word of a command line stands for; raises DesignError if there is
        none.
        """
        for level in self.levels:
            if _same(level, text):
                return level
        word = str(text).strip()
        for level in self.levels:
            if str(column_value(level)) == word or str(level) == word:
                return level
        if self.is_bool and word.lower() in _TRUE | _FALSE:
            return word.lower() in _TRUE
        if self._numbers():
            try:
                number = float(word)
            except ValueError:
                pass
            else:
                for level in self.levels:
                    if float(level) == number:
                        return level
                if self.is_numeric:
                    # Between the listed levels a scale has others: sweeps and searches may use them.
                    return int(number) if number.is_integer() and isinstance(self.levels[0], int) else number
        raise DesignError(
            f"factor {self.name!r} has no level {word!r}. Its levels are {', '.join(map(str, self.levels))}."
        )


def _same(one: object, other: object) -> bool:
    # In Python True == 1, but the level 1 is not the level on.
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def column_value(level: Level) -> int | float | str:
    """A level as written in runs.csv: off and on are 0 and 1."""
    return int(level) if isinstance(level, bool) else level


def baseline(factors: Iterable[Factor]) -> dict[str, Level]:
    """Every factor at its default."""
    return {factor.name: factor.default for factor in factors}


def config_id(config: Config, factors: Iterable[Factor]) -> str:
    """The name of a configuration: `c` and ten hex digits of a hash over its levels. Factors missing from `config` are
    at their defaults.
    """
    levels = {f.name: column_value(config.get(f.name, f.default)) for f in factors}
    text = json.dumps(levels, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "c" + hashlib.sha256(text.encode()).hexdigest()[:10]


def changed(config: Config, factors: Iterable[Factor]) -> dict[str, Level]:
    """The levels that differ from the default, in the order of the factors."""
    return {f.name: config[f.name] for f in factors if f.name in config and not _same(config[f.name], f.default)}


def describe(config: Config, factors: Iterable[Factor]) -> str:
    """A configuration as a line of text: its differences from the baseline."""
    parts = [
        name if level is True else f"{name}={'off' if level is False else level}"
        for name, level in changed(config, factors).items()
    ]
    return ", ".join(parts) or "baseline"
