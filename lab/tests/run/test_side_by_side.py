"""Runs of a plan, and both sides of a comparison, at once on one processor, and the benefit."""

from __future__ import annotations

import random

import pytest
from broadleaf_lab.analysis import frame as frames
from broadleaf_lab.comparisons.compare import compare, side
from broadleaf_lab.run.planned import run_plan, turns
from broadleaf_lab.run.single import Quiet
from broadleaf_lab.spec.factors import Factor
from broadleaf_lab.spec.runs import read_runs
from broadleaf_lab.study import Study

pytestmark = pytest.mark.timeout(180)
STUDY = """
[study]
command = ["{python}", "program.py"]
score = "json:time_per_task_us"
side_by_side = true
env.CALLS = "{study}/calls"
[study.calibrate]
n_tasks = 1
[factors.a]
set.env = "A"
levels = ["x", "y"]
[factors.b]
set.env = "B"
levels = ["x", "y"]
[design]
kind = "full"
replicates = 2
paths = 0
"""
# Each run of a pair waits for the other: if they were made in turn, the first would wait in vain.
PROGRAM = """
import json, os, sys, time
calls = os.open(os.environ["CALLS"], os.O_RDWR | os.O_CREAT | os.O_APPEND)
os.write(calls, b".")
mine = os.lseek(calls, 0, os.SEEK_CUR)
deadline = time.monotonic() + 30
while os.fstat(calls).st_size < mine + mine % 2:
    if time.monotonic() > deadline:
        sys.exit("alone")
    time.sleep(0.001)
if len(os.sched_getaffinity(0)) != 1:
    sys.exit("not on one processor")
print(json.dumps({"time_per_task_us": 100.0 + mine % 2}))
"""
QUIET = Quiet(max_wait_s=0)


@pytest.fixture
def study(tmp_path):
    (tmp_path / "study.toml").write_text(STUDY)
    (tmp_path / "program.py").write_text(PROGRAM)
    return Study.load(tmp_path)


def test_planned_runs_are_made_two_by_two(study):
    first = run_plan(study, max_runs=5, quiet=QUIET)
    rows = read_runs(study.runs_path, study.factors)
    assert first.statuses == {"ok": 5}, rows
    # The fifth had no partner: it ran beside a copy of itself.
    assert [row["pair_id"] for row in rows] == [0, 0, 1, 1, 2]
    assert (study.directory / "calls").stat().st_size == 6
    run_plan(study, quiet=QUIET)
    rows = read_runs(study.runs_path, study.factors)
    assert {row["status"] for row in rows} == {"ok"}
    assert [row["pair_id"] for row in rows[5:9]] == [3, 3, 4, 4]


def test_both_sides_of_a_comparison_run_at_once(study):
    found = compare(study, side(study, "a=x"), side(study, "a=y"), contexts=2, pairs=2, quiet=QUIET)
    assert found.failed_pairs == 0
    rows = read_runs(study.runs_path, study.factors)
    assert {row["status"] for row in rows} == {"ok"}


def test_in_turn_is_one_at_a_time():
    assert [list(turn) for turn in turns([1, 2, 3], 2)] == [[1, 2], [3]]
    assert [list(turn) for turn in turns([1, 2, 3], 1)] == [[1], [2], [3]]


def test_what_met_both_runs_of_a_pair_is_taken_out():
    from broadleaf_lab.analysis.model.fit import fit

    rng = random.Random(1)
    rows = []
    for pair in range(60):
        disturbance = rng.lognormvariate(0, 0.3)
        for _ in range(2):
            a, b = rng.randrange(2), rng.randrange(2)
            us = 100 * 0.9**a * 0.8**b * disturbance * rng.lognormvariate(0, 0.01)
            rows.append({"status": "ok", "time_per_task_us": us, "a": a, "b": b, "block": pair // 8, "pair_id": pair})
    factors = [Factor("a", "flag"), Factor("b", "flag")]
    beside = {e.factor: e for e in fit(factors, frames.load(rows, factors)).effects()}
    assert beside["a"].ratio == pytest.approx(0.9, abs=0.01)
    assert beside["a"].ratio_high - beside["a"].ratio_low < 0.02
    alone = [{name: value for name, value in row.items() if name != "pair_id"} for row in rows]
    unpaired = {e.factor: e for e in fit(factors, frames.load(alone, factors)).effects()}
    assert unpaired["a"].ratio_high - unpaired["a"].ratio_low > 0.1
