"""Payload that comes over several connections between two hosts."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest
from bed.network import Host, Network, wait_until
from far_clients import FarClients

pytestmark = pytest.mark.timeout(180)


def _connections(network: Network, host: Host, to: Host) -> list[tuple[str, str]]:
    """The ends of established TCP connections between two hosts, as seen by the first."""
    told = network.execute(host.namespace, ["ss", "-tnH", "state", "established", "dst", to.address])
    return [(line.split()[2], line.split()[3]) for line in told.splitlines()]


def _end_one(network: Network, host: Host, to: Host) -> tuple[str, str]:
    """Ends the connection between two hosts that was made last; returns its ends."""
    near, far = max(_connections(network, host, to), key=lambda ends: int(ends[0].rsplit(":")[-1]))
    network.execute(host.namespace, ["ss", "-K", "src", near, "dst", far])
    return near, far


@pytest.mark.parametrize("tls", ["on", "off"])
def test_a_result_comes_over_as_many_connections_as_the_option_says(far, tls):
    cluster = far(latency_ms=10, tls=tls, payload_streams=4)
    client = cluster.start("""
for line in sys.stdin:
    assert np.array_equal(rc[0].apply_sync(make, 16 << 20), make(16 << 20))
    print("here", flush=True)
""")

    def counted() -> int:
        return len(_connections(cluster.network, cluster.host, cluster.controller))

    def get() -> None:
        client.stdin.write("another\n")
        client.stdin.flush()
        assert client.stdout.readline() == "here\n"

    wait_until(lambda: counted() == 1, 60, "the connection of the client")
    get()
    assert counted() == 5, "one for control, four for payload"
    get()
    assert counted() == 5, "they are used again"
    wait_until(lambda: counted() == 2, 60, "the end of those without use")
    get()
    assert counted() == 5


def _under_way(cluster: FarClients, large_bytes: int) -> subprocess.Popen[str]:
    """Starts a client that gets a large result, which has begun to come."""
    client = cluster.start(f"""
large = rc[0].apply_async(make, {large_bytes})
until(lambda: rc.status()["node"]["objects_out"] > 0)
print("under way", flush=True)
print(np.array_equal(large.get(), make({large_bytes})), flush=True)
""")
    assert client.stdout is not None
    assert client.stdout.readline() == "under way\n"
    return client


def test_a_result_comes_when_one_of_its_connections_ends(far):
    # 64 MiB take five seconds.
    cluster = far(rate_mbit=100, payload_streams=3)
    client = _under_way(cluster, 64 << 20)
    ends = (cluster.network, cluster.host, cluster.controller)
    wait_until(lambda: len(_connections(*ends)) == 4, 60, "the connections of payload")
    ended = _end_one(*ends)
    wait_until(lambda: ended not in _connections(*ends), 60, "the end of one of them")
    out, _ = client.communicate(timeout=120)
    assert out == "True\n"


def test_on_a_link_with_a_long_round_trip_connections_are_added_where_one_has_too_little_under_way(far):
    cluster: FarClients = far(rate_mbit=200, latency_ms=10)
    cluster.network.limit_send_buffers(cluster.controller, 65_536)
    client = _under_way(cluster, 64 << 20)
    max_connections = 0

    def has_added() -> bool:
        nonlocal max_connections
        max_connections = max(max_connections, len(_connections(cluster.network, cluster.host, cluster.controller)))
        return max_connections > 2

    wait_until(has_added, 60, "a second connection for payload")
    out, _ = client.communicate(timeout=120)
    assert out == "True\n"


def test_on_a_short_link_one_connection_carries_all(far):
    cluster: FarClients = far(rate_mbit=100)
    client = _under_way(cluster, 32 << 20)
    max_connections = 0
    while client.poll() is None:
        max_connections = max(max_connections, len(_connections(cluster.network, cluster.host, cluster.controller)))
    out, _ = client.communicate()
    assert out == "True\n"
    assert max_connections == 2


def test_hosts_get_arguments_and_give_results_over_several_connections(hosted):
    cluster = hosted(2, payload_streams=3)
    data = np.random.default_rng(1).integers(0, 256, 24 << 20, dtype=np.uint8)
    view = cluster.client.broadcast_view()
    view.topology = "chain"
    assert view.apply_sync(lambda x: int(x.sum()), data) == [int(data.sum())] * 2
    controller, *hosts = cluster.network.hosts
    counts = [len(_connections(cluster.network, host, controller)) for host in hosts]
    assert max(counts) == 4, "one for control, three over which the head of the chain got it"
    assert len(_connections(cluster.network, *hosts)) == 3

    def ones():
        import numpy

        return numpy.ones(24 << 20, numpy.uint8)

    # The controller's host, which gets the results, cannot dial.
    for host in hosts:
        [engine] = cluster.engines_of(host)
        assert np.array_equal(cluster.client[engine].apply_sync(ones), ones())
        assert len(_connections(cluster.network, host, controller)) == 4
