"""What a killed cluster has left: `broadleaf list --orphans` names it, `broadleaf stop --orphans` ends it."""

from __future__ import annotations

import json
import sys

import pytest
from bed import Bed
from programs import SHARED, check_nothing_is_left
from waiting import until

pytestmark = pytest.mark.timeout(240)

# Its job is pending for an hour.
_WAITS = """
import broadleaf as ipp
slurm = ipp.Slurm(nodes=1, engines_per_host=1, sbatch=["--begin=now+1hour"])
cluster = ipp.Cluster(engines=slurm, cluster_id="waits", detached={detached})
cluster.start_cluster_sync()
(block,) = cluster.blocks()
print(block.facts["job"], flush=True)
{then}
"""
_KILL_ALL = """
import os, signal, time
from broadleaf.cluster.steward import StewardProcess
while (steward := StewardProcess(cluster.cluster_dir).pid()) is None:
    time.sleep(0.01)
os.kill(steward, signal.SIGSTOP)  # it does nothing before it is killed, and is not started again
os.kill(cluster.to_dict()["controller"]["fork_server_pid"], signal.SIGKILL)
while cluster.running:
    time.sleep(0.01)
os.kill(steward, signal.SIGKILL)
"""
# Slurm does not answer the steward.
_NO_SCANCEL = """
import os
os.makedirs("/tmp/broken", exist_ok=True)
with open("/tmp/broken/scancel", "w", opener=lambda path, flags: os.open(path, flags, 0o755)) as file:
    file.write("#!/bin/sh\\necho slurm_load_jobs error: Unable to contact slurm controller >&2\\nexit 1\\n")
os.environ["PATH"] = "/tmp/broken:" + os.environ["PATH"]
"""


@pytest.fixture(autouse=True)
def nothing_is_left(slurm):
    """A test leaves no job and no process behind."""
    yield
    slurm.run("head", "scancel", "--user=root")
    check_nothing_is_left(slurm)


def command(bed: Bed, *arguments: str) -> str:
    """What `broadleaf` prints on the head."""
    said: str = bed.run("head", sys.executable, "-m", "broadleaf", *arguments, **SHARED).stdout
    return said


def queued(bed: Bed) -> list[str]:
    """The jobs in Slurm's queue."""
    return bed.run("head", "squeue", "-h", "-o", "%i").stdout.split()


def orphans(bed: Bed) -> dict[str, str]:
    """What has been left, each with its state."""
    return {row["left"]: row["state"] for row in json.loads(command(bed, "list", "--orphans", "--json"))}


def left_job(bed: Bed, program: str) -> str:
    """The job that a program leaves when it is killed, with all that could end it."""
    job = bed.python(program, check=False, **SHARED).stdout.strip()
    assert job.isdigit()
    check_nothing_is_left(bed)
    assert queued(bed) == [job]
    return job


@pytest.mark.parametrize("how", ["everything is killed", "its scheduler does not answer"])
def test_a_job_is_named_and_ended(slurm, how):
    if how == "everything is killed":
        program = _WAITS.format(detached=True, then=_KILL_ALL)
    else:
        program = _NO_SCANCEL + _WAITS.format(detached=False, then="os.kill(os.getpid(), 9)")
    job = left_job(slurm, program)
    assert command(slurm, "list") == "no cluster is running\n"
    assert orphans(slurm) == {f"slurm-{job}": f"pending: job {job} is pending: BeginTime"}
    assert command(slurm, "stop", "--orphans") == f"ended slurm-{job} of cluster 'waits'\n"
    assert not queued(slurm)
    assert not orphans(slurm)
    assert command(slurm, "stop", "--orphans") == "no cluster has left anything\n"


def test_a_job_is_not_left_to_the_next_cluster_of_that_id(slurm):
    job = left_job(slurm, _WAITS.format(detached=True, then=_KILL_ALL))
    (new,) = slurm.python(_WAITS.format(detached=True, then="cluster.stop_cluster_sync()"), **SHARED).stdout.split()
    assert new != job
    assert not queued(slurm)


def test_a_job_that_has_ended_is_no_orphan(slurm):
    job = left_job(slurm, _WAITS.format(detached=True, then=_KILL_ALL))
    slurm.run("head", "scancel", job)
    assert until(lambda: not queued(slurm))
    assert not orphans(slurm)


def test_a_running_cluster_is_no_orphan(slurm):
    slurm.python(_WAITS.format(detached=True, then=""), **SHARED)
    assert not orphans(slurm)
    assert command(slurm, "stop") == "cluster 'waits' stopped\n"
    assert not queued(slurm)
