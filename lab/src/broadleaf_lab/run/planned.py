"""Makes the runs of a plan in order, unattended: every row is on disk before the next run starts, and a runner that was
killed continues where it was.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from broadleaf_lab.designs.plan import Plan, PlanRow
from broadleaf_lab.errors import RunError
from broadleaf_lab.run.calibrate import Calibration, calibrate
from broadleaf_lab.run.environments.environment import Environments, with_excludes
from broadleaf_lab.run.single import Quiet, keep
from broadleaf_lab.spec.factors import config_id
from broadleaf_lab.spec.lock import read_lock, write_lock
from broadleaf_lab.spec.runs import Run, RunsFile
from broadleaf_lab.spec.study import StudySpec

T = TypeVar("T")
NOISY_MADS = 4.0
_MIN_BASELINES = 5
_MIN_MAD = 0.005
"""A spread of the baselines below this share of their median counts as this: clocks are no better."""
PLAN_FILE = "plan.json"
ALL_FAILED = 6
"""After so many runs of which none ended well, of at least two configurations, there is nothing to measure."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a session. `run` is the row just made, None before the first."""

    done: int
    total: int
    made: int
    elapsed_s: float
    left_s: float | None
    statuses: dict[str, int]
    run: Run | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """What a session did. `stopped` says why it ended early: `budget`, `runs`, `failing` if no run at all ended well,
    or nothing. `error` is the last failure's, `busy` counts the runs made while the machine was busy.
    """

    done: int
    total: int
    made: int
    elapsed_s: float
    statuses: dict[str, int] = field(default_factory=dict)
    noisy_blocks: tuple[int, ...] = ()
    stopped: str = ""
    error: str = ""
    busy: int = 0

    @property
    def hopeless(self) -> bool:
        """Whether runs were made and none ended well."""
        return self.made > 0 and not self.statuses.get("ok")


def make_plan(study: StudySpec) -> Plan:
    """The runs to make. Patches that do not apply together are kept apart."""
    if sum(factor.kind == "patch" for factor in study.factors) < 2:
        return Plan.make(study)
    return Plan.make(study, Environments(study).excludes())


def load_plan(study: StudySpec) -> Plan:
    """The plan of the study's directory; made and saved if there is none yet."""
    path = study.directory / PLAN_FILE
    if path.exists():
        return Plan.load(path)
    plan = make_plan(study)
    plan.save(path)
    return plan


def run_plan(
    study: StudySpec,
    plan: Plan | None = None,
    *,
    budget_s: float | None = None,
    max_runs: int | None = None,
    retry_failed: bool = False,
    quiet: Quiet | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Summary:
    """Makes the rows of `plan` that are not in runs.csv yet, until all are made, or `budget_s` or `max_runs` is spent.

    A failed run is a row like any other; `retry_failed` repeats those that failed, ran out of time or gave no score.
    Raises RunError if nothing can be run or runs.csv belongs to another plan.
    """
    plan = plan or load_plan(study)
    study = with_excludes(study)
    begin = time.monotonic()
    budget_s = budget_s if budget_s is not None else study.design.budget_s
    with RunsFile(study.runs_path, study.factors, study.responses) as runs:
        left = remaining(study, plan, runs.rows, retry_failed=retry_failed)
        done = len(plan.rows) - len(left)
        statuses: dict[str, int] = {}
        made, busy, stopped, error, first = 0, 0, "", "", 0.0
        begun = any(row["status"] == "ok" for row in runs.rows)
        tried: set[str] = set()
        if left:
            environments, calibration = ready(study, [row.config for row in left], quiet=quiet, say=say)
            runner = calibration.runner(environments, quiet=quiet, made=runs.rows)
            together = environments.settings.side_by_side
            pair = next_pair(runs.rows)
            for turn in turns(left, 2 if together else 1):
                spent = time.monotonic() - begin
                if max_runs is not None and made >= max_runs:
                    stopped = "runs"
                elif budget_s is not None and spent >= budget_s:
                    stopped = "budget"
                elif not begun and len(tried) > 1 and made >= ALL_FAILED and not statuses.get("ok"):
                    stopped = "failing"
                if stopped:
                    break
                first = time.monotonic() if made == 0 else first
                now = turn if max_runs is None else turn[: max_runs - made]
                for row, run in zip(now, runner.run_turn([row.config for row in now]), strict=True):
                    columns: dict[str, Any] = {**plan_columns(row), "pair_id": pair if together else None}
                    kept = keep(run, runs, row.config, on_run=None, **columns)
                    made += 1
                    busy += "busy" in (kept["flags"] or "").split()
                    statuses[kept["status"]] = statuses.get(kept["status"], 0) + 1
                    if kept["status"] != "ok":
                        error = f"{kept['status']}: {kept['error']}"
                    if kept["status"] != "skipped":
                        tried.add(kept["config_id"])
                    if on_progress is not None:
                        each_s = (time.monotonic() - first) / made
                        on_progress(
                            Progress(
                                done + made,
                                len(plan.rows),
                                made,
                                time.monotonic() - begin,
                                each_s * (len(left) - made),
                                dict(statuses),
                                kept,
                            )
                        )
                pair += 1
        noisy = flag_noisy_blocks(study, runs)
    return Summary(done + made, len(plan.rows), made, time.monotonic() - begin, statuses, noisy, stopped, error, busy)


def next_pair(rows: Sequence[Run]) -> int:
    """A number that no pair of runs made at once has yet."""
    return 1 + max((row["pair_id"] for row in rows if row["pair_id"] is not None), default=-1)


def turns(rows: Sequence[T], size: int) -> list[Sequence[T]]:
    """The rows in order, this many at a time."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def ready(
    study: StudySpec,
    configs: Sequence[Any],
    *,
    quiet: Quiet | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[Environments, Calibration]:
    """Builds the environments and calibrates, or uses what the study's lock file records."""
    lock = read_lock(study.directory)
    environments = Environments(study, sha=lock.get("source", {}).get("sha"), refs=lock.get("refs"), say=say)
    counts = environments.prepare([study.baseline, *configs])
    if counts["skipped"] or counts["invalid"] or counts["failed"]:
        say("environments: " + ", ".join(f"{n} {what}" for what, n in counts.items() if n))
    if environments.pinned is not None and "source" not in lock:
        write_lock(study.directory, {"source": {"sha": environments.pinned}})
    if environments.pinned_refs != lock.get("refs", {}):
        write_lock(study.directory, {"refs": environments.pinned_refs})
    calibration = Calibration.load(study)
    if calibration is None:
        calibration = calibrate(environments, quiet=quiet, say=say)
        calibration.save(study)
    fixed = study.calibrate.n_tasks
    if fixed is not None and fixed != calibration.n_tasks:
        raise RunError(
            f"study {study.name!r}: its runs were made with {calibration.n_tasks} tasks, but the study file specifies "
            f"{fixed}. Restore the old value, or move runs.csv and study.lock.toml away to start again."
        )
    return environments, calibration


def plan_columns(row: PlanRow) -> dict[str, Any]:
    """The columns that come from the plan's row."""
    return {
        "block": row.block,
        "order_in_block": row.order_in_block,
        "plan_row": row.row,
        "purpose": row.purpose,
        "path_id": row.path_id,
        "path_step": row.path_step,
        "replicate": row.replicate,
    }


def remaining(study: StudySpec, plan: Plan, rows: Sequence[Run], *, retry_failed: bool = False) -> list[PlanRow]:
    """The rows of the plan for which there is no run. Raises RunError if the runs were made from another plan."""
    made: dict[tuple[int, int], Run] = {}
    for old in rows:
        if old["plan_row"] is not None and old["replicate"] is not None:
            made[old["plan_row"], old["replicate"]] = old
    left = []
    for row in plan.rows:
        run = made.get((row.row, row.replicate))
        if run is None or (retry_failed and run["status"] in ("failed", "timeout", "invalid")):
            left.append(row)
            continue
        # In old runs, a factor added later is at its default, as in the plan of that time; so levels are compared.
        wanted = config_id(row.config, study.factors)
        if wanted != config_id({f.name: run[f.column] for f in study.factors}, study.factors):
            raise RunError(
                f"{study.runs_path}: run {run['run_id']} is row {row.row} of another plan. Put the old plan.json back, "
                "or move runs.csv away to start again."
            )
    return left


def noisy_blocks(rows: Sequence[Run], baseline_id: str) -> dict[str, tuple[int, ...]]:
    """For each session, the blocks whose baseline is over 4 median absolute deviations from the session's median."""
    found: dict[str, tuple[int, ...]] = {}
    for session in sorted({row["session_id"] for row in rows if row["session_id"]}):
        times: dict[int, list[float]] = {}
        for row in rows:
            is_baseline = row["config_id"] == baseline_id and row["status"] == "ok"
            if is_baseline and row["session_id"] == session and row["block"] is not None:
                times.setdefault(row["block"], []).append(row["time_per_task_us"])
        blocks = {block: statistics.median(values) for block, values in times.items()}
        if len(blocks) < _MIN_BASELINES:
            continue
        middle = statistics.median(blocks.values())
        spread = statistics.median(abs(value - middle) for value in blocks.values())
        limit = NOISY_MADS * max(spread, _MIN_MAD * middle)
        found[session] = tuple(sorted(b for b, value in blocks.items() if abs(value - middle) > limit))
    return found


def flag_noisy_blocks(study: StudySpec, runs: RunsFile) -> tuple[int, ...]:
    """Sets the flag `noisy_block` on the runs of such blocks, and removes it from the others."""
    noisy = noisy_blocks(runs.rows, config_id(study.baseline, study.factors))
    flags = {}
    for row in runs.rows:
        words = [word for word in (row["flags"] or "").split() if word != "noisy_block"]
        if row["block"] in noisy.get(row["session_id"], ()):
            words.append("noisy_block")
        flags[row["run_id"]] = " ".join(words)
    runs.set_flags(flags)
    return tuple(sorted({block for blocks in noisy.values() for block in blocks}))
