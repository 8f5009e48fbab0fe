"""Which settings make runs fail: the failure rate as a separate response, with exact intervals.

A run that failed, ran out of time or gave no usable score counts as failed; one that this machine could not make
(`skipped`) does not count. Settings are compared with their default by Fisher's exact test, at 5 % over all settings
together, so that few studies accuse an innocent one. What one setting explains does not count against the others: its
runs are set aside before the next one is tested.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from broadleaf_lab.spec.factors import Factor, Level

if TYPE_CHECKING:
    from broadleaf_lab.analysis.verdict import Verdict
    from broadleaf_lab.spec.study import StudySpec

BAD = ("failed", "timeout", "invalid")
FAILS = "fails more"
_ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class Rate:
    """Failed runs out of all runs, with the exact 95 % interval (Clopper-Pearson) of their share."""

    failed: int
    runs: int
    low: float
    high: float

    @property
    def share(self) -> float:
        return self.failed / self.runs if self.runs else float("nan")

    @property
    def text(self) -> str:
        """Such as `24 of 60 runs failed (40.0 %, 95 % interval 27.6 to 53.5 %)`."""
        low, high = 100 * self.low, 100 * self.high
        share = f"{100 * self.share:.1f} %, 95 % interval {low:.1f} to {high:.1f} %"
        return f"{self.failed} of {self.runs} runs failed ({share})"


@dataclass(frozen=True, slots=True)
class Failing:
    """How often a level of a factor fails, compared with the factor's default. `p` is Fisher's, one-sided, times the
    number of settings that were tested: the null hypothesis is that it fails no more often. `with_setting` is another
    setting with which nearly all of its failures occurred, `message` the commonest error.
    """

    factor: str
    level: Level
    rate: Rate
    default: Rate
    p: float
    is_cause: bool = False
    with_setting: tuple[str, Level] | None = None
    message: str = ""

    @property
    def proven(self) -> bool:
        """Whether it fails more often than the default, at 5 %."""
        return self.is_cause or (self.rate.share > self.default.share and self.p <= _ALPHA)

    @property
    def worse(self) -> bool:
        """Whether more of its runs failed than of the default's, proven or not."""
        return self.rate.share > self.default.share

    @property
    def word(self) -> str:
        """`fails more` if that is proven; otherwise nothing."""
        return FAILS if self.proven else ""

    @property
    def suspect(self) -> bool:
        """Whether it fails more often, or only it failed and never its default."""
        return self.proven or (self.worse and self.default.failed == 0)

    @property
    def name(self) -> str:
        return self.factor if isinstance(self.level, bool) else f"{self.factor}={self.level}"

    @property
    def sentence(self) -> str:
        """The finding in words."""
        beside = f"{self.default.failed or 'none'} of {self.default.runs} without it"
        verb = self.word or "failed more often here, by no more than chance allows"
        where = f", nearly all with {_setting(*self.with_setting)}" if self.with_setting else ""
        why = f" Most often: {self.message}." if self.message else ""
        return f"{self.name} {verb}: {self.rate.text}, {beside}{where}.{why}"


@dataclass(frozen=True, slots=True)
class Failures:
    """The failures of a study's runs. `levels` contains every level that was run and is not the default."""

    total: Rate
    statuses: tuple[tuple[str, int], ...]
    levels: tuple[Failing, ...]

    @property
    def worse(self) -> tuple[Failing, ...]:
        """The settings that failed more often than their default, the worst first."""
        found = [it for it in self.levels if it.worse]
        return tuple(sorted(found, key=lambda it: (not it.proven, it.p, -it.rate.share)))

    def of(self, factor: str, level: Level) -> Failing | None:
        """What is known about a setting; None if it was never run."""
        return next((it for it in self.levels if it.factor == factor and it.level == level), None)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What to say first: how many runs failed, then which settings cause it. Empty if none failed."""
        if not self.total.failed:
            return ()
        kinds = ", ".join(f"{n} {status}" for status, n in self.statuses)
        blamed = [it for it in self.worse if it.word]
        head = f"{self.total.failed} of {self.total.runs} runs failed ({kinds}); times are those of the other runs."
        if not blamed:
            head += " No setting is known to cause it."
        return (head, *(it.sentence for it in blamed))

    @property
    def note(self) -> str:
        """What a figure of times says about the runs that are not in it. Empty if none failed."""
        if not self.total.failed:
            return ""
        proven = [it.name for it in self.worse if it.proven]
        shown = ", ".join(proven[:3]) + (f" and {len(proven) - 3} more" if len(proven) > 3 else "")
        why = f"; more often than others: {shown}" if proven else ""
        return f"Without {self.total.failed} of {self.total.runs} runs, which failed{why}."


def rate(failed: int, runs: int) -> Rate:
    """A share with its exact interval."""
    from scipy import stats

    if runs == 0:
        return Rate(0, 0, 0.0, 1.0)
    it = stats.binomtest(failed, runs).proportion_ci(0.95, method="exact")
    return Rate(failed, runs, float(it.low), float(it.high))


def beside(factor: str, level: Level, its: Rate, default: Rate) -> Failing:
    """A rate compared with the default's by Fisher's exact test."""
    from scipy import stats

    failed, runs = its.failed + default.failed, its.runs + default.runs
    p = float(stats.hypergeom.sf(its.failed - 1, runs, failed, its.runs))
    return Failing(factor, level, its, default, p)


def of_runs(rows: Iterable[Mapping[str, Any]], factors: Sequence[Factor], where: str | None = None) -> Failures:
    """The failures among rows of runs.csv, as `read_runs` gives them; `where` as in `frame.load`."""
    from broadleaf_lab.spec import expressions

    kept = [row for row in _last(rows) if row.get("status") in ("ok", *BAD)]
    if where is not None:
        node = expressions.parse(where, {f.name: f for f in factors}, "the condition")
        kept = [row for row in kept if expressions.holds(node, _config(row, factors))]
    bad: np.ndarray = np.array([row["status"] in BAD for row in kept], dtype=bool)
    # Between its listed levels, a scale has others: these are compared with nothing.
    at = {
        f.name: np.array([place.get(level, -1) for level in _column(kept, f)], dtype=int)
        for f in factors
        for place in ({level: i for i, level in enumerate(f.levels)},)
    }
    statuses = Counter(str(row["status"]) for row in kept if row["status"] in BAD)
    left: np.ndarray = np.ones(len(kept), dtype=bool)
    found: dict[tuple[str, Level], Failing] = {}
    candidates = [(f, level) for f in factors for level in f.others]
    family = 1
    while bad[left].any():
        tested = [_tested(f, level, at[f.name], bad, left) for f, level in candidates if (f.name, level) not in found]
        known = [it for it in tested if it is not None]
        first = min(known, key=lambda it: (it.p, -it.rate.share), default=None)
        family = max(len(known), 1)
        if first is None or first.p * family > _ALPHA:
            break
        factor = next(f for f in factors if f.name == first.factor)
        mine = left & (at[factor.name] == factor.levels.index(first.level))
        partner = _partner(factor, factors, at, bad, mine)
        messages = [str(row.get("error") or row["status"]) for row, yes in zip(kept, mine & bad, strict=True) if yes]
        message = Counter(messages).most_common(1)[0][0][:120].rstrip(".")
        beside = None if partner is None else (partner[0].name, partner[1])
        found[factor.name, first.level] = replace(
            first, p=first.p * family, is_cause=True, with_setting=beside, message=message
        )
        if partner is not None and beside is not None and partner[1] != partner[0].default:
            other = _tested(*partner, at[partner[0].name], bad, left)
            if other is not None and other.worse:
                back = factor.name, first.level
                found[beside] = replace(other, is_cause=True, with_setting=back, message=message)
        left &= ~mine
    for factor, level in candidates:
        it = None if (factor.name, level) in found else _tested(factor, level, at[factor.name], bad, left)
        # A level that was only run together with a cause is compared over all runs: there is nothing better.
        it = it or _tested(factor, level, at[factor.name], bad, np.ones(len(kept), dtype=bool))
        if it is not None:
            found.setdefault((factor.name, level), replace(it, p=min(1.0, it.p * family)))
    return Failures(rate(int(bad.sum()), len(kept)), tuple(statuses.most_common()), tuple(found.values()))


def _last(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows without those that `run --retry-failed` repeated."""
    found: dict[object, Mapping[str, Any]] = {}
    for position, row in enumerate(rows):
        planned = row.get("plan_row"), row.get("replicate")
        found[position if None in planned else planned] = row
    return list(found.values())


def of_study(runs_path: Path, factors: Sequence[Factor], where: str | None = None) -> Failures:
    """The failures among the runs of a file."""
    from broadleaf_lab.spec.runs import read_runs

    columns = {"status", "error", "plan_row", "replicate", *(factor.column for factor in factors)}
    return of_runs(read_runs(runs_path, factors, columns), factors, where)


def judged(verdicts: Sequence[Verdict], failures: Failures) -> list[Verdict]:
    """The verdicts, with failures stated first. A setting that fails more often is not called a help; a setting of
    which no run ended well gets a verdict too.
    """
    from broadleaf_lab.analysis.verdict import Verdict

    said: list[Verdict] = []
    seen = {(v.factor, v.level) for v in verdicts}
    for v in verdicts:
        it = failures.of(v.factor, v.level)
        if it is None or not it.worse:
            said.append(v)
            continue
        word = it.word or v.word
        # Its time is reported, but not as a help.
        timed = v.sentence.replace(" helps: ", " took ", 1) if it.word else v.sentence
        said.append(replace(v, word=word, sentence=f"{it.sentence} Of runs that ended well: {timed}"))
    for it in failures.worse:
        if (it.factor, it.level) not in seen:
            said.append(Verdict(it.word or "unknown", it.sentence, None, it.factor, it.level))
    return sorted(said, key=lambda v: v.word != FAILS)


def without(study: StudySpec, failures: Failures) -> StudySpec:
    """The study with constraints that exclude the settings proven to fail more often, for a path that can be
    recommended.
    """
    rules = dict(study.constraints)
    for it in failures.levels:
        if it.proven:
            here = _condition(study.factor(it.factor), it.level)
            partner = (
                ""
                if it.with_setting is None
                else f" and {_condition(study.factor(it.with_setting[0]), it.with_setting[1])}"
            )
            rules[f"fails_{len(rules)}"] = f"not ({here}{partner})"
    return replace(study, constraints=rules)


def _condition(factor: Factor, level: Level) -> str:
    if factor.is_bool:
        return factor.name if level else f"not {factor.name}"
    return f"{factor.name} == {level!r}"


def _tested(factor: Factor, level: Level, at: np.ndarray, bad: np.ndarray, left: np.ndarray) -> Failing | None:
    mine = left & (at == factor.levels.index(level))
    rest = left & (at == factor.levels.index(factor.default))
    if not mine.any() or not rest.any():
        return None
    its, others = (rate(int(bad[group].sum()), int(group.sum())) for group in (mine, rest))
    return beside(factor.name, level, its, others)


def _partner(
    factor: Factor, factors: Sequence[Factor], at: Mapping[str, np.ndarray], bad: np.ndarray, mine: np.ndarray
) -> tuple[Factor, Level] | None:
    """The setting of another factor without which this one does not fail, if there is one."""
    from scipy import stats

    failed, runs = int(bad[mine].sum()), int(mine.sum())
    others = [(f, level) for f in factors if f is not factor for level in f.levels]
    best: tuple[float, Factor, Level] | None = None
    for other, level in others:
        here = mine & (at[other.name] == other.levels.index(level))
        both = int(bad[here].sum())
        p = float(stats.hypergeom.sf(both - 1, runs, failed, int(here.sum())))
        if here.sum() < runs and both >= 0.9 * failed and (best is None or p < best[0]):
            best = p, other, level
    return None if best is None or best[0] * len(others) > _ALPHA else best[1:]


def _setting(factor: str, level: Level) -> str:
    return f"{factor} {'on' if level else 'off'}" if isinstance(level, bool) else f"{factor}={level}"


def _column(rows: Sequence[Mapping[str, Any]], factor: Factor) -> list[Level]:
    raw = [row.get(factor.column, row.get(factor.name)) for row in rows]
    known = {it: factor.default if it is None or it == "" else factor.parse(it) for it in set(raw)}
    return [known[it] for it in raw]


def _config(row: Mapping[str, Any], factors: Sequence[Factor]) -> dict[str, Level]:
    return {f.name: _column([row], f)[0] for f in factors}
