"""What each kind of factor does to a command."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from broadleaf_lab.errors import RunError
from broadleaf_lab.run.command import PLACEBO, Checkout, Command, command_of
from broadleaf_lab.run.interpreters import Unavailable, find_interpreter
from broadleaf_lab.run.process import PADDING
from broadleaf_lab.spec.factors import Factor
from broadleaf_lab.spec.runs import read_runs
from broadleaf_lab.spec.settings import RunSettings
from broadleaf_lab.study import Study

FACTORS = (
    Factor("fast", "flag", setting={"flag": "--fast"}),
    Factor("batch", "argument", levels=(1, 8), default=1, setting={"argument": "--batch="}),
    Factor("size", "argument", levels=(1, 2), default=1, setting={"argument": ["--size", "{value}k"]}),
    Factor("mode", "argument", levels=("a", "b"), default="a", setting={"argument": {"a": "", "b": "--mode b"}}),
    Factor("log", "config", levels=("debug", "off"), default="debug", setting={"config": "logging.level"}),
    Factor("steal", "config", setting={"config": "steal"}),
    Factor("jemalloc", "env", setting={"env": {"LD_TEST": "lib.so", "OTHER": "2"}}),
    Factor("threads", "env", levels=(1, 2), default=1, setting={"env": "OMP_NUM_THREADS"}),
    Factor("nice", "wrapper", levels=("none", "nice"), default="none",
           setting={"wrapper": {"none": "", "nice": "nice -n 5"}}),
    Factor("nothing", "placebo"),
    Factor("conf", "file", levels=("x", "y"), default="x",
           setting={"file": {"x": "x.toml", "y": "y.toml"}, "to": "app.toml"}),
)  # fmt: skip


def made_of(directory: Path, config=None, command=("prog", "{n_tasks}", '{"json": 1}'), **more) -> Command:
    for name in "xy":
        (directory / f"{name}.toml").write_text(name)
    study = Study(name="t", command=command, factors=more.pop("factors", FACTORS), directory=directory, **more)
    run_dir = directory / "run"
    run_dir.mkdir(exist_ok=True)
    checkout = Checkout(directory, directory, find_interpreter(sys.executable))
    return command_of(study, RunSettings.of(study), config or {}, checkout, n_tasks=50, iterations=3, run_dir=run_dir,
                  rng=random.Random(1))  # fmt: skip


def test_the_baseline_adds_only_what_has_no_off(tmp_path, monkeypatch):
    monkeypatch.setenv("LD_TEST", "inherited")
    made = made_of(tmp_path)
    assert made.command == ("prog", "50", '{"json": 1}', "--batch=1", "--size", "1k")
    assert made.env["BROADLEAF_LOGGING_LEVEL"] == "debug"
    assert made.env["BROADLEAF_STEAL"] == "off"
    assert made.env["OMP_NUM_THREADS"] == "1"
    # Off is off even if the runner's own environment has it.
    assert "LD_TEST" not in made.env
    assert PLACEBO not in made.env
    assert (tmp_path / "run" / "app.toml").read_text() == "x"


def test_every_setting_takes_effect(tmp_path):
    on = {f.name: f.on for f in FACTORS}
    made = made_of(tmp_path, on, command=("prog", "{conf}", "{batch}"))
    assert made.command == ("nice", "-n", "5", "prog", str(tmp_path / "run" / "app.toml"), "8", "--fast", "--batch=8",
                            "--size", "2k", "--mode", "b")  # fmt: skip
    assert made.env["BROADLEAF_LOGGING_LEVEL"] == "off"
    assert made.env["BROADLEAF_STEAL"] == "on"
    assert (made.env["LD_TEST"], made.env["OTHER"], made.env["OMP_NUM_THREADS"]) == ("lib.so", "2", "2")
    assert PLACEBO in made.env
    assert (tmp_path / "run" / "app.toml").read_text() == "y"


def test_a_command_with_a_place_for_it_gets_the_options_as_a_file(tmp_path):
    made = made_of(tmp_path, {"log": "off"}, command=("prog", "--config", "{config}"))
    assert json.loads(Path(made.command[2]).read_text()) == {"logging.level": "off", "steal": False}
    assert "BROADLEAF_STEAL" not in made.env


def test_the_environments_size_differs_between_runs(tmp_path):
    study = Study(name="t", command=("true",), directory=tmp_path)
    checkout, rng = Checkout(tmp_path, tmp_path, find_interpreter(sys.executable)), random.Random(1)
    sizes = {
        len(
            command_of(
                study, RunSettings.of(study), {}, checkout, n_tasks=1, iterations=1, run_dir=tmp_path, rng=rng
            ).env[PADDING]
        )
        for _ in range(10)
    }
    assert len(sizes) > 5


def test_a_wrapper_that_is_not_installed_makes_the_level_unavailable(tmp_path):
    factor = Factor("pin", "wrapper", setting={"wrapper": "no-such-wrapper --x"})
    assert made_of(tmp_path, {}, factors=(factor,)).command[0] == "prog"
    with pytest.raises(Unavailable, match="no-such-wrapper"):
        made_of(tmp_path, {"pin": True}, factors=(factor,))


def test_settings_of_the_study_are_in_the_environment(tmp_path):
    made = made_of(tmp_path, settings={"env": {"PYTHONPATH": "{tree}/python"}, "config_prefix": "APP_"})
    assert made.env["PYTHONPATH"] == f"{tmp_path}/python"
    assert made.env["APP_STEAL"] == "off"


def test_a_missing_file_is_told(tmp_path):
    factor = Factor("conf", "file", setting={"file": "none.toml"})
    with pytest.raises(RunError, match=r"none\.toml"):
        made_of(tmp_path, {"conf": True}, factors=(factor,))


def test_a_callable_gets_keywords_in_a_fresh_process(tmp_path):
    (tmp_path / "bench.py").write_text(
        "def run(n_tasks, size, turbo=False):\n    return n_tasks * size / (2 if turbo else 1)\n"
    )
    factors = (
        Factor("size", "keyword", levels=(1, 4), default=1),
        Factor("fast", "keyword", setting={"keyword": "turbo"}),
    )
    made = made_of(tmp_path, {"size": 4, "fast": True}, command=None, callable="bench:run", factors=factors)
    done = subprocess.run(
        made.command, cwd=made.cwd, env=made.env, capture_output=True, text=True, check=True, timeout=30
    )
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["n_tasks"] == 50
    assert [part["time_per_task_us"] for part in told["iterations"]] == [100e6] * 3


SCRIPT = """
from pathlib import Path

from broadleaf_lab import Calibrate, Factor, Plan, PlanRow, Study

HERE = Path(__file__).parent
study = Study(name="script", factors=(Factor("size", "keyword", levels=(1, 4), default=1),), directory=HERE,
              calibrate=Calibrate(n_tasks=3), iterations=2)


@study.benchmark
def bench(n_tasks, size):
    return 1e-6 * size * n_tasks


if __name__ == "__main__":
    from broadleaf_lab.run.single import Quiet
    from broadleaf_lab.run.planned import run_plan

    rows = tuple(PlanRow(i, "design", 0, i, None, None, 0, {"size": size}) for i, size in enumerate((1, 4)))
    run_plan(study, Plan("script", 1, rows), quiet=Quiet(max_wait_s=0))
"""


def test_a_decorated_function_of_a_script_is_called(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    subprocess.run([sys.executable, str(script)], check=True, timeout=30)
    rows = read_runs(tmp_path / "runs.csv")
    assert [row["status"] for row in rows] == ["ok", "ok"]
    assert [row["time_per_task_us"] for row in rows] == [pytest.approx(3), pytest.approx(12)]
    assert [row["n_tasks"] for row in rows] == [3, 3]
