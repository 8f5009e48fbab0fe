"""What the runs of a study say of every setting: the one record from which sentences, titles, paths and recommendations
are made, so that no two of them disagree.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

from broadleaf_lab.analysis import failures as failing
from broadleaf_lab.analysis import verdict
from broadleaf_lab.analysis.failures import Failures
from broadleaf_lab.analysis.verdict import Verdict
from broadleaf_lab.spec.factors import Level
from broadleaf_lab.text import listed

if TYPE_CHECKING:
    from broadleaf_lab.analysis.model.fit import Fit


class Known:
    """The verdict on every setting, with failures, and what follows from it."""

    def __init__(self, fit: Fit | None, rope_pct: float, failures: Failures | None = None) -> None:
        """`fit` is the model of ratios; None if the runs do not allow one, and then only failures are known."""
        self._fit, self._rope_pct = fit, rope_pct
        found = verdict.verdicts(fit, rope_pct) if fit is not None else []
        self.verdicts: tuple[Verdict, ...] = tuple(found if failures is None else failing.judged(found, failures))
        self._of = {(v.factor, v.level): v for v in self.verdicts}

    def of(self, factor: str, level: Level) -> Verdict | None:
        """What is known of a setting; None if it was never run."""
        return self._of.get((factor, level))

    def settings(self, *words: str) -> list[str]:
        """The names of the settings with one of these verdicts."""
        return [v.name for v in self.verdicts if v.word in words]

    def can_help(self, factor: str, level: Level) -> bool:
        """Whether a setting helps, on average or at some level of another: only such settings are on a path that the
        laboratory chooses, and only where they are proven to help.
        """
        it = self.of(factor, level)
        if it is None:
            return False
        return it.word == "helps" or (bool(it.depends_on) and any(c.word == "helps" for c in it.conditionals))

    @functools.cached_property
    def not_yet_at_baseline(self) -> tuple[str, ...]:
        """The settings that help on average, but are not proven to at the baseline."""
        if self._fit is None:
            return ()
        at = {(e.factor, e.level): e for e in self._fit.effects("baseline")}
        return tuple(
            v.name
            for v in self.verdicts
            if v.word == "helps" and not ((e := at.get((v.factor, v.level))) is not None and e.ratio_high < 1)
        )

    @functools.cached_property
    def runs_for_baseline(self) -> int | None:
        """About how many more runs would tell one of these at the baseline; None if that is out of reach."""
        if self._fit is None:
            return None
        n, wanted = self._fit.n_runs, []
        for e in self._fit.effects("baseline"):
            it = self.of(e.factor, e.level)
            if it is not None and it.name in self.not_yet_at_baseline and 0 < e.ratio < 1 and e.ratio_low > 0:
                half = (math.log(e.ratio_high) - math.log(e.ratio_low)) / 2
                wanted.append(math.ceil(n * ((half / -math.log(e.ratio)) ** 2 - 1)))
        more = min(wanted, default=None)
        return more if more is not None and more <= verdict.MAX_TIMES_MORE * n else None

    @functools.cached_property
    def no_step(self) -> str:
        """Why no treatment makes the baseline faster for certain."""
        if not self.not_yet_at_baseline:
            return "No setting is proven to help."
        names = listed(self.not_yet_at_baseline, 8)
        does = "helps" if len(self.not_yet_at_baseline) == 1 else "help"
        more = f"about {self.runs_for_baseline} more runs" if self.runs_for_baseline else "many more runs"
        return (
            f"{names} {does} on average over the other settings, but with all of them at their default that is not yet "
            f"certain: it takes {more}."
        )

    @functools.cached_property
    def changing_sides(self) -> tuple[str, ...]:
        """The factors that help at one level of another and hinder at its other level, or at the baseline and in the
        fastest configuration, for certain.
        """
        if self._fit is None:
            return ()
        found: list[str] = []
        ends = [{(e.factor, e.level): e for e in self._fit.effects(where)} for where in ("baseline", "best")]
        for v in self.verdicts:
            words = {c.word for c in v.conditionals}
            both = [end.get((v.factor, v.level)) for end in ends]
            sides = {_side(e.ratio_low, e.ratio_high) for e in both if e is not None}
            if {"helps", "hinders"} <= words or {-1, 1} <= sides:
                found.append(v.factor)
        return tuple(dict.fromkeys(found))


def _side(low: float, high: float) -> int:
    return -1 if high < 1 else 1 if low > 1 else 0
