"""Payload by MPI between hosts: a mover on each, and TCP if one is missing or dies."""

from __future__ import annotations

import os
import signal
import subprocess
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from bed.network import HostedCluster, wait_until
from broadleaf.bench.workload import measure
from mpi_environments import EnvironmentUnavailable, mpi_python

from benchmarks.hosts.movers import World, start_movers

pytestmark = pytest.mark.timeout(240)

N_BYTES = 24_000_000
TRUSTED = {"payload": "mpi", "payload_trust": "fabric"}
WAYS = pytest.mark.parametrize("payload_way", ["mpi", "rma"])

# A lambda travels by value; engines on other hosts have no module of tests.
checksum = lambda x: __import__("zlib").crc32(x)  # noqa: E731


def payload(n_bytes: int = N_BYTES) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, n_bytes, dtype=np.uint8)


@pytest.fixture
def python() -> str:
    try:
        return str(mpi_python("mpich"))
    except EnvironmentUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def moved(hosted, python) -> Iterator[Callable[..., tuple[HostedCluster, World]]]:
    """A function that makes a cluster over `n` hosts with a mover on each."""
    worlds: list[World] = []
    clusters: list[HostedCluster] = []

    def make(n: int, engines: int = 1, **options: object) -> tuple[HostedCluster, World]:
        cluster = hosted(n, engines, **(TRUSTED | options))
        clusters.append(cluster)
        worlds.append(start_movers(cluster, python))
        use_movers(cluster)
        return cluster, worlds[-1]

    yield make
    for cluster in clusters:
        cluster.close()
    for world in worlds:
        world.close()


def use_movers(cluster: HostedCluster) -> None:
    """Returns once data comes to every host by MPI.

    The controller's own mover is not among the hosts of the status, and may come last.
    """
    random = np.random.default_rng(2)

    def all_get_data() -> bool:
        cluster.client[:].apply_sync(checksum, random.integers(0, 256, 1_000_000, dtype=np.uint8))
        return all(fetched(cluster, "mover_bytes"))

    wait_until(all_get_data, 60, "data by MPI to every host")


def fetched(cluster: HostedCluster, counter: str) -> list[int]:
    status = cluster.host_status()
    return [status[f"host{host.index}"]["fetched"][counter] for host in cluster.network.hosts[1:]]


def mover_pids(cluster: HostedCluster) -> list[int]:
    """The movers' processes, in the order of hosts."""
    found = []
    for host in cluster.network.hosts:
        for pid in subprocess.run(
            ["ip", "netns", "pids", host.namespace], capture_output=True, text=True, check=True
        ).stdout.split():
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"broadleaf.mpi.mover" in line and not line[0].endswith((b"mpiexec", b"sh", b"hydra_pmi_proxy")):
                found.append(int(pid))
    return found


@WAYS
def test_an_array_comes_by_mpi_over_the_links_once_a_host(moved, payload_way):
    cluster, _ = moved(2, 2, broadcast_topology="chain", payload=payload_way)
    data = payload()
    before = [cluster.network.received_bytes(host) for host in cluster.network.hosts[1:]]
    moved_before = fetched(cluster, "mover_bytes")
    sums = cluster.client[:].apply_sync(checksum, data)
    assert set(sums) == {zlib.crc32(data)}
    by_mpi = [now - had for now, had in zip(fetched(cluster, "mover_bytes"), moved_before, strict=True)]
    assert by_mpi == [N_BYTES, N_BYTES]
    # MPI used the links, and not the memory that these hosts share.
    for host, had in zip(cluster.network.hosts[1:], before, strict=True):
        received = cluster.network.received_bytes(host) - had
        assert N_BYTES <= received <= 1.1 * N_BYTES


def test_one_sided_movers_send_no_data_in_messages(hosted, python):
    cluster = hosted(1, **(TRUSTED | {"payload": "rma"}))
    program = "from broadleaf.mpi import flows, mover; del flows.Receiving.ready, flows.Sending.ready; mover.main()"
    world = World(cluster.network, python, ["-c", program, "--connection", cluster.cluster.relay_file])
    try:
        wait_until(lambda: all(h["mover"] is not None for h in cluster.host_status().values()), 30, "movers")
        data = payload()
        before = fetched(cluster, "mover_bytes")[0]
        assert cluster.client[:].apply_sync(checksum, data) == [zlib.crc32(data)]
        assert fetched(cluster, "mover_bytes")[0] - before == N_BYTES
    finally:
        cluster.close()
        world.close()
    assert world.process.returncode == 0


@pytest.mark.parametrize(
    ("payload_way", "fraction"), [("mpi", 0), ("mpi", 0.5), ("mpi", 0.99), ("rma", 0.5), ("rma", 0.99)]
)
def test_a_mover_that_is_killed_costs_no_byte_twice(moved, payload_way, fraction):
    cluster, _ = moved(3, broadcast_topology="chain", payload=payload_way)
    data = payload()
    pids = mover_pids(cluster)
    assert len(pids) == 4
    cluster.network.limit_links(10 if fraction == 0.5 else 40)
    last = cluster.network.hosts[-1]
    had = cluster.network.received_bytes(last)
    by_mpi, over_tcp = fetched(cluster, "mover_bytes"), fetched(cluster, "wire_bytes")
    result = cluster.client[:].apply_async(checksum, data)
    if fraction:
        wait_until(
            lambda: cluster.network.received_bytes(last) - had >= fraction * N_BYTES, 60, f"{fraction:.0%} of the data"
        )
    os.kill(pids[1], signal.SIGKILL)
    cluster.network.limit_links(100)
    assert set(result.get(timeout=60)) == {zlib.crc32(data)}
    by_mpi = [now - before for now, before in zip(fetched(cluster, "mover_bytes"), by_mpi, strict=True)]
    over_tcp = [now - before for now, before in zip(fetched(cluster, "wire_bytes"), over_tcp, strict=True)]
    assert [a + b for a, b in zip(by_mpi, over_tcp, strict=True)] == [N_BYTES] * 3
    assert fraction != 0.5 or (min(by_mpi) > 0 and min(over_tcp) > 0)
    wait_until(lambda: all(h["mover"] is None for h in cluster.host_status().values()), 30, "no movers any more")
    data[0] ^= 1
    assert set(cluster.client[:].apply_sync(checksum, data)) == {zlib.crc32(data)}


@WAYS
def test_dense_sparse_and_empty_data_is_the_same_on_all_hosts(moved, payload_way):
    sparse = pytest.importorskip("scipy.sparse")
    cluster, _ = moved(2, rate_mbit=None, payload=payload_way)
    view = cluster.client[:]
    matrix = sparse.random(3000, 3000, 0.05, format="csc", random_state=1)
    given = {
        "dense": np.random.default_rng(2).random((1000, 1000)),
        "strided": np.arange(2_000_000.0).reshape(1000, 2000)[:, ::2],
        "empty": np.empty((0, 5)),
        "matrix": matrix,
    }
    before = sum(fetched(cluster, "mover_bytes"))
    view.push(given, block=True)
    for name, value in given.items():
        for received in view.pull(name, block=True):
            if name == "matrix":
                assert (received != value).nnz == 0
            else:
                np.testing.assert_array_equal(received, value)
    sent = given["dense"].nbytes + given["strided"].nbytes + sum(a.nbytes for a in (matrix.data, matrix.indices))
    assert sum(fetched(cluster, "mover_bytes")) - before >= 2 * sent
    # In place: the same arrays, with other contents.
    given["dense"] += 1
    matrix.data += 1
    view.push({"dense": given["dense"], "matrix": matrix}, mode="inplace", block=True)
    for received in view.pull("dense", block=True):
        np.testing.assert_array_equal(received, given["dense"])
    for received in view.pull("matrix", block=True):
        assert (received != matrix).nnz == 0


@pytest.mark.timeout(480)
def test_more_than_two_gib_come_by_mpi(moved):
    n_bytes = (2 << 30) + 12_345
    # The array, a copy on each of the two hosts, and room for others.
    if (available := measure.available_bytes()) < 4 * n_bytes:
        pytest.skip(f"{available / 1e9:.1f} GB of memory are free, and {4 * n_bytes / 1e9:.1f} GB needed")
    # By default a quarter of the memory that was free when a process started: it may be less meanwhile.
    cluster, _ = moved(1, rate_mbit=None, pool_max_bytes=3 << 30)
    data = np.resize(payload(1 << 20), n_bytes)
    data[-1] ^= 1
    before = fetched(cluster, "mover_bytes")[0]
    assert cluster.client[:].apply_sync(checksum, data) == [zlib.crc32(data)]
    assert fetched(cluster, "mover_bytes")[0] - before == n_bytes


@WAYS
def test_a_mover_that_stands_still_is_killed_and_the_rest_comes_over_tcp(moved, payload_way):
    cluster, _ = moved(2, broadcast_topology="chain", payload=payload_way)
    data = payload()
    stopped = mover_pids(cluster)[2]
    os.kill(stopped, signal.SIGSTOP)
    result = cluster.client[:].apply_async(checksum, data)
    assert set(result.get(timeout=60)) == {zlib.crc32(data)}
    wait_until(lambda: not Path(f"/proc/{stopped}").exists(), 30, "the end of the mover that was stopped")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, 'this cluster moves payload over TCP: start it with the option payload="mpi" to use movers'),
        ({"payload": "mpi"}, "this cluster encrypts payload, and MPI does not"),
    ],
    ids=["not wanted", "encrypted"],
)
def test_a_mover_that_may_not_join_says_why(hosted, python, options, says):
    cluster = hosted(1, **options)
    arguments = ["-m", "broadleaf.mpi.mover", "--connection", cluster.cluster.relay_file]
    world = World(cluster.network, python, arguments, stderr=subprocess.PIPE, text=True)
    try:
        _, said = world.process.communicate(timeout=60)
    finally:
        world.close()
    assert world.process.returncode == 0
    assert said.count(says) == 2, said
