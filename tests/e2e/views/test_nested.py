"""Tasks that submit tasks and wait for them, with fewer engines than tasks that wait."""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, as_completed, wait
from pathlib import Path

import broadleaf as ipp
import pytest
from waiting import until

pytestmark = pytest.mark.timeout(120)

WAIT_S = 30


@pytest.fixture(scope="module")
def cluster() -> Iterator[ipp.Cluster]:
    """A cluster of two engines: every test here has more waiting tasks than that."""
    cluster = ipp.Cluster(n=2, restart_engines=True)
    cluster.start_cluster_sync()
    yield cluster
    cluster.stop_cluster_sync()


@pytest.fixture(scope="module")
def rc(cluster: ipp.Cluster) -> Iterator[ipp.Client]:
    client = cluster.connect_client_sync()
    client.wait_for_engines(2, timeout=30)
    yield client
    client.close()


def square_sum(n):
    import broadleaf as ipp

    return sum(ipp.get_client().load_balanced_view().map_sync(lambda i: i * i, range(n)))


def square_sums(n):
    import broadleaf as ipp

    return sum(ipp.get_client().load_balanced_view().map_sync(square_sum, range(n)))


def here():
    return int(os.environ["BROADLEAF_ENGINE_ID"])


def fibonacci(n):
    import broadleaf as ipp

    if n < 2:
        return n
    view = ipp.get_client().load_balanced_view()
    before, last = view.apply_async(fibonacci, n - 2), view.apply_async(fibonacci, n - 1)
    return before.get() + last.get()


@pytest.fixture
def push_functions(dview):
    """Functions that call each other, on every engine."""
    names = {"square_sum": square_sum, "square_sums": square_sums, "fibonacci": fibonacci}
    dview.push(names, block=True)


def memory_of_engines(dview) -> int:
    def resident_bytes():
        import gc
        import resource

        gc.collect()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    return max(dview.apply_sync(resident_bytes))


def test_maps_three_levels_deep_finish_and_leave_no_memory_behind(lview, dview, push_functions):
    expected = [sum(sum(i * i for i in range(k)) for k in range(n)) for n in range(6)]
    after_ten = 0
    for n in range(100):
        assert lview.map_async(square_sums, range(6)).get(WAIT_S) == expected
        if n == 9:
            after_ten = memory_of_engines(dview)
    assert memory_of_engines(dview) < after_ten + 16 * 2**20


def test_recursion_ten_deep(lview, push_functions):
    assert lview.apply_async(fibonacci, 10).get(WAIT_S) == 55


def test_recursion_on_one_engine(rc, dview, push_functions):
    only_here = rc.load_balanced_view([0])
    assert only_here.apply_async(fibonacci, 10).get(WAIT_S) == 55


def test_recursion_without_end_is_an_error(lview):
    def deeper(n):
        import broadleaf as ipp

        return ipp.get_client().load_balanced_view().apply_sync(deeper, n + 1)

    with pytest.raises(ipp.RemoteError) as caught:
        lview.apply_async(deeper, 0).get(WAIT_S)
    assert "RecursionError" in str(caught.value)
    assert "nested 64 deep" in str(caught.value)


def test_a_direct_view_of_all_engines_includes_the_callers_own(rc):
    def everywhere():
        import broadleaf as ipp

        return ipp.get_client()[:].apply_sync(here)

    assert rc[0].apply_async(everywhere).get(WAIT_S) == [0, 1]
    assert rc[:].apply_async(everywhere).get(WAIT_S) == [[0, 1], [0, 1]]


def test_variables_are_pushed_from_a_task_to_its_own_engine(rc):
    def push():
        import broadleaf as ipp

        ipp.get_client()[:].push({"pushed": 7}, block=True)
        return sys.modules["__main__"].pushed

    assert rc[0].apply_async(push).get(WAIT_S) == 7


def waits_by(way):
    """Waits for three tasks of this task in one of the possible ways."""
    import broadleaf as ipp

    rc = ipp.get_client()
    view = rc.load_balanced_view()
    if way == "get":
        return [ar.get() for ar in [view.apply_async(abs, -i) for i in range(3)]]
    if way == "result":
        return [future.result() for future in [view.apply_async(abs, -i) for i in range(3)]]
    if way == "iteration":
        return list(view.map_async(abs, [0, -1, -2]))
    if way == "unordered":
        return sorted(view.map_async(abs, [0, -1, -2], ordered=False))
    if way == "imap":
        return list(view.imap(abs, [0, -1, -2]))
    if way == "imap unordered":
        return sorted(view.imap(abs, [0, -1, -2], ordered=False))
    if way == "executor":
        with rc.executor() as executor:
            return list(executor.map(abs, [0, -1, -2]))
    if way == "submit":
        futures = [rc.executor().submit(abs, -i) for i in range(3)]
        return [future.result() for future in futures]
    results = [view.apply_async(abs, -i) for i in range(3)]
    if way == "client.wait":
        rc.wait(results)
    elif way == "client.wait for all":
        rc.wait()
    elif way == "view.wait":
        view.wait()
    elif way == "interactive":
        results[-1].wait_interactive(interval=0.01)
    elif way == "joined":
        return ipp.AsyncResult.join(*results).get()
    elif way == "joined, counted":
        ipp.AsyncResult.join(*results).wait(return_when="FIRST_COMPLETED")
    elif way == "futures.wait":
        assert not wait(results).not_done
    elif way == "futures.wait for one":
        assert wait(results, return_when=FIRST_COMPLETED).done
    elif way == "as_completed":
        return sorted(future.result() for future in as_completed(results))
    elif way == "client":
        with ipp.Client() as another:
            return another.load_balanced_view().map_sync(abs, [0, -1, -2])
    return [ar.get() for ar in results]


WAYS = [
    "get", "result", "iteration", "unordered", "imap", "imap unordered", "executor", "submit", "client.wait",
    "client.wait for all", "view.wait", "interactive", "joined", "joined, counted", "futures.wait",
    "futures.wait for one", "as_completed", "client",
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_wait_frees_the_engine(way, lview):
    assert lview.map_async(waits_by, [way] * 4).get(WAIT_S) == [[0, 1, 2]] * 4


def test_joblib_in_a_task(lview):
    def parallel(n):
        import broadleaf
        from joblib import Parallel, delayed

        broadleaf.register_joblib_backend()
        return Parallel(backend="broadleaf")(delayed(abs)(-i) for i in range(n))

    assert lview.map_async(parallel, [4] * 4).get(WAIT_S) == [[0, 1, 2, 3]] * 4


def test_a_submission_that_waits_for_room_frees_the_engine():
    def many(n):
        import broadleaf as ipp

        view = ipp.get_client().load_balanced_view()
        return sum(ar.get() for ar in [view.apply_async(abs, -1) for _ in range(n)])

    with ipp.Cluster(n=1, max_outstanding_tasks=10) as rc:
        assert rc.load_balanced_view().apply_async(many, 100).get(WAIT_S) == 100


def test_more_tasks_than_a_claim_board_has_slots(rc):
    def many(n):
        import broadleaf as ipp

        return sum(ipp.get_client().load_balanced_view([0]).map_sync(abs, range(n), chunksize=1))

    assert rc[0].apply_async(many, 6000).get(WAIT_S) == sum(range(6000))


def test_arrays_are_passed_through_all_levels(lview):
    np = pytest.importorskip("numpy")

    def doubled(a, levels):
        import broadleaf as ipp

        if levels == 0:
            return 2 * a
        return ipp.get_client().load_balanced_view().apply_sync(doubled, a, levels - 1)

    data = np.arange(200_000.0)
    for got in [lview.apply_async(doubled, data, 3) for _ in range(3)]:
        assert np.array_equal(got.get(WAIT_S), 2 * data)


def test_each_tasks_output_is_its_own(lview):
    def talk(levels):
        import broadleaf as ipp

        print(f"begin {levels};", end="")
        inner = ""
        if levels:
            ar = ipp.get_client().load_balanced_view().apply_async(talk, levels - 1)
            ar.get()
            inner = ar.stdout
        print(f"end {levels}")
        return inner

    results = [lview.apply_async(talk, 2) for _ in range(4)]
    for ar in results:
        assert ar.get(WAIT_S) == "begin 1;end 1\n"
        assert ar.stdout == "begin 2;end 2\n"


def test_an_error_of_an_inner_task_is_the_inner_tasks_own(lview):
    def fail(text):
        raise ValueError(text)

    def outer():
        import broadleaf as ipp

        try:
            raise KeyError("of the outer task")
        except KeyError:
            ar = ipp.get_client().load_balanced_view([here()]).apply_async(fail, "of the inner task")
            ar.wait()
        error = ar.exception()
        return type(error).__name__, error.ename, error.traceback

    _, ename, text = lview.apply_async(outer).get(WAIT_S)
    assert ename == "ValueError"
    assert "of the inner task" in text
    assert "of the outer task" not in text, text

    def outer_fails():
        import broadleaf as ipp

        ipp.get_client().load_balanced_view().apply_sync(fail, "deep down")

    for ar in [lview.apply_async(outer_fails) for _ in range(3)]:
        with pytest.raises(ipp.RemoteError, match="deep down"):
            ar.get(WAIT_S)


def test_awaiting_in_a_task_on_top_of_one_that_awaits(rc):
    outer = rc[0].execute(
        "import asyncio, broadleaf\n"
        "await asyncio.sleep(0)\n"
        "broadleaf.get_client()[0].execute('import asyncio; await asyncio.sleep(0); x = 1', block=True)\n"
        "y = asyncio.get_running_loop().is_running()\n"
    )
    outer.get(WAIT_S)
    assert rc[0].pull(["x", "y"], block=True) == [1, True]


def test_a_nested_task_has_as_many_frames_as_any(lview):
    def recurse(n):
        return 0 if n == 0 else 1 + recurse(n - 1)

    def deep(levels):
        import broadleaf as ipp

        if levels == 0:
            nested: list[object] = []
            for _ in range(950):
                nested = [nested]
            return recurse(950), len(repr(nested))
        return ipp.get_client().load_balanced_view([here()]).apply_sync(deep, levels - 1)

    assert lview.apply_async(deep, 63).get(WAIT_S) == (950, 1902)


def test_the_inner_tasks_engine_dies(rc, lview):
    before = [rc.engine_uuid(engine) for engine in rc.ids]

    def kill():
        os.kill(os.getpid(), 9)

    def outer():
        import broadleaf as ipp

        other = 1 - here()
        try:
            ipp.get_client()[other].apply_sync(kill)
        except ipp.EngineError as error:
            return str(error)
        return "it lives"

    assert "signal 9" in rc[0].apply_async(outer).get(WAIT_S).replace("SIGKILL", "signal 9")

    def outer_here():
        import broadleaf as ipp

        ipp.get_client()[here()].apply_sync(kill)

    with pytest.raises(ipp.EngineError) as caught:
        rc[0].apply_async(outer_here).get(WAIT_S)
    assert caught.value.engine_info["engine_id"] == 0
    deadline = time.monotonic() + WAIT_S
    while len(rc.ids) < 2 or set(before) & {rc.engine_uuid(engine) for engine in rc.ids}:
        assert time.monotonic() < deadline
        rc.wait_for_engines(2, timeout=WAIT_S)
    assert lview.map_async(square_sum, [3] * 4).get(WAIT_S) == [5] * 4


def test_an_aborted_task_stops_waiting_and_aborts_what_it_waits_for(rc, lview, tmp_path):
    started = tmp_path / "started"

    def endless(path):
        Path(path).write_text("")
        time.sleep(600)

    def outer(path):
        import broadleaf as ipp

        ipp.get_client()[1].apply_sync(endless, path)

    ar = rc[0].apply_async(outer, str(started))
    assert until(started.exists)
    ar.abort()
    with pytest.raises(ipp.TaskAborted):
        ar.get(WAIT_S)
    assert lview.map_async(square_sum, [3] * 4).get(WAIT_S) == [5] * 4


def test_an_abort_waits_for_the_task_on_top_and_does_not_hit_it(rc, tmp_path):
    started, go = tmp_path / "started", tmp_path / "go"

    def inner(started, go):
        Path(started).write_text("")
        while not os.path.exists(go):
            time.sleep(0.01)
        return "whole"

    def outer(*paths):
        import broadleaf as ipp

        ar = ipp.get_client()[0].apply_async(inner, *paths)
        try:
            ar.get()
        except KeyboardInterrupt:
            Path(paths[0]).write_text(ar.get())
            raise

    ar = rc[0].apply_async(outer, str(started), str(go))
    assert until(started.exists)
    ar.abort()
    assert not ar.wait(0.2)
    go.write_text("")
    with pytest.raises(ipp.TaskAborted):
        ar.get(WAIT_S)
    assert started.read_text() == "whole"


def test_a_task_whose_time_is_over_while_another_runs_on_top_of_it(tmp_path):
    go = tmp_path / "go"

    def inner(go):
        while not os.path.exists(go):
            time.sleep(0.01)
        return os.getpid()

    def outer(go):
        import broadleaf as ipp

        return ipp.get_client()[0].apply_sync(inner, go)

    with ipp.Cluster(n=1, interrupt_grace_s=4) as rc:
        view = rc.load_balanced_view()
        pid = rc[0].apply_sync(os.getpid)
        view.apply_sync(lambda: __import__("broadleaf").get_client().ids)  # takes long the first time
        with view.temp_flags(timeout=6):
            ar = view.apply_async(outer, str(go))
        assert not ar.wait(11), "its engine is not killed for it"
        go.write_text("")
        with pytest.raises(ipp.TaskTimeout):
            ar.get(WAIT_S)
        assert rc[0].apply_async(os.getpid).get(WAIT_S) == pid


def test_results_that_are_dropped_leave_nothing_behind(cluster, lview):
    def forgetful():
        import broadleaf as ipp

        view = ipp.get_client().load_balanced_view()
        for _ in range(5):
            view.apply_async(abs, -1)

    for ar in [lview.apply_async(forgetful) for _ in range(20)]:
        ar.get(WAIT_S)
    assert until(lambda: cluster.status_sync()["controller"]["live"] == 0)


def test_a_forked_child_of_a_task_is_no_engine(lview):
    def forks():
        import multiprocessing

        import broadleaf as ipp

        def child(queue):
            queue.put(ipp.get_client().load_balanced_view().apply_sync(abs, -3))

        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        process = context.Process(target=child, args=(queue,))
        process.start()
        value = queue.get()
        process.join()
        return value

    assert lview.apply_async(forks).get(WAIT_S) == 3


def test_get_client_outside_of_a_task():
    with pytest.raises(ipp.ClusterConnectionError, match="only in a task on an engine"):
        ipp.get_client()


def test_a_client_cannot_be_sent_and_the_error_says_what_to_do(rc, lview):
    with pytest.raises(TypeError, match=r"get_client\(\) inside the task"):
        pickle.dumps(rc)
    with pytest.raises(ipp.SerializationError, match=r"get_client\(\) inside the task"):
        lview.apply_async(lambda: rc.ids)


def test_get_client_gives_the_same_client_again(rc):
    def clients():
        import broadleaf as ipp

        return ipp.get_client() is ipp.get_client(), ipp.get_client().ids

    assert rc[0].apply_async(clients).get(WAIT_S) == (True, [0, 1])


def test_closing_the_client_of_a_task_does_not_close_that_of_the_task_below(rc):
    def closes():
        import broadleaf as ipp

        with ipp.get_client() as client:
            return client.load_balanced_view([here()]).apply_sync(abs, -1)

    def outer():
        import broadleaf as ipp

        view = ipp.get_client().load_balanced_view([here()])
        return [view.apply_sync(closes) for _ in range(3)]

    assert rc[0].apply_async(outer).get(WAIT_S) == [1, 1, 1]
