"""Is a branch slower than its base? Both commits are built here and run on this machine, pair after pair, until that is
decided: in turn, or side by side where the study says so. Stored figures from other days or machines are not used."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from broadleaf_lab.analysis.pairs.intervals import Interval, trimmed_interval
from broadleaf_lab.comparisons.compare import (
    ALPHA,
    CHANGE,
    Judgement,
    PairFailures,
    judge,
    more_pairs,
    run_pair,
    sentence,
)
from broadleaf_lab.comparisons.exit_codes import HARM, NO_HARM, UNDECIDED
from broadleaf_lab.errors import RunError
from broadleaf_lab.run.calibrate import calibrate
from broadleaf_lab.run.environments.environment import CACHE, BuildFailed, Environments, Variant
from broadleaf_lab.run.single import Quiet, Runner
from broadleaf_lab.spec.factors import Config, Level
from broadleaf_lab.spec.runs import RunsFile
from broadleaf_lab.spec.study import StudySpec
from broadleaf_lab.text import log_change

LOOKS = (8, 12, 18, 27, 40, 60, 90, 135)
"""Pairs after which a decision is tried. Each look spends an equal share of the 5 % by which a verdict may be wrong, so
that looking often does not make it more likely to be wrong."""
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
    max_pairs: int = LOOKS[-1],
    seed: int | None = None,
    quiet: Quiet | None = None,
    on_look: Callable[[Interval, int], None] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Compares two commits in the study's baseline, but for these settings. The budget starts with the first pair:
    builds do not count. Raises RunError if one cannot be built or run. The runs are kept in `.lab/gate.csv` beside the
    study."""
    if max_pairs < LOOKS[0]:
        raise RunError(f"a gate needs at least {LOOKS[0]} pairs, but only {max_pairs} were allowed.")
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
    looks = looks_until(max_pairs)
    rng = random.Random(seed)
    begin = time.monotonic()
    decided: tuple[Interval, Judgement] | None = None
    with RunsFile(study.directory.resolve() / CACHE / "gate.csv", (*study.factors, CHANGE), study.responses) as runs:
        pairs = _Pairs(runner, runs, config, variants, rng, (base, head))
        pairs.warm_up()
        for look in looks:
            while len(pairs.ratios) < look and time.monotonic() - begin < budget_s:
                pairs.add()
            if len(pairs.ratios) < LOOKS[0]:
                raise RunError(
                    f"the budget of {budget_s:g} s was spent after {len(pairs.ratios)} pairs, but {LOOKS[0]} are "
                    "needed. Allow more time with --budget, or use fewer tasks in the study file."
                )
            decided = interval, verdict = decide(pairs.ratios, len(looks), study.rope_pct)
            if on_look is not None:
                on_look(interval, len(pairs.ratios))
            if verdict.harmless is not None or len(pairs.ratios) < look:
                break
    assert decided is not None, "there is at least one look: max_pairs is no less than the first"
    interval, verdict = decided
    timed = _sentence(base, head, verdict, interval, study.rope_pct, len(pairs.ratios))
    return Outcome(
        pairs.failures.judged(verdict),
        pairs.failures.told(base, head, timed),
        interval,
        shas[0],
        shas[1],
        len(pairs.ratios),
        time.monotonic() - begin,
        pairs.failures.pairs - len(pairs.ratios),
    )


def looks_until(max_pairs: int) -> list[int]:
    """The numbers of pairs after which to check, given the maximum number of pairs."""
    return [look for look in LOOKS if look < max_pairs] + [max_pairs]


def decide(ratios: Sequence[float], looks: int, rope_pct: float) -> tuple[Interval, Judgement]:
    """What the pairs' log ratios show at one of this many checks."""
    interval = trimmed_interval(ratios, ALPHA / looks)
    verdict = judge(interval, rope_pct)
    return interval, verdict if verdict.harmless is not None else Judgement("undecided", None)


def _sentence(base: str, head: str, verdict: Judgement, interval: Interval, rope_pct: float, pairs: int) -> str:
    text = sentence(base, head, verdict, interval, rope_pct, pairs)
    if verdict.harmless is None:
        text += f" Differences within {rope_pct:g} % do not matter; about {more_pairs(interval, rope_pct)} more pairs "
        text += "would decide."
    return text


class _Pairs:
    """Runs of both commits, one pair after the other."""

    def __init__(
        self,
        runner: Runner,
        runs: RunsFile,
        config: Config,
        variants: list[Variant],
        rng: random.Random,
        names: tuple[str, str],
    ) -> None:
        self.runner = runner
        self.runs = runs
        self.config = config
        self.variants = variants
        self.rng = rng
        self.names = names
        self.ratios: list[float] = []
        self._orders: list[tuple[int, int]] = []
        self.failures = PairFailures()

    def warm_up(self) -> None:
        """One run of each that does not count: it fills the caches for files just written."""
        for which in (0, 1):
            row = self.runner.run(self.config, self.variants[which])
            if row["status"] != "ok":
                raise RunError(f"{self.names[which]} cannot be run ({row['status']}): {row['error']}")

    def add(self) -> None:
        """One pair. Of every two pairs, one starts with each side."""
        if not self._orders:
            self._orders = [(0, 1), (1, 0)]
            self.rng.shuffle(self._orders)
        order = self._orders.pop()
        sides = [({**self.config, CHANGE.name: bool(which)}, self.variants[which]) for which in (0, 1)]
        failed_b = self.failures.b
        log_ratio = run_pair(self.runner, self.runs, sides, order, self.failures, None, "gate", len(self.ratios))
        if log_ratio is not None:
            self.ratios.append(log_ratio)
            return
        failed = self.failures.pairs - len(self.ratios)
        if failed >= _FAILURES and failed > len(self.ratios):
            raise RunError(f"{self.names[self.failures.b - failed_b]} does not run reliably ({self.failures.error})")


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
