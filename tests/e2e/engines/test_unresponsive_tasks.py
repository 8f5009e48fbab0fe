"""Tasks that do not react when they are aborted: their engine is killed after the grace period."""

from __future__ import annotations

import collections
import itertools
import operator
import os
import signal
import time
from collections.abc import Iterator

import broadleaf as ipp
import pytest
from waiting import until

pytestmark = pytest.mark.timeout(90)

GRACE_S = 0.3


@pytest.fixture(scope="module")
def client() -> Iterator[ipp.Client]:
    cluster = ipp.Cluster(
        n=2, restart_engines=True, max_restarts=1000, restart_backoff_max_s=0.1, interrupt_grace_s=GRACE_S
    )
    client = cluster.start_and_connect_sync()
    yield client
    client.close()
    cluster.stop_cluster_sync()


@pytest.fixture(autouse=True)
def rested(client: ipp.Client) -> Iterator[None]:
    """Both engines are there before and after each test, and idle."""
    client.wait_for_engines(2, timeout=60)
    yield
    assert client.wait(timeout=30), "a test has left tasks behind"


@ipp.interactive
def swallow(path):
    has_begun = False
    while True:
        try:
            if not has_begun:
                open(path, "w").close()
                has_begun = True
            time.sleep(0.01)
        except BaseException:
            pass


# These three say that they run from inside the call that does not react. Between two bytecode instructions they would
# still act on an interrupt, also on one that another thread of the engine received.


@ipp.interactive
def stay_in_c(path):
    collections.deque(itertools.chain(map(os.mkdir, [path]), itertools.repeat(None)), maxlen=0)


@ipp.interactive
def block_the_signal(path):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGURG])
    list(map(operator.call, [os.mkdir, time.sleep], [path, 100]))


@ipp.interactive
def handle_and_go_on(path):
    signal.signal(signal.SIGINT, lambda *_: None)
    open(path, "w").close()
    while True:
        time.sleep(0.01)


@ipp.interactive
def stand_still(path):
    list(map(operator.call, [os.mkdir, os.kill], [path, os.getpid()], [0o700, signal.SIGSTOP]))
    time.sleep(100)


@ipp.interactive
def swallow_on_one(path):
    if engine_id == 1:  # noqa: F821
        swallow(path)
    time.sleep(100)


KINDS = [swallow, stay_in_c, block_the_signal, handle_and_go_on, stand_still]
WAYS = {
    "rc.abort": lambda client, result: client.abort(result),
    "rc.abort of everything": lambda client, result: client.abort(),
    "ar.abort": lambda client, result: result.abort(),
    "ar.cancel": lambda client, result: result.cancel(),
}


def start(client: ipp.Client, kind, path, engine: int = 0) -> ipp.AsyncResult:
    """A task of this kind, once it runs."""
    modules = (collections, itertools, operator, os, signal, time)
    client[engine].push({module.__name__: module for module in modules}, block=True)
    result = client[engine].apply_async(kind, str(path))
    assert until(path.exists)
    return result


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("way", WAYS)
def test_the_engine_of_a_task_that_does_not_react_is_killed(client, kind, way, tmp_path):
    pid = client[0].apply_sync(os.getpid)
    result = start(client, kind, tmp_path / "runs")
    WAYS[way](client, result)
    assert client.wait(result, timeout=30)
    assert result.status == "aborted"
    with pytest.raises(ipp.TaskAborted):
        result.get(0)
    client.wait_for_engines(2, timeout=60)
    assert client[0].apply_async(os.getpid).get(30) != pid, "the engine that was started again"
    death = client.death_certificate(0)
    assert death is not None
    assert death.cause == "unresponsive"
    assert "did not end in time after a timeout or an abort" in death.reason


def test_a_future_of_an_executor_is_cancelled_whatever_its_task_does(client, tmp_path):
    view = client.load_balanced_view([0])
    pid = view.apply_sync(os.getpid)
    client[0].push({"time": time}, block=True)
    with view.executor as pool:
        future = pool.submit(swallow, str(tmp_path / "runs"))
        assert until((tmp_path / "runs").exists)
        assert future.cancel()
        assert future.cancelled()
        assert pool.submit(os.getpid).result(30) != pid


def test_ctrl_c_ends_a_task_that_does_not_react(client, tmp_path):
    result = start(client, stay_in_c, tmp_path / "runs")
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            result.get(60)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert client.wait(timeout=30)
    assert result.status == "aborted"


@pytest.mark.parametrize("coalescing", [False, True])
def test_of_a_broadcast_only_the_engine_that_does_not_react_is_killed(client, coalescing, tmp_path):
    view = client.broadcast_view(coalescing=coalescing)
    pids = view.apply_sync(os.getpid)
    view.push({"time": time}, block=True)

    view.push({"swallow": swallow}, block=True)
    result = view.apply_async(swallow_on_one, str(tmp_path / "runs"))
    assert until((tmp_path / "runs").exists)
    result.abort()
    assert client.wait(result, timeout=30)
    assert result.status == ["aborted", "aborted"]
    client.wait_for_engines(2, timeout=60)
    after = client[:].apply_async(os.getpid).get(30)
    assert (after[0] == pids[0], after[1] == pids[1]) == (True, False)


@pytest.mark.parametrize("kind", [swallow, stay_in_c], ids=lambda kind: kind.__name__)
def test_on_another_host(kind, tmp_path):
    cluster = ipp.Cluster(n=1, listen="127.0.0.1:0", restart_engines=True, interrupt_grace_s=GRACE_S)
    cluster.start_cluster_sync()
    relay = ipp.Relay(cluster.relay_file, 1, name="other")
    with cluster.connect_client_sync() as there:
        there.wait_for_engines(2, timeout=30)
        pids = there[:].apply_sync(os.getpid)
        result = start(there, kind, tmp_path / "runs", engine=1)
        assert result.cancel()
        assert there.wait(timeout=30)
        there.wait_for_engines(2, timeout=60)
        after = there[:].apply_async(os.getpid).get(30)
        assert (after[0] == pids[0], after[1] == pids[1]) == (True, False)
    cluster.stop_cluster_sync()
    assert relay.wait(20) == 0
    relay.stop()


def test_retries_and_tasks_behind_it_are_not_affected(client, tmp_path):
    client[:].push({"time": time}, block=True)
    view = client.load_balanced_view([0], retries=3)
    running = view.apply_async(swallow, str(tmp_path / "runs"))
    assert until((tmp_path / "runs").exists)
    behind = [view.apply_async(abs, -n) for n in range(20)]
    pinned = client[0].apply_async(abs, -7)
    (tmp_path / "runs").unlink()
    running.abort()
    assert [result.get(30) for result in behind] == list(range(20))
    assert pinned.get(30) == 7
    assert running.status == "aborted"
    assert not (tmp_path / "runs").exists(), "what was aborted does not run again"


def test_sigint_ignored_by_an_earlier_task_does_not_protect_the_next():
    """It ends a second later than others, and its engine need not be killed."""
    with ipp.Cluster(n=1, interrupt_grace_s=30) as other:
        pid = other[0].apply_sync(os.getpid)
        other[0].apply_sync(lambda: signal.signal(signal.SIGINT, signal.SIG_IGN) and None)
        result = other[0].apply_async(time.sleep, 100)
        assert until(result.running)
        result.abort()
        assert other.wait(result, timeout=20)
        assert result.status == "aborted"
        assert other[0].apply_sync(os.getpid) == pid


def test_without_restarts_the_other_engines_go_on(tmp_path):
    with ipp.Cluster(n=2, interrupt_grace_s=GRACE_S) as other:
        result = start(other, swallow, tmp_path / "runs")
        behind = other[0].apply_async(abs, -1)
        assert result.cancel()
        with pytest.raises(ipp.EngineError, match="did not end in time"):
            behind.get(30)
        assert other.load_balanced_view().map_sync(abs, range(-10, 0)) == list(range(10, 0, -1))


def test_a_dropped_iterator_lets_a_task_take_its_time(client, gate):
    """Its tasks are interrupted, and no engine is killed: nobody has asked for that."""
    pids = client[:].apply_sync(os.getpid)
    held = gate.task()

    def deaf(value):
        if value:
            while True:
                try:
                    return held(value)
                except KeyboardInterrupt:
                    pass
        return value

    values = client.load_balanced_view().imap(deaf, [0, 1])
    assert next(values) == 0
    gate.wait_for_tasks()
    del values
    assert not client.wait(timeout=4 * GRACE_S)
    gate.open()
    assert client.wait(timeout=30)
    assert client[:].apply_sync(os.getpid) == pids
