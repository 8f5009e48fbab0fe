"""From a run's output to its row, and from trial runs to the number of tasks."""

import json
import math
import random
from dataclasses import replace

import pytest
from broadleaf_lab.run.calibrate import Calibration, calibrate, kalibera_jones, round_up, variance_components
from broadleaf_lab.run.environments.environment import Environments
from broadleaf_lab.run.environments.machine import CpuTimes, wait_until_quiet
from broadleaf_lab.run.outcome import marginal_us, measure
from broadleaf_lab.run.process import Finished
from broadleaf_lab.run.single import Quiet, Runner
from broadleaf_lab.spec.factors import Factor
from broadleaf_lab.spec.study import Calibrate
from broadleaf_lab.study import Study


def row(stdout: str, score: str, n_tasks: int = 100, *, direction: str = "min", duration_s: float = 2.0, **more):
    study = Study(name="t", command=("true",), score=score, direction=direction, **more)
    return measure(study, Finished(0, duration_s, cpu_s=0.5, stdout=stdout), n_tasks)


@pytest.mark.parametrize(
    ("stdout", "score", "direction", "us"),
    [
        ('{"time_us": 12.5}', "json:time_us", "min", 12.5),
        ('noise\n{"a": 1}\n{"t_ms": 3}\nmore', "json:t_ms", "min", 3000),
        ('{\n "t_s": 0.25\n}', "json:t_s", "min", 250_000),
        ('{"t_ns": 500}', "json:t_ns", "min", 0.5),
        ('{"per_task": 7}', "json:per_task", "min", 7),
        ('{"rate": 4000}', "json:rate", "max", 250),
        ("speed: 42.5 us", r"regex:speed: ([\d.]+)", "min", 42.5),
        ("", "wall/n", "min", 20_000),
        ('{"total_s": 1.0}', "wall/n", "min", 10_000),
    ],
)
def test_the_score_is_in_microseconds_per_task(stdout, score, direction, us):
    made = row(stdout, score, direction=direction)
    assert made["status"] == "ok"
    assert made["time_per_task_us"] == pytest.approx(us)
    assert made["tasks_per_s"] == pytest.approx(1e6 / us)


@pytest.mark.parametrize(
    ("stdout", "score"),
    [('{"other": 1}', "json:t_us"), ("none", "json:t_us"),
     ('{"t_us": null}', "json:t_us"), ('{"t_us": 0}', "json:t_us"),
     ('{"t_us": -3}', "json:t_us"), ('{"t_us": NaN}', "json:t_us"), ("speed: fast", r"regex:speed: (\d+)")],
)  # fmt: skip
def test_no_score_is_an_invalid_run(stdout, score):
    made = row(stdout, score)
    assert made["status"] == "invalid"
    assert made["error"]
    assert "time_per_task_us" not in made


def test_of_iterations_the_first_warms_up_and_the_median_counts():
    parts = [{"t_us": t, "total_s": 0.1} for t in (90, 10, 12, 11, 50)]
    made = row(json.dumps({"iterations": parts, "latency_p99_us": 7}), "json:t_us")
    assert made["time_per_task_us"] == 11.5
    assert (made["n_iter"], made["latency_p99_us"]) == (5, 7)
    assert made["total_s"] == pytest.approx(0.5)
    assert made["iter_sd_us"] == pytest.approx(19.5, abs=0.05)
    # 0.5 s of processor time over 5 x 100 tasks.
    assert made["cpu_us_per_task"] == pytest.approx(1000)


def test_the_marginal_cost_is_free_of_start_up():
    # 0.3 s to start, 2 ms a task.
    whole = {"status": "ok", "n_tasks": 400, "total_s": 0.3 + 400 * 0.002}
    quarter = {"status": "ok", "n_tasks": 100, "total_s": 0.3 + 100 * 0.002}
    assert marginal_us(whole, quarter) == pytest.approx(2000)
    assert marginal_us(whole, {"status": "failed"}) is None


BENCH = """
import json, os, sys
n = int(sys.argv[1])
each_s = float(os.environ.get("EACH_S", "0.00001")) if os.environ.get("FAST") == "1" else 0.001
print(json.dumps({"time_per_task_us": each_s * 1e6, "total_s": 0.002 + n * each_s}))
"""


def study(tmp_path, **calibration) -> Study:
    (tmp_path / "bench.py").write_text(BENCH)
    return Study(name="t", command=("{python}", "bench.py", "{n_tasks}"), score="json:time_per_task_us",
                 directory=tmp_path, calibrate=Calibrate(**calibration),
                 factors=(Factor("fast", "env", setting={"env": {"FAST": "1"}}),
                          Factor("jit", "env", setting={"env": {"PYTHON_JIT": "1"}})))  # fmt: skip


def test_one_number_of_tasks_for_which_the_fastest_is_slow_enough(tmp_path, monkeypatch):
    monkeypatch.setenv("EACH_S", "0.0001")
    subject = study(tmp_path, min_s=0.5)
    found = calibrate(Environments(subject), quiet=Quiet(max_wait_s=0))
    # All on, the fast one, counts: 4,980 tasks take 0.5 s.
    assert 4_980 <= found.n_tasks <= 6_000
    assert found.fastest_s == pytest.approx(0.002 + found.n_tasks * 1e-4)
    assert (found.iterations, found.min_tasks) == (1, None)
    found.save(subject)
    assert Calibration.load(subject) == found


def test_configurations_of_very_different_speed_have_their_own_numbers_of_tasks(tmp_path):
    subject, said = study(tmp_path, min_s=0.5), []
    environments = Environments(subject)
    found = calibrate(environments, quiet=Quiet(max_wait_s=0), say=said.append)
    assert "100 times as long" in said[-1]
    # The slow one takes 0.5 s with 498 tasks, the fast one with 49,800.
    assert 498 <= found.min_tasks <= 600
    assert 49_800 <= found.n_tasks <= 60_000
    found.save(subject)
    assert Calibration.load(subject) == found
    runner = found.runner(environments, quiet=Quiet(max_wait_s=0))
    slow, fast = runner.run({}), runner.run({"fast": True})
    assert 498 <= slow["n_tasks"] <= 700
    assert 49_800 <= fast["n_tasks"] <= 70_000
    # All runs of a configuration have the same number, including those of another session.
    again = found.runner(environments, quiet=Quiet(max_wait_s=0), made=[{**fast, "n_tasks": 50_000}])
    assert again.run({"fast": True})["n_tasks"] == 50_000
    assert again.run({})["n_tasks"] == slow["n_tasks"]


def test_a_configuration_that_fails_is_not_run_twice_to_find_its_number(tmp_path):
    from broadleaf_lab.run.tasks import TasksByConfig

    subject = study(tmp_path, min_s=0.5)
    (tmp_path / "bench.py").write_text("import sys; open('tried', 'a').write('x'); sys.exit('it broke')")
    runner = Runner(Environments(subject), n_tasks=50_000, quiet=Quiet(max_wait_s=0),
                    tasks=TasksByConfig(500, 50_000, 0.5))  # fmt: skip
    made = runner.run({})
    assert (made["status"], made["n_tasks"]) == ("failed", 500)
    assert (tmp_path / "tried").read_text() == "x"


def test_never_more_tasks_than_allowed(tmp_path):
    found = calibrate(Environments(study(tmp_path, min_s=0.5, max_tasks=700)), quiet=Quiet(max_wait_s=0))
    assert found.n_tasks == 700


def test_the_marginal_cost_is_measured_on_request(tmp_path):
    subject = replace(study(tmp_path, n_tasks=400), settings={"marginal": True})
    made = Runner(Environments(subject), n_tasks=400, quiet=Quiet(max_wait_s=0)).run({})
    assert made["time_per_task_us"] == pytest.approx(1000)
    assert made["marginal_us"] == pytest.approx(1000)
    assert made["n_tasks"] == 400


def test_a_function_is_called_as_often_as_its_variance_asks_for(tmp_path):
    (tmp_path / "bench.py").write_text("import time\ndef run(n_tasks):\n    time.sleep(n_tasks * 0.001)\n")
    subject = Study(name="t", callable="bench:run", directory=tmp_path, calibrate=Calibrate(n_tasks=5))
    found = calibrate(Environments(subject), quiet=Quiet(max_wait_s=0))
    assert 2 <= found.iterations <= 21
    runner = Runner(Environments(subject), n_tasks=5, iterations=found.iterations, quiet=Quiet(max_wait_s=0))
    made = runner.run({})
    assert made["n_iter"] == found.iterations
    assert made["time_per_task_us"] >= 1000


def test_variance_between_starts_and_within():
    rng = random.Random(5)
    starts = [[level + rng.gauss(0, 0.02) for _ in range(50)] for level in (rng.gauss(0, 0.1) for _ in range(400))]
    between, within = variance_components(starts)
    assert math.sqrt(between) == pytest.approx(0.1, rel=0.1)
    assert math.sqrt(within) == pytest.approx(0.02, rel=0.05)


def test_iterations_follow_cost_and_variance():
    # sqrt((8 / 1) * (0.02 / 0.01)) = 4
    assert kalibera_jones(0.01, 0.02, 8, 1) == 4
    assert kalibera_jones(0.01, 0.021, 8, 1) == 5
    assert kalibera_jones(0.0, 0.02, 8, 1) == 20
    assert kalibera_jones(0.01, 0.0, 8, 1) == 1
    assert round_up(8123) == 8200
    assert round_up(7.2) == 8


def test_waiting_for_quiet_ends():
    loads = iter([2.0, 1.5, 0.2, 9.0])
    assert wait_until_quiet(0.5, 60, lambda: next(loads))
    assert next(loads) == 9.0
    assert not wait_until_quiet(0.5, 0, lambda: 1.0)


def test_a_busy_machine_is_told_at_once_and_once():
    loads = iter([2.0, 1.5, 0.2])
    told = []
    assert wait_until_quiet(0.5, 60, lambda: next(loads), lambda cores: told.append((cores, next(loads))))
    # Reported before it waits: the second measurement was still to come.
    assert told == [(2.0, 1.5)]


def test_stolen_and_busy_shares():
    busy, steal = CpuTimes(150, 30, 300).since(CpuTimes(100, 10, 100))
    assert (busy, steal) == (pytest.approx(0.25), pytest.approx(0.1))
