"""Where a cluster's keys are while it runs, whatever started its engines: only in private files.

The test examines the command line and the environment of every process on the hosts, the scheduler's copy of a script,
and every file that was written on any host since the bed was made.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bed import Bed
from dask_hosts import dask_on
from mpi_environments import EnvironmentUnavailable, mpi_python
from programs import SHARED, check_nothing_is_left
from psij_packages import PackagesUnavailable, psij_packages
from ray_hosts import PYTHON as RAY_PYTHON
from ray_hosts import ray_command, ray_on

pytestmark = pytest.mark.timeout(240)

HOLD = """
import sys, broadleaf as ipp
{before}
cluster = ipp.Cluster(engines={engines})
rc = cluster.start_and_connect_sync()
rc[:].apply_sync(len, "abc")
print(cluster.cluster_dir, flush=True)
sys.stdin.readline()
rc.close()
cluster.stop_cluster_sync()
"""
# Files that contain a key: connection files, and the files with which jobs join.
ALLOWED = {"client.json", "engine.json", "order-slurm.json", "order-sge.json", "order-psij.json"}


@contextmanager
def running(bed: Bed, engines: str, *, before: str = "", command=None, **env: str) -> Iterator[Path]:
    """A cluster on the head with these engines; its directory there."""
    program = HOLD.format(engines=engines, before=before)
    line = command(bed, program) if command else bed.command("head", [sys.executable, "-c", program], env)
    client = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        directory = client.stdout.readline().strip()
        assert directory, client.stderr.read()
        yield bed.path("head", directory)
    finally:
        client.communicate("\n", timeout=120)
    check_nothing_is_left(bed)


def keys(directory: Path) -> list[str]:
    """What nobody else may see of a cluster: the private keys of its clients and engines, without their common head."""
    files = [json.loads((directory / name).read_text()) for name in ("client.json", "engine.json")]
    return [content["private_key"][-32:] for content in files]


def check(bed: Bed, directory: Path, *scripts: str) -> None:
    """The keys are in files of mode 0600 that are meant to contain them, and nowhere else."""
    secret = keys(directory)
    n_processes = 0
    for pid, told in bed.told_by_processes().items():
        n_processes += 1
        assert not any(key in told for key in secret), f"process {pid} shows a key"
    assert n_processes > len(bed.names)
    for script in scripts:
        assert script
        assert not any(key in script for key in secret)
    found = bed.files_with(secret)
    assert {path.name for path in found} >= {"client.json", "engine.json"}
    assert {path.name for path in found} <= ALLOWED, found
    for path in found:
        assert path.stat().st_mode & 0o777 == 0o600, path
        assert path.parent.stat().st_mode & 0o077 == 0, path


def test_local(bed):
    with running(bed, "'local', n=2") as directory:
        check(bed, directory)


@pytest.mark.parametrize("more", ["", ", ship=True"], ids=["installed", "shipped"])
def test_ssh(ssh_hosts, more):
    with running(ssh_hosts, f"ipp.SSH(['n1:1', 'n2:1']{more})") as directory:
        check(ssh_hosts, directory)


def test_slurm(slurm):
    with running(slurm, "ipp.Slurm(nodes=2, engines_per_host=1)", **SHARED) as directory:
        job = slurm.run("head", "squeue", "-h", "-o", "%i").stdout.strip()
        script = slurm.run("head", "scontrol", "write", "batch_script", job, "-").stdout
        check(slurm, directory, script, slurm.run("head", "scontrol", "show", "job", job).stdout)


def test_grid_engine(sge):
    with running(sge, "ipp.SGE(slots=2, pe='one', engines_per_host=1)", **SHARED) as directory:
        job = sge.run("head", "qstat").stdout.splitlines()[-1].split()[0]
        check(sge, directory, sge.run("head", "qstat", "-j", job).stdout)


def test_psij(slurm):
    try:
        env = SHARED | {"PYTHONPATH": str(psij_packages())}
    except PackagesUnavailable as error:
        pytest.skip(str(error))
    with running(slurm, "ipp.PSIJ('slurm', nodes=2, engines_per_host=1)", **env) as directory:
        job = slurm.run("head", "squeue", "-h", "-o", "%i").stdout.strip()
        script = slurm.run("head", "scontrol", "write", "batch_script", job, "-").stdout
        check(slurm, directory, script, slurm.run("head", "scontrol", "show", "job", job).stdout)


def test_dask(bed):
    with dask_on(bed, "n1", "n2"), running_on_dask(bed) as directory:
        check(bed, directory)


@contextmanager
def running_on_dask(bed: Bed) -> Iterator[Path]:
    """A cluster whose engines are on Dask's hosts; Dask continues."""
    program = HOLD.format(engines="ipp.OnDask('tcp://head:8786')", before="")
    client = subprocess.Popen(
        bed.command("head", [sys.executable, "-c", program]),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        directory = client.stdout.readline().strip()
        assert directory, client.stderr.read()
        yield bed.path("head", directory)
    finally:
        client.communicate("\n", timeout=60)


@pytest.mark.skipif(not RAY_PYTHON.exists(), reason="Ray is not installed: make .venv/.stamps/ray-venv")
def test_ray(bed):
    before = "import ray; ray.init(address='head:6379', log_to_driver=False)"
    with (
        ray_on(bed, "n1"),
        running(bed, "ipp.OnRay(hosts=1, cpus=1)", before=before, command=ray_command) as directory,
    ):
        check(bed, directory)


def test_mpi(ssh_hosts):
    try:
        python = mpi_python("mpich")
    except EnvironmentUnavailable as error:
        pytest.skip(str(error))
    engines = f"ipp.MPI(python={str(python)!r}, mpi_args=['-hosts', 'n1,n2', '-ppn', '1'], engines_per_host=2)"
    env = {"BROADLEAF_DIR": "/shared/mpi", "UCX_TLS": "tcp,self"}
    with running(ssh_hosts, engines, **env) as directory:
        check(ssh_hosts, directory)


def test_a_relay_that_was_started_by_hand(bed):
    with running(bed, "'local', n=1, listen='0.0.0.0:0'", **SHARED) as directory:
        file = f"/shared/broadleaf/profiles/default/{directory.name}/engine.json"
        relay = bed.start("n1", sys.executable, "-m", "broadleaf", "relay", "--connection", file, "-n", "1",
                          stdout=subprocess.PIPE)  # fmt: skip
        try:
            assert "is running with 1 engine" in relay.stdout.readline()
            check(bed, directory)
        finally:
            bed.signal("n1", signal.SIGTERM, lambda line: "broadleaf relay" in line)
            relay.communicate(timeout=60)


def test_an_allocation(slurm):
    script = """
import os, sys, broadleaf as ipp
print(os.path.dirname(os.environ["BROADLEAF_CONNECTION"]), len(ipp.Client()), flush=True)
sys.stdin.readline()
"""
    run = [sys.executable, "-m", "broadleaf", "run", "-n", "1", "--", sys.executable, "-c", script]
    step = subprocess.Popen(
        slurm.command("head", ["srun", "-N2", "--ntasks-per-node=1", "--overcommit", "--mpi=none", *run], SHARED),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        told = step.stdout.readline().split()
        assert told, step.stderr.read()
        assert told[1] == "2"
        check(slurm, slurm.path("head", told[0]))
    finally:
        step.communicate("\n", timeout=60)
    check_nothing_is_left(slurm)
