"""The examples of the guides that need hosts run unchanged; `test_on_ray.py` runs the one for Ray."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from bed.torque import PATH
from dask_hosts import dask_on
from mpi_environments import EnvironmentUnavailable, mpi_python
from programs import SHARED, check_nothing_is_left, examples
from psij_packages import PackagesUnavailable, psij_packages

pytestmark = pytest.mark.timeout(240)


def test_ssh(ssh_hosts):
    hosts = ssh_hosts.python(examples("ssh.md"), timeout_s=200).stdout
    assert sorted(re.findall(r"'(n\d)'", hosts)) == ["n1", "n1", "n2", "n2"]
    check_nothing_is_left(ssh_hosts)


def test_from_your_laptop(ssh_hosts):
    command = (sys.executable, "-m", "broadleaf")
    ssh_hosts.run("n1", *command, "start", "-n", "2")
    try:
        hosts, values = ssh_hosts.python(examples("from-your-laptop.md")).stdout.splitlines()
        assert (hosts, values) == ("['n1', 'n1']", "[3, 2, 1]")
    finally:
        ssh_hosts.run("n1", *command, "stop")
    check_nothing_is_left(ssh_hosts)


def test_slurm(slurm):
    hosts = slurm.python(examples("slurm.md"), timeout_s=200, **SHARED).stdout
    assert re.fullmatch(r"\['n\d', 'n\d', 'n\d', 'n\d'\]\n", hosts)
    check_nothing_is_left(slurm)


def test_sge(sge):
    hosts = sge.python(examples("sge.md"), timeout_s=200, **SHARED).stdout
    assert len(re.findall(r"'(n\d)'", hosts)) == 6
    check_nothing_is_left(sge)


def test_pbs(pbs):
    said = pbs.python(examples("pbs.md"), timeout_s=200, **SHARED, PATH=PATH).stdout
    assert said == "2 4\n"
    check_nothing_is_left(pbs)


def test_lsf(bed):
    bed.python(examples("lsf.md"))


def test_a_scheduler_of_ones_own(slurm):
    slurm.python(examples("your-scheduler.md"), timeout_s=200, **SHARED)
    check_nothing_is_left(slurm)


def test_psij(slurm):
    try:
        packages = psij_packages()
    except PackagesUnavailable as error:
        pytest.skip(str(error))
    said = slurm.python(examples("psij.md"), timeout_s=200, PYTHONPATH=str(packages), **SHARED).stdout
    assert said == "2 4\n"
    check_nothing_is_left(slurm)


def test_dask(bed):
    with dask_on(bed, "n1", "n2"):
        hosts, total = bed.python(examples("dask.md"), timeout_s=200).stdout.splitlines()
        assert (hosts, total) == ("['n1', 'n1', 'n2', 'n2']", "6")
        check_nothing_is_left(bed)


def test_mpi():
    try:
        python = mpi_python("mpich")
    except EnvironmentUnavailable as error:
        pytest.skip(str(error))
    command = [str(python), "-W", "error", "-c", examples("mpi.md")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert (done.stdout, done.stderr) == ("[(0, 6), (1, 6), (2, 6), (3, 6)]\n", "")
