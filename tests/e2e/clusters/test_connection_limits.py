"""Connections that take up room without identifying themselves keep nobody out who does."""

import socket
import subprocess
import sys

import broadleaf as ipp
import pytest
from broadleaf.errors import ClusterConnectionError
from flood import Flood, over_tcp, times_to_connect
from waiting import until


@pytest.fixture
def listening():
    with ipp.Cluster(n=2, listen="127.0.0.1:0") as rc:
        yield rc


def test_clients_get_in_past_silent_and_half_shaken_connections(listening):
    cluster = listening.cluster
    tcp = over_tcp(cluster.connection_file)["tcp"]

    def all_wait() -> bool:
        # Those that come again after their time, from an address that has proven a key by then, are not strangers.
        waiting = cluster.status_sync()["node"]["waiting_connections"]
        return bool(waiting["strangers"] + waiting["known"] >= 600)

    with Flood((tcp["host"], tcp["port"]), silent=300, half=300):
        assert until(all_wait)
        assert len(times_to_connect(cluster, 60)) == 60
        assert until(all_wait)
        # An engine that comes back connects like everybody else.
        before = listening.engine_uuid(0)
        cluster.restart_engines_sync([0])
        assert until(lambda: listening.ids == [0, 1] and listening.engine_uuid(0) != before)
    assert listening[:].apply_sync(lambda: 1) == [1, 1]


def test_more_strangers_than_there_is_room_for_displace_each_other(listening):
    cluster = listening.cluster
    tcp = over_tcp(cluster.connection_file)["tcp"]
    limit = cluster.status_sync()["node"]["waiting_connections"]["limit"]
    with Flood((tcp["host"], tcp["port"]), silent=limit, half=100):
        assert until(lambda: cluster.status_sync()["node"]["waiting_connections"]["displaced"] > 100)
        assert len(times_to_connect(cluster, 20)) == 20


AT_THE_LIMIT = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
import broadleaf as ipp
cluster = ipp.Cluster(n=1, listen="127.0.0.1:0")
cluster.start_cluster_sync()
print(cluster.connection_file, flush=True)
sys.stdin.read()
cluster.stop_cluster_sync()
"""


def test_at_its_descriptor_limit_a_node_says_so_and_keeps_whom_it_has():
    starter = subprocess.Popen(
        [sys.executable, "-c", AT_THE_LIMIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with starter:
        file = starter.stdout.readline().strip()
        clients = [ipp.Client(file)]
        clients[0].wait_for_engines(1, timeout=30)
        with pytest.raises(ClusterConnectionError, match=r"no free file descriptor|no room for another connection"):
            for _ in range(64):
                clients.append(ipp.Client(file))
        assert len(clients) > 20
        # Strangers who connect now are dropped, and take nobody's turn.
        tcp = over_tcp(file)["tcp"]
        strangers = [socket.create_connection((tcp["host"], tcp["port"])) for _ in range(20)]

        def wakeups():
            return clients[0].status()["node"]["wakeups"]

        before = wakeups()
        for client in clients:
            assert client.ids == [0]
            assert client[0].apply_sync(lambda: 5) == 5
        # There is a descriptor for whatever accepted peers need.
        assert clients[0][0].apply_sync(len, bytearray(3_000_000)) == 3_000_000
        assert wakeups() - before < 20 * len(clients)
        for stranger in strangers:
            stranger.close()
        for client in clients[1:]:
            client.close()
        assert until(lambda: _gets_in(file))
        clients[0].close()
        starter.stdin.close()
    assert starter.returncode == 0


def _gets_in(file):
    try:
        ipp.Client(file).close()
    except ClusterConnectionError:
        return False
    return True
