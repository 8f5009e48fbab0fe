"""What a killed cluster has left: `broadleaf list --orphans` names it, `broadleaf stop --orphans` ends it."""

from __future__ import annotations

import json
import sys

import pytest
from bed import Bed
from bed.torque import PATH
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


# The program that submits jobs kills whoever has run it, once the scheduler has the job.
_CUT_SHORT = """
import os, pathlib, shutil
import broadleaf as ipp
program = pathlib.Path("/tmp/cut/{program}")
program.parent.mkdir(exist_ok=True)
program.write_text(f'#!/bin/sh\\n{{shutil.which(program.name)}} "$@"\\nkill -9 $PPID\\n')
program.chmod(0o755)
os.environ["PATH"] = "/tmp/cut:" + os.environ["PATH"]
ipp.Cluster(engines={made}, cluster_id="cut", detached={detached}).start_cluster_sync()
"""
# How to make a set whose jobs are pending for long, the program that submits, and the number of jobs.
_PENDING = {
    "slurm": ('ipp.Slurm(nodes=1, sbatch=["--begin=now+1hour"])', "sbatch", 1),
    "slurm array": ('ipp.Slurm(nodes=2, array=True, sbatch=["--begin=now+1hour"])', "sbatch", 2),
    "sge": ('ipp.SGE(slots=2, pe="mp", sge=["-a 203701010000"])', "qsub", 1),
    "sge array": ('ipp.SGE(slots=2, sge=["-a 203701010000"])', "qsub", 2),
    "pbs": ('ipp.PBS(pbs=["-a now+1hour"])', "qsub", 1),
}


@pytest.fixture(autouse=True)
def nothing_is_left(slurm):
    """A test leaves no job and no process behind."""
    yield
    slurm.run("head", "scancel", "--user=root")
    check_nothing_is_left(slurm)


def command(bed: Bed, *arguments: str, **env: str) -> str:
    """What `broadleaf` prints on the head."""
    said: str = bed.run("head", sys.executable, "-m", "broadleaf", *arguments, **SHARED, **env).stdout
    return said


def queued(bed: Bed) -> list[str]:
    """The jobs in Slurm's queue."""
    return bed.run("head", "squeue", "-h", "-o", "%i").stdout.split()


def orphans(bed: Bed, **env: str) -> dict[str, str]:
    """What has been left, each with its state."""
    return {row["left"]: row["state"] for row in json.loads(command(bed, "list", "--orphans", "--json", **env))}


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
    assert command(slurm, "stop", "--orphans") == "no cluster has left anything behind\n"


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


@pytest.fixture
def pending(request, slurm):
    """One of `_PENDING`: what makes the set, the program that submits, its jobs, the environment, and what lists its
    queue."""
    kind = request.param.partition(" ")[0]
    env = {"PATH": PATH} if kind == "pbs" else {}
    if kind != "slurm":
        request.getfixturevalue(kind)
    listing = ("qstat", "-g", "d") if kind == "sge" else ("squeue", "-h", "-r", "-o", "%i")
    words = (line.split() for line in slurm.run("head", *listing).stdout.splitlines())
    assert not [one for one in words if one and one[0].isdigit()]
    yield *_PENDING[request.param], env, listing
    if kind == "sge":
        slurm.run("head", "qdel", "-u", "root", check=False)


@pytest.mark.parametrize("pending", _PENDING, indirect=True)
def test_a_job_is_found_whose_submitter_was_killed_before_it_could_record_it(slurm, pending):
    made, program, n_jobs, env, listing = pending
    done = slurm.python(_CUT_SHORT.format(program=program, made=made, detached=False), check=False, **SHARED, **env)
    assert "Killed" in done.stderr or done.returncode, done
    check_nothing_is_left(slurm)
    left = orphans(slurm, **env)
    assert len(left) == n_jobs, left
    assert all(state.startswith("pending: ") for state in left.values()), left
    assert len(command(slurm, "stop", "--orphans", **env).split(",")) == n_jobs
    assert until(lambda: not slurm.run("head", *listing).stdout), slurm.run("head", *listing).stdout
    assert not orphans(slurm, **env)


def test_a_running_cluster_ends_the_job_that_its_starter_could_not_record(slurm):
    made, program, _ = _PENDING["slurm"]
    slurm.python(_CUT_SHORT.format(program=program, made=made, detached=True), check=False, **SHARED)
    assert not orphans(slurm)
    (job,) = queued(slurm)
    assert command(slurm, "stop", "--cluster-id", "cut") == "cluster 'cut' stopped\n"
    assert job not in queued(slurm)


def test_jobs_of_other_clusters_of_the_same_id_are_left_alone(slurm):
    made, program, _ = _PENDING["slurm"]
    for folder in ("/shared/one", "/shared/other"):
        slurm.python(_CUT_SHORT.format(program=program, made=made, detached=False), check=False, BROADLEAF_DIR=folder)
    check_nothing_is_left(slurm)
    before = queued(slurm)
    assert len(before) == 2
    said = slurm.run("head", sys.executable, "-m", "broadleaf", "stop", "--orphans", BROADLEAF_DIR="/shared/one").stdout
    assert said == f"ended slurm-{min(before, key=int)} of cluster 'cut'\n"
    assert queued(slurm) == [max(before, key=int)]


# The first job that the steward submits is its last deed.
_STEWARD_CUT_SHORT = """
import os, pathlib, shutil, time
import broadleaf as ipp
real = shutil.which("sbatch")
os.environ["PATH"] = "/tmp/once:" + os.environ["PATH"]
cluster = ipp.Cluster(engines=ipp.Slurm(nodes=1, engines_per_host=1))
with cluster as client:
    program = pathlib.Path("/tmp/once/sbatch")
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\\n{real} "$@"\\nrm "$0"\\nkill -9 $PPID\\n')
    program.chmod(0o755)
    cluster.adapt_sync(2, 2)
    client.wait_for_engines(2, timeout=60)
    assert not program.exists()
    deadline = time.monotonic() + 60  # the steward finds it when it looks next
    while len(cluster.blocks()) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    print(len(cluster.blocks()), len(os.popen("squeue -h").readlines()))
"""


def test_the_next_steward_knows_the_job_that_a_killed_one_has_submitted(slurm):
    assert slurm.python(_STEWARD_CUT_SHORT, **SHARED).stdout == "2 2\n"
