"""How a study is run, as opposed to what it varies: the keys of `[study]` that only the runner reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broadleaf_lab.errors import StudyFileError
from broadleaf_lab.spec.study import StudySpec


@dataclass(frozen=True, slots=True)
class RunSettings:
    """How the runs of a study are made.

    `source` is the directory in which commands run and from which worktrees of patches and git refs are made; `build`
    runs in each of these before the first measurement; `env` is set in every run. With `marginal`, each run is
    repeated with a quarter of the tasks, which gives the cost of one more task without the start-up. Options of factors
    of kind `config` become environment variables that start with `config_prefix`, unless the command has a place for
    the file `{config}`. With `side_by_side`, the sides of a comparison run at once on one processor: both commits of a
    gate, both sides of a comparison, runs of a plan or of `settle` two by two. It is meant for scores that count
    processor time.
    """

    source: Path
    build: tuple[str, ...] = ()
    build_timeout_s: float = 3600.0
    env: Mapping[str, str] = field(default_factory=dict)
    config_prefix: str = "BROADLEAF_"
    marginal: bool = False
    side_by_side: bool = False

    @classmethod
    def of(cls, study: StudySpec) -> RunSettings:
        """The settings of a study, checked."""
        read = _Reader(study.settings, f"study {study.name!r}")
        side_by_side = read.flag("side_by_side")
        if side_by_side and study.score == "wall/n":
            raise StudyFileError(
                f"{read.where}: side_by_side",
                "runs that share a processor take turns, so elapsed time says nothing about either.",
                "Let the benchmark print its processor time, and take it as the score: json:KEY or regex:...",
            )
        return cls(
            source=(study.directory / read.text("source", ".")).resolve(),
            build=tuple(read.texts("build")),
            build_timeout_s=read.number("build_timeout_s", 3600.0),
            env=read.mapping("env"),
            config_prefix=read.text("config_prefix", "BROADLEAF_"),
            marginal=read.flag("marginal"),
            side_by_side=side_by_side,
        )


@dataclass(frozen=True, slots=True)
class _Reader:
    table: Mapping[str, Any]
    where: str

    def _wrong(self, key: str, expected: str) -> StudyFileError:
        return StudyFileError(f"{self.where}: {key}", f"expected {expected}, got {self.table[key]!r}.")

    def text(self, key: str, default: str) -> str:
        value = self.table.get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "text")
        return value

    def texts(self, key: str) -> list[str]:
        value = self.table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise self._wrong(key, 'a list of words such as ["make", "build"]')
        return value

    def number(self, key: str, default: float) -> float:
        value = self.table.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise self._wrong(key, "a number above 0")
        return float(value)

    def flag(self, key: str) -> bool:
        value = self.table.get(key, False)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def mapping(self, key: str) -> dict[str, str]:
        value = self.table.get(key, {})
        if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
            raise self._wrong(key, "a table of texts")
        return value
