"""`broadleaf run` inside an allocation of Slurm: the same command on every node."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest
from broadleaf.cluster.symmetric import RunMember, SharedSecret
from mpi_environments import EnvironmentUnavailable, mpi_python
from programs import SHARED, check_nothing_is_left
from waiting import until

pytestmark = pytest.mark.timeout(240)

RUN = (sys.executable, "-m", "broadleaf", "run")
# The third rank never says a word.
TWO_OF_THREE = ("sh", "-c", """case $SLURM_PROCID in
0) export BROADLEAF_START_TIMEOUT_S=10 ;;
2) exec sleep 14 ;;
esac
exec "$@\"""", "sh")  # fmt: skip
SCRIPT = """
import socket, sys, broadleaf as ipp
rc = ipp.Client()
print(sys.argv[1], sorted(rc[:].apply_sync(socket.gethostname)), flush=True)
assert rc[-1].apply_sync(lambda: ipp.get_client()[0].apply_sync(abs, -1)) == 1
assert rc[:].apply_sync(hash, "leaf") == [hash("leaf")] * len(rc), "the program and all engines have the same hashes"
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(autouse=True)
def nothing_is_left(slurm):
    """A test leaves no job and no process behind."""
    yield
    check_nothing_is_left(slurm)
    assert until(lambda: not slurm.run("head", "squeue", "-h").stdout, 60), slurm.run("head", "squeue").stdout


SECRET = "0123456789abcdef" * 2
# Engines and the program have no use for the secret.
WITHOUT_SECRET = """
import os, socket, broadleaf as ipp

def nested():
    return ipp.get_client().load_balanced_view().map_sync(abs, [-1, -2, -3])

rc = ipp.Client()
print("BROADLEAF_SECRET" in os.environ, any(rc[:].apply_sync(os.environ.__contains__, "BROADLEAF_SECRET")))
print(sorted(rc[:].apply_sync(socket.gethostname)), rc[-1].apply_sync(nested))
"""
# Takes connections, and says nothing, until its input ends.
SILENT = """
import socket, sys
with socket.create_server(("0.0.0.0", int(sys.argv[1]))):
    print("listens", flush=True)
    sys.stdin.read()
"""


def srun(slurm, *words: str, env: dict[str, str] = SHARED) -> subprocess.Popen[str]:
    """A step of its own allocation, which sees the shared folder."""
    command = ["srun", "--ntasks-per-node=1", "--overcommit", "--mpi=none", *words]
    return subprocess.Popen(
        slurm.command("head", command, env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_program_finds_its_cluster_and_its_exit_code_is_the_steps(slurm):
    slurm.write("head", "/shared/script.py", SCRIPT)
    step = srun(slurm, "--nodes=3", *RUN, "-n", "2", "--", sys.executable, "/shared/script.py", "7")
    said, errors = step.communicate(timeout=200)
    assert said == f"7 {sorted(['n1', 'n2', 'n3'] * 2)}\n", errors
    assert "Exited with exit code 7" in errors
    assert step.returncode == 7


def test_two_at_once_on_the_same_nodes(slurm):
    slurm.write("head", "/shared/script.py", SCRIPT)
    nodes = ("--nodes=2", "--nodelist=n1,n2")
    steps = [srun(slurm, *nodes, *RUN, "-n", "1", "--", sys.executable, "/shared/script.py", code) for code in "56"]
    for step, code in zip(steps, "56", strict=True):
        said, errors = step.communicate(timeout=200)
        assert said == f"{code} ['n1', 'n2']\n", errors
        assert step.returncode == int(code)


def test_a_missing_host_is_named(slurm):
    step = srun(slurm, "--nodes=3", *TWO_OF_THREE, *RUN, "-n", "1", "--",
                "true")  # fmt: skip
    _, errors = step.communicate(timeout=200)
    assert "2 of 3 hosts came up within 10 s; ranks without a host: 2." in errors, errors
    assert step.returncode == 1


def test_it_starts_without_hosts_that_it_need_not_have(slurm):
    slurm.write("head", "/shared/script.py", SCRIPT)
    step = srun(slurm, "--nodes=3", *TWO_OF_THREE, *RUN, "-n", "1",
                "--min-hosts", "2", "--", sys.executable, "/shared/script.py", "0")  # fmt: skip
    said, errors = step.communicate(timeout=200)
    assert said == "0 ['n1', 'n2']\n", errors
    assert step.returncode == 0


def test_a_program_that_is_not_there(slurm):
    step = srun(slurm, "--nodes=2", *RUN, "-n", "1", "--", "/nowhere/program")
    _, errors = step.communicate(timeout=200)
    assert "the program '/nowhere/program' was not found on n1" in errors, errors
    assert step.returncode == 1


def test_open_mpi_inside_a_job(slurm):
    """Its daemon on the second node is a step of one task, with a rank 0 of its own."""
    try:
        mpiexec = mpi_python("openmpi").parent / "mpiexec"
    except EnvironmentUnavailable as error:
        pytest.skip(str(error))
    slurm.write("head", "/shared/script.py", SCRIPT)
    words = [mpiexec, "--allow-run-as-root", "--map-by", "ppr:1:node", *RUN, "-n", "1", "--", sys.executable,
             "/shared/script.py", "0"]  # fmt: skip
    slurm.run("head", "sbatch", "--wait", "--output=/shared/said", "--nodes=2", "--ntasks-per-node=1", "--overcommit",
              "--wrap", shlex.join(map(str, words)), timeout_s=200, **SHARED)  # fmt: skip
    assert slurm.run("head", "cat", "/shared/said").stdout == "0 ['n1', 'n2']\n"


def test_hosts_that_share_only_a_secret(slurm):
    step = srun(slurm, "--nodes=3", *RUN, "-n", "1", "--", sys.executable, "-c", WITHOUT_SECRET,
                env={"BROADLEAF_SECRET": SECRET})  # fmt: skip
    said, errors = step.communicate(timeout=200)
    assert said == "False False\n['n1', 'n2', 'n3'] [1, 2, 3]\n", errors
    assert step.returncode == 0


def test_a_stranger_listens_on_the_port(slurm):
    first, _ = SharedSecret(RunMember(0, 1, "mine"), "default", SECRET).listen()
    stranger = slurm.start("n1", sys.executable, "-c", SILENT, first.rpartition(":")[2],
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    try:
        assert stranger.stdout.readline() == "listens\n"
        step = srun(slurm, "--nodes=2", *RUN, "-n", "1", "--id", "mine", "--", sys.executable, "-c", WITHOUT_SECRET,
                    env={"BROADLEAF_SECRET": SECRET})  # fmt: skip
        said, errors = step.communicate(timeout=200)
        assert said == "False False\n['n1', 'n2'] [1, 2, 3]\n", errors
    finally:
        stranger.communicate()


def test_a_rank_with_another_secret(slurm):
    other = ("env", "BROADLEAF_START_TIMEOUT_S=10", "sh", "-c",
             'if [ "$SLURM_PROCID" = 1 ]; then BROADLEAF_SECRET=$BROADLEAF_SECRET-; fi; exec "$@"', "sh")  # fmt: skip
    step = srun(slurm, "--nodes=2", *other, *RUN, "-n", "1", "--", "true", env={"BROADLEAF_SECRET": SECRET})
    _, errors = step.communicate(timeout=200)
    assert "1 of 2 hosts came up within 10 s; ranks without a host: 1. Can all hosts connect to n1, port " in errors
    assert "rank 1 on n2 found no cluster started by rank 0: " in errors
    assert step.returncode == 1
