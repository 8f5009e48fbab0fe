"""From a study's runs to a file that a program reads: the settings proven to help, written where they belong."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from broadleaf_lab.analysis import failures
from broadleaf_lab.analysis.failures import Failing
from broadleaf_lab.analysis.known import Known
from broadleaf_lab.analysis.model.fit import of_study as fit_of_study
from broadleaf_lab.analysis.paths import path as paths
from broadleaf_lab.errors import RunError, writing
from broadleaf_lab.run.command import as_text, level_value
from broadleaf_lab.spec.factors import Level, changed, describe
from broadleaf_lab.spec.runs import replace_file
from broadleaf_lab.spec.settings import RunSettings
from broadleaf_lab.spec.study import StudySpec

FILE_KINDS = ("config", "env")
"""Kinds of factors whose settings are keys of a file; those of other kinds are only named in words."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The settings proven to help one after the other, and the ratio of times to the default that the model of all runs
    predicts, with its 95 % interval. `left_out` fail more often than their default; `worse` are
    recommended and failed more often, but no more than chance allows. `why_default` says why nothing is recommended.
    """

    config: dict[str, Level]
    ratio: tuple[float, float, float]
    left_out: tuple[Failing, ...]
    gives_up: tuple[str, ...]
    worse: tuple[Failing, ...] = ()
    why_default: str = ""


def recommend(study: StudySpec, max_tier: int = 4) -> Recommendation:
    """What the runs recommend, among settings of at most `max_tier`. Raises AnalysisError if they show nothing."""
    made = fit_of_study(study)
    found = failures.of_study(study.runs_path, study.factors)
    sound = failures.without(study, found)
    allowed = replace(
        sound,
        constraints={
            **sound.constraints,
            **{f"tier_{f.name}": _at_default(f.name, f.default) for f in study.factors if f.tier > max_tier},
        },
    )
    known = Known(made, study.rope_pct, found)
    order = paths.greedy(made, allowed.rules(), "us", known=known).order
    config = {**study.baseline, **{step.factor: step.level for step in order}}
    varied = {f.name for f in made.factors}
    ends = [{n: v for n, v in one.items() if n in varied} for one in (config, study.baseline)]
    it = made.changes(ends[:1], ends[1:])[0] if order else None
    ratio = (1.0, 1.0, 1.0) if it is None else (math.exp(it.estimate), math.exp(it.low), math.exp(it.high))
    lost = tuple(f"{n}: {study.factor(n).loses}" for n in changed(config, study.factors) if study.factor(n).loses)
    left_out = tuple(it for it in found.worse if it.word)
    worse = tuple(it for it in found.worse if not it.word and config.get(it.factor) == it.level)
    return Recommendation(config, ratio, left_out, lost, worse, "" if order else known.no_step)


def _at_default(name: str, default: Level) -> str:
    if isinstance(default, bool):
        return name if default else f"not {name}"
    return f"{name} == {default!r}"


def sentences(study: StudySpec, found: Recommendation) -> list[str]:
    """The recommendation for a reader; failures are in the first sentence."""
    but = "".join(f", without {it.name}, which {it.word}" for it in found.left_out)
    but += "".join(
        f", though {it.rate.failed} of {it.rate.runs} runs with {it.name} failed and {it.default.failed} of "
        f"{it.default.runs} without it, which may be chance"
        for it in found.worse
    )
    setting = describe(found.config, study.factors)
    if setting == "baseline":
        return [f"Recommended: the default{but}. {found.why_default}"]
    at, low, high = (f"{100 * (ratio - 1):+.1f} %" for ratio in found.ratio)
    lines = [
        f"Recommended: {setting}{but}.",
        f"{at} time per task by the model of all runs (95 % interval {low} to {high}); `broadleaf-lab compare baseline "
        f"'{setting.replace(', ', ',')}'` measures it afresh.",
    ]
    if found.gives_up:
        lines.append(f"Given up: {'; '.join(found.gives_up)}.")
    return lines


def keys(study: StudySpec, config: Mapping[str, Level]) -> tuple[dict[str, Any], list[str]]:
    """The keys of a configuration file with their values, and what has to be set elsewhere, in words."""
    inside: dict[str, Any] = {}
    outside: list[str] = []
    for name, level in changed(config, study.factors).items():
        factor = study.factor(name)
        value, named = level_value(factor, level), factor.setting.get(factor.kind)
        if factor.kind == "config":
            inside[str(named if isinstance(named, str) else name)] = value
        elif factor.kind == "env" and isinstance(named, Mapping) and isinstance(level, bool):
            inside |= {str(key): text for key, text in named.items()}
        elif factor.kind == "env" and isinstance(named, str):
            inside[named] = value
        else:
            shown = named if isinstance(named, str) else name
            outside.append(f"{factor.kind} {shown}" + ("" if isinstance(value, bool) else f" = {value}"))
    return inside, outside


def write(study: StudySpec, config: Mapping[str, Level], file: Path) -> list[str]:
    """Sets the keys in `file` and leaves all others as they are: TOML and JSON by their names (`a.b` is b in a), any
    other file as lines NAME=VALUE. Returns what cannot be written to a file. Raises RunError if the file cannot be
    changed safely or written."""
    inside, outside = keys(study, config)
    with writing(file):
        text = file.read_text(encoding="utf-8") if file.exists() else ""
    match file.suffix:
        case ".toml":
            changed_text = _in_toml(text, inside, file)
        case ".json":
            changed_text = _in_json(text, inside, file)
        case _:
            prefix = RunSettings.of(study).config_prefix
            changed_text = _in_lines(text, {_variable(study, prefix, key): value for key, value in inside.items()})
    replace_file(file, changed_text)
    return outside


def _variable(study: StudySpec, prefix: str, key: str) -> str:
    options = {str(f.setting.get("config", f.name)) for f in study.factors if f.kind == "config"}
    return prefix + re.sub(r"\W", "_", key).upper() if key in options else key


def _in_lines(text: str, wanted: Mapping[str, Any]) -> str:
    lines = [line for line in text.splitlines() if line.partition("=")[0].removeprefix("export ").strip() not in wanted]
    return "\n".join([*lines, *(f"{name}={as_text(value)}" for name, value in wanted.items())]) + "\n"


def _in_json(text: str, wanted: Mapping[str, Any], file: Path) -> str:
    try:
        data = json.loads(text or "{}")
    except ValueError as error:
        raise RunError(f"{file}: is not JSON: {error}.") from None
    return json.dumps(_with(data, wanted), indent=2) + "\n"


def _in_toml(text: str, wanted: Mapping[str, Any], file: Path) -> str:
    """Line by line, so that comments are preserved; read again to be sure that nothing else changed."""
    try:
        before = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RunError(f"{file} is not valid TOML: {error}.") from None
    lines = text.splitlines()
    for key, value in wanted.items():
        section, _, name = key.rpartition(".")
        line = f"{name} = {json.dumps(value)}"
        start, end = _section(lines, section)
        if start is None:
            lines += ["", f"[{section}]", line]
            continue
        pattern = re.compile(rf"\s*(?:{re.escape(name)}|\"{re.escape(name)}\")\s*=")
        at = next((i for i in range(start, end) if pattern.match(lines[i])), None)
        if at is None:
            lines.insert(start, line)
        else:
            lines[at] = line
    made = "\n".join(lines) + "\n"
    try:
        good = tomllib.loads(made) == _with(before, wanted)
    except tomllib.TOMLDecodeError:
        good = False
    if not good:
        raise RunError(
            f"{file}: its layout is too complex to edit line by line. Set by hand: {json.dumps(dict(wanted))}."
        )
    return made


def _section(lines: list[str], section: str) -> tuple[int | None, int]:
    """The lines of a section without its header; for the top level, those before the first header."""
    heads = [i for i, line in enumerate(lines) if line.lstrip().startswith("[")]
    if not section:
        return 0, heads[0] if heads else len(lines)
    start = next((i for i in heads if lines[i].split("#")[0].strip() == f"[{section}]"), None)
    if start is None:
        return None, 0
    return start + 1, next((i for i in heads if i > start), len(lines))


def _with(data: dict[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(data, default=str)) if data else {}
    for key, value in wanted.items():
        *parts, name = key.split(".")
        here = made
        for part in parts:
            here = here.setdefault(part, {})
        here[name] = value
    return made
