"""Makes the runs of the cells of one setting or two, in turn, and compares what they used."""

from __future__ import annotations

import itertools
import random
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from broadleaf_lab.analysis.pairs.intervals import mean_interval
from broadleaf_lab.comparisons.why.profilers import RATE_HZ, Profiler, profiler_for
from broadleaf_lab.errors import RunError
from broadleaf_lab.run.environments.environment import with_excludes
from broadleaf_lab.run.planned import ready
from broadleaf_lab.run.process import last_words
from broadleaf_lab.run.single import Quiet, Runner, record
from broadleaf_lab.spec.factors import Level
from broadleaf_lab.spec.runs import Run, RunsFile
from broadleaf_lab.spec.study import StudySpec

Setting = tuple[str, Level]
WHY_FILE = "why.csv"
ROUNDS = 5
_MAX_FUNCTIONS = 12
_ENOUGH_SAMPLES = 400
_MAX_PROFILED = 8
_LITTLE = 0.05


@dataclass(frozen=True, slots=True)
class Line:
    """A figure in every cell, and `beyond`: for two cells their difference, for four what both settings add beyond the
    sum of each; half the width of its 95 % interval is `margin`, None if there is none.
    """

    name: str
    cells: tuple[float, ...]
    beyond: float
    margin: float | None = None

    @property
    def proven(self) -> bool:
        """Whether the interval of `beyond` excludes zero."""
        return self.margin is not None and abs(self.beyond) > self.margin


@dataclass(frozen=True, slots=True)
class Why:
    """The result. `used` are figures of the runs, the time per task first; `spent` is microseconds per task in each
    function by itself, empty if nothing could be profiled, as `note` then explains.
    """

    settings: tuple[Setting, ...]
    labels: tuple[str, ...]
    runs: int
    used: tuple[Line, ...]
    spent: tuple[Line, ...]
    profiler: str
    samples: int
    note: str

    @property
    def sentences(self) -> tuple[str, ...]:
        """What the settings do to the time per task, and where."""
        time = self.used[0]
        sure = "" if time.proven else ", which is within the noise of these runs"
        if len(self.labels) == 2:
            said = [f"{self.labels[1]} takes {time.beyond:+,.3g} us per task{sure}."]
        else:
            alone = [time.cells[i] - time.cells[0] for i in (1, 2)]
            both = time.cells[3] - time.cells[0]
            said = [
                f"{self.labels[1]} alone takes {alone[0]:+,.3g} us per task, {self.labels[2]} alone {alone[1]:+,.3g}, "
                f"both {both:+,.3g}: {abs(time.beyond):,.3g} us {'more' if time.beyond > 0 else 'less'} than the sum"
                f"{sure}."
            ]
        min_beyond = _LITTLE * abs(time.beyond)
        there = [it for it in self.spent if it.beyond * time.beyond > 0 and abs(it.beyond) >= min_beyond]
        if time.proven and there:
            parts = ", ".join(f"{it.name} {it.beyond:+,.3g}" for it in there[:3])
            said.append(f"That lies most of all in {parts}.")
        return (*said, self.note) if self.note else tuple(said)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "sentences": list(self.sentences)}


def strongest_pair(study: StudySpec) -> tuple[Setting, Setting]:
    """The two settings that interact most clearly in the runs. Raises RunError if no interaction is proven."""
    from broadleaf_lab.analysis.model.fit import of_study

    real = [pair for pair in of_study(study).interactions(study.rope_pct) if pair.q <= 0.05]
    if not real:
        raise RunError(
            f"study {study.name!r}: no two settings are proven to interact. Name those to look at: "
            "broadleaf-lab why A B"
        )
    pair = max(real, key=lambda pair: abs(pair.estimate))
    return (pair.a, pair.a_level), (pair.b, pair.b_level)


def why(
    study: StudySpec,
    settings: Sequence[Setting],
    *,
    context: Mapping[str, Level] | None = None,
    rounds: int = ROUNDS,
    profile: bool = True,
    seed: int | None = None,
    quiet: Quiet | None = None,
    on_run: Callable[[Run], None] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Why:
    """Runs the cells of one or two settings, over `context` (default: the baseline), `rounds` times in random order,
    and then under a profiler. The runs are kept in `.lab/why.csv` beside the study: they were chosen because of earlier
    results, so they are not part of its data. RunError if the constraints forbid a cell, or one of its runs fails."""
    if not 1 <= len(settings) <= 2:
        raise RunError("name one setting or two.")
    study = with_excludes(study)
    base = {**study.baseline, **(context or {}), **{name: study.factor(name).default for name, _ in settings}}
    rules = study.rules()
    configs = []
    for applied in _subsets(settings):
        config = rules.settle({**base, **dict(applied)})
        if not rules.allows(config):
            raise RunError(f"the constraints do not allow {_label(study, applied)} here; choose another context.")
        configs.append(config)
    labels = tuple(_label(study, applied) for applied in _subsets(settings))
    environments, calibration = ready(study, configs, quiet=quiet, say=say)
    runner = calibration.runner(environments, quiet=quiet)
    rng = random.Random(seed)
    made: list[dict[int, Run]] = []
    with RunsFile(environments.cache() / WHY_FILE, study.factors, study.responses) as runs:
        for number in range(rounds):
            rows = {}
            for order, which in enumerate(rng.sample(range(len(configs)), len(configs))):
                row = rows[which] = record(runner, runs, configs[which], on_run=on_run, block=number,
                                           order_in_block=order, purpose="explicit", replicate=number)  # fmt: skip
                if row["status"] != "ok":
                    raise RunError(f"{labels[which]} cannot be run ({row['status']}): {row['error']}")
            made.append(rows)
    spent, profiler, samples, note = _profiles(runner, configs, say) if profile else ((), "", 0, "")
    return Why(tuple(settings), labels, rounds * len(configs), _used(made), spent, profiler, samples, note)


def _subsets(settings: Sequence[Setting]) -> list[tuple[Setting, ...]]:
    """None of them, each, both."""
    return [part for size in range(len(settings) + 1) for part in itertools.combinations(settings, size)]


def _label(study: StudySpec, applied: Sequence[Setting]) -> str:
    if not applied:
        return "neither"
    if len(applied) > 1:
        return "both"
    name, level = applied[0]
    return name if study.factor(name).is_bool else f"{name}={level}"


def _beyond(values: Sequence[float]) -> float:
    return values[1] - values[0] if len(values) == 2 else values[3] - values[2] - values[1] + values[0]


def _waiting_us(row: Run) -> float:
    clock_us = row["duration_s"] * 1e6 / (row["n_tasks"] * row["n_iter"])
    return float(clock_us - row["cpu_us_per_task"])


def _each(column: str, per: float = 1.0) -> Callable[[Run], float | None]:
    """A count of a run, per this many tasks."""

    def read(row: Run) -> float | None:
        value = row.get(column)
        return None if value is None else per * value / (row["n_tasks"] * row["n_iter"])

    return read


def _own(column: str) -> Callable[[Run], float | None]:
    return lambda row: row.get(column)


_FIGURES: tuple[tuple[str, Callable[[Run], float | None]], ...] = (
    ("time per task, us", _own("time_per_task_us")),
    ("processor per task, us", _own("cpu_us_per_task")),
    ("waiting per task, us", _waiting_us),
    ("instructions per task", _own("instructions_per_task")),
    ("cycles per task", _own("cycles_per_task")),
    ("cache misses per task", _own("cache_misses_per_task")),
    ("branch misses per task", _own("branch_misses_per_task")),
    ("context switches per 1000 tasks", _each("ctx_switches", 1000)),
    ("page faults per 1000 tasks", _each("page_faults", 1000)),
    ("bytes to disk per task", _each("bytes_written")),
    ("peak memory, MB", lambda row: row["max_rss_kb"] / 1024),
    ("energy per task, uJ", _own("energy_uj_per_task")),
)


def _used(made: Sequence[Mapping[int, Run]]) -> tuple[Line, ...]:
    """Medians of every figure that all runs have and that is not always zero."""
    found = []
    for name, read in _FIGURES:
        table = [[read(rows[which]) for which in range(len(rows))] for rows in made]
        values = [[value for value in line if value is not None] for line in table]
        if any(len(line) < len(table[0]) for line in values) or not any(map(any, values)):
            continue
        cells = tuple(statistics.median(column) for column in zip(*values, strict=True))
        each = [_beyond(line) for line in values]
        interval = mean_interval(each) if len(each) > 1 else None
        found.append(Line(name, cells, statistics.fmean(each), None if interval is None else interval.half_width))
    return tuple(found)


def _profiles(
    runner: Runner, configs: Sequence[Mapping[str, Level]], say: Callable[[str], None]
) -> tuple[tuple[Line, ...], str, int, str]:
    """Time per task by function, the profiler's name, its samples, and the reason if there are none."""
    with tempfile.TemporaryDirectory(prefix="lab-") as folder:
        found = profiler_for(runner.command_words(configs[0]))
        if isinstance(found, str):
            return (), "", 0, f"No profile: {found}."
        say(f"profiling with {found.name}")
        try:
            profiles = [_profile(runner, config, found, Path(folder) / "samples") for config in configs]
        except RunError as error:
            return (), "", 0, f"No profile: {error}"
    names = {name for counts, _ in profiles for name in counts}
    each_us = [1e6 / RATE_HZ / tasks for _, tasks in profiles]
    lines = []
    for name in names:
        cells = tuple(counts[name] * us for (counts, _), us in zip(profiles, each_us, strict=True))
        lines.append(Line(name, cells, _beyond(cells)))
    lines.sort(key=lambda line: (-abs(line.beyond), line.name))
    return tuple(lines[:_MAX_FUNCTIONS]), found.name, sum(sum(counts.values()) for counts, _ in profiles), ""


def _profile(runner: Runner, config: Mapping[str, Level], profiler: Profiler, output: Path) -> tuple[Counter[str], int]:
    """The samples of one configuration, and the number of tasks they cover."""
    counts: Counter[str] = Counter()
    tasks = 0
    for _ in range(_MAX_PROFILED):
        output.unlink(missing_ok=True)
        finished, _ = runner.attempt(config, wrapped=lambda command: profiler.around(command, output))
        if finished.timed_out or finished.error or finished.exit_code != 0:
            raise RunError(f"a run under {profiler.name} failed: {finished.error or last_words(finished)}")
        counts += profiler.samples(output)
        tasks += runner.tasks_of(config) * runner.iterations
        if sum(counts.values()) >= _ENOUGH_SAMPLES:
            break
    return counts, tasks
