"""Ended tasks as the cluster stores them: for other clients, for clients that come back, and to run them again."""

import time
from datetime import datetime

import broadleaf as ipp
import pytest
from broadleaf import Cluster
from waiting import until


@ipp.interactive
def count(path):
    with open(path, "a") as file:
        file.write("x")
    with open(path) as file:
        return len(file.read())


@pytest.fixture
def other(cluster):
    client = cluster.connect_client_sync()
    yield client
    client.close()


def test_another_client_gets_a_result_by_its_id(rc, other):
    ar = rc[:].apply_async(lambda x: [x] * 3, 7)
    values = ar.get(20)
    got = other.get_result(ar.msg_ids)
    assert isinstance(got, ipp.AsyncHubResult)
    assert got.get(20) == values
    assert got.msg_ids == ar.msg_ids
    assert got.engine_id == ar.engine_id
    assert got.completed == ar.completed
    assert abs((got.submitted[0] - ar.submitted[0]).total_seconds()) < 60
    assert other.get_result(ar.msg_ids[2]).get(20) == [7] * 3


def test_a_result_is_waited_for_that_is_not_there_yet(rc, other, tmp_path):
    go = tmp_path / "go"

    def wait_for(path):
        import os
        import time

        while not os.path.exists(path):
            time.sleep(0.01)
        return "went"

    ar = rc.load_balanced_view().apply_async(wait_for, str(go))
    [msg_id] = ar.msg_ids
    rc.link.flush()
    assert until(lambda: msg_id in other.hub_history())
    got = other.get_result(msg_id)
    assert not got.ready()
    assert other.result_status(msg_id) == {"completed": [], "pending": [msg_id]}
    assert other.db_query({"msg_id": msg_id}, "completed") == [{"msg_id": msg_id, "completed": None}]
    go.touch()
    assert got.get(20) == ar.get(20) == "went"
    assert other.result_status([msg_id], status_only=False) == {"completed": [msg_id], "pending": [], msg_id: "went"}


def test_failures_are_kept_too(rc, other):
    ar = rc[1].apply_async(lambda: 1 / 0)
    ar.wait(20)
    with pytest.raises(ipp.RemoteError, match="division"):
        other.get_result(ar.msg_ids[0]).get(20)
    assert other.db_query({"msg_id": ar.msg_ids[0]})[0]["status"] == "error"


def test_a_client_leaves_and_another_finds_what_it_left(cluster, other, tmp_path):
    def array_once_left(n, left):
        import time

        import numpy

        while not left.exists():
            time.sleep(0.005)
        return numpy.arange(n)

    leaver = cluster.connect_client_sync()
    results = [leaver.load_balanced_view().apply_async(time.sleep, 0.05) for _ in range(12)]
    mapped = leaver[:].map_async(lambda x: x * x, range(8))
    numpy = pytest.importorskip("numpy")
    # A large result that arrived before its client left belongs to that client, and is not stored.
    array = leaver[3].apply_async(array_once_left, 50_000, tmp_path / "left")
    ids = [msg_id for ar in results for msg_id in ar.msg_ids]
    leaver.leave()
    assert leaver.closed
    (tmp_path / "left").touch()
    with pytest.raises(ipp.LinkLost):
        leaver[0]["x"] = 1
    assert other.get_result(ids).get(20) == [None] * 12
    assert [x for chunk in other.get_result(mapped.msg_ids).get(20) for x in chunk] == [x * x for x in range(8)]
    assert (other.get_result(array.msg_ids[0]).get(20) == numpy.arange(50_000)).all()
    assert all(record["client_uuid"] == leaver.tasks.session for record in other.db_query({"msg_id": {"$in": ids}}))


def test_tasks_of_a_client_that_closes_do_not_start(cluster, other, gate, tmp_path):
    closer = cluster.connect_client_sync()
    running = closer[0].apply_async(gate.task())
    queued = closer[0].apply_async(count, str(tmp_path / "count"))
    awaited = other.get_result(queued.msg_ids[0]) if queued.msg_ids[0] in other.hub_history() else None
    ids = running.msg_ids + queued.msg_ids
    closer.close()
    assert until(lambda: not other.db_query({"msg_id": {"$in": ids}, "completed": None}))
    gate.open()
    with pytest.raises(KeyError, match="no result"):
        other.get_result(queued.msg_ids[0])
    if awaited is not None:
        with pytest.raises(ipp.TaskAborted):
            awaited.get(20)
    assert other[0].apply_sync(int) == 0, "the engine goes on"
    assert not (tmp_path / "count").exists()


def test_own_results_are_found_again_after_they_were_dropped(rc):
    ar = rc[0].apply_async(lambda: "kept")
    [msg_id] = ar.msg_ids
    ar.get(20)
    del ar
    assert rc.get_result(msg_id).get(20) == "kept"
    assert rc.get_result(-1).get(20) == "kept"
    rc.purge_hub_results(msg_id)
    with pytest.raises(KeyError):
        rc.get_result(msg_id)


def test_tasks_are_run_again(rc, other, tmp_path):
    path = str(tmp_path / "count")
    view = rc.load_balanced_view()
    ar = view.apply_async(count, path)
    assert ar.get(20) == 1
    again = rc.resubmit(ar.msg_ids)
    assert again.get(20) == [2]
    assert again.msg_ids != ar.msg_ids
    assert other.resubmit(again.msg_ids[0]).get(20) == 3
    pinned = rc[2].apply_async(count, path)
    pinned.get(20)
    assert other.resubmit(pinned.msg_ids[0], block=True).engine_id == 2
    with view.temp_flags(label="again", retries=1):
        labelled = view.apply_async(count, path)
    labelled.get(20)
    ahr = other.resubmit(labelled.msg_ids)
    ahr.get(20)
    assert other.db_query({"label": "again"}, "msg_id") == [{"msg_id": i} for i in labelled.msg_ids + ahr.msg_ids]
    aborted = rc[1].apply_async(time.sleep, 30)
    aborted.abort()
    aborted.wait(20)
    for unknown in ("invalid", rc.tasks.msg_id(10**9), "otherkey-0_0"):
        with pytest.raises(KeyError):
            rc.resubmit([unknown])


def test_a_running_task_is_run_again(rc):
    ar = rc.load_balanced_view().apply_async(time.sleep, 0.3)
    again = rc.resubmit(ar.msg_ids)
    assert ar.get(20) is None
    assert again.get(20) == [None]


def test_history_and_queries(rc, other):
    rc.purge_results("all")
    assert rc.hub_history() == []
    for _ in range(4):
        rc[:].apply_sync(lambda: 1)
    history = other.hub_history()
    assert history == rc.history[-16:]
    middle = other.db_query({"msg_id": history[8]})[0]
    tic = middle["submitted"]
    assert isinstance(tic, datetime)
    before = other.db_query({"submitted": {"$lt": tic}})
    after = other.db_query({"submitted": {"$gte": tic}}, keys=["submitted"])
    assert len(before) + len(after) == 16
    assert all(record["submitted"] < tic for record in before)
    assert all(set(record) == {"msg_id", "submitted"} for record in after)
    assert other.db_query({"submitted": tic})
    even = {record["msg_id"] for record in other.db_query({"msg_id": {"$in": history[::2]}})}
    odd = {record["msg_id"] for record in other.db_query({"msg_id": {"$nin": history[::2]}})}
    assert (even, odd) == (set(history[::2]), set(history[1::2]))
    assert len(other.db_query({"msg_id": {"$glob": history[0][:-1] + "*"}, "engine_id": 0})) >= 1
    with pytest.raises(ValueError, match="operator"):
        other.db_query({"msg_id": {"$like": "x"}})
    other.purge_hub_results(targets=[0])
    assert len(other.hub_history()) == 12
    rc.purge_everything()
    assert (rc.hub_history(), rc.history) == ([], [])


def test_what_is_kept_stays_within_its_bound():
    with Cluster(n=1, kept_results_bytes=10_000) as rc:
        view = rc.load_balanced_view()
        big = view.apply_async(lambda: b"x" * 9_000)
        big.get(20)
        assert rc.resubmit(big.msg_ids).get(20)
        assert len(rc.hub_history()) == 1
        with pytest.raises(KeyError):
            rc.resubmit(big.msg_ids)
        too_big = view.apply_async(lambda: b"x" * 20_000)
        too_big.get(20)
        ids = too_big.msg_ids
        del too_big
        assert rc.db_query({"msg_id": ids[0]}, "has_result") == [{"msg_id": ids[0], "has_result": False}]
        with pytest.raises(KeyError, match="kept_results_bytes"):
            rc.get_result(ids)
        view.map_sync(abs, range(1000), chunksize=1)
        controller = rc.status()["controller"]
        assert 20 < controller["kept_tasks"] < 50
        assert controller["kept_bytes"] <= 10_000
    with Cluster(n=1, kept_results_bytes=0) as rc:
        rc[0].apply_sync(abs, 1)
        assert rc.hub_history() == []


def test_threads_of_one_client_submit_at_once(rc, lview):
    """Task numbers may reach the controller in another order than they were given out in."""
    import sys
    import threading

    class Slow:
        def __init__(self, i):
            self.i = i

        def __reduce__(self):
            return int, (self.i,)

    stop = threading.Event()
    others = []

    def submit():
        view = rc.load_balanced_view()
        while not stop.is_set():
            others.append(view.apply_async(abs, -1))
            if len(others) % 1000 == 0:
                others[-1].wait()  # more would only delay the results that are awaited beside them

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=submit)
    try:
        sys.setswitchinterval(1e-5)
        thread.start()
        for _ in range(3):
            values = lview.map_async(int, [Slow(i) for i in range(500)], chunksize=1)
            assert values.get(20) == list(range(500))
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert rc.wait(timeout=20)
    assert all(ar.get() == 1 for ar in others)
