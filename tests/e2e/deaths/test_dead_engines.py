"""Engines that died: restarted, and how their ends are reported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import broadleaf as ipp
import pytest

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def cluster():
    cluster = ipp.Cluster(n=3)
    cluster.start_cluster_sync()
    yield cluster
    cluster.stop_cluster_sync()


@pytest.fixture
def client(cluster):
    with cluster.connect_client_sync() as client:
        client.wait_for_engines(3, timeout=30)
        yield client


def kill(rc: ipp.Client, engine: int) -> None:
    """Ends an engine by SIGKILL while it runs a task, and waits until that is known."""
    result = rc[engine].apply_async(lambda: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(ipp.EngineError):
        result.get(timeout=30)
    while engine in rc.ids:
        rc.wait(timeout=0.01)


def uuids(client: ipp.Client) -> set[str]:
    """Those of the engines that are up, each of a process."""
    return {uuid for _, uuid, _, _ in client.link.engines()}


def wait_for_others(client: ipp.Client, before: set[str]) -> None:
    """Waits for three engines, of which none may be one that was there before."""
    client.wait_for_engines(3, timeout=30)
    assert not before & uuids(client)


def die_saying(text: str) -> None:
    os.write(2, text.encode())
    os._exit(7)


def run(cluster: ipp.Cluster, command: str, *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "broadleaf", command, "--cluster-id", cluster.cluster_id, *arguments],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


def test_a_restart_of_all_starts_the_dead_too(cluster, client):
    kill(client, 1)
    assert client.ids == [0, 2]
    before = uuids(client)
    cluster.restart_engines_sync()
    wait_for_others(client, before)
    assert client.ids == [0, 1, 2]
    assert client[1].apply_sync(lambda: 1) == 1


async def test_the_coroutine_does_so_too(cluster, client):
    kill(client, 0)
    before = uuids(client)
    await cluster.restart_engines()
    wait_for_others(client, before)
    assert client[:].apply_sync(lambda: 1) == [1, 1, 1]


def test_a_client_restarts_the_dead_too(client):
    kill(client, 2)
    before = uuids(client)
    client.shutdown(restart=True)
    wait_for_others(client, before)
    assert client[:].apply_sync(lambda: 1) == [1, 1, 1]


def test_a_client_restarts_a_dead_one_by_its_number(client):
    kill(client, 1)
    client.shutdown(1, restart=True)
    client.wait_for_engines(3, timeout=30)
    assert client[1].apply_sync(lambda: 1) == 1
    with pytest.raises(IndexError):
        client.shutdown([0, 7], restart=True)


def test_all_of_them_dead(cluster, client):
    for engine in range(3):
        kill(client, engine)
    cluster.restart_engines_sync()
    client.wait_for_engines(3, timeout=30)
    assert client[:].apply_sync(lambda: 1) == [1, 1, 1]


def test_an_engine_stopped_for_good_stays_stopped(cluster, client):
    cluster.stop_engine_sync(2)
    while 2 in client.ids:
        client.wait(timeout=0.01)
    cluster.restart_engines_sync()
    client.wait_for_engines(2, timeout=30)
    assert client[:].apply_sync(lambda: 1) == [1, 1]
    assert client.ids == [0, 1]
    cluster.restart_engine_sync(2)
    client.wait_for_engines(3, timeout=30)


def test_status_has_the_certificate(cluster, client):
    kill(client, 1)
    engines = json.loads(run(cluster, "status", "--json"))["engines"]
    death = engines[1]["last_death"]
    assert (death["cause"], death["code"], death["pid"] > 0) == ("signal", 9, True)
    assert 0 <= death["ago_s"] < 60
    assert engines[0]["last_death"] is None


@pytest.mark.parametrize("command", [("status",), ("top", "--count", "1")])
def test_status_and_top_say_how_it_died_and_what_it_said_last(cluster, client, command):
    with pytest.raises(ipp.EngineError):
        client[1].apply_sync(die_saying, "out of luck\n")
    text = run(cluster, *command)
    assert ") exited with code 7" in text
    assert "out of luck" in text
    assert "restart_engines_sync()" in text
    text = run(cluster, "status", "--prometheus")
    assert "last_death" not in text


def test_logs_of_a_dead_engine(cluster, client):
    with pytest.raises(ipp.EngineError):
        client[1].apply_sync(die_saying, "out of luck\n")
    text = run(cluster, "logs", "--engine", "1")
    assert ") exited with code 7" in text
    assert "out of luck" in text


def test_logs_of_a_restarted_engine_keep_what_the_one_before_said(cluster, client):
    with pytest.raises(ipp.EngineError):
        client[1].apply_sync(die_saying, "out of luck\n")
    cluster.restart_engines_sync(1)
    client.wait_for_engines(3, timeout=30)
    client[1].apply_sync(os.write, 1, b"better now\n")
    text = run(cluster, "logs", "--engine", "1")
    assert text.index("out of luck") < text.index(") exited with code 7") < text.index("better now")


def test_following_a_log_goes_on_with_the_next_life(cluster, client):
    client[1].apply_sync(os.write, 1, b"first life\n")
    command = [sys.executable, "-m", "broadleaf", "logs", "--engine", "1", "-f", "--cluster-id", cluster.cluster_id]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "first life\n"
        kill(client, 1)
        cluster.restart_engines_sync(1)
        client.wait_for_engines(3, timeout=30)
        client[1].apply_sync(os.write, 1, b"a second life that is longer than the first\n")
        assert child.stdout.readline() == "a second life that is longer than the first\n"
        child.send_signal(signal.SIGINT)


def test_an_engine_of_a_relay(tmp_path):
    cluster = ipp.Cluster(n=0, listen="127.0.0.1:0")
    cluster.start_cluster_sync()
    try:
        with ipp.Relay(cluster.relay_file, 1, name="far"), cluster.connect_client_sync() as rc:
            rc.wait_for_engines(1, timeout=30)
            with pytest.raises(ipp.EngineError):
                rc[0].apply_sync(die_saying, "out of luck\n")
            text = run(cluster, "logs", "--engine", "0")
            assert "on far) exited with code 7" in text
            assert "out of luck" in text
            cluster.restart_engines_sync()
            rc.wait_for_engines(1, timeout=30)
            assert rc[0].apply_sync(lambda: 1) == 1
    finally:
        cluster.stop_cluster_sync()
