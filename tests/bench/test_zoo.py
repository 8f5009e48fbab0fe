"""The zoo: its graphs, its optimum, and each body and shape on systems that need nothing installed."""

import json
import math
import os
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from broadleaf_lab.run.planned import run_plan
from broadleaf_lab.run.single import Quiet
from broadleaf_lab.study import Study

from benchmarks import zoo
from benchmarks.zoo import bodies, score, systems, workloads
from benchmarks.zoo.workloads import Size, Task


def brute_force_path(tasks, durations):
    def longest(index):
        return durations[index] + max((longest(i) for i in tasks[index].after), default=0.0)

    return max(longest(i) for i in range(len(tasks)))


def test_critical_path_equals_brute_force():
    tasks = workloads.make("fan-in", Size(n_tasks=9, arity=2)).tasks
    durations = [((i * 7) % 5 + 1) / 10 for i in range(len(tasks))]
    assert workloads.critical_path_s(tasks, durations) == pytest.approx(brute_force_path(tasks, durations), rel=1e-12)


def test_ideal_is_the_larger_bound():
    independent = [Task(1.0)] * 4
    assert workloads.ideal_s(independent, [1.0] * 4, 2) == pytest.approx(2.0)
    assert workloads.ideal_s(independent, [1.0, 1.0, 1.0, 5.0], 4) == pytest.approx(5.0)
    chained = workloads.make("chain", Size(n_tasks=6, width=2)).tasks
    assert workloads.ideal_s(chained, [1.0] * 6, 8) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("name", "arity", "n"), [("fan-in", 4, 200), ("fan-in", 2, 7), ("chain", 4, 10), ("bag", 4, 5)]
)
def test_tasks_wait_only_for_earlier_ones(name, arity, n):
    tasks = workloads.make(name, Size(n_tasks=n, arity=arity)).tasks
    assert all(before < index for index, task in enumerate(tasks) for before in task.after)


def test_a_fan_in_ends_in_one_task():
    tasks = workloads.make("fan-in", Size(n_tasks=10, arity=4)).tasks
    awaited = {before for task in tasks for before in task.after}
    assert len(tasks) == 10 + 3 + 1
    assert [i for i in range(len(tasks)) if i not in awaited] == [len(tasks) - 1]


def test_a_bag_keeps_its_total_and_is_uneven():
    tasks = workloads.make("bag", Size(n_tasks=50, duration_s=0.01)).tasks
    assert math.fsum(task.amount for task in tasks) == pytest.approx(0.5, rel=1e-9)
    assert max(task.amount for task in tasks) > 3 * min(task.amount for task in tasks)


def test_names_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match="sleep, cpu"):
        workloads.make("nap", Size())
    with pytest.raises(ValueError, match="broadleaf, ppe"):
        systems.make_system("slurm")


def test_bodies_say_how_long_they_took():
    assert bodies.sleep(0.002) >= 0.002
    assert bodies.cpu(1000) > 0
    assert bodies.memory(100_000) > 0
    assert bodies.io(100_000) > 0
    assert bodies.io(0) > 0


def test_every_workload_runs_on_threads():
    for name, body in product(workloads.SHAPES, workloads.BODIES):
        size = Size(n_tasks=6, duration_s=0.001, n_bytes=5000, width=2, arity=2)
        system = systems.make_system("threads")
        found = score.measure(system, workloads.make(name, size, body), 2, rounds=1)
        assert found.total_s > 0
        assert found.ideal_s >= found.critical_path_s
        assert found.overhead_us == pytest.approx((found.total_s - found.ideal_s) / found.n_tasks * 1e6)


def test_a_failing_task_ends_the_round():
    def fail(amount):
        raise OSError("no such thing")

    system = systems.make_system("threads")
    with pytest.raises(OSError, match="no such thing"):
        score.measure(system, workloads.Workload("chain", fail, (Task(1.0), Task(1.0, (0,)))), 1)


@pytest.mark.parametrize("workload", ["sleep", "chain"])
def test_command_line_on_broadleaf_and_processes(workload):
    for system in ("broadleaf", "ppe"):
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.zoo", "--workload", workload, "--system", system, "--tasks", "8",
             "--duration-ms", "1", "--rounds", "1", "--json"],
            capture_output=True, text=True, timeout=50, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["n_tasks"] == 8
        assert found["work_s"] >= 0.008
        assert found["total_s"] >= found["ideal_s"] * 0.999


STUDIES = Path(zoo.__file__).parent / "studies"


@pytest.mark.parametrize("name", ["scaling", "batch", "duration", "workloads"])
def test_a_study_is_sound(name):
    study = Study.load(STUDIES / name)
    study.rules().check()
    assert study.rules().allows(study.all_on)
    assert study.command is not None


def test_the_studies_run(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    shutil.copytree(STUDIES, tmp_path / "zoo", ignore=shutil.ignore_patterns("runs.*", "plan.json", "*.lock*"))
    study = Study.load(tmp_path / "zoo" / "batch")
    summary = run_plan(study, max_runs=2, quiet=Quiet(max_wait_s=0))
    assert summary.statuses == {"ok": 2}
