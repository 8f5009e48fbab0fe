"""A study that designs itself: it checks its runs from time to time, and spends the next ones on open questions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from broadleaf_lab.analysis import failures as failing
from broadleaf_lab.analysis import frame as frames
from broadleaf_lab.analysis.effects import Effect
from broadleaf_lab.analysis.model.fit import Fit, fit
from broadleaf_lab.analysis.verdict import Verdict, verdict_of
from broadleaf_lab.errors import AnalysisError
from broadleaf_lab.settle.next_runs import NextRuns
from broadleaf_lab.settle.spending import Looks
from broadleaf_lab.spec.factors import Level
from broadleaf_lab.spec.study import StudySpec

Key = tuple[str, Level]
OPEN, DECIDED, OUT_OF_REACH = "open", "decided", "out of reach"
_PAIR_WEIGHT = 0.3
_FUTILE_LOOKS = 2
_Q = 0.05
_MIN_SHARE = 0.2
"""Before this part of the budget nothing is given up: estimates are too rough."""
_HOPE = 0.75
"""Standard errors by which an estimate may still move towards a verdict before that is called out of reach."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is known about a setting: `decided` with its verdict; `open`, and then `waits_for` names the factors that
    may still change the verdict; or `out of reach` of the remaining runs.
    """

    factor: str
    level: Level
    state: str
    verdict: Verdict | None = None
    waits_for: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.factor if isinstance(self.level, bool) else f"{self.factor}={self.level}"

    @property
    def sentence(self) -> str:
        """The verdict in words, with an interval that is valid despite several checks."""
        if self.verdict is None:
            return f"{self.name}: not analysed yet."
        said = self.verdict.sentence.replace("95 % interval", "interval for all looks")
        if self.state == OUT_OF_REACH:
            return f"Out of reach of these runs. {said}"
        waits = f" Still open beside {', '.join(self.waits_for)}." if self.state == OPEN and self.waits_for else ""
        return f"{said}{waits}"


class Settler:
    """Chooses blocks of runs until every setting has a verdict that is reliable at whichever check it comes, or the
    remaining runs cannot give one. Runs are returned through `add`.
    """

    def __init__(self, study: StudySpec, max_runs: int, seed: int = 1, *, pairs: bool = False) -> None:
        """`max_runs` is the budget; what easy questions do not need goes to the hard ones. With `pairs`, runs are made
        two at once: the first and second of a block, the third and fourth, and so on.
        """
        self.study: StudySpec = study
        self.max_runs: int = max_runs
        self.rows: list[Mapping[str, Any]] = []
        self.questions: dict[Key, Question] = {
            (f.name, level): Question(f.name, level, OPEN) for f in study.factors for level in f.others
        }
        rules = study.rules()
        self._next = NextRuns(study.factors, rules, np.random.default_rng(seed))
        self._controls = [study.baseline, study.all_on]
        self._configs: list[dict[str, Level]] = []
        self._pairs = pairs
        self._made_pairs: list[tuple[dict[str, Level], dict[str, Level]]] = []
        self._block_size = max(study.design.block_size, len(self._controls) + 2)
        if pairs:
            self._block_size += self._block_size % 2
        parameters = 1 + len(self.questions)
        # Of a pair, only the difference shows anything.
        self._looks = Looks(max_runs, (2 if pairs else 1) * max(24, 2 * parameters + 6))
        self.looked: int = 0
        """How often the runs were looked at."""
        self._futile: dict[Key, int] = {}
        self._failures = failing.of_runs([], study.factors)

    @property
    def open(self) -> list[Question]:
        """What is not decided yet and still can be."""
        return [it for it in self.questions.values() if it.state == OPEN]

    @property
    def done(self) -> bool:
        """Whether to stop: nothing is open, or the budget is spent."""
        return not self.open or len(self.rows) >= self.max_runs

    def next_block(self) -> list[dict[str, Level]]:
        """The runs to make next, in any order (pairs as they are, in any order); none when done."""
        if self.done:
            return []
        n = min(self._block_size, self.max_runs - len(self.rows))
        controls = self._controls[: max(0, n - 1)]
        if not self._pairs:
            return [*controls, *self._next.choose(self._configs, n - len(controls), self._weights())]
        if len(controls) % 2:
            # Its partner is a chosen run.
            controls = []
        chosen = self._next.choose_pairs(self._made_pairs, (n - len(controls) + 1) // 2, self._weights())
        return [*controls, *(config for pair in chosen for config in pair)][:n]

    def _weights(self) -> dict[str, float]:
        weights: dict[str, float] = {}
        index_of = {f.name: i for i, f in enumerate(self.study.factors)}
        for question in self.open:
            weights[question.factor] = 1.0
            for other in question.waits_for:
                a, b = sorted((question.factor, other), key=index_of.__getitem__)
                weights[f"{a}:{b}"] = _PAIR_WEIGHT
        return weights

    def add(self, rows: Sequence[Mapping[str, Any]], configs: Sequence[dict[str, Level]]) -> list[Question]:
        """Takes the rows of a block, as runs.csv has them. Returns what this check settled; nothing if it is not time
        to check.
        """
        self.rows += rows
        well = [row["status"] == "ok" for row in rows]
        self._configs += [c for c, ok in zip(configs, well, strict=True) if ok]
        if self._pairs:
            # A run whose partner failed shows nothing.
            firsts = range(0, len(rows) - 1, 2)
            self._made_pairs += [(configs[i], configs[i + 1]) for i in firsts if well[i] and well[i + 1]]
        if not self._looks.due(len(self.rows)):
            return []
        alpha = self._looks.take(len(self.rows))
        self.looked += 1
        before = {key for key, it in self.questions.items() if it.state != OPEN}
        self._judge_failures(alpha)
        try:
            made = self._fitted(alpha)
        except AnalysisError:
            # Nothing can be said about times yet, only about failures.
            made = None
        if made is not None:
            for effect in made.effects():
                key = effect.factor, effect.level
                if key in self.questions and self.questions[key].state != DECIDED:
                    self.questions[key] = self._judged(made, effect, alpha)
        return [it for key, it in self.questions.items() if it.state != OPEN and key not in before]

    def _judge_failures(self, alpha: float) -> None:
        """Settings that are proven to fail more often are decided, and not run any more."""
        self._failures = failing.of_runs(self.rows, self.study.factors)
        proven = [it for it in self._failures.levels if it.proven and it.p <= alpha]
        for it in proven:
            verdict = Verdict(failing.FAILS, it.sentence, None, it.factor, it.level)
            self.questions[it.factor, it.level] = Question(it.factor, it.level, DECIDED, verdict)
        if proven:
            rules = failing.without(self.study, replace(self._failures, levels=tuple(proven))).rules()
            self._next.rules = rules
            self._controls = [c for c in self._controls if rules.allows(c)]

    def _fitted(self, alpha: float) -> Fit:
        frame = frames.load([dict(row) for row in self.rows], self.study.factors)
        varied = [f for f in self.study.factors if frame[f.name].nunique() > 1]
        return fit(varied, frame, triples=False, alpha=alpha)

    def _judged(self, made: Fit, effect: Effect, alpha: float) -> Question:
        key = effect.factor, effect.level
        if (fault := self._failures.of(*key)) is not None and fault.word:
            # The times of the runs that ended well do not make it a help.
            return Question(*key, OPEN, Verdict(fault.word, fault.sentence, None, *key))
        rope = math.log1p(self.study.rope_pct / 100)
        found = verdict_of(made, *key, rope_pct=self.study.rope_pct)
        low, high = math.log(effect.ratio_low), math.log(effect.ratio_high)
        known = found.known
        if found.word == "no practical difference":
            known = -rope < low and high < rope
        waits = () if found.depends_on else self._may_turn(made, effect, rope)
        if known and not waits:
            return Question(*key, DECIDED, found)
        self._futile[key] = self._futile.get(key, 0) + 1 if self._out_of_reach(effect, alpha, rope, known) else 0
        state = OUT_OF_REACH if self._futile[key] >= _FUTILE_LOOKS else OPEN
        return Question(*key, state, found, waits)

    @staticmethod
    def _may_turn(made: Fit, effect: Effect, rope: float) -> tuple[str, ...]:
        """The factors at whose levels the effect might have the opposite sign, because of pairs not known yet."""
        side = math.copysign(1.0, effect.estimate)
        if not (effect.ci_low > 0 or effect.ci_high < 0):
            return ()
        half = (effect.ci_high - effect.ci_low) / 2
        found = []
        for pair in made.interactions():
            mine = (pair.a, pair.a_level) if pair.a == effect.factor else (pair.b, pair.b_level)
            # A known pair is already part of the verdict.
            if mine != (effect.factor, effect.level) or pair.q <= _Q:
                continue
            # Away from the average, a pair moves the effect by half of its size either way.
            reach = max(abs(pair.ci_low), abs(pair.ci_high)) / 2
            if side * effect.estimate - math.hypot(half, reach) < -rope:
                found.append(pair.b if pair.a == effect.factor else pair.a)
        return tuple(dict.fromkeys(found))

    def _out_of_reach(self, effect: Effect, alpha: float, rope: float, known: bool) -> bool:
        """Whether all remaining runs would not decide it, if the estimate stays where it is or moves slightly towards
        the nearest verdict.
        """
        if known or len(self.rows) < _MIN_SHARE * self.max_runs:
            return False
        from scipy import stats

        end = effect.se * math.sqrt(len(self.rows) / self.max_runs)
        half = float(stats.norm.ppf(1 - self._looks.last / 2)) * end
        size = abs(math.log(effect.ratio))
        reaches_beyond = size + _HOPE * effect.se - half > rope
        reaches_within = max(size - _HOPE * effect.se, 0.0) + half < rope
        return not (reaches_beyond or reaches_within)

    @property
    def sentence(self) -> str:
        """Such as `no_log decided; 96 runs left for lazy x batch`."""
        decided = [it.name for it in self.questions.values() if it.state == DECIDED]
        lost = [it.name for it in self.questions.values() if it.state == OUT_OF_REACH]
        said = [f"{', '.join(decided)} decided" if decided else "nothing decided yet"]
        if lost:
            said.append(f"{', '.join(lost)} out of reach")
        if self.open:
            left = self.max_runs - len(self.rows)
            wanted = [" x ".join((it.name, *it.waits_for[:1])) for it in self.open]
            shown = ", ".join(wanted[:4]) + (f" and {len(wanted) - 4} more" if len(wanted) > 4 else "")
            said.append(f"{left} runs left for {shown}")
        return "; ".join(said)
