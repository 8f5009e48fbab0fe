"""Settling the questions of a real workload: runs in separate processes, recorded in the study's runs.csv."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from broadleaf_lab.errors import RunError
from broadleaf_lab.run.environments.environment import with_excludes
from broadleaf_lab.run.planned import make_plan, next_pair, ready, turns
from broadleaf_lab.run.single import Quiet, keep
from broadleaf_lab.settle.settler import Settler
from broadleaf_lab.spec.runs import Run, RunsFile
from broadleaf_lab.spec.settings import RunSettings
from broadleaf_lab.spec.study import StudySpec


def settle(
    study: StudySpec,
    max_runs: int | None = None,
    *,
    budget_s: float | None = None,
    seed: int = 1,
    quiet: Quiet | None = None,
    say: Callable[[str], None] = lambda line: None,
    on_run: Callable[[Run], None] | None = None,
) -> Settler:
    """Makes blocks of runs until nothing is open, or `max_runs` (as many as the study's plan has, if None) or
    `budget_s` is spent. If the study says so, runs are made two at once, each pair in random order. Raises RunError if
    nothing can be run, or if no run of the first block ended well.
    """
    begin = time.monotonic()
    study = with_excludes(study)
    together = RunSettings.of(study).side_by_side
    settler = Settler(study, max_runs if max_runs is not None else len(make_plan(study)), seed, pairs=together)
    environments, calibration = ready(study, [study.all_on], quiet=quiet, say=say)
    runner = calibration.runner(environments, quiet=quiet)
    rng = random.Random(seed)
    with RunsFile(study.runs_path, study.factors, study.responses) as runs:
        block = runs.next_block
        while configs := settler.next_block():
            if budget_s is not None and time.monotonic() - begin > budget_s:
                break
            rows: list[Run] = [{} for _ in configs]
            order, pair = 0, next_pair(runs.rows)
            places = turns(range(len(configs)), 2 if together else 1)
            for turn in rng.sample(places, len(places)):
                now = rng.sample(turn, len(turn))
                for index, run in zip(now, runner.run_turn([configs[i] for i in now]), strict=True):
                    rows[index] = keep(
                        run, runs, configs[index], on_run=on_run, block=block, order_in_block=order, purpose="settle",
                        replicate=1, pair_id=pair if together else None,
                    )  # fmt: skip
                    order += 1
                pair += 1
            if not settler.rows and not any(row["status"] == "ok" for row in rows):
                raise RunError(f"no run of the first block succeeded; the last error: {rows[-1]['error']}")
            looked = settler.looked
            settler.add(rows, configs)
            block += 1
            if settler.looked > looked:
                say(f"{len(settler.rows)} runs: {settler.sentence}")
    return settler
