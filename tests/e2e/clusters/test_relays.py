"""Relays over the loopback interface: to the cluster, their engines are on other hosts."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import broadleaf as ipp
import numpy as np
import pytest
from waiting import until

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def hosts():
    """A cluster of one local engine, and two relays of two engines each."""
    cluster = ipp.Cluster(n=1, listen="127.0.0.1:0")
    cluster.start_cluster_sync()
    files = [cluster.connection_file, None]
    relays = [ipp.Relay(cluster.relay_file, 2, name=f"host{i}", client_file=file) for i, file in enumerate(files)]
    yield cluster
    cluster.stop_cluster_sync()
    for relay in relays:
        assert relay.wait(20) == 0, "a relay ends with its cluster"
        relay.stop()


@pytest.fixture
def client(hosts):
    with hosts.connect_client_sync() as client:
        client.wait_for_engines(5, timeout=30)
        yield client


def test_engines_of_all_hosts_take_part(client):
    assert client.ids == [0, 1, 2, 3, 4]
    places = [where for *_, where in client.link.engines()]
    assert sorted(places[1:]) == ["host0", "host0", "host1", "host1"]
    assert client[:].apply_sync(lambda x: x + 1, 1) == [2] * 5
    assert sum(client.load_balanced_view().map(lambda x: x, range(2000))) == sum(range(2000))


def test_arrays_go_there_and_come_back(client):
    data = np.arange(300_000.0)
    view = client[:]
    view.push({"a": data}, block=True)
    for got in view.pull("a", block=True):
        assert np.array_equal(got, data)
    assert all(np.array_equal(got, 2 * data) for got in view.apply_sync(lambda x: 2 * x, data))


def test_an_engine_that_writes_to_its_array_changes_nobody_elses(client):
    data = np.zeros(100_000)

    def write(x):
        x += os.getpid()
        return float(x[0])

    pids = client[:].apply_sync(os.getpid)
    assert client[:].apply_sync(write, data) == [float(pid) for pid in pids]
    assert not data.any()


def test_an_error_there_is_an_error_here(client):
    with pytest.raises(ipp.RemoteError, match="ZeroDivisionError"):
        client[4].apply_sync(lambda: 1 / 0)


def test_output_comes_from_there(client):
    result = client[3].apply_async(print, "hello")
    result.get(timeout=30)
    assert result.stdout == "hello\n"


def test_a_task_there_can_be_interrupted(client):
    result = client[3].apply_async(lambda: __import__("time").sleep(600))
    client[3].apply_async(int)
    result.abort()
    with pytest.raises(ipp.TaskAborted):
        result.get(timeout=30)


def _host(client, name):
    return [engine for engine, *_, where in client.link.engines() if where == name]


def test_tasks_there_wait_for_tasks_of_their_own(client):
    def outer(targets, levels):
        import broadleaf as ipp

        if levels == 0:
            return 1
        view = ipp.get_client().load_balanced_view(targets)
        return sum(view.map_sync(outer, [targets] * 3, [levels - 1] * 3))

    there = _host(client, "host0")
    view = client.load_balanced_view(there)
    for _ in range(10):
        assert view.map_async(outer, [there] * 4, [2] * 4).get(30) == [9] * 4


def test_a_task_there_without_a_file_for_clients_is_told_what_is_missing(client):
    def outer():
        import broadleaf as ipp

        ipp.get_client()

    (engine, _) = _host(client, "host1")
    with pytest.raises(ipp.RemoteError, match=r"'host1' cannot be clients.*--client-connection FILE"):
        client[engine].apply_async(outer).get(30)


def test_a_client_over_tcp_sends_its_array_once(hosts, client, tmp_path):
    connection = json.loads(Path(hosts.connection_file).read_text()) | {"transport": "tcp"}
    path = tmp_path / "tcp.json"
    path.write_text(json.dumps(connection))
    data = np.random.default_rng(1).random(200_000)
    with ipp.Client(str(path)) as remote:
        assert remote[:].apply_sync(lambda x: float(x.sum()), data) == [float(data.sum())] * 5
        got = remote[4].apply_sync(lambda x: x, data)
        assert np.array_equal(got, data)


def test_an_array_of_many_calls_goes_to_a_host_once(hosts, client, tmp_path):
    array, gate = np.arange(300_000.0), tmp_path / "open"
    away = [e for e, _, _, where in client.link.engines() if where == "host0"]
    view = client.load_balanced_view(away)
    before = hosts.status_sync()["node"]["objects_out"]
    held = [view.apply_async(sum_when_open, array, str(gate)) for _ in range(6)]
    held.append(view.map(lambda i: float(array[i]), range(4), chunksize=1))
    assert until(lambda: hosts.status_sync()["controller"]["offered"] >= 3)
    assert hosts.status_sync()["node"]["objects_out"] - before == 1
    gate.touch()
    assert [r.get(timeout=30) for r in held] == [float(array.sum())] * 6 + [[0.0, 1.0, 2.0, 3.0]]


def sum_when_open(array, path):
    while not os.path.exists(path):
        time.sleep(0.01)
    return float(array.sum())


def test_nothing_is_kept_once_nobody_uses_it(hosts, client):
    client[:].apply_sync(len, np.zeros(200_000))
    client[:].clear(block=True)

    def kept():
        node = hosts.status_sync()["node"]
        return node["objects_in"], node["objects_out"], node["own_bytes"]

    def after_other_tasks():
        client[:].apply_sync(int)
        return kept()

    assert until(lambda: after_other_tasks() == (0, 0, 0))


def test_the_loss_of_a_host_is_certified(hosts):
    with hosts.connect_client_sync() as client:
        relay = ipp.Relay(hosts.relay_file, 1, name="doomed")
        try:
            client.wait_for_engines(6, timeout=30)
            (engine,) = (e for e, _, _, where in client.link.engines() if where == "doomed")
            result = client[engine].apply_async(lambda: __import__("time").sleep(600))
            node = next(int(p) for p in _children(relay.process.pid) if _is_node(p))
            os.kill(node, signal.SIGKILL)
            with pytest.raises(ipp.EngineError, match="lost with its host") as caught:
                result.get(timeout=30)
            assert caught.value.certificate.cause == "host_gone"
        finally:
            relay.stop()


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def _is_node(pid: str) -> bool:
    """Engines have names of their own; the node has the interpreter's."""
    return "broadleaf-" not in Path(f"/proc/{pid}/comm").read_text()


def test_a_second_relay_of_a_name_is_refused(hosts):
    with pytest.raises(Exception, match="did not start") as caught:
        ipp.Relay(hosts.relay_file, 1, name="host0")
    assert "already connected" in str(caught.value)


def test_a_clients_key_opens_no_relays_connection(hosts):
    with pytest.raises(Exception, match="did not start") as caught:
        ipp.Relay(hosts.connection_file, 1, name="intruder")
    assert "does not open a relay's connection" in str(caught.value)


def test_payload_keeps_to_the_cores_and_the_niceness_it_is_given():
    cluster = ipp.Cluster(n=0, listen="127.0.0.1:0", payload_cores=1, payload_niceness=3)
    cluster.start_cluster_sync()
    relay = ipp.Relay(cluster.relay_file, 1, name="elsewhere")
    try:
        with cluster.connect_client_sync() as client:
            client.wait_for_engines(1, timeout=30)
            data = np.arange(300_000.0)
            assert np.array_equal(client[0].apply_sync(lambda x: 2 * x, data), 2 * data)
        node = json.loads(Path(cluster.connection_file).read_text())["pid"]
        threads = [int(task.name) for task in Path(f"/proc/{node}/task").iterdir()]
        named = {Path(f"/proc/{node}/task/{thread}/comm").read_text().strip(): thread for thread in threads}
        assert os.sched_getaffinity(named["broadleaf-data"]) == {max(os.sched_getaffinity(0))}
        assert os.sched_getaffinity(node) == os.sched_getaffinity(0)
        niceness = os.getpriority(os.PRIO_PROCESS, node)
        assert os.getpriority(os.PRIO_PROCESS, named["broadleaf-data"]) == min(niceness + 3, 19)
    finally:
        cluster.stop_cluster_sync()
        relay.wait(20)
        relay.stop()
