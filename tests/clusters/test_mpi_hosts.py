"""Worlds over several hosts, each with a network and a name of its own, by SSH."""

from __future__ import annotations

import json
import secrets
import sys

import pytest
from bed import Bed
from mpi_environments import CHECKOUT, MPIS, EnvironmentUnavailable, mpi_python
from waiting import until

pytestmark = pytest.mark.timeout(240)

N_HOSTS, PER_HOST = 4, 2
HOSTS = {
    "mpich": ["-hosts", "n1,n2,n3,n4", "-ppn", str(PER_HOST)],
    "openmpi": ["--allow-run-as-root", "--host", "n1:2,n2:2,n3:2,n4:2"],
}
# Every second rank is on the next host, so that the engines of a host are not adjacent.
ROUND_ROBIN = {
    "mpich": ["-hosts", "n1,n2,n3,n4", "-ppn", "1"],
    "openmpi": [*HOSTS["openmpi"], "--map-by", "node"],
}
PROGRAM = """
import json, os, signal, socket, sys, time
import broadleaf as ipp
sys.path.append({tests!r})
from refusals import idle_s

def rank_and_sum():
    import socket
    from mpi4py import MPI
    comm = MPI.COMM_WORLD
    return comm.Get_rank(), comm.allreduce(comm.Get_rank()), socket.gethostname()

def fork_servers():
    from pathlib import Path
    mark = "BROADLEAF_CLUSTER_ID=" + os.environ["BROADLEAF_CLUSTER_ID"]
    flags = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "comm").read_text() == "broadleaf-host\\n" and mark in (process / "environ").read_text():
                flags.append((process / "cmdline").read_text().split(chr(0))[1])
        except OSError:
            pass  # it has ended, and is of another cluster
    return sorted(flags)

cluster = ipp.Cluster(engines=ipp.MPI(python={python!r}, mpi_args={arguments!r}, nested_tasks=True), n={n})
with cluster as rc:
    {body}
"""


@pytest.fixture(params=MPIS)
def mpi(request, ssh_hosts) -> tuple[Bed, str, str]:
    """The bed, the name of each MPI, and its Python."""
    try:
        python = str(mpi_python(request.param))
        if request.param == "openmpi" and " " in python:
            pytest.skip("Open MPI starts no daemon on another host from a path with a space")
        return ssh_hosts, request.param, python
    except EnvironmentUnavailable as error:
        pytest.skip(str(error))


def output_of(mpi: tuple[Bed, str, str], hosts: dict[str, list[str]], body: str) -> list[object]:
    """The output of a program on the head, with JSON in each line, and a cluster of two ranks per host."""
    bed, name, python = mpi
    arguments = hosts[name]
    # Otherwise UCX moves data from "host" to "host" through the memory that they share here.
    program = PROGRAM.format(
        tests=str(CHECKOUT / "tests"), python=python, arguments=arguments, n=N_HOSTS * PER_HOST, body=body.strip()
    )
    done = bed.python(program, timeout_s=120, BROADLEAF_DIR="/shared/mpi", UCX_TLS="tcp,self")
    assert until(lambda: not bed.processes()), bed.processes()
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("hosts", [HOSTS, ROUND_ROBIN], ids=["host by host", "round robin"])
def test_an_engine_has_the_number_of_its_rank_wherever_that_is(mpi, hosts):
    n = N_HOSTS * PER_HOST
    ids, ranks, relays, nested = output_of(
        mpi,
        hosts,
        """
    print(json.dumps(rc.ids))
    print(json.dumps(rc[:].apply_sync(rank_and_sum)))
    print(json.dumps(sorted(host["name"] for host in cluster.status_sync()["hosts"])))
    print(json.dumps(rc[-1].apply_sync(lambda: ipp.get_client()[0].apply_sync(abs, -1))))
""",
    )
    assert nested == 1
    assert ids == list(range(n))
    places = [f"n{1 + (rank // PER_HOST if hosts is HOSTS else rank % N_HOSTS)}" for rank in range(n)]
    assert ranks == [[rank, sum(range(n)), places[rank]] for rank in range(n)]
    assert relays == [f"n{i}:guests" for i in range(1, N_HOSTS + 1)]


def test_worlds_share_the_relays_of_their_hosts_and_data_comes_to_each_once(mpi):
    (relays, fetched, sums) = output_of(
        mpi,
        HOSTS,
        """
    cluster.start_engines_sync(4)
    cluster.wait_for_engines_sync()
    import numpy as np
    rc.broadcast_view().push({"data": np.arange(400_000.0)}, block=True)
    assert [float(data.sum()) for data in rc[:].pull("data", block=True)] == [79_999_800_000.0] * 12
    hosts = cluster.status_sync()["hosts"]
    print(json.dumps(len(hosts)))
    print(json.dumps([host["fetched"]["objects"] for host in hosts]))
    print(json.dumps([total for _, total, _ in rc[:].apply_sync(rank_and_sum)]))
""",
    )
    assert relays == N_HOSTS
    assert fetched == [1] * N_HOSTS
    assert sums == [28] * 8 + [6] * 4


def test_the_first_rank_of_a_host_forks_its_relay(mpi):
    (flags,) = output_of(mpi, HOSTS, "print(json.dumps(rc[0].apply_sync(fork_servers)))")
    # The controller has an interpreter of its own. Open MPI does not pass on the environment by which processes of a
    # cluster are known, so each relay has one too.
    assert flags == {"mpich": ["-P"] + ["-m"] * N_HOSTS, "openmpi": ["-P"] * (N_HOSTS + 1)}[mpi[1]]


def test_a_rank_that_is_killed_on_one_host_ends_the_world_on_all(mpi):
    cause_and_rank, took_s, again = output_of(
        mpi,
        HOSTS,
        """
    # If the fork server of its host does not run for a while, another rank is the first that is known to be dead.
    for _ in range(3):
        waiting = rc[0].apply_async(time.sleep, 100)
        began, since_s = time.monotonic(), idle_s()
        rc[5].apply_async(lambda: __import__("os").kill(__import__("os").getpid(), 9))
        try:
            waiting.get(60)
        except ipp.EngineError as error:
            certificate = error.certificate
        took_s = idle_s() - since_s
        while rc.ids:
            assert time.monotonic() - began < 60, rc.ids
            time.sleep(0.01)
        cluster.restart_engines_sync()
        cluster.wait_for_engines_sync()
        rc.wait_for_engines(8, timeout=30)
        if certificate.cause == "rank_died" and certificate.code == 5 and took_s < 5:
            break
    print(json.dumps([certificate.cause, certificate.code]))
    print(json.dumps(took_s))
    print(json.dumps(rc[:].apply_sync(rank_and_sum)))
""",
    )
    assert cause_and_rank == ["rank_died", 5]
    assert took_s < 5  # "certified within 5 s" is what was promised
    assert [one[:2] for one in again] == [[rank, 28] for rank in range(8)]


def test_ranks_that_share_only_a_secret_run_a_program(mpi):
    bed, name, python = mpi
    arguments = {
        "mpich": ["-hosts", "n1,n2", "-ppn", "1", "-n", "2"],
        "openmpi": ["--allow-run-as-root", "--host", "n1,n2", "-x", "BROADLEAF_SECRET"],
    }
    program = "import socket, broadleaf as ipp; print(sorted(ipp.Client()[:].apply_sync(socket.gethostname)))"
    run = [sys.executable, "-m", "broadleaf", "run", "-n", "1", "--id", "mine", "--controller", "n1"]
    mpiexec = python.rpartition("/")[0] + "/mpiexec"
    done = bed.run("head", mpiexec, *arguments[name], *run, "--", sys.executable, "-c", program,
                   timeout_s=120, BROADLEAF_SECRET=secrets.token_hex(16))  # fmt: skip
    assert done.stdout == "['n1', 'n2']\n"
    assert until(lambda: not bed.processes()), bed.processes()
