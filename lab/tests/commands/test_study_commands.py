"""`broadleaf-lab init`, `plan` and `power`."""

import json
import os
import subprocess
import sys

import pytest
from broadleaf_lab import Plan, Study
from broadleaf_lab.cli import command, main
from click.testing import CliRunner
from synthetic.study import write


def run(*arguments, code=0):
    done = CliRunner().invoke(command, [*map(str, arguments)])
    assert done.exit_code == code, done.output + repr(done.exception)
    return done.stdout if code == 0 else done.stderr


def test_every_command_has_a_line_of_help():
    text = run("--help")
    for name in ("init", "plan", "run", "status", "deltas", "analyse", "path", "report", "compare", "tune", "history",
                 "gate", "sweep", "power", "export"):  # fmt: skip
        assert f"\n  {name} " in text
    assert "Did you mean 'plan'" in run("pln", code=2)


@pytest.mark.parametrize("template", ["command", "callable", "broadleaf"])
def test_what_init_writes_can_be_planned_as_it_is(tmp_path, template):
    directory = tmp_path / "my study"
    text = run("init", directory, "--template", template, "--name", 'a "good" one')
    assert "lab plan" in text
    study = Study.load(directory)
    assert study.name == 'a "good" one'
    assert any(f.kind == "placebo" for f in study.factors)
    assert "already exist" in run("init", directory, code=1)
    run("init", directory, "--template", template, "--force")
    assert Study.load(directory).name == "my study"
    run("plan", directory)
    plan = Plan.load(directory / "plan.json")
    assert {"design", "path", "control"} <= set(plan.counts())
    compile((directory / "bench.py").read_text(), "bench.py", "exec")


def test_the_workload_of_the_command_template_runs(tmp_path):
    run("init", tmp_path)
    words = ["--tasks", "300", "--batch", "16", "--compress", "--level", "1", "--quiet", "--codec", "pickle"]
    done = subprocess.run(
        [sys.executable, tmp_path / "bench.py", *words], capture_output=True, text=True, check=True, timeout=30
    )
    assert json.loads(done.stdout)["time_per_task_us"] > 0


def test_plan_tells_what_it_will_cost_and_show(tmp_path):
    write(tmp_path / "s", "eight", design={"paths": 4})
    text = run("plan", tmp_path / "s", "--dry-run", "--seconds", 4)
    assert "eight: 8 factors, 0 constraints" in text
    assert "resolution5: 64 runs; resolution 5; 4 blocks" in text
    assert "interaction, 28 tested at once" in text
    assert "4 s per run, as given" in text
    assert "the median of" in run("plan", tmp_path / "s", "--dry-run")


def test_plan_as_json_has_everything(tmp_path):
    run("init", tmp_path)
    found = json.loads(run("plan", tmp_path, "--json", "--kind", "dopt", "--paths", 2, "--seed", 5, "--seconds", 2))
    plan = Plan.load(tmp_path / "plan.json")
    assert found["runs"] == len(plan) == sum(found["counts"].values())
    assert found["estimated_s"] == 2 * len(plan)
    assert [design["kind"] for design in found["designs"]] == ["dopt", "paths"]
    assert plan.seed == 5
    assert {p["name"] for p in found["precision"]} >= {"batch", "batch:codec"}


def test_plan_says_when_the_budget_is_too_small(tmp_path):
    run("init", tmp_path)
    assert "More than the budget of 20 min" in run("plan", tmp_path, "--seconds", 60)


def test_a_plan_with_runs_is_not_replaced_unasked(tmp_path):
    write(tmp_path, "null", design={"kind": "paths", "paths": 2})
    before = (tmp_path / "plan.json").read_text()
    assert "--force" in run("plan", tmp_path, code=1)
    assert (tmp_path / "plan.json").read_text() == before
    run("plan", tmp_path, "--dry-run")
    assert (tmp_path / "plan.json").read_text() == before
    run("plan", tmp_path, "--force", "--seed", 9)
    assert (tmp_path / "plan.json").read_text() != before


def test_power_prints_the_formulas(tmp_path):
    found = json.loads(run("power", "--effect", 2, "--noise", 5, "--json"))
    assert [(row["kind"], row["runs"]) for row in found["rows"]] == [("main", 201), ("pair", 1808)]
    assert "201" in run("power")
    shown = json.loads(run("power", "--runs", 201, "--noise", 5, "--factors", 2, "--json"))
    assert shown["rows"][0]["effect_pct"] == pytest.approx(2, abs=0.01)
    assert shown["pair_tests"] == 1
    run("init", tmp_path)
    assert json.loads(run("power", tmp_path, "--json"))["factors"] == 7


def test_a_wrong_study_file_ends_in_a_sentence(tmp_path, capsys):
    (tmp_path / "study.toml").write_text('[study]\ncommand = ["x"]\nscor = "wall/n"\n')
    with pytest.raises(SystemExit) as left:
        main(["plan", str(tmp_path)])
    assert left.value.code == 1
    assert capsys.readouterr().err == (
        f"error: {tmp_path}/study.toml: study.scor: no such key. Did you mean 'score'?\n"
    )


def test_planning_needs_no_threads(tmp_path):
    run("init", tmp_path / "study")
    code = (
        "import os, sys\nfrom broadleaf_lab.cli import main\n"
        f"try:\n    main(['plan', {str(tmp_path / 'study')!r}])\nexcept SystemExit: pass\n"
        "assert 'numpy' in sys.modules\nprint(len(os.listdir('/proc/self/task')), file=sys.stderr)\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=50)
    assert done.stderr.split()[-1] == "1", done.stderr
