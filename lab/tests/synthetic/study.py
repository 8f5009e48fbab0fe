"""A synthetic study as a directory: study.toml, plan.json, runs.csv, and truth.json to compare results with.

The study can also be run: `answers.py` beside it does no work, but answers with the time that the truth defines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broadleaf_lab.designs.plan import Plan
from broadleaf_lab.errors import writing
from broadleaf_lab.spec.factors import Factor

from synthetic.system import SyntheticSystem, seedlike, simulate, two_level

SYSTEMS = ("seedlike", "eight", "null")
_NO_EFFECT = 8


def system(name: str, **options: Any) -> SyntheticSystem:
    """A system by name: the published study, eight factors with three pairs that interact, or factors without
    any effect.
    `options` are fields of the system."""
    if name == "seedlike":
        return seedlike(**options)
    names = [f"f{i}" for i in range(1, _NO_EFFECT + 1)]
    if name == "null":
        return two_level({**dict.fromkeys(names, 0.0), "placebo": 0.0}, **options)
    effects = dict(zip(names, (-0.5, -0.3, -0.2, -0.1, -0.05, 0.05, 0.02, 0.0), strict=True))
    pairs = {("f1", "f2"): 0.3, ("f3", "f4"): -0.1, ("f1", "f5"): 0.12}
    kinds = {("f1", "f2"): "either-or", ("f3", "f4"): "synergistic", ("f1", "f5"): "sign-flip"}
    return two_level(effects, pairs, kinds=kinds, **options)


def write(
    directory: Path,
    name: str,
    seed: int = 1,
    design: Mapping[str, Any] | None = None,
    seconds_per_run: float = 4.0,
    start_unix: float = 1_700_000_000.0,
    **options: Any,
) -> Plan:
    """Writes the study and its runs; returns the plan. `design` are keys of `[design]`, `options` fields of the
    system."""
    from broadleaf_lab.spec.runs import RunsFile
    from broadleaf_lab.study import Study

    made = system(name, **options)
    chosen = {"seed": seed, "noise_pct": 100 * made.noise, **(design or {})}
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "study.toml").write_text(_toml(made, name, chosen), encoding="utf-8")
        (directory / "answers.py").write_text(_benchmark(name, options), encoding="utf-8")
        (directory / "truth.json").write_text(json.dumps(truth(made), indent=1) + "\n", encoding="utf-8")
    study = Study.load(directory)
    plan = study.plan()
    plan.save(directory / "plan.json")
    study.runs_path.unlink(missing_ok=True)
    configs = {row.row: row.config for row in plan.rows}
    with RunsFile(study.runs_path, study.factors, study.responses) as runs:
        for row in simulate(plan, made, seed, start_unix, seconds_per_run):
            runs.append(row, configs[row["plan_row"]])
    return plan


def truth(made: SyntheticSystem) -> dict[str, Any]:
    """What there is to find, on the scale of the truth."""
    baseline = {factor.name: factor.default for factor in made.factors}
    all_on = {factor.name: factor.on for factor in made.factors}
    return {
        "scale": made.scale,
        "baseline_us": made.mean_us(baseline),
        "all_on_us": made.mean_us(all_on),
        "effects": {
            f.name: {"baseline": made.contrast(f.name, baseline), "average": made.average_effect(f.name)}
            for f in made.factors
        },
        "pairs": [{"a": a, "b": b, "amount": amount} for (a, b), amount in made.pairs.items()],
        "kinds": [{"a": a, "b": b, "kind": kind} for (a, b), kind in made.kinds.items()],
    }


def _toml(made: SyntheticSystem, name: str, design: Mapping[str, Any]) -> str:
    lines = [
        "# Nothing here is measured. truth.json says what there is to find.",
        "[study]",
        f'name = "{name}"',
        'callable = "answers:run"',
        "timeout_s = 60",
        "",
        "[study.calibrate]",
        "n_tasks = 10000",
        "",
    ]
    for factor in made.factors:
        lines += _section(factor)
    lines += ["[design]", *(f"{key} = {json.dumps(value)}" for key, value in design.items())]
    return "\n".join(lines) + "\n"


def _section(factor: Factor) -> list[str]:
    setting = 'kind = "placebo"' if factor.kind == "placebo" else f'set.keyword = "{factor.name}"'
    lines = [f"[factors.{factor.name}]", setting]
    if factor.tier != 1:
        lines.append(f"tier = {factor.tier}")
    if factor.loses:
        lines.append(f"loses = {json.dumps(factor.loses)}")
    return [*lines, ""]


def _benchmark(name: str, options: Mapping[str, Any]) -> str:
    given = "".join(f", {key}={value!r}" for key, value in options.items())
    return f'''"""Answers with the seconds per task that the truth of this synthetic study says."""

import sys
import time

import numpy as np

sys.path.append({str(Path(__file__).parents[1])!r})
from synthetic.study import system

SYSTEM = system("{name}"{given})


def run(n_tasks, **levels):
    config = {{factor.name: levels.get(factor.name, factor.default) for factor in SYSTEM.factors}}
    return SYSTEM.time_us(config, np.random.default_rng(), time.time()) / 1e6
'''
