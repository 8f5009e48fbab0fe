"""The fixture `versus` of the pytest plugin: functions and commands in pairs, a verdict, and its report."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from broadleaf_lab.comparisons.versus import functions
from broadleaf_lab.comparisons.versus.commands import Pair
from broadleaf_lab.comparisons.versus.duel import duel
from broadleaf_lab.comparisons.versus.functions import Functions, name_of
from broadleaf_lab.errors import RunError

pytestmark = pytest.mark.timeout(180)
PLUGIN = "broadleaf_lab.comparisons.versus.plugin"
LAB = Path(__file__).resolve().parents[2]


def run_tests(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_them.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", PLUGIN, "-q", "-p", "no:cacheprovider", *options, "test_them.py"]
    # As the installed entry point does it, but also where the package was not installed since.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(LAB / "src")}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=150, check=False
    )


class Clocks:
    """A clock that moves only when told to: `wall` and `cpu` seconds."""

    def __init__(self, monkeypatch):
        self.wall = self.cpu = 0.0
        monkeypatch.setattr(functions.time, "perf_counter", lambda: self.wall)
        monkeypatch.setattr(functions.time, "process_time", lambda: self.cpu)

    def works(self, seconds, waits=0.0):
        def function():
            self.cpu += seconds
            self.wall += seconds + waits

        return function


def test_two_percent_between_functions_are_found(monkeypatch):
    clocks = Clocks(monkeypatch)
    found = duel(Functions(clocks.works(0.0010), clocks.works(0.00102), seed=1), budget_s=100)
    assert (found.word, found.slower, found.no_slower, found.faster) == ("slower", True, False, False)
    assert found.interval.estimate == pytest.approx(0.0198, abs=1e-3)
    assert duel(Functions(clocks.works(0.001), clocks.works(0.001), seed=1), budget_s=100).no_slower


def test_short_functions_are_called_often_and_told_by_the_call(monkeypatch):
    clocks = Clocks(monkeypatch)
    contest = Functions(clocks.works(1e-6), clocks.works(4e-6), seed=1)
    contest.look()
    assert contest.calls * 1e-6 >= 0.002
    made = contest.pair()
    assert (made.a_s, made.b_s) == (pytest.approx(1e-6), pytest.approx(4e-6))


def test_functions_that_wait_are_measured_by_the_clock(monkeypatch):
    clocks = Clocks(monkeypatch)
    contest = Functions(clocks.works(0.001), clocks.works(0.001, waits=0.002), seed=1)
    contest.look()
    assert contest.clock == "wall"
    assert contest.pair().b_s == pytest.approx(0.003)


def test_what_changes_steadily_meets_both_alike(monkeypatch):
    clocks = Clocks(monkeypatch)
    slower = 0.0

    def drifting():
        nonlocal slower
        slower += 1e-5
        clocks.cpu += 0.002 + slower
        clocks.wall += 0.002 + slower

    contest = Functions(drifting, drifting, seed=1)
    contest.look()
    made = [contest.pair() for _ in range(6)]
    assert all(p.a_s == pytest.approx(p.b_s) for p in made)


def test_functions_run_in_the_thread_of_the_test(monkeypatch):
    threads = set()
    clocks = Clocks(monkeypatch)
    work = clocks.works(0.01)

    def noting():
        threads.add(threading.current_thread())
        work()

    duel(Functions(noting, noting, seed=1), max_pairs=10, budget_s=100)
    assert threads == {threading.current_thread()}


def test_what_a_function_raises_is_its_own():
    def broken():
        raise KeyError("its own")

    with pytest.raises(KeyError, match="its own"):
        duel(Functions(lambda: None, broken), budget_s=5)
    with pytest.raises(RunError, match="is not a function"):
        Functions(lambda: None, 3)


def test_names_are_short():
    assert name_of(test_names_are_short) == "test_names_are_short"
    assert name_of(lambda: None) == "<lambda>"
    assert name_of(Pair) == "Pair"


TESTS = """
import pytest

def fast():
    return sum(range(20_000))

def slow():
    return sum(range(40_000))

def test_faster(versus):
    assert versus(slow, fast, budget_s=60).faster

def test_slower(versus):
    assert versus(fast, slow, budget_s=60).no_slower

def test_other():
    pass
"""


def test_the_fixture_judges_functions_and_the_summary_tells(tmp_path):
    done = run_tests(tmp_path, TESTS)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 2 passed" in done.stdout
    # The assertion says what was found.
    assert "<Duel: B is slower than A: " in done.stdout
    assert "test_them.py::test_faster: A slow, B fast: B is faster than A: " in done.stdout
    left_out = run_tests(tmp_path, TESTS, "--strict-markers", "-m", "not versus")
    assert "1 passed, 2 deselected" in left_out.stdout, left_out.stdout


COMMANDS = """
import shlex
import sys
import pytest

def test_commands(versus):
    python = shlex.quote(sys.executable)
    slow = f"{python} -I -S -c 'sum(range(3_000_000))'"
    fast = f"{python} -I -S -c 'sum(range(30))'"
    assert versus(slow, fast, budget_s=100).faster

def test_mixed(versus):
    with pytest.raises(Exception, match="two functions or two commands"):
        versus("true", print)
"""


def test_the_fixture_judges_commands(tmp_path):
    done = run_tests(tmp_path, COMMANDS)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


ENDLESS = """
import time

def wait():
    time.sleep(0.005)

def test_it(versus):
    versus(wait, wait, budget_s=3600, rope_pct=1e-9)
"""


def test_the_budget_can_be_given_for_all(tmp_path):
    begin = time.monotonic()
    done = run_tests(tmp_path, ENDLESS, "--versus-budget", "12")
    assert "1 passed" in done.stdout, done.stdout
    assert time.monotonic() - begin < 120, "an hour was asked for"


def test_the_entry_point_names_the_plugin():
    project = tomllib.loads((LAB / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"broadleaf-lab": PLUGIN}
    assert hasattr(import_module(PLUGIN), "versus")
    assert "pytest" in project["optional-dependencies"]


def test_the_plugin_loads_nothing_heavy():
    heavy = {"numpy", "pandas", "IPython", "tornado", "rich"}
    code = f"import sys, {PLUGIN}; print(sorted({heavy} & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": str(LAB / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
