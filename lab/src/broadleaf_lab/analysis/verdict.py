"""Answers in words: helps, hinders, no practical difference, depends on something, or not yet known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from broadleaf_lab.errors import AnalysisError
from broadleaf_lab.spec.factors import Factor, Level
from broadleaf_lab.text import change

if TYPE_CHECKING:
    from broadleaf_lab.analysis.effects import Effect
    from broadleaf_lab.analysis.model.contrasts import Interval
    from broadleaf_lab.analysis.model.fit import Fit
    from broadleaf_lab.analysis.model.rejected import Tail

SLOWS = "slows some runs"
Word = Literal["helps", "hinders", "no practical difference", "depends on", "unknown"]
_NINETY = 1.645 / 1.96
_MAX_NAMED = 3
Q = 0.05
"""Pairs count as real up to this false discovery rate."""
MAX_TIMES_MORE = 10
"""Beyond this many times the runs that were made, "about N more runs" is useless advice."""


@dataclass(frozen=True, slots=True)
class Conditional:
    """The effect of a factor at one level of another: the word, and the ratio of times with its 95 % interval."""

    factor: str
    level: Level
    word: str
    ratio: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer for one factor or change. `word` is helps, hinders, slows some runs, no practical difference,
    unknown, or "depends on A, B"; `needs_runs` is about how many more runs an unknown one needs.
    """

    word: str
    sentence: str
    needs_runs: int | None = None
    factor: str = ""
    level: Level = True
    depends_on: tuple[str, ...] = ()
    conditionals: tuple[Conditional, ...] = ()

    @property
    def name(self) -> str:
        """The setting's name."""
        return setting_name(self.factor, self.level)

    @property
    def known(self) -> bool:
        return self.word != "unknown"


def setting_name(factor: str, level: Level) -> str:
    """Such as `lazy` or `batch=64`."""
    return factor if isinstance(level, bool) else f"{factor}={level}"


def word_for(low: float, high: float, estimate: float, rope_pct: float) -> Word:
    """The word for the logarithm of a ratio of times with its 95 % interval: helps or hinders if the interval lies
    beyond the practical difference; no difference if the 90 % interval lies within it (two one-sided tests).
    """
    rope = math.log1p(rope_pct / 100)
    if high < -rope:
        return "helps"
    if low > rope:
        return "hinders"
    if estimate - _NINETY * (estimate - low) > -rope and estimate + _NINETY * (high - estimate) < rope:
        return "no practical difference"
    return "unknown"


def runs_needed(low: float, high: float, estimate: float, rope_pct: float, n_runs: int) -> int:
    """About how many more runs would settle an unknown verdict: widths shrink with the square root of their number.
    If the estimate lies on the limit of practical difference, enough for a half-width of half that limit.
    """
    rope = math.log1p(rope_pct / 100)
    half = (high - low) / 2
    wanted = max(abs(abs(estimate) - rope), rope / 2)
    if abs(estimate) < rope:
        half *= _NINETY
    return max(1, math.ceil(n_runs * ((half / wanted) ** 2 - 1)))


def verdict(
    effect: Effect,
    conditionals: Sequence[Conditional] = (),
    rope_pct: float = 1.0,
    n_runs: int | None = None,
    tail: Tail | None = None,
) -> Verdict:
    """The verdict on an effect. `conditionals` are the effects at the levels of factors that change it: if they
    disagree, the verdict is that it depends on these; otherwise they show where it is strongest. `tail` are its slow
    runs, which the effect is without: a setting that makes some runs slow is not called harmless.
    """
    low, high, estimate = (
        math.log(r) if r != 0 else -math.inf for r in (effect.ratio_low, effect.ratio_high, effect.ratio)
    )
    name = setting_name(effect.factor, effect.level)
    size = _size(effect.ratio, effect.ratio_low, effect.ratio_high)
    word = word_for(low, high, estimate, rope_pct)
    if tail is not None and tail.proven and word != "hinders":
        sentence = f"{name} {SLOWS}: {tail.text}. The other runs: {size}."
        return Verdict(SLOWS, sentence, None, effect.factor, effect.level, (), tuple(conditionals))
    if tail is not None and tail.possible and word == "no practical difference":
        sentence = f"{name}: unknown, needs more runs: {size}, but {tail.text}, which may be chance."
        return Verdict("unknown", sentence, n_runs, effect.factor, effect.level, (), tuple(conditionals))
    split = _disagreeing(conditionals)
    if split:
        shown = split[:_MAX_NAMED]
        texts = "; ".join(
            " and ".join(f"{c.word}{_brief(c)} with {_at(c)}" for c in _each_level(conditionals, other))
            for other in shown
        )
        word_of = f"depends on {', '.join(shown)}"
        sentence = f"{name} {word_of}: {texts}. On average {size}."
        return Verdict(word_of, sentence, None, effect.factor, effect.level, tuple(split), tuple(conditionals))
    note = _strength(conditionals) if word in ("helps", "hinders") else ""
    if word == "unknown":
        is_finite = math.isfinite(high - low) and math.isfinite(estimate)
        more = runs_needed(low, high, estimate, rope_pct, n_runs) if n_runs and is_finite else None
        need = f"needs about {more} more runs" if more else "needs more runs"
        if more and n_runs and more > MAX_TIMES_MORE * n_runs:
            need = "out of reach of these runs (their spread is too large for so small an effect)"
        side = "faster" if high < 0 else "slower" if low > 0 else ""
        if math.isnan(estimate):
            size = "this scale has no time there"
        seen = f"{side}, but perhaps by too little to matter" if side else "it may help, hinder or do nothing"
        sentence = f"{name}: unknown, {need}: {seen} ({size})."
        return Verdict(word, sentence, more, effect.factor, effect.level, (), tuple(conditionals))
    sentence = (
        f"{name} makes no practical difference: {size}, within {rope_pct:g} %."
        if word == "no practical difference"
        else f"{name} {word}: {size}."
    )
    return Verdict(word, sentence + note, None, effect.factor, effect.level, (), tuple(conditionals))


def _each_level(conditionals: Sequence[Conditional], factor: str) -> list[Conditional]:
    """The effects of a factor, each level once, numbers in order of size: its default is beside every other level."""
    found = {c.level: c for c in conditionals if c.factor == factor}
    if all(isinstance(level, int | float) for level in found):
        return [found[level] for level in sorted(found, key=float)]
    return list(found.values())


def verdict_of(fit: Fit, factor: str, level: Level | None = None, rope_pct: float = 1.0) -> Verdict:
    """The verdict on a factor of a fit, with what it depends on."""
    for effect in fit.effects():
        if effect.factor == factor and level in (None, effect.level):
            return _judged(fit, effect, rope_pct)
    raise AnalysisError(f"the runs do not show the effect of {factor!r}: was it ever varied?")


def _judged(fit: Fit, effect: Effect, rope_pct: float) -> Verdict:
    if (why := fit.disowned) is not None:
        name = setting_name(effect.factor, effect.level)
        size = _size(effect.ratio, effect.ratio_low, effect.ratio_high)
        return Verdict("unknown", f"{name}: unknown, {why} ({size}).", None, effect.factor, effect.level)
    given = conditionals(fit, effect.factor, effect.level, rope_pct)
    return verdict(effect, given, rope_pct, fit.n_runs, fit.tails.get((effect.factor, effect.level)))


def verdicts(fit: Fit, rope_pct: float = 1.0) -> list[Verdict]:
    """A verdict per factor and level: first those that depend on others, then the strongest effects, then the rest."""
    found = [(effect, _judged(fit, effect, rope_pct)) for effect in fit.effects()]
    order = {"helps": 0, "hinders": 0, "no practical difference": 2, "unknown": 1}
    found.sort(key=lambda pair: (order.get(pair[1].word, 0), -abs(math.log(max(pair[0].ratio, 1e-300)))))
    return [v for _, v in found]


def conditionals(fit: Fit, factor: str, level: Level, rope_pct: float = 1.0) -> list[Conditional]:
    """The effect of a factor at each level of those that it significantly interacts with, strongest first."""
    by_name = {f.name: f for f in fit.factors}
    found = []
    pairs = [pair for pair in fit.interactions(rope_pct) if pair.q <= Q]
    for pair in sorted(pairs, key=lambda pair: -abs(pair.estimate)):
        if (factor, level) == (pair.a, pair.a_level):
            other, other_level, alone, together = pair.b, pair.b_level, pair.a_alone, pair.a_with_b
        elif (factor, level) == (pair.b, pair.b_level):
            other, other_level, alone, together = pair.a, pair.a_level, pair.b_alone, pair.b_with_a
        else:
            continue
        default = by_name[other].default
        found.append(_conditional(fit, by_name[factor], other, default, alone, rope_pct))
        found.append(_conditional(fit, by_name[factor], other, other_level, together, rope_pct))
    return found


def _conditional(fit: Fit, factor: Factor, other: str, at: Level, it: Interval, rope_pct: float) -> Conditional:
    """The effect `it`, which is on the fit's scale, as a ratio."""
    if fit.scale == "log":
        low, mid, high = it.low, it.estimate, it.high
    else:
        row = fit.coding.rows([{factor.name: factor.default, other: at}])[0]
        before = float(row[fit.kept] @ fit.treatment_params)
        if min(before, before + it.estimate) <= 0:
            return Conditional(other, at, "unknown", math.nan, 0.0, math.inf)
        low, mid, high = (math.log(max((before + x) / before, 1e-12)) for x in (it.low, it.estimate, it.high))
        if fit.scale == "rate":
            low, mid, high = -high, -mid, -low
    return Conditional(other, at, word_for(low, high, mid, rope_pct), math.exp(mid), math.exp(low), math.exp(high))


def _disagreeing(conditionals: Sequence[Conditional]) -> list[str]:
    """The factors at whose levels the words differ, where none of the words is unknown."""
    words: dict[str, list[str]] = {}
    for it in conditionals:
        words.setdefault(it.factor, []).append(it.word)
    return [name for name, said in words.items() if "unknown" not in said and len(set(said)) > 1]


def _strength(conditionals: Sequence[Conditional]) -> str:
    if len(conditionals) < 2:
        return ""
    first, second = conditionals[:2]
    weak, strong = sorted((first, second), key=lambda c: abs(math.log(c.ratio)))
    return f" Most with {_at(strong)} ({_percent(strong.ratio)}), least with {_at(weak)} ({_percent(weak.ratio)})."


def _at(it: Conditional) -> str:
    if isinstance(it.level, bool):
        return f"{it.factor} {'on' if it.level else 'off'}"
    return f"{it.factor}={it.level}"


def _brief(it: Conditional) -> str:
    return f" ({_percent(it.ratio)})"


def _percent(ratio: float) -> str:
    return f"{change(ratio)} time"


def _size(ratio: float, low: float, high: float) -> str:
    direction = "less" if ratio < 1 else "more"
    interval = f"95 % interval {change(low).removesuffix(' %')} to {change(high)}"
    return f"{change(ratio).lstrip('+-')} {direction} time per task ({interval})"
