"""Usable cores."""

import os

import pytest
from broadleaf.cluster import Cluster
from broadleaf.cluster.cores import engine_count, usable_cores
from broadleaf.cluster.relay import Relay


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


@pytest.mark.parametrize("n", ["four", "4", True, False, 2.0, 2.5, None, [4]])
def test_a_number_of_engines_is_a_whole_number(n):
    with pytest.raises(TypeError, match=r"^n, the number of engines, must be an int, not ") as raised:
        engine_count(n)
    assert repr(n) in str(raised.value)
    assert f"({type(n).__name__})" in str(raised.value)


def test_a_number_of_engines_is_not_negative():
    with pytest.raises(ValueError, match="must not be negative, but is -1"):
        engine_count(-1)


def test_any_whole_number_will_do():
    numpy = pytest.importorskip("numpy")
    assert engine_count(numpy.int64(3)) == 3
    assert type(engine_count(numpy.int64(3))) is int
    with pytest.raises(TypeError, match="must be an int"):
        engine_count(numpy.float64(3))


@pytest.mark.parametrize("n", ["four", True, 2.5])
def test_every_place_that_takes_it_says_so(n, tmp_path):
    with pytest.raises(TypeError, match="n, the number of engines"):
        Cluster(n=n)
    with pytest.raises(TypeError, match="n, the number of engines"):
        Relay(tmp_path / "none.json", n)
    cluster = Cluster(n=1)
    with pytest.raises(TypeError, match="n, the number of engines"):
        cluster.start_cluster_sync(n)
    with pytest.raises(TypeError, match="n, the number of engines"):
        cluster.start_engines_sync(n)
