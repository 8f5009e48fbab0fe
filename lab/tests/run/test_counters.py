"""What a run uses, counted by the kernel, the processor and its package."""

from __future__ import annotations

import struct
import sys

import pytest
from broadleaf_lab.run import supervisor
from broadleaf_lab.run.environments import machine
from broadleaf_lab.run.outcome import measure
from broadleaf_lab.run.process import Finished, clean_environment, run_command, run_directory
from broadleaf_lab.spec.study import StudySpec

STUDY = StudySpec("counted", command=("program",), score="json:us")


def ran(code):
    with run_directory() as run_dir:
        return run_command([sys.executable, "-I", "-S", "-c", code], cwd=run_dir, env=clean_environment(), timeout_s=60,
                           run_dir=run_dir)  # fmt: skip


def test_page_faults_are_of_the_run_and_its_children():
    empty = ran("pass")
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'x = b\"1\" * (64 << 20)'], check=True)"
    assert ran(child).page_faults - empty.page_faults >= (64 << 20) // 4096 // 600


def test_counters_are_there_or_left_out_but_never_wrong():
    little, much = (ran(f"for i in range({n}): pass").counters for n in (10, 3_000_000))
    assert little.keys() == much.keys() <= set(supervisor.HARDWARE_COUNTERS)
    if "instructions" not in much:
        pytest.skip("this machine's processor has no counters, or they may not be read")
    assert much["instructions"] > little["instructions"] + 3_000_000


def test_a_counter_that_was_shared_is_scaled_and_one_that_never_ran_is_left_out(monkeypatch):
    counted = {7: struct.pack("QQQ", 1000, 100, 50), 8: struct.pack("QQQ", 0, 100, 0)}
    monkeypatch.setattr(supervisor.os, "read", lambda fd, size: counted[fd])
    counters = supervisor.Counters.__new__(supervisor.Counters)
    counters._open = {"instructions": 7, "cycles": 8}
    assert counters.read() == {"instructions": 2000}


def test_counts_are_told_per_task():
    finished = Finished(0, 1.0, stdout='{"us": 3}', counters={"instructions": 5000, "cycles": 2000}, page_faults=7)
    row = measure(STUDY, finished, 100)
    assert (row["instructions_per_task"], row["cycles_per_task"], row["page_faults"]) == (50.0, 20.0, 7)
    assert "cache_misses_per_task" not in row


def test_energy_is_that_of_the_packages_and_counts_through_their_end(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_POWERCAP", tmp_path)
    assert machine.Energy.now().used_uj(machine.Energy.now()) is None

    def counters(first, second):
        for zone, value in (("intel-rapl:0", first), ("intel-rapl:1", second), ("intel-rapl:0:0", 5)):
            (tmp_path / zone).mkdir(exist_ok=True)
            (tmp_path / zone / "energy_uj").write_text(f"{value}\n")
            (tmp_path / zone / "max_energy_range_uj").write_text("1000\n")
        return machine.Energy.now()

    before, after = counters(100, 900), counters(150, 30)
    assert before.used_uj(after) == 50 + 130
