"""Usable cores."""

import os

import pytest
from broadleaf.cluster.cores import usable_cores


@pytest.fixture
def eight_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_quota_the_mask_counts(eight_cores, tmp_path):
    _write(tmp_path / "proc/self/cgroup", "1:cpu,cpuacct:/\n0::/\n")
    _write(tmp_path / "sys/cpu/cpu.cfs_quota_us", "-1\n")
    _write(tmp_path / "sys/cpu/cpu.cfs_period_us", "100000\n")
    _write(tmp_path / "sys/cpu.max", "max 100000\n")
    assert usable_cores(tmp_path / "sys", tmp_path / "proc") == 8


@pytest.mark.parametrize(("quota", "cores"), [("250000", 2), ("50000", 1), ("1600000", 8)])
def test_quota_of_version_1(eight_cores, tmp_path, quota, cores):
    _write(tmp_path / "proc/self/cgroup", "1:cpu,cpuacct:/job\n")
    _write(tmp_path / "sys/cpu/job/cpu.cfs_quota_us", quota)
    _write(tmp_path / "sys/cpu/job/cpu.cfs_period_us", "100000\n")
    assert usable_cores(tmp_path / "sys", tmp_path / "proc") == cores


def test_quota_of_version_2_may_come_from_above(eight_cores, tmp_path):
    _write(tmp_path / "proc/self/cgroup", "0::/job/step\n")
    _write(tmp_path / "sys/job/cpu.max", "300000 100000\n")
    _write(tmp_path / "sys/job/step/cpu.max", "max 100000\n")
    assert usable_cores(tmp_path / "sys", tmp_path / "proc") == 3


def test_this_host():
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))
