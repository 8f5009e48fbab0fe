"""Who has nothing to do does not run: engines, their host, and a client whose threads wait."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from threading import Event

import broadleaf as ipp
import numpy as np
import pytest
from waiting import until

pytestmark = pytest.mark.timeout(120)

# What the controller and each relay do to notice that the other is gone, in switches of the relay's host.
HEARTBEATS_PER_S = 2
COUNTED_S = 3


def threads_of(pids: Iterable[int]) -> list[Path]:
    return [thread for pid in pids for thread in Path(f"/proc/{pid}/task").iterdir()]


def switches(threads: list[Path]) -> int:
    """How often these threads have been switched to or away from, ever."""
    return sum(
        int(line.split()[1])
        for thread in threads
        for line in (thread / "status").read_text().splitlines()
        if "ctxt_switches" in line
    )


def switches_in(seconds: float, threads: list[Path]) -> int:
    before = switches(threads)
    Event().wait(seconds)
    return switches(threads) - before


def host_of(client: ipp.Client, ids: list[int]) -> list[int]:
    """The processes of these engines, and those of their fork server and node."""
    (server,) = set(client[ids].apply_sync(os.getppid))
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    return [server, *map(int, children)]


@pytest.mark.parametrize("n", [4, 32])
def test_no_thread_of_a_host_wakes_while_nothing_happens(n):
    with ipp.Cluster(n=n, shared_memory_warm_s=1) as rc:
        rc.load_balanced_view().map_sync(abs, range(10_000), chunksize=1)
        rc[:].apply_sync(print, "output is sent while the task runs")
        rc[:].push({"data": np.ones(1_000_000)}, block=True)
        assert rc[0].pull("data", block=True)[0] == 1
        pids = host_of(rc, rc.ids)
        assert len(pids) == n + 2
        # Free memory is released first, which a thread watches.
        assert until(lambda: switches_in(2, threads_of(pids)) == 0, 60), "threads wake although nothing happens"
        assert rc[:].apply_sync(lambda: 7) == [7] * n


@pytest.mark.parametrize("n", [4, 32])
def test_a_host_with_a_relay_wakes_for_heartbeats_however_many_engines_it_has(n):
    cluster = ipp.Cluster(n=0, listen="127.0.0.1:0")
    cluster.start_cluster_sync()
    relay = ipp.Relay(cluster.relay_file, n, name="there")
    try:
        with cluster.connect_client_sync() as rc:
            rc.wait_for_engines(n, timeout=60)
            rc.load_balanced_view().map_sync(abs, range(1_000), chunksize=1)
            pids = host_of(rc, rc.ids)
            assert len(pids) == n + 2
            # One more than there may be: a heartbeat may have come just before or after the time.
            most = HEARTBEATS_PER_S * COUNTED_S + 1
            assert until(lambda: switches_in(COUNTED_S, threads_of(pids)) <= most, 60)
            assert rc[:].apply_sync(lambda: 7) == [7] * n
    finally:
        cluster.stop_cluster_sync()
        relay.stop()


class Waiters:
    """Threads that wait for a task which ends when its file is removed, and how their waits have ended."""

    def __init__(self, client: ipp.Client, file: Path) -> None:
        self.file = file
        file.touch()
        self.result = client[client.ids[0]].apply_async(stay, str(file))
        self.endings: list[str] = []
        self._threads = [threading.Thread(target=self._wait) for _ in range(3)]
        for thread in self._threads:
            thread.start()

    def _wait(self) -> None:
        try:
            self.endings.append(self.result.get())
        except (ipp.TaskAborted, ipp.LinkLost) as error:
            self.endings.append(type(error).__name__)

    def joined(self) -> list[str]:
        for thread in self._threads:
            thread.join(20)
        return self.endings


def stay(file: str) -> str:
    while os.path.exists(file):
        time.sleep(0.01)
    return "returned"


@pytest.fixture
def waiters(rc, tmp_path):
    waiters = Waiters(rc, tmp_path / "stays")
    assert until(lambda: switches_in(1, own_threads()) == 0, 60), "waiting threads wake although nothing happens"
    yield waiters
    waiters.file.unlink(missing_ok=True)
    waiters.joined()


def own_threads() -> list[Path]:
    """The threads of this process but for the one that asks."""
    return [thread for thread in threads_of([os.getpid()]) if int(thread.name) != threading.get_native_id()]


def test_threads_that_wait_for_a_result_sleep_until_it_comes(waiters):
    waiters.file.unlink()
    assert waiters.joined() == ["returned"] * 3


def test_waiting_threads_notice_a_result_that_is_given_up(waiters):
    waiters.result.abandon([0])  # nothing arrives
    assert waiters.joined() == ["TaskAborted"] * 3


def test_waiting_threads_notice_the_end_of_their_connection(cluster, tmp_path):
    with cluster.connect_client_sync() as client:
        waiters = Waiters(client, tmp_path / "stays")
        assert until(lambda: switches_in(1, own_threads()) == 0, 60)
    assert waiters.joined() == ["LinkLost"] * 3
    waiters.file.unlink()


def test_a_callback_is_called_although_waiting_threads_read(rc, waiters):
    called = Event()
    rc[rc.ids[1]].apply_async(int).add_done_callback(lambda _: called.set())
    assert called.wait(20)


def test_whoever_still_waits_reads_when_the_reader_has_its_result(rc, waiters):
    got: list[int] = []

    def wait(k: int) -> None:
        got.append(rc[rc.ids[1 + k % 3]].apply_async(echo_later, k, 0.01 * k).get(20))

    for _ in range(20):
        threads = [threading.Thread(target=wait, args=(k,)) for k in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(25)
        assert sorted(got) == list(range(6))
        got.clear()


def echo_later(value: int, seconds: float) -> int:
    time.sleep(seconds)
    return value
