"""`broadleaf-lab run`, `status` and `sweep` on a study whose times are reported, not taken."""

import json
import math

import pytest
from broadleaf_lab.cli import command as lab
from broadleaf_lab.comparisons.sweep import sweep
from broadleaf_lab.run.environments import machine
from broadleaf_lab.run.single import Quiet
from broadleaf_lab.spec.runs import read_runs
from broadleaf_lab.study import Study
from click.testing import CliRunner, Result

PROGRAM = """
import json, os, sys
n = int(sys.argv[1])
workers = int(sys.argv[2])
time_us = 1000.0 / workers + 20 * (workers > 4)
if "--broken" in sys.argv:
    sys.exit("it is broken")
print(json.dumps({"time_per_task_us": time_us, "total_s": 1.0, "n_tasks": n}))
"""
STUDY = """
[study]
name = "told"
command = ["{python}", "program.py", "{n_tasks}", "{workers}"]
score = "json:time_per_task_us"
[study.calibrate]
n_tasks = 7
[factors.workers]
set.argument = true
levels = [1, 2, 4, 8]
scale = "log2"
[factors.broken]
set.flag = "--broken"
[factors.pinned]
set.wrapper = "no-such-wrapper"
[constraints]
few = "not broken or workers == 1"
[design]
kind = "explicit"
rows = [{ workers = 1 }, { workers = 8 }, { broken = true }, { pinned = true }]
"""
AT_ONCE = Quiet(max_wait_s=0)


def test_runs_on_a_busy_machine_are_counted_and_said_at_once(tmp_path, monkeypatch):
    (tmp_path / "study.toml").write_text(STUDY)
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.setattr(machine.wait_until_quiet, "__defaults__", (lambda: 3.0, lambda cores: None))
    done = CliRunner().invoke(lab, ["run", str(tmp_path), "--max-wait", "0.0001"])
    lines = done.stdout.splitlines()
    said = next(i for i, line in enumerate(lines) if "other processes use 3.0 cores" in line)
    assert said < next(i for i, line in enumerate(lines) if line.startswith("1/"))
    assert sum("the machine is busy" in line for line in lines) == 1
    assert any("runs were made while the machine was busy" in line for line in lines), done.stdout


def test_the_plan_tells_what_cannot_be_run(tmp_path):
    (tmp_path / "study.toml").write_text(
        '[study]\ncommand = ["true"]\n[factors.py]\nset.python = { here = "python3", far = "python3.99" }\n'
        '[factors.x]\nset.env = { X = "1" }\n'
    )
    done = CliRunner().invoke(lab, ["plan", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "cannot be run here: py=far: interpreter 'python3.99'" in done.output
    assert json.loads(CliRunner().invoke(lab, ["plan", str(tmp_path), "--dry-run", "--json"]).stdout)["faults"]


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "study.toml").write_text(STUDY)
    return tmp_path


def call(*arguments: object) -> Result:
    return CliRunner().invoke(lab, [str(argument) for argument in arguments])


def test_run_makes_the_plan_and_status_tells_of_it(directory):
    pytest.importorskip("numpy")
    first = call("run", directory, "--runs", 2, "--max-wait", 0)
    assert first.exit_code == 0, first.output
    assert "continues" in first.output
    second = call("run", directory, "--max-wait", 0)
    assert second.exit_code == 0, second.output
    rows = read_runs(directory / "runs.csv")
    planned = json.loads((directory / "plan.json").read_text())["rows"]
    assert len(rows) == len(planned) >= 4
    assert {row["status"] for row in rows} == {"ok", "failed", "skipped"}
    assert {row["n_tasks"] for row in rows} == {7}
    shown = call("status", directory)
    assert shown.exit_code == 0, shown.output
    assert f"{len(rows)} of {len(rows)} runs made" in shown.output
    assert "it is broken" in shown.output


def test_a_sweep_shows_the_curve_and_continues(directory):
    shown = call("sweep", "workers", "--study", directory, "--replicates", 2, "--max-wait", 0)
    assert shown.exit_code == 0, shown.output
    assert "from 1 to 2: time grows with the power -1.00" in shown.output
    study = Study.load(directory)
    again = sweep(study, study.factor("workers"), replicates=3, quiet=AT_ONCE)
    rows = read_runs(directory / "runs.csv", study.factors)
    assert len(rows) == 4 * 3
    assert sorted((row["workers"], row["replicate"]) for row in rows) == [
        (w, r) for w in (1, 2, 4, 8) for r in range(3)
    ]
    points = {point.level: point for point in again.points}
    assert points[1].ratio is None
    assert points[2].ratio is not None
    assert math.exp(points[2].ratio.estimate) == pytest.approx(0.5)
    assert again.best is not None
    assert (again.best.level, again.best.median_us) == (8, 145.0)
    # Levels between the listed ones may be requested; those that the constraints forbid are left out.
    more = call("sweep", "workers", "--study", directory, "--levels", "1,3", "--replicates", 2, "--max-wait", 0)
    assert more.exit_code == 0, more.output
    assert "333.3" in more.output
    none = call("sweep", "workers", "--study", directory, "--in", "broken", "--max-wait", 0)
    assert none.exit_code != 0


def test_a_run_of_which_nothing_ends_well_stops_early_and_its_exit_code_tells(directory):
    pytest.importorskip("numpy")
    file = directory / "study.toml"
    text = file.read_text().replace("json:time_per_task_us", "json:no_such_key")
    file.write_text(text.replace('kind = "explicit"', 'kind = "explicit"\nreplicates = 3'))
    done = call("run", directory, "--max-wait", 0)
    assert done.exit_code == 3, done.output
    rows = read_runs(directory / "runs.csv")
    planned = json.loads((directory / "plan.json").read_text())["rows"]
    assert len(rows) < len(planned)
    assert "no run succeeded; the last error: " in done.output
    assert "no_such_key" in done.output
    assert "--retry-failed" in done.output


def test_words_in_brackets_are_shown_as_they_are(directory):
    """The terminal's markup must not eat them."""
    pytest.importorskip("numpy")
    program = directory / "program.py"
    program.write_text(program.read_text().replace("it is broken", "[design] is broken"))
    done = call("run", directory, "--max-wait", 0)
    assert "[design] is broken" in done.output
