"""Study files: reads TOML into a study, and reports every mistake with the file, the key and what to write instead."""

from __future__ import annotations

import difflib
import keyword
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from broadleaf_lab.errors import ConstraintError, DesignError, StudyFileError
from broadleaf_lab.spec.factors import KINDS, Factor, Level
from broadleaf_lab.spec.hunks import hunks
from broadleaf_lab.spec.runs import COLUMNS
from broadleaf_lab.spec.study import DESIGNS, Calibrate, DesignSpec, StudySpec

S = TypeVar("S", bound=StudySpec)

FILE_NAME = "study.toml"

_SECTIONS = ("study", "factors", "constraints", "design")
_STUDY = (
    "name",
    "command",
    "callable",
    "score",
    "direction",
    "timeout_s",
    "rope_pct",
    "iterations",
    "responses",
    "calibrate",
    "extends",
)
_RUNNING = ("source", "build", "build_timeout_s", "env", "config_prefix", "marginal", "side_by_side")
"""Keys of [study] that the runner checks and reads."""
_CALIBRATE = ("min_s", "n_tasks", "min_tasks", "max_tasks")
_FACTOR = ("set", "kind", "levels", "default", "scale", "tier", "loses", "when")
_DESIGN = (
    "kind",
    "paths",
    "seed",
    "budget",
    "replicates",
    "rows",
    "block_size",
    "noise_pct",
    "runs",
    "edges",
    "factor",
)
_UNITS_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
TAKEN = {
    "treatment", "level_from", "level_to", "before_us", "after_us", "delta_us", "log2_ratio", "n_before", "n_after",
    "se_log2", "same_block", "gap_s", "source", "context_id", "y_us", "change", "config",
}  # fmt: skip
"""Columns of deltas.csv and of the tables that are made of runs."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def load(path: Path, kind: type[S]) -> S:
    """Reads a study file, or the study.toml of a directory. Raises StudyFileError that names the file and the key."""
    file = path / FILE_NAME if path.is_dir() else path
    return _study(file, _read(file, ()), kind)


def parse_duration_s(text: object, where: str) -> float:
    """The number of seconds in `90`, `"90s"`, `"60m"` or `"1.5h"`."""
    if isinstance(text, int | float) and not isinstance(text, bool) and text > 0:
        return float(text)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", str(text))
    if match is None or (match[2] or "s") not in _UNITS_S or float(match[1]) <= 0:
        raise StudyFileError(where, f"{text!r} is not a duration.", 'Write "90s", "60m" or "2h".')
    return float(match[1]) * _UNITS_S[match[2] or "s"]


def _read(file: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    """The file's tables merged over those of the file that it extends."""
    if file.resolve() in seen:
        raise StudyFileError(
            f"{file}: study.extends", "this file extends itself through other files.", "Break the cycle."
        )
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StudyFileError(str(file), "no such file.", "`broadleaf-lab init` writes one to start from.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise StudyFileError(str(file), f"cannot be read: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise StudyFileError(str(file), f"is not valid TOML: {error}.") from None
    study = data.get("study")
    base = study.get("extends") if isinstance(study, dict) else None
    if base is None:
        return data
    if not isinstance(base, str):
        raise StudyFileError(f"{file}: study.extends", f"{base!r} is not a path.", "Name another study file.")
    return _over(_read((file.parent / base), (*seen, file.resolve())), data)


def _over(under: dict[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Merges two studies: the upper file's keys take precedence; a factor or constraint in it replaces the lower one
    entirely; one that is `false` there is dropped.
    """
    merged = dict(under)
    for section, values in upper.items():
        below = merged.get(section)
        if not isinstance(values, dict) or not isinstance(below, dict):
            merged[section] = values
            continue
        kept = {**below, **values}
        if section in ("factors", "constraints"):
            kept = {name: value for name, value in kept.items() if value is not False}
        elif section == "study" and isinstance(values.get("calibrate"), dict):
            kept["calibrate"] = {**below.get("calibrate", {}), **values["calibrate"]}
        merged[section] = kept
    return merged


class _Table:
    """A table of the file with its location; reading a value checks its type."""

    def __init__(self, file: Path, key: str, values: object, known: Sequence[str]) -> None:
        self._file, self._key = file, key
        if not isinstance(values, dict):
            raise StudyFileError(self.where(""), f"{values!r} is not a table.", f"Write a section [{key}].")
        self.values: dict[str, Any] = values
        for name in values:
            if name not in known:
                close = difflib.get_close_matches(name, known, 1)
                hint = f"Did you mean {close[0]!r}?" if close else f"Known keys: {', '.join(known)}."
                raise StudyFileError(self.where(name), "no such key.", hint)

    def where(self, name: str) -> str:
        return f"{self._file}: {'.'.join(part for part in (self._key, name) if part)}"

    def wrong(self, name: str, problem: str, advice: str = "") -> StudyFileError:
        return StudyFileError(self.where(name), problem, advice)

    def text(self, name: str, default: str) -> str:
        value = self.values.get(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, f"{value!r} is not text.", "Put it in quotes.")
        return value

    def optional_text(self, name: str) -> str | None:
        return self.text(name, "") if name in self.values else None

    def number(self, name: str, default: float, low: float = 0.0) -> float:
        value = self.values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(name, f"{value!r} is not a number.")
        if value < low:
            raise self.wrong(name, f"{value} is less than {low:g}.")
        return float(value)

    def whole(self, name: str, default: int, low: int = 0) -> int:
        value = self.values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(name, f"{value!r} is not a whole number.")
        if value < low:
            raise self.wrong(name, f"{value} is less than {low}.")
        return value

    def optional_whole(self, name: str, low: int = 0) -> int | None:
        return self.whole(name, low, low) if name in self.values else None

    def choice(self, name: str, default: str, choices: Sequence[str]) -> str:
        value = self.text(name, default)
        if value not in choices:
            close = difflib.get_close_matches(value, choices, 1)
            hint = f"Did you mean {close[0]!r}?" if close else f"Choose one of {', '.join(choices)}."
            raise self.wrong(name, f"unknown value {value!r}.", hint)
        return value


def _study(file: Path, data: dict[str, Any], kind: type[S]) -> S:
    _Table(file, "", data, _SECTIONS)
    table = _Table(file, "study", data.get("study", {}), (*_STUDY, *_RUNNING))
    command, called = _workload(table)
    factors = _factors(file, data.get("factors", {}))
    responses = _responses(table, factors)
    study = kind(
        name=table.text("name", file.resolve().parent.name),
        command=command,
        callable=called,
        score=_score(table, called is not None),
        direction=cast(Literal["min", "max"], table.choice("direction", "min", ("min", "max"))),
        timeout_s=table.number("timeout_s", 120.0, 0.001),
        rope_pct=table.number("rope_pct", 1.0),
        calibrate=_calibrate(file, table.values.get("calibrate", {})),
        factors=factors,
        constraints=_constraints(file, data.get("constraints", {})),
        design=_design(file, data.get("design", {}), factors),
        directory=file.parent,
        iterations=table.whole("iterations", 1, 1),
        responses=responses,
        settings={name: table.values[name] for name in _RUNNING if name in table.values},
    )
    try:
        study.rules()
    except ConstraintError as error:
        raise StudyFileError(str(file), str(error)) from error
    return study


def _workload(table: _Table) -> tuple[tuple[str, ...] | None, str | None]:
    command, called = table.values.get("command"), table.optional_text("callable")
    if (command is None) == (called is None):
        raise table.wrong(
            "command",
            "a study has either a command or a callable.",
            'Write command = ["python", "bench.py", "--tasks", "{n_tasks}"] or callable = "module:function".',
        )
    if called is not None:
        if not re.fullmatch(r"[\w.]+:[\w.]+", called):
            raise table.wrong("callable", f"{called!r} does not name a function.", 'Write "module:function".')
        return None, called
    if not isinstance(command, list) or not command or not all(isinstance(word, str) for word in command):
        raise table.wrong("command", f"{command!r} is not a list of words.", 'Write ["program", "argument", ...].')
    return tuple(command), None


def _score(table: _Table, called: bool) -> str:
    score = table.text("score", "wall/n")
    if score == "wall/n" or re.fullmatch(r"json:\S+", score):
        return score
    if score.startswith("regex:"):
        try:
            groups = re.compile(score.removeprefix("regex:")).groups
        except re.error as error:
            raise table.wrong("score", f"{score!r} is not a regular expression: {error}.") from None
        if groups != 1:
            raise table.wrong("score", f"{score!r} has {groups} groups.", "Put the number in one pair of parentheses.")
        return score
    raise table.wrong("score", f"unknown score {score!r}.", 'Write "json:KEY", "regex:...(...)..." or "wall/n".')


def _responses(table: _Table, factors: Sequence[Factor]) -> tuple[str, ...]:
    given = table.values.get("responses", [])
    if not isinstance(given, list) or not all(isinstance(name, str) and _NAME.match(name) for name in given):
        raise table.wrong(
            "responses", f"{given!r} is not a list of names.", 'Write JSON keys of the output, such as ["joules"].'
        )
    if taken := sorted({*given} & {*COLUMNS, *TAKEN, *(f.name for f in factors)}):
        raise table.wrong("responses", f"{taken[0]!r} is already a column.", "Choose another name.")
    return tuple(dict.fromkeys(given))


def _calibrate(file: Path, values: object) -> Calibrate:
    table = _Table(file, "study.calibrate", values, _CALIBRATE)
    made = Calibrate(
        min_s=table.number("min_s", 0.5, 0.0),
        n_tasks=table.optional_whole("n_tasks", 1),
        min_tasks=table.whole("min_tasks", 1, 1),
        max_tasks=table.whole("max_tasks", 1_000_000, 1),
    )
    if made.min_tasks > made.max_tasks:
        raise table.wrong("min_tasks", f"{made.min_tasks} is more than max_tasks, {made.max_tasks}.")
    return made


def _factors(file: Path, values: object) -> tuple[Factor, ...]:
    if not isinstance(values, dict):
        raise StudyFileError(f"{file}: factors", f"{values!r} is not a table.", "Write sections [factors.NAME].")
    found: list[Factor] = []
    for name, entry in values.items():
        if isinstance(entry, dict) and "levels_from_patch" in entry:
            found += _hunks(file, name, entry)
        else:
            found.append(_factor(file, name, entry))
    return tuple(found)


def _hunks(file: Path, name: str, values: Mapping[str, object]) -> list[Factor]:
    """A factor for each hunk of a patch."""
    table = _Table(file, f"factors.{name}", values, ("levels_from_patch", "tier", "when"))
    patch = table.text("levels_from_patch", "")
    try:
        parts = hunks((file.parent / patch).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise table.wrong("levels_from_patch", f"{patch} cannot be read: {error}.") from None
    if not parts:
        raise table.wrong("levels_from_patch", f"{patch} has no hunk.", "Write a unified diff, as `git diff` does.")
    rest = {key: value for key, value in values.items() if key != "levels_from_patch"}
    digits = len(str(len(parts)))
    return [
        _factor(file, f"{name}_{number:0{digits}}", {**rest, "set": {"patch": patch, "hunk": number}, "loses": it.line})
        for number, it in enumerate(parts, 1)
    ]


def _factor(file: Path, name: str, values: object) -> Factor:
    table = _Table(file, f"factors.{name}", values, _FACTOR)
    if not _NAME.match(name):
        raise table.wrong(
            "", f"{name!r} cannot be both a column and a name in constraints.", "Use letters, digits and _."
        )
    if keyword.iskeyword(name) or name in COLUMNS or name in TAKEN:
        word = "a word of Python's" if keyword.iskeyword(name) else "a column of runs.csv"
        taken = "a column of the laboratory's tables" if name in TAKEN else word
        raise table.wrong("", f"{name!r} is already {taken}.", "Choose another name.")
    kind, setting = _setting(table)
    levels = _levels(table, kind, setting)
    default = table.values.get("default", levels[0])
    if not any(default == level and isinstance(default, bool) == isinstance(level, bool) for level in levels):
        raise table.wrong(
            "default", f"{default!r} is not one of its levels.", f"Choose one of {', '.join(map(repr, levels))}."
        )
    try:
        return Factor(
            name=name,
            kind=kind,
            levels=levels,
            default=cast(Level, default),
            scale=_scale(table),
            tier=table.whole("tier", 1, 1),
            loses=table.text("loses", ""),
            when=table.optional_text("when"),
            setting=setting,
        )
    except DesignError as error:
        raise table.wrong("", f"{error}") from None


def _scale(table: _Table) -> Literal["linear", "log2"] | None:
    if "scale" not in table.values:
        return None
    return cast(Literal["linear", "log2"], table.choice("scale", "linear", ("linear", "log2")))


def _setting(table: _Table) -> tuple[str, dict[str, object]]:
    """The kind and the value of `set.<kind>`. A placebo sets nothing."""
    given = table.values.get("set")
    if given is None:
        kind = table.choice("kind", "", KINDS) if "kind" in table.values else ""
        if kind != "placebo":
            raise table.wrong(
                "set", "does not specify what to change.", f"Write set.KIND = ..., KIND one of {_kinds()}."
            )
        return kind, {}
    kinds = [key for key in given if key not in _SET_MORE] if isinstance(given, dict) else []
    if not isinstance(given, dict) or len(kinds) != 1:
        raise table.wrong("set", f"{given!r} is not one setting.", f"Write set.KIND = ..., KIND one of {_kinds()}.")
    kind = kinds[0]
    if kind not in KINDS:
        close = difflib.get_close_matches(kind, KINDS, 1)
        hint = f"Did you mean {close[0]!r}?" if close else f"Kinds: {_kinds()}."
        raise table.wrong(f"set.{kind}", "unknown kind of factor.", hint)
    if table.values.get("kind", kind) != kind:
        raise table.wrong("kind", f"{table.values['kind']!r} contradicts set.{kind}.", "Leave one of them out.")
    for key, value in given.items():
        if not isinstance(value, str | bool | dict | list | int | float):
            raise table.wrong(f"set.{key}", f"{value!r} cannot be set.")
    if not isinstance(given.get("values", {}), dict):
        raise table.wrong("set.values", f"{given['values']!r} is not a table.", "Write { level = value, ... }.")
    return kind, dict(given)


def _kinds() -> str:
    return ", ".join(KINDS)


_SET_MORE = ("values", "to", "hunk")
"""Keys of `set` besides the kind: what each level means, the name under which a file is put in place, and which hunk of
a patch."""
_ON, _OFF = ("on", "true", "1"), ("off", "false", "0")


def _levels(table: _Table, kind: str, setting: Mapping[str, object]) -> tuple[Level, ...]:
    """`levels`, otherwise the keys of a map of levels, otherwise off and on."""
    mapped = _map_of_levels(kind, setting)
    given = table.values.get("levels")
    if given is None:
        if mapped is not None and not mapped <= {*_ON, *_OFF}:
            if len(mapped) < 2:
                raise table.wrong(f"set.{kind}", "a map of levels needs at least two.", "Add one, or write levels.")
            return tuple(cast(Mapping[str, object], setting.get("values") or setting[kind]))
        if kind in ("git", "python"):
            raise table.wrong("levels", f"a factor of kind {kind!r} needs levels.", "Write levels = [...] or a map.")
        return (False, True)
    if not isinstance(given, list) or len(given) < 2:
        raise table.wrong("levels", f"{given!r} is not a list of at least two levels.")
    if not all(isinstance(level, bool | int | float | str) for level in given):
        raise table.wrong("levels", f"{given!r} has levels that are not text, a number, true or false.")
    if mapped is not None and (missing := [level for level in given if not mapped & _names(level)]):
        raise table.wrong(f"set.{kind}", f"does not mention level {missing[0]!r}.", "Give each level its value.")
    return tuple(given)


def _map_of_levels(kind: str, setting: Mapping[str, object]) -> set[str] | None:
    """The levels to which a map gives values; None if there is none."""
    values, value = setting.get("values"), setting.get(kind)
    if isinstance(values, dict):
        return set(values)
    # set.env = { NAME = "1" } sets variables when on; set.env = { low = { NAME = "1" }, ... } maps levels.
    if isinstance(value, dict) and (kind != "env" or all(isinstance(entry, dict) for entry in value.values())):
        return set(value)
    return None


def _names(level: object) -> set[str]:
    if isinstance(level, bool):
        return set(_ON if level else _OFF)
    return {str(level)}


def _constraints(file: Path, values: object) -> dict[str, str]:
    if not isinstance(values, dict):
        raise StudyFileError(f"{file}: constraints", f"{values!r} is not a table.", "Write a section [constraints].")
    for name, text in values.items():
        if not isinstance(text, str):
            raise StudyFileError(
                f"{file}: constraints.{name}", f"{text!r} is not text.", "Put the expression in quotes."
            )
    return dict(values)


def _design(file: Path, values: object, factors: Sequence[Factor]) -> DesignSpec:
    table = _Table(file, "design", values, _DESIGN)
    budget = table.values.get("budget")
    factor = table.optional_text("factor")
    if factor is not None and factor not in {f.name for f in factors}:
        raise table.wrong("factor", f"there is no factor {factor!r}.")
    return DesignSpec(
        kind=table.choice("kind", "auto", DESIGNS),
        paths=table.optional_whole("paths"),
        seed=table.whole("seed", 1),
        budget_s=None if budget is None else parse_duration_s(budget, table.where("budget")),
        replicates=table.whole("replicates", 1, 1),
        rows=_rows(table, factors),
        block_size=table.whole("block_size", 16, 4),
        noise_pct=table.number("noise_pct", 5.0, 0.01),
        runs=table.optional_whole("runs", 1),
        edges=table.optional_whole("edges"),
        factor=factor,
    )


def _rows(table: _Table, factors: Sequence[Factor]) -> tuple[dict[str, Level], ...]:
    given = table.values.get("rows", [])
    if not isinstance(given, list) or not all(isinstance(row, dict) for row in given):
        raise table.wrong("rows", "is not a list of tables.", "Write [[design.rows]] sections of name = level.")
    by_name = {f.name: f for f in factors}
    rows: list[dict[str, Level]] = []
    for number, row in enumerate(given, 1):
        found: dict[str, Level] = {}
        for name, level in row.items():
            if name not in by_name:
                close = difflib.get_close_matches(name, by_name, 1)
                hint = f"Did you mean {close[0]!r}?" if close else ""
                raise table.wrong(f"rows[{number}].{name}", "unknown factor.", hint)
            try:
                found[name] = by_name[name].parse(level)
            except DesignError as error:
                raise table.wrong(f"rows[{number}].{name}", f"{error}") from None
        rows.append(found)
    return tuple(rows)
