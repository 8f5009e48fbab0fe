"""What makes measurements worse than necessary, on this machine or in a study."""

from __future__ import annotations

import importlib.util
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from broadleaf_lab.errors import LabError
from broadleaf_lab.run.command import uses
from broadleaf_lab.run.environments import counters, machine
from broadleaf_lab.run.environments.environment import Environments, with_excludes
from broadleaf_lab.run.planned import PLAN_FILE, remaining
from broadleaf_lab.run.single import Quiet, Runner
from broadleaf_lab.spec.runs import read_runs
from broadleaf_lab.spec.study import StudySpec

Grade = Literal["good", "advice", "bad"]
_LIBRARIES = ("numpy", "scipy", "pandas", "sklearn", "pydoe", "z3", "optuna", "ruptures", "altair")
_LOOPS = 15


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `advice` says what to do about it, empty if nothing."""

    grade: Grade
    what: str
    found: str
    advice: str = ""


def examine_machine() -> Iterator[Finding]:
    """Cores, clock, other load, the spread of a small computation, and the available tools."""
    cores = machine.cores()
    yield Finding(
        "good" if cores > 1 else "advice",
        "cores",
        f"{cores} of {machine.cpu_model()}",
        "" if cores > 1 else "With one core the workload and everything else take turns.",
    )
    governors = machine.governors()
    slow = governors - {"performance"}
    yield Finding(
        "advice" if slow else "good",
        "frequency governor",
        ", ".join(sorted(governors)) or "not shown by this machine",
        "The clock follows the load: `cpupower frequency-set -g performance` holds it." if slow else "",
    )
    boost = machine.read_text("/sys/devices/system/cpu/cpufreq/boost")
    if boost:
        yield Finding("advice" if boost == "1" else "good", "turbo", "on" if boost == "1" else "off",
                      "The clock depends on temperature; controls show it." if boost == "1" else "")  # fmt: skip
    busy = machine.busy_cores(1.0)
    yield Finding(
        "good" if busy < 0.2 else "advice" if busy < 0.5 else "bad",
        "others' load",
        f"{busy:.2f} cores busy now, load average {machine.load1():.2f}",
        "" if busy < 0.2 else "Stop what else runs; `broadleaf-lab run` waits before each run, up to --max-wait.",
    )
    spread, steal = _own_spread()
    yield Finding(
        "good" if spread < 0.02 else "advice" if spread < 0.05 else "bad",
        "noise",
        f"a computation of 20 ms varies by {100 * spread:.1f} %",
        ""
        if spread < 0.02
        else "Plan with design.noise_pct of at least that; `broadleaf-lab power` tells the runs needed.",
    )
    if steal > 0.005:
        yield Finding("bad", "stolen time", f"{100 * steal:.1f} %", "Other virtual machines share the cores: measure "
                      "in smaller blocks, or elsewhere.")  # fmt: skip
    if (temperature := machine.temperature_c()) is not None:
        yield Finding("advice" if temperature > 85 else "good", "temperature", f"{temperature:.0f} C",
                      "It may be slowed down by heat." if temperature > 85 else "")  # fmt: skip
    missing = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
    yield Finding(
        "advice" if missing else "good",
        "analysis libraries",
        f"missing: {', '.join(missing)}" if missing else "all there",
        "Runs need none of them; analyses do: pip install broadleaf-lab." if missing else "",
    )
    for tool, need in (("git", "factors of kind patch and git, and `broadleaf-lab gate`"), ("Rscript", "report.R")):
        path = shutil.which(tool)
        yield Finding(
            "good" if path else "advice", tool, path or "not installed", "" if path else f"Needed for {need}."
        )


def examine_study(study: StudySpec, say: Callable[[str], None] = lambda _: None) -> Iterator[Finding]:
    """Checks the study itself: constraints, settings, environments, and one run of the baseline."""
    try:
        if importlib.util.find_spec("z3") is not None:
            study.rules().check()
        yield Finding("good", "constraints", f"{len(study.constraints)}, every level can be reached")
    except LabError as error:
        yield Finding("bad", "constraints", str(error), "Change or drop one of them.")
        return
    if not any(factor.kind == "placebo" for factor in study.factors):
        yield Finding("advice", "placebo", "none", "A factor of kind placebo shows what noise alone looks like.")
    if not uses(study, "n_tasks") and study.score == "wall/n":
        yield Finding("bad", "score", "wall/n, but the command takes no {n_tasks}",
                      "Start-up will be most of it; give the command {n_tasks}.")  # fmt: skip
    try:
        study = with_excludes(study)
        environments = Environments(study, say=say)
        singles = [study.baseline, *({**study.baseline, f.name: level} for f in study.factors for level in f.others)]
        counts = environments.prepare(singles)
        runner = Runner(environments, n_tasks=study.calibrate.n_tasks or study.calibrate.min_tasks,
                            quiet=Quiet(max_wait_s=0))  # fmt: skip
        missing = [
            f"{f.name}={level}" for f in study.factors for level in f.others
            if not runner.can_run({**study.baseline, f.name: level})
        ]  # fmt: skip
    except LabError as error:
        yield Finding("bad", "environments", str(error))
        return
    yield Finding(
        "advice" if missing else "good",
        "levels",
        f"cannot be run here: {', '.join(missing)}"
        if missing
        else f"all can be run, in {counts['ready']} environments",
        "Their runs will be recorded as skipped." if missing else "",
    )
    begin = time.monotonic()
    row = runner.run(study.baseline)
    yield Finding(
        "good" if row["status"] == "ok" else "bad",
        "baseline",
        f"{row['time_per_task_us']:,.4g} us/task with {row['n_tasks']} tasks, {time.monotonic() - begin:.1f} s"
        if row["status"] == "ok"
        else f"{row['status']}: {row['error']}",
        "" if row["status"] == "ok" else "Run the command by hand.",
    )
    if study.covariate is not None and row["status"] == "ok":
        known = row.get(study.covariate) is not None
        yield Finding(
            "good" if known else "advice",
            "covariate",
            study.covariate if known else f"the run has no {study.covariate}",
            "" if known else counters.lacking(study) or "Analyses go on without it; let the program print it.",
        )
    if "stragglers" in row["flags"]:
        yield Finding("advice", "processes", "the command leaves processes behind when it ends",
                      "They are killed; let it wait for them, or they disturb the next run.")  # fmt: skip
    yield from _examine_runs(study)


def _examine_runs(study: StudySpec) -> Iterator[Finding]:
    from broadleaf_lab.designs.plan import Plan

    rows = read_runs(study.runs_path, study.factors)
    if len({row["machine_id"] for row in rows}) > 1:
        yield Finding(
            "bad", "machines", "runs.csv has runs from several machines", "Analyse one at a time: filter by machine_id."
        )
    if (study.directory / PLAN_FILE).exists():
        try:
            left = remaining(study, Plan.load(study.directory / PLAN_FILE), rows)
            yield Finding("good", "plan", f"{len(left)} runs to make")
        except LabError as error:
            yield Finding("bad", "plan", str(error))


def _own_spread() -> tuple[float, float]:
    """Relative spread of a small computation, each in a fresh process, and the share of stolen time meanwhile."""
    code = "import time; b = time.perf_counter(); sum(range(1_000_000)); print(time.perf_counter() - b)"
    before = machine.cpu_times()
    times = [
        float(
            subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True).stdout
        )
        for _ in range(_LOOPS)
    ]
    _, steal = machine.cpu_times().since(before)
    middle = statistics.median(times)
    # The quartiles: a single interrupted computation says nothing about the machine.
    low, _, high = statistics.quantiles(times, n=4)
    return (high - low) / 1.349 / middle, steal
