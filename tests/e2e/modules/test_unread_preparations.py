"""Preparations that replace one another while an engine does not read: they cannot fill its queue without limit."""

from pathlib import Path

import broadleaf as ipp
import pytest
from broadleaf import requests
from waiting import until

MIB = 1 << 20
pytestmark = pytest.mark.timeout(180)


def wait_for(started: str, gate: str) -> None:
    import os
    import time

    open(started, "w").close()
    while not os.path.exists(gate):
        time.sleep(0.01)


def prepare(client: ipp.Client, content: bytes) -> str:
    """What the cluster answers to one more preparation of the same name."""
    try:
        requests.send(client.link, requests.preparation("large", reload=False), 30.0, content)
    except Exception as refusal:
        return str(refusal)
    return "done"


def refuse_until_read(client: ipp.Client, tmp_path: Path) -> None:
    """Prepares the last engine while it runs a task, until that is refused, and once more when the task has ended."""
    started, gate = tmp_path / "started", tmp_path / "gate"
    busy = client[-1].apply_async(wait_for, str(started), str(gate))
    while not started.exists():
        assert not busy.ready()
    # Each is counted for its client once, and sent each time that it replaces the other.
    contents = [name + b"x" * (3 * MIB) for name in (b"# one ", b"# two ")]
    answers = [prepare(client, contents[n % 2]) for n in range(24)]
    assert answers[:3] == ["done"] * 3
    # A late report of a relay may make room for a few more: what the socket of an engine has taken is not counted, nor
    # all that is on its way.
    refused = [answer for answer in answers if answer != "done"]
    assert len(refused) >= len(answers) // 2, answers
    assert all("are waiting for engines that are running tasks" in answer for answer in refused), answers
    gate.touch()
    busy.get(timeout=60)
    client[:].apply_sync(abs, -1)
    assert until(lambda: prepare(client, b"# once more") == "done")


def test_an_engine_that_runs_a_long_task(tmp_path: Path):
    with ipp.Cluster(n=1, function_cache_bytes=8 * MIB) as client:
        refuse_until_read(client, tmp_path)


def test_an_engine_of_another_host_that_runs_a_long_task(tmp_path: Path):
    cluster = ipp.Cluster(n=1, listen="127.0.0.1:0", function_cache_bytes=8 * MIB)
    cluster.start_cluster_sync()
    relay = ipp.Relay(cluster.relay_file, 1, name="host0")
    try:
        with cluster.connect_client_sync() as client:
            client.wait_for_engines(2, timeout=30)
            refuse_until_read(client, tmp_path)
    finally:
        cluster.stop_cluster_sync()
        relay.wait(20)
        relay.stop()
