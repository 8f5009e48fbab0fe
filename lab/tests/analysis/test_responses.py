"""Any column of runs.csv as a response, a study's own numbers, and what a gain in one costs in another."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("scipy")

from broadleaf_lab.analysis import frame as frames
from broadleaf_lab.cli import command as lab
from broadleaf_lab.errors import AnalysisError, StudyFileError
from broadleaf_lab.spec.runs import read_runs
from broadleaf_lab.study import Study
from broadleaf_lab.tune.pareto import _front, pareto

pytestmark = pytest.mark.timeout(120)
STUDY = """
[study]
command = ["{python}", "program.py", "{a}", "{b}"]
score = "json:time_per_task_us"
responses = ["joules"]
[study.calibrate]
n_tasks = 10
[factors.a]
set.argument = true
levels = [0, 1]
[factors.b]
set.argument = true
levels = [0, 1]
[design]
kind = "full"
replicates = 6
paths = 0
"""
PROGRAM = """
import json, random, sys
a, b = map(int, sys.argv[1:3])
r = random.Random()
print(json.dumps({"time_per_task_us": 100 * (0.5 if a else 1) * r.gauss(1, 0.001),
                  "joules": 3 * (2 if a else 1) * (0.8 if b else 1) * r.gauss(1, 0.001)}))
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A study that was run: `a` halves the time and doubles the energy, `b` saves energy."""
    root = tmp_path_factory.mktemp("responses")
    (root / "study.toml").write_text(STUDY)
    (root / "program.py").write_text(PROGRAM)
    done = CliRunner().invoke(lab, ["run", str(root), "--max-wait", "0"])
    assert done.exit_code == 0, done.output
    return root


def test_a_studys_own_numbers_are_columns(measured):
    study = Study.load(measured)
    rows = read_runs(study.runs_path, study.factors)
    assert all(2 < row["joules"] < 7 for row in rows)
    assert {"joules", "max_rss_kb", "time_per_task_us"} <= set(frames.responses(study.runs(), study.factors))
    assert "a" not in frames.responses(study.runs(), study.factors)


def test_each_response_has_its_own_verdicts(measured):
    done = CliRunner().invoke(lab, ["analyse", str(measured), "--response", "joules",
                                      "--response", "time_per_task_us", "--json"])  # fmt: skip
    assert done.exit_code == 0, done.output
    words = {name: {v["factor"]: v["word"] for v in one["verdicts"]} for name, one in json.loads(done.stdout).items()}
    assert words["joules"]["a"] == "hinders"
    assert words["joules"]["b"] == "helps"
    assert words["time_per_task_us"]["a"] == "helps"
    assert not (measured / "effects.csv").exists(), "the tables are of the time per task"
    said = CliRunner().invoke(lab, ["analyse", str(measured), "--response", "joules"]).stdout
    assert "% more joules" in said
    assert "time per task" not in said


def test_a_response_that_is_none_names_those_that_are(measured):
    study = Study.load(measured)
    with pytest.raises(AnalysisError, match=r"no column 'watts'.*joules"):
        study.runs(response="watts")


def test_the_front_has_what_none_beats_in_all(measured):
    points = pareto(Study.load(measured), ("time_per_task_us", "joules"))
    assert [point.config for point in points] == [{"a": 1, "b": 1}, {"a": 0, "b": 1}]
    at, low, high = points[0].ratios["joules"]
    # One interval of twenty does not cover the truth, 1.6. Its standard error is 0.001.
    assert 1.59 < low < at < high < 1.61


def test_a_front_keeps_one_of_those_alike():
    values = np.log([[1.0, 1.0], [0.5, 2.0], [0.5, 2.001], [0.6, 2.1], [1.0, 0.999]])
    assert sorted(_front(values, 0.01)) == [1, 4]


def test_a_response_cannot_have_the_name_of_a_column(tmp_path):
    (tmp_path / "study.toml").write_text(STUDY.replace('["joules"]', '["n_tasks"]'))
    with pytest.raises(StudyFileError, match="is already a column"):
        Study.load(tmp_path)
