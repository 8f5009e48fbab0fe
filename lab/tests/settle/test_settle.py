"""Studies that choose their own runs: open questions get the runs, verdicts are right, and they stop."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("scipy")

import truth
from broadleaf_lab.cli import command as lab
from broadleaf_lab.settle.next_runs import NextRuns
from broadleaf_lab.settle.settler import DECIDED, Settler
from broadleaf_lab.settle.spending import ALPHA, Looks, spent
from broadleaf_lab.spec.factors import Factor
from broadleaf_lab.spec.runs import read_runs
from broadleaf_lab.study import Study

sys.path.insert(0, str(Path(__file__).parents[2] / "studies" / "settle"))
import landscapes as simulation

pytestmark = pytest.mark.timeout(180)


def test_all_looks_together_err_no_more_than_one():
    looks = Looks(400, 32)
    taken = []
    for runs in range(16, 401, 16):
        if looks.due(runs):
            taken.append(looks.take(runs))
    assert 5 < len(taken) < 14
    assert sum(taken) == pytest.approx(ALPHA)
    assert spent(0) == 0
    assert spent(1) == pytest.approx(ALPHA)


def test_the_next_runs_are_about_what_is_open():
    factors = tuple(Factor(f"f{i}", "flag") for i in range(6))
    study = Study("s", command=("true",), factors=factors)
    variances = {}
    for name, weights in (("all", {}), ("f1:f4", {"f1:f4": 1.0})):
        choice = NextRuns(factors, study.rules(), np.random.default_rng(1))
        made = choice.choose([], 14, weights)
        rows = choice.terms.matrix(made)
        inverse = np.linalg.inv(rows.T @ rows + 0.5 * np.eye(len(choice.terms)))
        variances[name] = inverse[choice.terms.names.index("f1:f4")][choice.terms.names.index("f1:f4")]
    assert variances["f1:f4"] < 0.9 * variances["all"]


def test_no_run_is_chosen_that_the_constraints_forbid():
    factors = tuple(Factor(f"f{i}", "flag") for i in range(4))
    study = Study("s", command=("true",), factors=factors, constraints={"apart": "not (f0 and f1)"})
    settler = Settler(study, 80)
    rules = study.rules()
    assert all(rules.allows(config) for config in settler.next_block())


def landscape(number, factors=6, **options):
    rng = np.random.default_rng([3, number])
    known = truth.flags(rng, factors)
    study = Study("s", command=("true",), factors=tuple(Factor(n, "flag") for n in known.levels))
    return known, Settler(study, 240, seed=number), simulation.World(known, rng, 0.04, 0.02)


def test_landscapes_are_settled_with_part_of_the_runs_and_without_a_wrong_verdict():
    shares, wrong, known_effects = [], 0, 0
    for number in range(4):
        known, settler, world = landscape(number)
        block = 0
        while configs := settler.next_block():
            settler.add(world.block(configs, block), configs)
            block += 1
        assert settler.done
        assert len(settler.rows) <= settler.max_runs
        shares.append(len(settler.rows) / settler.max_runs)
        for question in settler.questions.values():
            if question.state == DECIDED:
                wrong += simulation.wrong(question.verdict.word, known.effect(question.factor, True))
        large = [n for n in known.levels if abs(known.effect(n, True)) > 0.15]
        assert all(settler.questions[n, True].state == DECIDED for n in large)
        known_effects += len(large)
    assert wrong == 0
    assert known_effects
    assert np.median(shares) < 0.9


def test_what_fails_is_decided_and_run_no_more():
    _, settler, world = landscape(1)
    block = 0
    after = []
    while configs := settler.next_block():
        rows = world.block(configs, block)
        for row in rows:
            if row["f3"]:
                row.update(status="failed", error="boom", time_per_task_us=None)
        was_decided = settler.questions["f3", True].state == DECIDED
        after += [config["f3"] for config in configs] if was_decided else []
        settler.add(rows, configs)
        block += 1
    question = settler.questions["f3", True]
    assert (question.state, question.verdict.word) == (DECIDED, "fails more")
    assert after
    assert not any(after)


STUDY = """
[study]
callable = "bench:run"
[study.calibrate]
n_tasks = 10
[factors.fast]
set.keyword = "fast"
[factors.idle]
set.keyword = "idle"
"""
BENCH = """
import random
def run(fast, idle):
    return 1e-6 * (50 if fast else 100) * random.gauss(1, 0.002)
"""


def test_the_command_settles_a_program(tmp_path):
    (tmp_path / "study.toml").write_text(STUDY)
    (tmp_path / "bench.py").write_text(BENCH)
    done = CliRunner().invoke(lab, ["settle", str(tmp_path), "--runs", "64", "--max-wait", "0", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    words = {it["factor"]: it["word"] for it in found["questions"]}
    assert words == {"fast": "helps", "idle": "no practical difference"}
    assert "interval for all looks" in found["questions"][0]["sentence"]
    rows = read_runs(tmp_path / "runs.csv", Study.load(tmp_path).factors)
    assert len(rows) == found["runs"] < 64
    assert {row["purpose"] for row in rows} == {"settle"}
    assert "decided" in done.stderr
    times = [math.log(row["time_per_task_us"]) for row in rows]
    assert max(times) - min(times) > 0.6
