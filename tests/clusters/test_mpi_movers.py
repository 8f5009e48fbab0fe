"""Movers of both MPIs beside relays that SSH has started, each on a host of its own."""

from __future__ import annotations

import json

import pytest
from bed import Bed
from mpi_environments import MPIS, EnvironmentUnavailable, mpi_python
from waiting import until

pytestmark = pytest.mark.timeout(240)

HOSTS = {
    "mpich": ["-hosts", "head,n1,n2", "-ppn", "1"],
    "openmpi": ["--allow-run-as-root", "--host", "head:1,n1:1,n2:1", "--map-by", "node", "--mca", "btl", "tcp,self"],
}
PROGRAM = """
import json, os, signal, subprocess, time, zlib
import numpy as np
import broadleaf as ipp

def checksum(data):
    import zlib
    return zlib.crc32(data)

def fetched(cluster):
    return [(h["fetched"]["mover_bytes"], h["fetched"]["wire_bytes"]) for h in cluster.status_sync()["hosts"]]

def movers(cluster):
    return [host["mover"] for host in cluster.status_sync()["hosts"]]

options = dict(payload={payload!r}, payload_trust="fabric", broadcast_topology="chain", listen="head:0")
cluster = ipp.Cluster(engines=ipp.SSH(["n1:1", "n2:1"]), **options)
with cluster as rc:
    command = [{mpiexec!r}, *{arguments!r}, {python!r}, "-m", "broadleaf.mpi.mover", "--connection"]
    # A directory that all hosts see: they read how to join.
    file = "/shared/engine.json"
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as copy:
        copy.write(open(cluster.relay_file).read())
    world = subprocess.Popen([*command, file])
    while None in movers(cluster):
        assert world.poll() is None
        time.sleep(0.05)
    # The head's own mover is not among the hosts of the status, and may come last.
    random = np.random.default_rng(1)
    while not all(by_mover for by_mover, _ in fetched(cluster)):
        rc[:].apply_sync(checksum, random.integers(0, 256, 2_000_000, dtype=np.uint8))
    data = random.integers(0, 256, 8_000_000, dtype=np.uint8)
    before = fetched(cluster)
    sums = rc[:].apply_sync(checksum, data)
    came = [tuple(now - had for now, had in zip(*pair)) for pair in zip(fetched(cluster), before)]
    print(json.dumps([sorted(movers(cluster)), len(data), came, sums == [zlib.crc32(data)] * 2]))
print(json.dumps(world.wait(30)))
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


@pytest.mark.parametrize("payload", ["mpi", "rma"])
def test_arrays_go_from_mover_to_mover_and_both_end_with_the_cluster(mpi, payload):
    bed, name, python = mpi
    mpiexec = python.rpartition("/")[0] + "/mpiexec"
    program = PROGRAM.format(mpiexec=mpiexec, arguments=HOSTS[name], python=python, payload=payload)
    # Otherwise UCX moves data from "host" to "host" through the memory that they share here.
    done = bed.python(program, timeout_s=120, UCX_TLS="tcp,self", UCX_NET_DEVICES="eth0")
    (ranks, n_bytes, came, is_right), code = (json.loads(line) for line in done.stdout.splitlines())
    assert ranks == [1, 2]
    assert is_right
    assert came == [[n_bytes, 0], [n_bytes, 0]]
    assert code == 0
    assert until(lambda: not bed.processes()), bed.processes()
