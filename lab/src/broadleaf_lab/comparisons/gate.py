"""Is a branch slower than its base? Both commits are built here and run on this machine, pair after pair, until that is
decided: in turn, or side by side where the study says so. Stored figures from other days or machines are not used. It
is a duel of the two, and ends like any other."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from broadleaf_lab.analysis.pairs.intervals import Interval
from broadleaf_lab.comparisons.compare import (
    CHANGE,
    Judgement,
    PairFailures,
    judge,
    more_pairs,
    run_pair,
    sentence,
)
from broadleaf_lab.comparisons.exit_codes import HARM, NO_HARM, UNDECIDED
from broadleaf_lab.comparisons.versus.commands import Clock, Pair
from broadleaf_lab.comparisons.versus.duel import measured
from broadleaf_lab.errors import RunError
from broadleaf_lab.run.calibrate import calibrate
from broadleaf_lab.run.environments.environment import CACHE, BuildFailed, Environments, Variant
from broadleaf_lab.run.single import Quiet, Runner
from broadleaf_lab.spec.factors import Config, Level
from broadleaf_lab.spec.runs import RunsFile
from broadleaf_lab.spec.study import StudySpec
from broadleaf_lab.text import log_change

MAX_PAIRS = 135
_FAILURES = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """The gate's outcome. Ratios are time of head over time of base."""

    judgement: Judgement
    sentence: str
    interval: Interval
    base_sha: str
    head_sha: str
    pairs: int
    elapsed_s: float
    failed_pairs: int = 0

    @property
    def exit_code(self) -> int:
        """0 no harm, 1 hinders or fails more, 4 undecided."""
        return self.judgement.exit_code


def gate(
    study: StudySpec,
    base: str,
    head: str,
    *,
    settings: Mapping[str, Level] | None = None,
    budget_s: float = 1800.0,
    max_pairs: int = MAX_PAIRS,
    seed: int | None = None,
    quiet: Quiet | None = None,
    on_look: Callable[[Interval, int, float], None] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Compares two commits in the study's baseline, but for these settings. The budget starts with the first pair:
    builds do not count. Raises RunError if one cannot be built or run. The runs are kept in `.lab/gate.csv` beside the
    study."""
    config = {**study.baseline, **(settings or {})}
    environments = Environments(study, sha=None, say=say, trees=True)
    shas = [environments.worktrees.resolve(ref) for ref in (base, head)]
    variants = [Variant(ref=sha) for sha in shas]
    checkouts = []
    for variant, name in zip(variants, (base, head), strict=True):
        try:
            checkouts.append(environments.checkout(config, variant))
        except BuildFailed as error:
            raise RunError(f"{name}: {error}") from None
    environments.worktrees.keep_only({checkout.tree for checkout in checkouts})
    calibration = calibrate(environments, variants[0], only=config, quiet=quiet, say=say)
    runner = calibration.runner(environments, quiet=quiet)
    begin = time.monotonic()
    with RunsFile(study.directory.resolve() / CACHE / "gate.csv", (*study.factors, CHANGE), study.responses) as runs:
        commits = _Commits(runner, runs, config, variants, random.Random(seed), (base, head))
        interval, _ = measured(
            commits, lambda interval, _: decide(interval, study.rope_pct).harmless is not None, budget_s=budget_s,
            max_pairs=max_pairs, on_look=on_look,
        )  # fmt: skip
    verdict, failures = decide(interval, study.rope_pct), commits.failures
    timed = _sentence(base, head, verdict, interval, study.rope_pct)
    return Outcome(
        failures.judged(verdict),
        failures.told(base, head, timed),
        interval,
        shas[0],
        shas[1],
        interval.n,
        time.monotonic() - begin,
        failures.pairs - interval.n,
    )


def decide(interval: Interval, rope_pct: float) -> Judgement:
    """What the interval of the pairs' log ratios shows."""
    verdict = judge(interval, rope_pct)
    return verdict if verdict.harmless is not None else Judgement("undecided", None)


def _sentence(base: str, head: str, verdict: Judgement, interval: Interval, rope_pct: float) -> str:
    text = sentence(base, head, verdict, interval, rope_pct, interval.n)
    if verdict.harmless is None:
        text += f" Differences within {rope_pct:g} % do not matter; about {more_pairs(interval, rope_pct)} more pairs "
        text += "would decide."
    return text


class _Commits:
    """Both commits, and how a pair of runs of them is made."""

    def __init__(
        self,
        runner: Runner,
        runs: RunsFile,
        config: Config,
        variants: list[Variant],
        rng: random.Random,
        names: tuple[str, str],
    ) -> None:
        self.texts: tuple[str, str] = names
        # The study's score is whatever it is, and its runner makes both runs of a pair.
        self.clock: Clock = "wall"
        self.side_by_side: bool = False
        self.failures = PairFailures()
        self._runner, self._runs, self._config, self._variants = runner, runs, config, variants
        self._rng = rng
        self._orders: list[tuple[int, int]] = []
        self._ended_well = 0

    def look(self) -> None:
        """One run of each that does not count: it fills the caches for files just written."""
        for which in (0, 1):
            row = self._runner.run(self._config, self._variants[which])
            if row["status"] != "ok":
                raise RunError(f"{self.texts[which]} cannot be run ({row['status']}): {row['error']}")

    def pair(self, cpu: int | None = None) -> Pair:
        """One pair. Of every two pairs, one starts with each side."""
        if not self._orders:
            self._orders = [(0, 1), (1, 0)]
            self._rng.shuffle(self._orders)
        order = self._orders.pop()
        sides = [({**self._config, CHANGE.name: bool(which)}, self._variants[which]) for which in (0, 1)]
        failed_b = self.failures.b
        made = run_pair(self._runner, self._runs, sides, order, None, "gate", self._ended_well)
        self._ended_well += self.failures.count(made)
        failed = self.failures.pairs - self._ended_well
        if made.log_ratio is None and failed >= _FAILURES and failed > self._ended_well:
            raise RunError(f"{self.texts[self.failures.b - failed_b]} does not run reliably ({self.failures.error})")
        return made


def markdown(outcome: Outcome, study: str, base: str, head: str, rope_pct: float) -> str:
    """The outcome as a comment for a pull request."""
    it = outcome.interval
    sign = {NO_HARM: ":white_check_mark:", HARM: ":x:", UNDECIDED: ":grey_question:"}[outcome.exit_code]
    failed = f" {outcome.failed_pairs} pairs failed and do not count." if outcome.failed_pairs else ""
    return "\n".join(
        [
            f"### {sign} {study}: {outcome.judgement.word}",
            "",
            f"{_escaped(outcome.sentence)}{failed}",
            "",
            "| base | head | time, head over base | interval | pairs |",
            "|---|---|---:|---:|---:|",
            f"| {_escaped(base)} `{outcome.base_sha[:10]}` | {_escaped(head)} `{outcome.head_sha[:10]}` "
            f"| {log_change(it.estimate)} | {log_change(it.low)} to {log_change(it.high)} | {outcome.pairs} |",
            "",
            f"Both were built and run in pairs on one machine; differences within {rope_pct:g} % do not matter. "
            "Less time is faster.",
            "",
        ]
    )


def _escaped(text: str) -> str:
    """Text with all Markdown escaped: names of branches may contain any of its characters."""
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", text)


def look_line(interval: Interval, pairs: int) -> str:
    """A check, for people."""
    return f"{pairs} pairs: {log_change(interval.estimate)} ({log_change(interval.low)} to {log_change(interval.high)})"
