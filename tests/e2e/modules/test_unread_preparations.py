"""Preparations that replace one another while an engine does not read: they cannot fill its queue without limit."""

from pathlib import Path

import broadleaf as ipp
import pytest
from broadleaf.control import requests

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
    function = client.link.define_preparation(content)
    request = {"Prepare": {"name": "large", "function": function, "reload": False}}
    try:
        requests.send(client.link, request, 30.0)
    except Exception as refusal:
        return str(refusal)
    return "done"


def test_an_engine_that_runs_a_long_task(tmp_path: Path):
    started, gate = tmp_path / "started", tmp_path / "gate"
    with ipp.Cluster(n=1, function_cache_bytes=8 * MIB) as client:
        busy = client[0].apply_async(wait_for, str(started), str(gate))
        while not started.exists():
            assert not busy.ready()
        # Each is counted for its client once, and sent each time that it replaces the other.
        contents = [name + b"x" * (3 * MIB) for name in (b"# one ", b"# two ")]
        answers = [prepare(client, contents[n % 2]) for n in range(12)]
        assert answers[:3] == ["done"] * 3
        assert "are waiting for engines that are running tasks" in answers[-1], answers
        gate.touch()
        busy.get(timeout=60)
        client[0].apply_sync(abs, -1)
        assert prepare(client, b"# once more") == "done"
