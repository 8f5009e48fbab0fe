"""Would this change help or hinder? Both versions run in pairs, in many contexts, and the pairs are judged."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from broadleaf_lab.analysis.pairs.intervals import (
    Interval,
    fails_more_p,
    heterogeneity_p,
    mean_interval,
    trimmed_interval,
)
from broadleaf_lab.analysis.verdict import word_for
from broadleaf_lab.comparisons.exit_codes import HARM, NO_HARM, UNDECIDED
from broadleaf_lab.comparisons.versus.commands import Pair
from broadleaf_lab.errors import RunError
from broadleaf_lab.run.environments.environment import HERE, Environments, Variant, with_excludes
from broadleaf_lab.run.planned import ready
from broadleaf_lab.run.single import Quiet, Runner, keep
from broadleaf_lab.spec.factors import Config, Factor, Level, config_id
from broadleaf_lab.spec.runs import Run, RunsFile, read_runs
from broadleaf_lab.spec.study import StudySpec
from broadleaf_lab.text import log_change

COMPARE_FILE = "compare.csv"
CHANGE = Factor("change", "patch", loses="", setting={})
"""The column that tells the two sides of a change of the source apart."""
CONTEXTS = 16
PAIRS = 2
ALPHA = 0.05
MAX_TIMES_MORE = 10
"""To advise measuring more than this many times the pairs that there are would be useless."""
_MIN_TRIMMED = 5


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two sides of a comparison: a version of the source, or settings on top of the context's."""

    name: str
    variant: Variant = HERE
    settings: Mapping[str, Level] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What an interval says. `harmless` is None while that is undecided."""

    word: str
    harmless: bool | None

    @property
    def exit_code(self) -> int:
        """0 no harm, 1 hinders or fails more, 4 undecided."""
        return {True: NO_HARM, False: HARM, None: UNDECIDED}[self.harmless]


@dataclass(frozen=True, slots=True)
class Moderator:
    """A factor that the effect depends on: the ratio B/A at each of its levels, and the adjusted p."""

    factor: str
    ratios: tuple[tuple[Level, float], ...]
    p: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcome. Ratios are time of B over time of A: below 1, B is faster."""

    a: str
    b: str
    judgement: Judgement
    sentence: str
    ratio: float
    low: float
    high: float
    pairs: int
    contexts: int
    failed_pairs: int
    heterogeneity_p: float
    moderators: tuple[Moderator, ...]

    @property
    def exit_code(self) -> int:
        """0 no harm, 1 hinders or fails more, 4 undecided."""
        return self.judgement.exit_code


def judge(interval: Interval, rope_pct: float) -> Judgement:
    """The verdict on an interval of a log ratio of times; differences within `rope_pct` do not matter. `no harm` means
    that it may help or make no difference.
    """
    word = word_for(interval.low, interval.high, interval.estimate, rope_pct)
    if word == "unknown" and interval.high < math.log1p(rope_pct / 100):
        return Judgement("no harm", True)
    harmless = {"helps": True, "no practical difference": True, "hinders": False}
    return Judgement(word, harmless.get(word))


@dataclass
class PairFailures:
    """The pairs in which a side failed."""

    pairs: int = 0
    a: int = 0
    b: int = 0
    only_a: int = 0
    only_b: int = 0
    error: str = ""

    def count(self, pair: Pair) -> bool:
        """Records a pair; returns whether both runs ended well."""
        bad_a, bad_b = pair.a_s is None, pair.b_s is None
        self.pairs += 1
        self.a += bad_a
        self.b += bad_b
        self.only_a += bad_a and not bad_b
        self.only_b += bad_b and not bad_a
        self.error = pair.b_error or pair.a_error or self.error
        return not (bad_a or bad_b)

    def judged(self, timed: Judgement) -> Judgement:
        """A judgement of times with failures taken into account first: a side that fails more often is harmful, and one
        that alone failed is not a help.
        """
        if fails_more_p(self.only_a, self.only_b) <= ALPHA:
            return Judgement("fails more", False)
        return Judgement("undecided", None) if self.b and not self.a and timed.harmless else timed

    def told(self, a: str, b: str, timed: str) -> str:
        """A sentence on times, preceded by the failures."""
        if not self.a and not self.b:
            return timed
        proven = fails_more_p(self.only_a, self.only_b) <= ALPHA
        head = f"{b} fails more than {a}" if proven else "Runs failed"
        counts = f"{self.b} of {self.pairs} runs of {b} and {self.a} of {a}"
        return f"{head}: {counts} ({self.error}). Where both succeeded, {timed}"


def run_pair(
    runner: Runner,
    runs: RunsFile,
    sides: Sequence[tuple[Config, Variant]],
    order: tuple[int, int],
    on_run: Callable[[Run], None] | None,
    purpose: str,
    replicate: int,
) -> Pair:
    """Runs both sides in this order and keeps the runs. A's and B's seconds per task."""
    made: dict[int, Run] = {}
    block = runs.next_block
    for position, (which, run) in enumerate(zip(order, runner.run_pair([sides[i] for i in order]), strict=True)):
        made[which] = keep(run, runs, sides[which][0], on_run=on_run, block=block, order_in_block=position,
                           purpose=purpose, replicate=replicate)  # fmt: skip
    both = [made[which] for which in (0, 1)]
    a_s, b_s = (1e-6 * run["time_per_task_us"] if run["status"] == "ok" else None for run in both)
    a_error, b_error = ("" if run["status"] == "ok" else f"{run['status']}: {run['error']}" for run in both)
    return Pair(a_s, b_s, a_error, b_error)


def parse_settings(study: StudySpec, text: str) -> dict[str, Level]:
    """`cfg_log=off,py_jit` as levels; `baseline` means no settings. Raises StudyFileError or DesignError for invalid
    ones.
    """
    settings: dict[str, Level] = {}
    if text == "baseline":
        return settings
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, given, value = part.partition("=")
        factor = study.factor(name.strip())
        settings[factor.name] = factor.parse(value if given else factor.on)
    return settings


def side(study: StudySpec, text: str) -> Side:
    """What a word of the command line means: settings if it names a factor, else a git ref."""
    names = {factor.name for factor in study.factors}
    if text == "baseline" or text.partition("=")[0].partition(",")[0].strip() in names or "=" in text:
        return Side(text, settings=parse_settings(study, text))
    return Side(text, Variant(ref=text))


def patched(patch: Path) -> tuple[Side, Side]:
    """The source as it is, and with a patch."""
    if not patch.is_file():
        raise RunError(f"the patch {patch} does not exist.")
    return Side("without"), Side(patch.name, Variant(patches=(patch.resolve(),)))


def compare(
    study: StudySpec,
    a: Side,
    b: Side,
    *,
    contexts: int = CONTEXTS,
    pairs: int = PAIRS,
    budget_s: float | None = None,
    seed: int | None = None,
    quiet: Quiet | None = None,
    on_run: Callable[[Run], None] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Runs `b` against `a`: `pairs` times in the baseline, in the fastest known configuration, and in `contexts` random
    ones. Raises RunError if nothing can be compared. Rows go to runs.csv if the sides are settings, and to compare.csv
    if they are versions of the source, which the columns of runs.csv do not distinguish.
    """
    begin = time.monotonic()
    study = with_excludes(study)
    rng = random.Random(seed if seed is not None else study.design.seed)
    source_differs = a.variant != b.variant
    chosen = choose_contexts(study, a, b, contexts, rng)
    if not source_differs and not chosen:
        raise RunError(f"{a.name} and {b.name} are the same, or the constraints allow no context with both.")
    both = [context for pair in chosen for context in pair]
    environments, calibration = ready(study, both, quiet=quiet, say=say)
    if source_differs:
        environments = Environments(study, sha=environments.sha or None, say=say, trees=True)
        environments.prepare(both, [a.variant, b.variant])
    runner = calibration.runner(environments, quiet=quiet)
    factors = (*study.factors, CHANGE) if source_differs else study.factors
    path = study.directory / COMPARE_FILE if source_differs else study.runs_path
    # A single context is repeated as often as many would be together.
    repeats = max(pairs, math.ceil(pairs * (contexts + 2) / len(chosen))) if len(chosen) < 3 else pairs
    ratios: list[list[float]] = [[] for _ in chosen]
    failures = PairFailures()
    with RunsFile(path, factors, study.responses) as runs:
        b_first = [rng.random() < 0.5 for _ in chosen]
        for repeat in range(repeats):
            for at in rng.sample(range(len(chosen)), len(chosen)):
                if budget_s is not None and time.monotonic() - begin > budget_s:
                    break
                # Half of the pairs of a context start with each side: what the first run leaves behind cancels out.
                order = (1, 0) if b_first[at] != bool(repeat % 2) else (0, 1)
                sides = [
                    ({**config, **({CHANGE.name: bool(which)} if source_differs else {})}, (a, b)[which].variant)
                    for which, config in enumerate(chosen[at])
                ]
                made = run_pair(runner, runs, sides, order, on_run, "confirm", repeat)
                failures.count(made)
                if made.log_ratio is not None:
                    ratios[at].append(made.log_ratio)
    return conclude(study, a, b, chosen, ratios, failures)


def choose_contexts(
    study: StudySpec, a: Side, b: Side, n: int, rng: random.Random
) -> list[tuple[dict[str, Level], dict[str, Level]]]:
    """Configurations of both sides: baseline, the fastest one measured, and random ones; none twice."""
    rules = study.rules()
    drawn: list[Config] = [study.baseline]
    if (best := fastest_known(study)) is not None:
        drawn.append(best)
    if study.factors and n > 0:
        # Small spaces often give the same context.
        drawn += rules.sample(Integers(rng), 4 * n)
    # A factor that only one side sets is at its default on the other.
    untouched = {name: study.factor(name).default for name in (*a.settings, *b.settings)}
    found: dict[tuple[str, str], tuple[dict[str, Level], dict[str, Level]]] = {}
    for context in drawn:
        if len(found) >= n + 2:
            break
        configs = [rules.settle({**context, **untouched, **s.settings}) for s in (a, b)]
        ids = config_id(configs[0], study.factors), config_id(configs[1], study.factors)
        if all(map(rules.allows, configs)) and (ids[0] != ids[1] or a.variant != b.variant):
            found.setdefault(ids, (configs[0], configs[1]))
    return list(found.values())


def fastest_known(study: StudySpec) -> dict[str, Level] | None:
    """The configuration with the lowest median in runs.csv, among those that never failed."""
    times: dict[str, list[float]] = {}
    configs: dict[str, dict[str, Level]] = {}
    rows = read_runs(study.runs_path, study.factors)
    # A configuration that failed even once is not recommended, and not used for comparison.
    failed = {row["config_id"] for row in rows if row["status"] not in ("ok", "skipped")}
    for row in rows:
        if row["status"] == "ok" and row["config_id"] not in failed:
            times.setdefault(row["config_id"], []).append(row["time_per_task_us"])
            configs[row["config_id"]] = {f.name: row[f.column] for f in study.factors if f.column in row}
    if not times:
        return None
    return {**study.baseline, **configs[min(times, key=lambda key: statistics.median(times[key]))]}


def conclude(
    study: StudySpec,
    a: Side,
    b: Side,
    chosen: Sequence[tuple[Mapping[str, Level], Mapping[str, Level]]],
    ratios: Sequence[Sequence[float]],
    failures: PairFailures | None = None,
) -> Comparison:
    """The verdict on the pairs' log ratios, one list per context."""
    failures = failures or PairFailures()
    used = [(context, values) for (context, _), values in zip(chosen, ratios, strict=True) if values]
    everything = [value for _, values in used for value in values]
    if len(everything) < 2:
        why = f" {failures.error}" if failures.error else ""
        raise RunError(f"{a.name} and {b.name} cannot be compared: too few pairs finished successfully.{why}")
    means = [statistics.fmean(values) for _, values in used]
    if len(means) >= 3:
        # Contexts are a sample: the interval has to cover how the effect varies over them.
        interval = mean_interval(means, ALPHA)
    elif len(everything) >= _MIN_TRIMMED:
        interval = trimmed_interval(everything, ALPHA)
    else:
        interval = mean_interval(everything, ALPHA)
    p = heterogeneity_p([values for _, values in used])
    moderators = find_moderators(study, [context for context, _ in used], means) if p <= ALPHA else ()
    judgement = judge(interval, study.rope_pct)
    if moderators and (split := _judge_levels(study, moderators[0], [c for c, _ in used], means)) is not None:
        judgement = split
    timed = sentence(a.name, b.name, judgement, interval, study.rope_pct, len(everything))
    return Comparison(
        a.name,
        b.name,
        failures.judged(judgement),
        failures.told(a.name, b.name, timed),
        math.exp(interval.estimate),
        math.exp(interval.low),
        math.exp(interval.high),
        len(everything),
        len(used),
        failures.pairs - len(everything) if failures.pairs else 0,
        p,
        moderators,
    )


def find_moderators(
    study: StudySpec, contexts: Sequence[Mapping[str, Level]], means: Sequence[float]
) -> tuple[Moderator, ...]:
    """Factors over whose levels the effect differs, the clearest first; p is Bonferroni's over the factors."""
    found, tried = [], 0
    for factor in study.factors:
        groups = _by_level(factor, contexts, means)
        if len(groups) < 2 or max(map(len, groups.values())) < 2:
            continue
        tried += 1
        ratios = tuple((level, math.exp(statistics.fmean(values))) for level, values in groups.items())
        found.append(Moderator(factor.name, ratios, heterogeneity_p(list(groups.values()))))
    adjusted = [Moderator(m.factor, m.ratios, min(1.0, m.p * tried)) for m in found]
    return tuple(sorted((m for m in adjusted if m.p <= ALPHA), key=lambda m: m.p))


def _by_level(
    factor: Factor, contexts: Sequence[Mapping[str, Level]], means: Sequence[float]
) -> dict[Level, list[float]]:
    groups: dict[Level, list[float]] = {}
    for context, mean in zip(contexts, means, strict=True):
        groups.setdefault(context.get(factor.name, factor.default), []).append(mean)
    return {level: groups[level] for level in factor.levels if level in groups}


def _judge_levels(
    study: StudySpec, moderator: Moderator, contexts: Sequence[Mapping[str, Level]], means: Sequence[float]
) -> Judgement | None:
    """`depends on F`, unless the verdict is the same at every level."""
    groups = _by_level(study.factor(moderator.factor), contexts, means)
    verdicts = {level: judge(mean_interval(v, ALPHA), study.rope_pct) for level, v in groups.items() if len(v) > 1}
    if len({verdict.word for verdict in verdicts.values()}) < 2:
        return None
    known = {verdict.harmless for verdict in verdicts.values()}
    harmless = False if False in known else None if None in known else True
    levels = ", ".join(f"{verdict.word} at {level}" for level, verdict in verdicts.items())
    return Judgement(f"depends on {moderator.factor} ({levels})", harmless)


def sentence(a: str, b: str, judgement: Judgement, interval: Interval, rope_pct: float, pairs: int) -> str:
    """The verdict for people."""
    change = f"{log_change(interval.estimate)} time ({log_change(interval.low)} to {log_change(interval.high)})"
    text = f"{b} against {a}: {judgement.word}; {change} in {pairs} pairs."
    if judgement.harmless is None and judgement.word == "unknown":
        more = more_pairs(interval, rope_pct)
        if more <= MAX_TIMES_MORE * pairs:
            text += f" About {more} more pairs would decide."
        else:
            text += (
                " More pairs alone will not decide: let each run take longer, quieten the machine, or raise rope_pct."
            )
    return text


def more_pairs(interval: Interval, rope_pct: float) -> int:
    """Additional pairs until the interval leaves the margin that it touches, at the spread seen so far."""
    limit = math.log1p(rope_pct / 100)
    distance = max(abs(abs(interval.estimate) - limit), limit / 4)
    return max(1, math.ceil(interval.n * ((interval.half_width / distance) ** 2 - 1)))


class Integers:
    """Draws for `Constraints.sample` from the standard library's generator."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def integers(self, low: int, high: int | None = None) -> int:
        """A whole number from low up to, but not including, high; without high, from 0 to low."""
        return self._rng.randrange(low) if high is None else self._rng.randrange(low, high)
