"""The studies that come with Broadleaf can be read and planned, and the zoo's run."""

import math
import shutil
from pathlib import Path

import pytest
from broadleaf.lab.analysis.verdict import conditionals
from broadleaf.lab.run.planned import run_plan
from broadleaf.lab.run.single import Quiet
from broadleaf.lab.study import Study

pytest.importorskip("z3")

STUDIES = Path(__file__).resolve().parents[2] / "studies"
ZOO = ("scaling", "batch", "duration", "workloads")


@pytest.mark.parametrize("name", ["parsl", "broadleaf", "ipyparallel", *(f"zoo/{name}" for name in ZOO)])
def test_a_study_is_sound(name):
    study = Study.load(STUDIES / name)
    study.rules().check()
    assert study.rules().allows(study.all_on)
    assert study.command is not None


def test_the_studies_have_enough_factors_and_a_placebo():
    for name, min_factors in (("parsl", 6), ("broadleaf", 20), ("ipyparallel", 12)):
        factors = Study.load(STUDIES / name).factors
        assert sum(factor.kind != "placebo" for factor in factors) >= min_factors
        assert any(factor.kind == "placebo" for factor in factors)


def test_verdicts_say_what_pairs_beside_the_model_change():
    made = Study.load(STUDIES / "parsl").fit()
    beside = [it for it in made.interactions() if it.q <= 0.05 and made.coding.term_of(it.a, it.b) is None]
    assert beside, "no pair of this study is estimated beside the model; choose another one"
    for pair in beside:
        at = {(it.factor, it.level): it.ratio for it in conditionals(made, pair.a, pair.a_level)}
        without = next(ratio for (other, level), ratio in at.items() if other == pair.b and level != pair.b_level)
        assert math.log(at[pair.b, pair.b_level] / without) == pytest.approx(pair.estimate)


def test_the_zoo_runs(tmp_path):
    shutil.copytree(STUDIES / "zoo", tmp_path / "zoo", ignore=shutil.ignore_patterns("runs.*", "plan.json", "*.lock*"))
    study = Study.load(tmp_path / "zoo" / "batch")
    summary = run_plan(study, max_runs=2, quiet=Quiet(max_wait_s=0))
    assert summary.statuses == {"ok": 2}
