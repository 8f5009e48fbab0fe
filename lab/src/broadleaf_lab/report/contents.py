"""The content of the page: facts, sentences and tables, from a study's data and models."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Literal

from broadleaf_lab.analysis.convergence import precision
from broadleaf_lab.analysis.effects import Effect
from broadleaf_lab.analysis.model.scale import answer
from broadleaf_lab.analysis.verdict import MAX_TIMES_MORE, SLOWS, Verdict
from broadleaf_lab.report.collect import CONTEXTS, Collected
from broadleaf_lab.report.figures.base import Figure, Missing, Unit, number
from broadleaf_lab.report.page import Contents, Sentence, Table, explorer_data
from broadleaf_lab.report.predictor import predictor_data
from broadleaf_lab.report.questions import questions
from broadleaf_lab.spec.factors import Level, column_value
from broadleaf_lab.text import change, listed

MAX_PAIRS = 30
_Where = Literal["average", "baseline", "best"]
_SEEMS = {"helps", "hinders", "slows some runs", "fails more"}
METHOD = (
    "An effect is the ratio of the time per task with a treatment to that without it, on average over the levels of "
    "all other factors, from a linear model of the logarithm of time with main effects, pairs, blocks and time.",
    "Intervals are 95 % and robust to unequal spread. q is the rate of false discoveries if all pairs up to this one "
    "are believed; pairs count as real at q up to 0.05.",
    "helps and hinders: the interval lies wholly beyond the limit of practical difference; no practical difference: it "
    "lies within (two one-sided tests); depends on: the words differ between levels of another factor; unknown: none "
    "of these.",
    "A delta compares the same configuration without and with one treatment; its interval comes from redrawing blocks "
    "of runs.",
    "A path adds treatments one by one. Chosen on the runs it is drawn from, it looks a little better than it is: "
    "measure it again with `broadleaf-lab path --again 5` before quoting it.",
)


def contents_of(found: Collected, figures: Sequence[Figure | Missing]) -> Contents:
    """The page of a study."""
    evidence = found.evidence
    assert evidence is not None, "collect() fills it in"
    decided = found.known.verdicts
    explorer, note = None, ""
    if found.deltas is not None:
        tables = {"best first": evidence.greedy, "nicest first": evidence.nice}
        shown = {name: table for name, table in tables.items() if table is not None}
        asked = questions(evidence.roles, evidence.kept_condition, set(found.deltas["treatment"]), shown)
        explorer, note = explorer_data(found.deltas, found.factors, shown, evidence.roles.second, asked)
    best = found.paths.get("best first")
    order = [step.factor for step in best.order] if best is not None else []
    model = predictor_data(found.log, found.factors, found.study.constraints, order) if found.log else None
    return Contents(
        name=found.study.name,
        facts=tuple(_facts(found)),
        summary=(
            *found.failures.sentences,
            *_summary(found, decided),
            *_placebo(found),
        ),
        verdicts=tuple(Sentence(_setting(v.factor, v.level), v.word, v.sentence) for v in decided),
        warnings=tuple(_warnings(found)),
        tables=tuple(_tables(found)),
        figures=tuple(figures),
        method=METHOD,
        explorer=explorer,
        explorer_note=note,
        model=model,
        explorer_reason="" if explorer else "run a design with paths or edges.",
    )


def _facts(found: Collected) -> Iterable[str]:
    frame = found.frame
    total = found.failures.total
    yield f"{total.runs} runs, {total.failed} failed" if total.failed else f"{len(frame)} runs"
    yield f"{len(found.factors)} factors"
    first, last = float(frame["started_unix"].min()), float(frame["started_unix"].max())
    yield datetime.fromtimestamp(first, UTC).strftime("%Y-%m-%d %H:%M UTC")
    yield f"over {number((last - first) / 60)} minutes"
    for column, word in (("machine_id", "machine"), ("python", "Python"), ("git_sha", "commit")):
        values = [str(v) for v in frame[column].dropna().unique() if str(v)] if column in frame else []
        if values:
            yield f"{word} {listed(values)}"


def _summary(found: Collected, decided: Sequence[Verdict]) -> Iterable[str]:
    if found.log is None:
        yield "These runs do not allow a model; only the figures below can be drawn."
        return
    path = found.paths.get("best first")
    if path is not None and path.order:
        unit = Unit.of([path.start])
        steps = [_setting(step.factor, step.level) for step in path.order]
        yield (
            f"From {unit.shown(path.start)} per task at the baseline to {unit.shown(path.end)}, "
            f"{number(path.start / path.end)} times as fast, with {len(steps)} treatments each proven to help: "
            f"{listed(steps, 12)}."
        )
    else:
        yield found.known.no_step
    for word, verb in (
        ("helps", "help"),
        ("hinders", "hinder"),
        (SLOWS, "slow some runs"),
        ("no practical difference", "make no practical difference"),
    ):
        names = found.known.settings(word)
        if names:
            yield f"{listed(dict.fromkeys(names), 8)} {verb if len(names) > 1 else _singular(word)}."
    depending = [v for v in decided if v.word.startswith("depends")]
    for v in depending[:4]:
        yield v.sentence
    for pair in [p for p in found.pairs if p.q <= 0.05 and p.kind in ("either-or", "sign-flip")][:4]:
        yield pair.sentence
    yield from _hunks(found)
    yield from _unknown(found, [v for v in decided if v.word == "unknown"])


def _unknown(found: Collected, unknown: Sequence[Verdict]) -> Iterable[str]:
    """What is not known, and how many more runs would tell: those within reach, those beyond it, and the rest."""
    reach = MAX_TIMES_MORE * len(found.frame)
    within = [v for v in unknown if v.needs_runs and v.needs_runs <= reach]
    beyond = [v for v in unknown if v.needs_runs and v.needs_runs > reach]
    rest = [v for v in unknown if not v.needs_runs]
    if within:
        more = max(v.needs_runs or 0 for v in within)
        yield f"Not yet known: {listed([v.name for v in within], 8)} (about {more} more runs)."
    if beyond:
        yield f"Not decided even with {MAX_TIMES_MORE} times as many runs: {listed([v.name for v in beyond], 8)}."
    if rest:
        yield f"Not yet known: {listed([v.name for v in rest], 8)}."


def _placebo(found: Collected) -> Iterable[str]:
    """What the first placebo seems to do, which should be nothing."""
    factor = next((f.name for f in found.factors if f.kind == "placebo"), None)
    told: dict[_Where, Effect] = {
        context: effect for context in CONTEXTS if (effect := _effect_of(found, factor, context)) is not None
    }
    if "average" not in told:
        return
    words = {v.word for v in found.known.verdicts if v.factor == factor}
    first = told["average"]
    span = f"{_percent(first.ratio)} [{_percent(first.ratio_low)} to {_percent(first.ratio_high)}]"
    wrong = [CONTEXTS[context] for context, it in told.items() if not it.ratio_low <= 1 <= it.ratio_high]
    if words & _SEEMS or CONTEXTS["average"] in wrong:
        yield f"The placebo seems to do something ({span}): find out why before believing small effects here."
    elif wrong:
        yield f"The placebo's average effect covers zero ({span}), but not its effect by the {listed(wrong)}."
    elif words == {"no practical difference"}:
        yield f"The placebo does nothing, as expected: {span} covers zero."
    else:
        yield f"The placebo is not known to do anything, as expected: {span} covers zero, but is wide."


def _effect_of(found: Collected, factor: str | None, context: _Where) -> Effect | None:
    if found.log is None:
        return None
    return next((effect for effect in found.log.effects(context) if effect.factor == factor), None)


def _hunks(found: Collected) -> Iterable[str]:
    """Of patches that are a factor for each hunk: which of these are dear."""
    if found.log is None:
        return
    effects = {e.factor: e for e in found.log.effects()}
    patches: dict[str, list[Effect]] = {}
    for factor in found.factors:
        if "hunk" in factor.setting and factor.name in effects:
            patches.setdefault(str(factor.setting["patch"]), []).append(effects[factor.name])
    for patch, its in patches.items():
        dear = [e for e in its if found.known.can_help(e.factor, e.level)]
        dear.sort(key=lambda e: e.ratio)
        told = [f"{e.factor} ({change(e.ratio)}: {found.study.factor(e.factor).loses})" for e in dear]
        text = f"Of the {len(its)} hunks of {patch}, {listed(told, 8)} {'saves' if len(dear) == 1 else 'save'} time"
        most = min((e.ratio_low for e in its if e not in dear), default=1.0)
        rest = f"none of the others saves more than {100 * (1 - most):.1f} %" if len(dear) < len(its) else ""
        if not dear:
            text = f"None of the {len(its)} hunks of {patch} is known to save time"
            rest = rest.replace("the others", "them")
        yield "; ".join(part for part in (text, rest) if part) + "."


def _setting(factor: str, level: Level) -> str:
    return factor if level is True else f"{factor} = {column_value(level)}"


def _singular(word: str) -> str:
    return "makes no practical difference" if word.startswith("no") else word


def _warnings(found: Collected) -> Iterable[str]:
    yield from found.notes
    if found.log is None:
        return
    yield from found.log.notes
    yield precision(found.log, found.study.rope_pct).sentence
    yield answer(found.log).sentence
    misfit = found.log.lack_of_fit
    if misfit is not None and misfit.significant:
        yield (
            f"The model misses something that repeated runs show (lack of fit, p = {misfit.p:.2g}): interactions of "
            "more than two factors remain."
        )
    flags = found.frame["flags"].dropna().astype(str) if "flags" in found.frame else None
    if flags is not None and (flags != "").any():
        marked = flags[flags != ""]
        yield f"{len(marked)} of {len(found.frame)} runs carry a flag ({listed(sorted(set(marked)))})."


def _tables(found: Collected) -> Iterable[Table]:
    if found.failures.total.failed:
        yield Table(
            "Failures",
            "Share of the runs that failed, ran out of time or gave no score, with exact 95 % intervals. Runs with "
            "another setting that explains their failure are set aside.",
            ("setting", "failed", "of runs", "share", "95 % interval", "without it", "verdict", "with"),
            tuple(
                (it.name, str(it.rate.failed), str(it.rate.runs), f"{100 * it.rate.share:.1f} %",
                 f"{100 * it.rate.low:.1f} to {100 * it.rate.high:.1f} %",
                 f"{it.default.failed} of {it.default.runs}", it.word or "no more than chance",
                 "" if it.with_setting is None else _setting(*it.with_setting))
                for it in found.failures.levels
            ),
        )  # fmt: skip
    if found.log is None:
        return
    columns = ("factor", "average", "95 % interval", "at the baseline", "95 % interval", "at the best", "95 % interval")
    cells: dict[str, list[str]] = {}
    for index, context in enumerate(CONTEXTS):
        for effect in found.log.effects(context):
            row = cells.setdefault(_setting(effect.factor, effect.level), [])
            row += [""] * (2 * index - len(row))
            row += [_percent(effect.ratio), f"{_percent(effect.ratio_low)} to {_percent(effect.ratio_high)}"]
    rows = tuple((name, *row, *[""] * (6 - len(row))) for name, row in cells.items())
    yield Table("Effects", "Change of the time per task; a minus is faster.", columns, rows)
    real = [p for p in found.pairs if p.q <= 0.05]
    if real:
        lines = tuple(
            (
                f"{p.a} \u00d7 {p.b}",
                p.kind,
                _percent(math.exp(p.a_alone.estimate)),
                _percent(math.exp(p.a_with_b.estimate)),
                _percent(math.exp(p.b_alone.estimate)),
                _percent(math.exp(p.b_with_a.estimate)),
                _percent(math.exp(p.joint.estimate)),
                f"{p.q:.2g}",
            )
            for p in real[:MAX_PAIRS]
        )
        head = ("pair", "class", "first alone", "first with second", "second alone", "second with first", "both", "q")
        left_out = f" The {MAX_PAIRS} clearest of {len(real)}." if len(real) > MAX_PAIRS else ""
        yield Table(
            "Interactions",
            f"Change of the time per task that each brings without and with the other.{left_out}",
            head,
            lines,
        )
    for name, path in found.paths.items():
        if not path.order:
            continue
        unit = Unit.of([path.start])
        moves = tuple(
            (
                _setting(s.factor, s.level),
                str(s.tier),
                unit.shown(s.before),
                unit.shown(s.after),
                f"{unit.shown(s.change, signed=True)} "
                f"[{number(s.ci_low / unit.us, signed=True)} to {number(s.ci_high / unit.us, signed=True)}]",
                f"{number(1e6 / s.after)}",
                found.study.factor(s.factor).loses or "nothing",
            )
            for s in path.order
        )
        titles = ("step", "tier", "before", "after", "change", "tasks per second then", "gives up")
        yield Table(
            f"Path, {name}", "Treatments added one after the other, as long as each is proven to help.", titles, moves
        )


def _percent(ratio: float) -> str:
    return f"{number(100 * (ratio - 1), signed=True)} %" if math.isfinite(ratio) else "unknown"
