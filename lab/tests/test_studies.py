"""The studies and examples that come with the laboratory can be read and planned."""

import math
from pathlib import Path

import pytest
from broadleaf_lab.analysis.verdict import conditionals
from broadleaf_lab.study import Study

LAB = Path(__file__).resolve().parents[1]
STUDIES = LAB / "studies"


@pytest.mark.parametrize(
    "name", ["studies/parsl", "studies/broadleaf", "studies/ipyparallel", "examples/orders", "examples/sqlite"]
)
def test_a_study_is_sound(name):
    study = Study.load(LAB / name)
    study.rules().check()
    assert study.rules().allows(study.all_on)
    assert study.command is not None


def test_the_studies_have_enough_factors_and_a_placebo():
    for name, min_factors in (("parsl", 6), ("broadleaf", 20), ("ipyparallel", 12)):
        factors = Study.load(STUDIES / name).factors
        assert sum(factor.kind != "placebo" for factor in factors) >= min_factors
        assert any(factor.kind == "placebo" for factor in factors)


def test_verdicts_say_what_real_pairs_change():
    made = Study.load(STUDIES / "parsl").fit()
    real = [it for it in made.interactions() if it.q <= 0.05]
    assert real, "no pair of this study is real; choose another one"
    for pair in real:
        at = {(it.factor, it.level): it.ratio for it in conditionals(made, pair.a, pair.a_level)}
        without = next(ratio for (other, level), ratio in at.items() if other == pair.b and level != pair.b_level)
        assert math.log(at[pair.b, pair.b_level] / without) == pytest.approx(pair.estimate)
