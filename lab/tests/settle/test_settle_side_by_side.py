"""Studies that choose their own runs, two at once: as often right, whatever disturbs both runs of a pair."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("scipy")

import truth
from broadleaf_lab.run.single import Quiet
from broadleaf_lab.settle.measured import settle
from broadleaf_lab.settle.next_runs import NextRuns
from broadleaf_lab.settle.settler import DECIDED, Settler
from broadleaf_lab.spec.factors import Factor
from broadleaf_lab.spec.runs import read_runs
from broadleaf_lab.study import Study

sys.path.insert(0, str(Path(__file__).parents[2] / "studies" / "settle"))
import landscapes as simulation

pytestmark = pytest.mark.timeout(300)


def test_pairs_are_chosen_for_what_their_difference_shows():
    factors = tuple(Factor(f"f{i}", "flag") for i in range(6))
    study = Study("s", command=("true",), factors=factors)
    choice = NextRuns(factors, study.rules(), np.random.default_rng(1))
    pairs = choice.choose_pairs([], 8, {"f1": 1.0})
    assert sum(a["f1"] != b["f1"] for a, b in pairs) >= 7
    again = choice.choose_pairs(pairs, 4, {"f1": 1.0})
    assert len(again) == 4


def test_a_block_has_whole_pairs_with_the_controls_in_one():
    study = Study("s", command=("true",), factors=tuple(Factor(f"f{i}", "flag") for i in range(4)))
    settler = Settler(study, 50, pairs=True)
    while block := settler.next_block():
        if len(settler.rows) < 48:
            assert len(block) % 2 == 0
            assert block[:2] == [study.baseline, study.all_on]
        settler.add([{"status": "failed"} for _ in block], block)
    assert len(settler.rows) == 50


def settled(number):
    """How many settings of a landscape are decided, how many of them wrongly, and how many an interval missed."""
    rng = np.random.default_rng([5, number])
    known = truth.flags(rng, 5, pairs=1)
    study = Study("s", command=("true",), factors=tuple(Factor(n, "flag") for n in known.levels))
    settler = simulation.Watched(study, 240, seed=number, pairs=True)
    world = simulation.World(known, rng, 0.02, 0.02, pair_sd=0.2)
    block = 0
    while configs := settler.next_block():
        settler.add(world.block(configs, block), configs)
        block += 1
    done = [q for q in settler.questions.values() if q.state == DECIDED]
    wrong = sum(simulation.wrong(q.verdict.word, known.effect(q.factor, True)) for q in done)
    return len(done), wrong, settler.missed(known)


def test_intervals_of_all_looks_hold_and_no_verdict_is_wrong_beside_large_disturbances():
    decided, wrong, missed = np.sum([settled(number) for number in range(6)], axis=0)
    assert decided >= 18
    assert wrong == 0
    assert missed <= 3


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
"""
# Each run of a pair waits for the other: if they were made in turn, the first would wait in vain.
PROGRAM = """
import json, os, random, sys, time
calls = os.open(os.environ["CALLS"], os.O_RDWR | os.O_CREAT | os.O_APPEND)
os.write(calls, b".")
mine = os.lseek(calls, 0, os.SEEK_CUR)
deadline = time.monotonic() + 30
while os.fstat(calls).st_size < mine + mine % 2:
    if time.monotonic() > deadline:
        sys.exit("alone")
    time.sleep(0.001)
us = 1.5 if os.environ.get("A") == "y" else 1.0
print(json.dumps({"time_per_task_us": us * random.gauss(100, 3)}))
"""


def test_the_runs_of_a_program_are_made_two_at_once_in_random_order(tmp_path):
    (tmp_path / "study.toml").write_text(STUDY)
    (tmp_path / "program.py").write_text(PROGRAM)
    study = Study.load(tmp_path)
    settle(study, 47, quiet=Quiet(max_wait_s=0))
    rows = read_runs(study.runs_path, study.factors)
    assert {row["status"] for row in rows} == {"ok"}
    assert len(rows) == 47
    by_pair = {}
    for row in rows:
        by_pair.setdefault(row["pair_id"], []).append(row)
    # The last one had no partner: it ran beside a copy of itself.
    assert sorted(len(both) for both in by_pair.values()) == [1] + [2] * 23
    assert all(both[0]["block"] == both[-1]["block"] for both in by_pair.values())
    controls = [both for both in by_pair.values() if {(r["a"], r["b"]) for r in both} == {("x", "x"), ("y", "y")}]
    # Either control starts first.
    assert {both[0]["a"] for both in controls} == {"x", "y"}
