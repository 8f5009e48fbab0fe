"""What a tuning found, in sentences, as JSON, and as a file of settings to apply."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from broadleaf_lab.analysis.failures import Failing
from broadleaf_lab.analysis.pairs.paired import Ratio
from broadleaf_lab.errors import writing
from broadleaf_lab.run.command import level_value
from broadleaf_lab.spec.factors import Config, Factor, changed, column_value, config_id, describe
from broadleaf_lab.spec.runs import replace_file
from broadleaf_lab.spec.study import StudySpec
from broadleaf_lab.tune.pareto import Point
from broadleaf_lab.tune.tuner import Tuned

CONFIG_FILE = "tuned.toml"
RESULT_FILE = "tuned.json"


def sentences(study: StudySpec, tuned: Tuned) -> list[str]:
    """The result for a reader."""
    lines: list[str] = []
    n_runs = len(tuned.trials)
    if tuned.is_default:
        winner = tuned.winner_failing
        refused = winner.word or ("may fail more" if winner.suspect else "")
        why = f"the fastest candidate {refused}" if refused else "nothing was proven to be faster"
        lines.append(f"Recommended: the default{_without(tuned)}; {why}.")
        if refused:
            beside = winner.default
            lines.append(
                f"Of the candidate's own runs: {winner.rate.text}, {beside.failed or 'none'} of "
                f"{beside.runs} of the default."
            )
        if tuned.ratio is not None:
            lines.append(
                f"The best candidate ({describe(tuned.winner, study.factors)}) takes {tuned.ratio} of the default's"
                f" time on {tuned.ratio.n} fresh pairs of runs (95 % interval)."
            )
    elif tuned.ratio is not None and tuned.speed_up is not None:
        but = "".join(f"; {_counted(it)}" for it in tuned.failing)
        lines.append(f"Recommended: {describe(tuned.config, study.factors)}{_without(tuned)}{but}.")
        lines.append(
            f"{tuned.speed_up} times as fast as the default, 95 % interval, on {tuned.ratio.n} fresh pairs of runs."
        )
        if tuned.given_up:
            lines.append(f"Given up: {'; '.join(tuned.given_up)}.")
        lines.append(f"By the model, better than {tuned.better_than_pct:.1f} % of the possible configurations.")
    for setting in tuned.settings:
        if setting.benefit is None:
            lines.append(f"  {setting.factor}: kept; the budget was not enough to test it alone.")
        else:
            word = "kept" if setting.kept else "dropped"
            lines.append(f"  {setting.factor}: {word}; {setting.benefit} of the time without it.")
    if len(tuned.front) > 1:
        lines.append("Speed against what is given up (estimates of the search, not confirmed):")
        lines += [
            f"  tier {point.tier}: {point.predicted_ratio:.3f} of the default's time"
            f" ({describe(point.config, study.factors)})"
            for point in tuned.front
        ]
    lines.append(f"{n_runs} runs, search by {tuned.algorithm}; single runs differ by {100 * tuned.noise_sd:.1f} %.")
    return lines


def _without(tuned: Tuned) -> str:
    return "".join(f", without {_counted(it)}" for it in tuned.left_out)


def _counted(it: Failing) -> str:
    """Such as `x, which fails more (24 of 60 runs, 0 of 55 without it)`."""
    where = f" with {it.with_setting[0]}={it.with_setting[1]}" if it.with_setting else ""
    counts = f"{it.rate.failed} of {it.rate.runs} runs, {it.default.failed} of {it.default.runs} without it"
    return f"{it.name}, which {it.word}{where} ({counts})" if it.proven else f"{it.name} may fail more ({counts})"


def front_sentences(study: StudySpec, front: Sequence[Point]) -> list[str]:
    """What gains in one response cost in the others: a line for each configuration that no other beats in all."""
    if not front:
        return []
    names = list(front[0].ratios)
    lines = [f"None is better in all of {', '.join(names)} than these (ratios to the default, by all runs):"]
    for point in front:
        ratios = ", ".join(
            f"{name} x{at:.3f} ({low:.3f} to {high:.3f})" for name, (at, low, high) in point.ratios.items()
        )
        lines.append(f"  {describe(point.config, study.factors)}: {ratios}")
    return lines


def front_dicts(front: Sequence[Point]) -> list[dict[str, Any]]:
    """The same for JSON."""
    return [{"levels": _levels(point.config), "ratios": point.ratios} for point in front]


def to_dict(study: StudySpec, tuned: Tuned) -> dict[str, Any]:
    """Everything except the single runs, ready for JSON."""
    return {
        "study": study.name,
        "recommended": _levels(tuned.config),
        "config_id": config_id(tuned.config, study.factors),
        "is_default": tuned.is_default,
        "ratio": _ratio(tuned.ratio),
        "speed_up": _ratio(tuned.speed_up),
        "winner": _levels(tuned.winner),
        "winner_ratio": _ratio(tuned.winner_ratio),
        "settings": [
            {"factor": s.factor, "level": column_value(s.level), "benefit": _ratio(s.benefit), "kept": s.kept}
            for s in tuned.settings
        ],
        "failed_runs": tuned.failures.total.failed,
        "left_out": [_failing(it) for it in tuned.left_out],
        "may_fail": [_failing(it) for it in tuned.failing],
        "winner_failed": {"failed": tuned.winner_failing.rate.failed, "runs": tuned.winner_failing.rate.runs},
        "given_up": list(tuned.given_up),
        "front": [
            {"tier": p.tier, "levels": _levels(p.config), "ratio": p.predicted_ratio, "loses": list(p.loses)}
            for p in tuned.front
        ],
        "better_than_pct": tuned.better_than_pct,
        "noise_pct": 100 * tuned.noise_sd,
        "algorithm": tuned.algorithm,
        "runs": len(tuned.trials),
    }


def _failing(it: Failing) -> dict[str, Any]:
    return {
        "factor": it.factor, "level": column_value(it.level), "failed": it.rate.failed, "runs": it.rate.runs,
        "share_low": it.rate.low, "share_high": it.rate.high, "default_failed": it.default.failed,
        "default_runs": it.default.runs,
    }  # fmt: skip


def write(study: StudySpec, tuned: Tuned, directory: Path) -> tuple[Path, Path]:
    """Writes the settings and the result; returns their paths. Raises WriteError if the directory cannot be written."""
    settings, result = directory / CONFIG_FILE, directory / RESULT_FILE
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
    replace_file(settings, settings_toml(study, tuned))
    replace_file(result, json.dumps(to_dict(study, tuned), indent=1) + "\n")
    return settings, result


def settings_toml(study: StudySpec, tuned: Tuned) -> str:
    """The recommended levels, and what to set for them, by kind: options, variables, arguments, wrappers, patches."""
    lines = [f"# {line}" for line in sentences(study, tuned)]
    lines += ["", "[levels]", *_table({n: column_value(x) for n, x in changed(tuned.config, study.factors).items()})]
    by_kind: dict[str, dict[str, Any]] = {}
    for name, level in changed(tuned.config, study.factors).items():
        factor = study.factor(name)
        target, value = _target(factor, tuned.config)
        by_kind.setdefault(factor.kind, {})[target] = value if value is not None else column_value(level)
    for kind, values in by_kind.items():
        lines += ["", f"[set.{kind}]", *_table(values)]
    return "\n".join(lines) + "\n"


def _target(factor: Factor, config: Config) -> tuple[str, Any]:
    """What a factor sets, and to which value."""
    named = factor.setting.get(factor.kind)
    value = level_value(factor, config[factor.name])
    if isinstance(named, str):
        # A flag, patch, wrapper or file that is on has its text as a value; for others, the text is the name.
        return (factor.name, named) if isinstance(value, bool) and factor.kind != "config" else (named, value)
    if isinstance(named, list | Mapping) and isinstance(value, bool):
        return factor.name, named
    return factor.name, value


def _table(values: Mapping[str, Any]) -> list[str]:
    return [f"{json.dumps(name)} = {_toml(value)}" for name, value in values.items()]


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(str(k))} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    # JSON's form of text, numbers and booleans is valid TOML.
    return json.dumps(value)


def _levels(config: Config) -> dict[str, Any]:
    return {name: column_value(level) for name, level in config.items()}


def _ratio(found: Ratio | None) -> dict[str, Any] | None:
    if found is None:
        return None
    high = found.high if math.isfinite(found.high) else None
    return {"estimate": found.estimate, "low": found.low, "high": high, "n": found.n}
