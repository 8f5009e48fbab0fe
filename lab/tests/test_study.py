"""A study in Python: the short way to everything the commands do."""

import subprocess

import pytest
from broadleaf_lab import DesignError, Study
from synthetic.study import write


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    directory = tmp_path_factory.mktemp("eight")
    write(directory, "eight", seed=3, design={"kind": "resolution5", "paths": 12}, noise=0.03)
    return Study.load(directory)


def test_runs_and_deltas(study):
    assert len(study.runs()) == len(study.plan())
    assert (study.runs("not f1")["f1"] == 0).all()
    deltas = study.deltas(where="not f2")
    assert set(deltas["treatment"]) == {f.name for f in study.factors} - {"f2"}


def test_effects_of_a_fit_are_those_planted(study):
    found = {effect.factor: effect for effect in study.fit("log").effects("baseline")}
    for name, planted in {"f1": -0.5, "f2": -0.3, "f6": 0.05, "f8": 0.0}.items():
        assert abs(found[name].estimate - planted) < 4 * found[name].se < 0.09


@pytest.mark.parametrize("order", ["greedy", "nice", "shapley", ["f3", "f1"]])
def test_paths(study, order):
    found = study.path(order)
    assert found.order[0].factor == (order[0] if isinstance(order, list) else "f1")


def test_a_wrong_order_is_refused(study):
    with pytest.raises(DesignError, match="greedy, nice or shapley"):
        study.path("best")


def test_components(study):
    assert study.pca(draws=50).variance_ratio[0] > 0.3


def test_a_study_runs_what_is_left_of_its_plan(study):
    assert study.run("1m", max_runs=3).made == 0


A = """\
--- a/work.py
+++ b/work.py
@@ -1 +1 @@
-x = 1
+x = {value}
"""


def test_patches_that_do_not_apply_together_are_kept_apart(tmp_path):
    (tmp_path / "work.py").write_text("x = 1\n")
    for name, value in (("one", 2), ("two", 3)):
        (tmp_path / f"{name}.diff").write_text(A.format(value=value))
    sections = "".join(f'[factors.{name}]\nset.patch = "{name}.diff"\n' for name in ("one", "two"))
    (tmp_path / "study.toml").write_text('[study]\ncommand = ["{python}", "work.py"]\n' + sections)
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q"], ["add", "work.py"], [*identity, "commit", "-qm", "x"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True, timeout=30)
    plan = Study.load(tmp_path).plan()
    assert list(plan.spec["excludes"].values()) == ["not (one and two)"]
    assert {(row.config["one"], row.config["two"]) for row in plan.rows} == {
        (False, False),
        (True, False),
        (False, True),
    }
