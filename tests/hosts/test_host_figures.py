"""What is told of other hosts: processor, memory and network, and what engines there write, when somebody looks."""

from __future__ import annotations

import signal
import time

import broadleaf as ipp
import pytest
from bed.network import HostedCluster, wait_until
from broadleaf.dashboard.frames import Frames, Look
from broadleaf.engine.written import Seen

pytestmark = pytest.mark.timeout(240)

BLOCK_BYTES = 4_000_000


def measured(cluster: HostedCluster) -> dict:
    """What the relay of the only other host told last; it is asked again."""
    with cluster.cluster.control() as control:
        return next(iter(control.watch(0, 0)["hosts"]), {})


def test_a_relay_tells_how_busy_its_host_is(hosted):
    cluster = hosted(1, engines=2, rate_mbit=None)
    wait_until(lambda: measured(cluster), 30, "an answer of the relay")
    before = measured(cluster)
    assert before["name"] == f"host{cluster.network.hosts[1].index}"
    assert 0 < before["free_bytes"] < before["total_bytes"]
    assert 0 < before["busy_ticks"] < before["all_ticks"]
    assert before["cores"] > 0
    assert sorted(before["engines"]) == sorted(str(engine) for engine in cluster.engines_of(cluster.network.hosts[1]))
    assert min(before["engines"].values()) > 1_000_000

    def sent_bytes() -> int:
        return measured(cluster)["out_bytes"] - before["out_bytes"]

    n = BLOCK_BYTES
    assert [len(block) for block in cluster.client[:].apply_sync(lambda n: bytes(n), n)] == [n, n]
    wait_until(lambda: sent_bytes() >= 2 * BLOCK_BYTES, 30, "the bytes that it sent")


def test_the_dashboard_shows_other_hosts(hosted):
    cluster = hosted(1, engines=1)
    frames = Frames()
    name = f"host{cluster.network.hosts[1].index}"

    def row() -> dict:
        with cluster.cluster.control() as control:
            look = Look(time.monotonic(), control.status())
            frame = frames.add(look, time.time() * 1e3, control.watch(0, 0), [])
        return next(host for host in frame["hosts"] if host["name"] == name)

    facts = ("cpu_percent", "free_bytes", "memory_bytes", "in_bytes_per_s", "out_bytes_per_s")
    wait_until(lambda: all(row().get(fact) is not None for fact in facts), 30, "figures of the other host")


def test_nothing_is_measured_while_nobody_looks(hosted):
    cluster = hosted(1, engines=1)
    wait_until(lambda: measured(cluster), 30, "an answer of the relay")
    measured(cluster)
    looked_ns = time.monotonic_ns()
    # Heartbeats, of which there are two a second, go on.
    wait_until(lambda: time.monotonic_ns() - looked_ns > 2_000_000_000, 30, "heartbeats")
    unwatched_ns = time.monotonic_ns() - looked_ns
    assert measured(cluster)["ago_ns"] > unwatched_ns / 2, "what is told first is the answer to the last look"


def test_what_an_engine_of_another_host_writes_can_be_read_while_its_task_runs(hosted, tmp_path):
    cluster = hosted(1, engines=1)
    (engine,) = cluster.engines_of(cluster.network.hosts[1])
    end = tmp_path / "end"

    def talk(end):
        import os
        import time

        print("from the task")
        os.write(2, b"below Python\n")
        while not os.path.exists(end):
            time.sleep(0.01)
        print("the end")

    with cluster.cluster.control() as control:
        task = cluster.client[engine].apply_async(talk, str(end))

        def all_of_it() -> bool:
            told = control.written(engine, None)
            output, log = told["output"]["text"], told["log"]["lines"]
            return "from the task" in output and "below Python" in output and "below Python" in log

        wait_until(all_of_it, 30, "output and log of the task")
        told = control.written(engine, None)
        end.touch()
        task.get(30)
        seen = Seen(told["pid"], told["output"]["end"], told["log"]["end"])
        later = control.written(engine, seen)
        assert (later["is_new"], later["output"]["text"]) == (False, "the end\n")

        cluster.network.signal(cluster.network.hosts[1], signal.SIGKILL)
        with pytest.raises(ipp.BroadleafError, match=f"the host of engine {engine} is gone"):
            while True:
                control.written(engine, seen)
