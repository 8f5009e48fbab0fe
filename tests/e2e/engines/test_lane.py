"""A task for most engines of a host takes its lane: memory that they share with their node. Users see no difference."""

import os
import signal
import threading
import time

import broadleaf as ipp
import pytest
from broadleaf import error
from waiting import until

N = 12

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def clean():
    """Each test here has a cluster of its own."""


@pytest.fixture
def rc():
    with ipp.Cluster(n=N) as client:
        client.wait_for_engines(N, timeout=60)
        yield client


@pytest.fixture(params=[True, False], ids=["coalesced", "each"])
def view(rc, request):
    view = rc.broadcast_view(coalescing=request.param)
    view.push({"me": 0}, block=True)
    view.apply_sync(engine_id)
    return view


def engine_id():
    import os

    return int(os.environ["BROADLEAF_ENGINE_ID"])


@ipp.interactive
def my_value():
    return me  # noqa: F821  # pyright: ignore[reportUndefinedVariable]


def frames(rc):
    """Frames that the node has sent so far."""
    return rc.cluster.status_sync()["links"]["frames_out"]


def test_a_broadcast_sends_no_frame_to_its_engines(rc, view):
    before = frames(rc)
    rounds = 20
    for _ in range(rounds):
        assert view.apply_sync(engine_id) == list(range(N))
    # To the client: a record for each task at the most.
    sent = frames(rc) - before
    assert sent < rounds * N / 2, f"{sent} frames for {rounds} broadcasts to {N} engines"


def test_what_is_sent_otherwise_keeps_its_order(rc, view):
    for n in range(50):
        pushed = rc[:].push({"me": n}, block=False)
        got = view.apply_async(my_value)
        pulled = rc[:].pull("me", block=False)
        single = rc[n % N].apply_async(my_value)
        assert got.get() == [n] * N
        assert pulled.get() == [n] * N
        assert single.get() == n
        pushed.get()


def test_arguments_and_results_of_all_sizes(view):
    for n_bytes in [0, 1, 200, 600, 2_000, 30_000, 300_000] * 3:
        assert view.apply_sync(lambda data: data, b"x" * n_bytes) == [b"x" * n_bytes] * N


def test_errors(view):
    for _ in range(3):
        with pytest.raises(error.CompositeError) as raised:
            view.apply_sync(lambda: 1 / (engine_id() % 2))
        assert len(raised.value.elist) == N // 2


def test_output_comes_with_its_task(view):
    for n in range(20):
        result = view.apply_async(lambda n: print(f"line {n} of {engine_id()}"), n)
        result.get()
        assert result.stdout == [f"line {n} of {engine}\n" for engine in range(N)]


def test_a_long_task_holds_no_other_answer_back(rc, view):
    results = rc.broadcast_view(coalescing=False).apply_async(lambda: time.sleep(30 * (engine_id() == 3)))
    try:
        assert until(lambda: results.progress == N - 1, 20), results.progress
        assert rc[:3].apply_sync(engine_id) == [0, 1, 2]
    finally:
        results.abort()


def test_an_engine_that_dies_in_it_gets_a_certificate_and_the_others_answer(rc, view):
    def die_on(victim):
        if engine_id() == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        return engine_id()

    with pytest.raises(error.CompositeError) as raised:
        view.apply_sync(die_on, 5)
    assert "SIGKILL" in str(raised.value)
    assert len(raised.value.elist) == 1
    assert until(lambda: len(rc.ids) == N - 1, 30)
    others = [engine for engine in range(N) if engine != 5]
    assert rc.broadcast_view(coalescing=True).apply_sync(engine_id) == others


def test_an_interrupt_reaches_those_that_run(view, tmp_path):
    def begin_and_sleep():
        (tmp_path / str(engine_id())).touch()
        time.sleep(60 * (engine_id() % 2))

    result = view.apply_async(begin_and_sleep)
    assert until(lambda: len(list(tmp_path.iterdir())) == N, 20)
    result.abort()
    with pytest.raises(error.BroadleafError):
        result.get(timeout=30)
    assert view.apply_sync(engine_id) == list(range(N))


def test_busy_engines_and_two_clients_at_once(rc, view):
    with rc.cluster.connect_client_sync() as other:
        long = rc[2].apply_async(time.sleep, 0.3)
        wrong = []

        def broadcast(client):
            mine = client.broadcast_view(coalescing=True)
            for _ in range(100):
                if mine.apply_sync(engine_id) != list(range(N)):
                    wrong.append(client)

        threads = [threading.Thread(target=broadcast, args=(client,)) for client in (rc, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        long.get()
        assert not wrong


def test_a_task_of_it_may_broadcast(rc, view):
    def nested():
        inner = ipp.Client().broadcast_view(coalescing=True)
        return inner.apply_sync(engine_id)

    assert rc[0].apply_sync(nested) == list(range(N))
    assert view.apply_sync(engine_id) == list(range(N))


def test_a_task_that_comes_as_a_wait_ends_is_run(rc, view, tmp_path):
    """Engine 0 waits for a task on engine 1 when engine 2 broadcasts. It is stopped, so that both are there at once."""

    def wait_for_another(path):
        def until_told():
            while not os.path.exists(f"{path}.go"):
                time.sleep(0.01)

        with ipp.Client() as client:
            inner = client[1].apply_async(until_told)
            inner.get()

    def broadcast():
        with ipp.Client() as client:
            return client.broadcast_view(coalescing=True).apply_sync(engine_id)

    def completed(engine):
        return rc.queue_status()[engine]["completed"]

    waiting = rc[0].apply_async(wait_for_another, str(tmp_path / "it"))
    assert until(lambda: rc.queue_status()[1]["tasks"] == 1)
    pid = next(engine["pid"] for engine in rc.cluster.status_sync()["engines"] if engine["engine"] == 0)
    done = {engine: completed(engine) for engine in (1, 3)}
    os.kill(pid, signal.SIGSTOP)
    try:
        asked = rc[2].apply_async(broadcast)
        assert until(lambda: completed(3) == done[3] + 1)
        (tmp_path / "it.go").touch()
        assert until(lambda: completed(1) == done[1] + 2)
    finally:
        os.kill(pid, signal.SIGCONT)
    waiting.get(20)
    assert asked.get(20) == list(range(N))


def test_a_relays_engines_have_a_lane_of_their_own(tmp_path):
    cluster = ipp.Cluster(n=1, listen="127.0.0.1:0")
    cluster.start_cluster_sync()
    relay = ipp.Relay(cluster.relay_file, N, name="there")
    try:
        with cluster.connect_client_sync() as client:
            client.wait_for_engines(N + 1, timeout=60)
            view = client.broadcast_view(coalescing=True)
            everywhere = list(range(N + 1))
            for n_bytes in [0, 200, 3_000, 300_000] * 10:
                assert view.apply_sync(lambda data: (engine_id(), len(data)), b"x" * n_bytes) == [
                    (engine, n_bytes) for engine in everywhere
                ]

            def begin_and_sleep():
                (tmp_path / str(engine_id())).touch()
                time.sleep(60 * (engine_id() % 2))

            busy = view.apply_async(begin_and_sleep)
            assert until(lambda: len(list(tmp_path.iterdir())) == N + 1, 20)
            busy.abort()
            with pytest.raises(error.BroadleafError):
                busy.get(timeout=30)
            assert view.apply_sync(engine_id) == everywhere
            with pytest.raises(error.CompositeError, match="SIGKILL"):
                view.apply_sync(lambda: os.kill(os.getpid(), signal.SIGKILL) if engine_id() == 5 else None)
            assert until(lambda: len(client.ids) == N, 30)
            others = [engine for engine in everywhere if engine != 5]
            assert client.broadcast_view(coalescing=True).apply_sync(engine_id) == others
    finally:
        cluster.stop_cluster_sync()
        relay.stop()
