"""Views and results with the fake: what must hold however the bytes are moved."""

import concurrent.futures
import signal
import weakref

import broadleaf as ipp
import fake_native
import pytest
from broadleaf.client.partition import automatic_chunk_items, join_parts, part_of
from waiting import until


def test_calls_and_variables(rc):
    assert rc[:].apply_sync(lambda x: x + 1, 2) == [3] * 4
    rc[:]["a"] = 5
    rc[:].execute("b = a + engine_id", block=True)
    assert rc[:]["b"] == [5, 6, 7, 8]
    assert rc.load_balanced_view().map_sync(lambda x: x * x, range(3000)) == [x * x for x in range(3000)]


def test_a_flag_makes_new_submitters(rc):
    view = rc.load_balanced_view()
    view.apply_sync(abs, 1)
    before = view._submit_one
    view.apply_sync(abs, 1)
    assert view._submit_one is before
    with view.temp_flags(label="x", priority=3, retries=1):
        assert view._submit_one is None
        assert view.apply_async(abs, 1).label == "x"
    assert view.apply_async(abs, 1).label is None
    with pytest.raises(ValueError):
        view.retries = -1
    with pytest.raises(TypeError):
        view.timeout = "long"


def test_a_result_is_made_without_a_futures_machinery(rc):
    ar = rc.load_balanced_view().apply_async(abs, -1)
    assert ar.get() == 1
    assert "_condition" not in ar.__dict__
    assert concurrent.futures.wait([ar]).done == {ar}
    assert "_condition" in ar.__dict__


def test_callbacks_come_once_each(rc, gate):
    calls = []
    ar = rc[0].apply_async(gate.task())
    for i in range(3):
        ar.add_done_callback(lambda f, i=i: calls.append((i, f)))
    gate.open()
    assert ar.get() is None
    concurrent.futures.wait([ar])
    assert until(lambda: len(calls) >= 3)
    assert calls == [(0, ar), (1, ar), (2, ar)]


def test_split_children_are_futures_of_their_own(rc, gate):
    task = gate.task()

    def held(engine):
        return None if engine == 0 else task()

    ar = rc[:].apply_async(held, ipp.Reference("engine_id"))
    done, pending = concurrent.futures.wait(ar.split(), return_when=concurrent.futures.FIRST_COMPLETED)
    assert len(done) == 1
    assert len(pending) == 3
    gate.open()
    assert concurrent.futures.wait(ar.split()).not_done == set()
    assert [child.get() for child in ar.split()] == [None] * 4


def test_first_completed_of_several_results(rc, gate):
    results = [rc[0].apply_async(gate.task()), rc[1].apply_async(bool)]
    joined = ipp.AsyncResult.join(*results)
    done, pending = joined.wait(return_when=ipp.FIRST_COMPLETED)
    assert [r.engine_id for r in done] == [1]
    assert [r.engine_id for r in pending] == [0]
    gate.open()
    assert joined.get() == [None, False]
    assert joined.completed_part(0) == 1


def test_a_dead_engines_task(rc):
    ar = rc[1].apply_async(_die)
    with pytest.raises(ipp.EngineError, match="SIGSEGV"):
        ar.get()
    assert rc.ids == [0, 2, 3]
    with pytest.raises(IndexError, match="No such engine: 1: it was ended by signal 11"):
        rc[1]
    assert ar.engine_uuid == "uuid1"


def _die():
    raise fake_native.EngineDeath


def test_a_death_is_known_before_its_event_is_told(rc, monkeypatch):
    """Events are told by a thread that may come to it after the error of a call."""
    monkeypatch.setattr(rc.link.hooks, "on_event", lambda kind, body: None)
    with pytest.raises(ipp.EngineError):
        rc[2].apply_sync(_die)
    assert rc.ids == [0, 1, 3]
    assert rc.death_certificate(2).code == signal.SIGSEGV
    with pytest.raises(IndexError, match=r"2: it .*SIGSEGV"):
        rc[2].apply_sync(abs, 1)


def test_results_are_found_while_they_live(rc):
    ar = rc[:].apply_async(abs, 1)
    assert rc.get_result(ar.msg_ids) is ar
    assert rc.get_result(ar.msg_ids[2]).get() == 1
    assert rc.get_result(-1).get() == 1
    ids = ar.msg_ids
    gone = weakref.ref(ar)
    del ar
    assert until(lambda: gone() is None)
    with pytest.raises(KeyError):
        rc.get_result(ids)
    assert ids[0] not in rc.results


def test_owned_results_are_in_nobodys_way(rc):
    ar = rc[0].apply_async(abs, 1)
    ar.get()
    assert ar.msg_ids[0] not in rc.results
    ar.owner = False
    assert rc.results[ar.msg_ids[0]] == 1
    assert rc.metadata[ar.msg_ids[0]]["engine_id"] == 0
    rc.purge_results("all")
    assert ar.msg_ids[0] in rc.history


def test_a_client_goes_on_with_another_controller(rc, gate):
    first = rc[0].apply_async(abs, -1)
    assert first.get() == 1
    [first_id] = first.msg_ids
    lost = rc[0].apply_async(gate.task())
    hub, told = rc.hub, []
    rc.on_reconnect(lambda: told.append((rc.hub is hub, rc.tasks.session)))
    rc.on_event("controller_lost", "the peer closed the connection")
    assert not rc.closed
    rc.link.client_id = 2
    for kind in ("successor", "link_resumed"):
        assert not told, "before anybody else uses the link, it is told what the earlier controller was"
        rc.on_event(kind, None)
    later = rc[0].apply_async(abs, -2)
    assert told == [(False, later.msg_ids[0].rpartition("_")[0])]
    assert first.msg_ids == [first_id]
    assert first_id.rpartition("_")[0] != later.msg_ids[0].rpartition("_")[0]
    assert [rc.tasks.seq_of(i) for i in (first_id, *later.msg_ids)] == [first.seq, later.seq]
    of_other = f"{rc.tasks.session}_{first.seq}"
    assert rc.tasks.seq_of(of_other) is None, "no task of the earlier controller has such an id"
    error = rc.link_ends[rc.tasks.session_number(lost.seq)].lost_task(rc, has_written=False)
    assert "the one that was started in its place" in str(error)
    assert rc.link_ends[rc.tasks.session_number(later.seq)].sequel == ""
    gate.open()


def test_a_controller_that_nobody_starts_again(rc):
    rc.on_event("controller_lost", "the peer closed the connection")
    awaited = str(rc.link_ends[0].lost_task(rc, has_written=False))
    assert "resume_controller_sync" in awaited
    assert "the peer closed the connection" in awaited
    rc.on_event("link_lost", "nobody listens there")
    in_vain = str(rc.link_ends[0].lost_task(rc, has_written=False))
    assert "open a new Client" in in_vain or "Open a new Client" in in_vain
    assert "resume_controller_sync" not in in_vain


def test_a_closed_client(rc):
    view = rc[:]
    rc.close()
    with pytest.raises(ipp.LinkLost):
        view.apply_async(abs, 1)
    with pytest.raises(ipp.LinkLost):
        rc.queue_status()
    assert "closed" in repr(rc)


def test_requests_that_fail(rc, gate):
    with pytest.raises(ipp.error.BroadleafError, match="not in this fake"):
        rc.shutdown([0])
    assert rc.status() == {"engines": 4}
    assert "waits" in rc.explain(rc[0].apply_async(gate.task()))


@pytest.mark.parametrize(
    ("n_items", "n_engines"), [(1, 4), (1024, 4), (1025, 4), (10**6, 4), (10**6, 1000), (10**9, 4)]
)
def test_automatic_chunks(n_items, n_engines):
    items = automatic_chunk_items(n_items, n_engines, 1024)
    assert 1 <= items <= 16_384
    if n_items <= 1024:
        assert items == 1
    elif n_items < 10**7:
        assert n_items / items <= max(1024, 8 * n_engines)


def test_the_option_chunk_target_is_read(rc):
    assert rc.load_balanced_view().map_async(abs, range(1025)).n_parts == 513
    rc.chunk_target = 32
    assert rc.load_balanced_view().map_async(abs, range(64)).n_parts == 32


@pytest.mark.parametrize("dist", ["b", "r"])
@pytest.mark.parametrize("n_items", [0, 1, 4, 7, 18])
def test_parts_join_to_the_whole(dist, n_items):
    items = list(range(n_items))
    parts = [part_of(items, i, 4, n_items, dist) for i in range(4)]
    assert join_parts(parts, dist) == items
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("ordered", [True, False])
def test_imap_goes_on_after_an_item_that_raised(rc, ordered):
    values = rc.load_balanced_view().imap(lambda n: 1 // n, [1, 0, 1], ordered=ordered, max_outstanding=1)
    assert next(values) == 1
    with pytest.raises(ipp.RemoteError):
        next(values)
    assert list(values) == [1]


def test_waiting_on_a_closed_client_is_a_lost_link(rc):
    rc.close()
    with pytest.raises(ipp.error.LinkLost):
        rc.status()


def test_one_result_is_purged_by_its_id_or_itself(rc):
    view = rc[:]
    for form in (lambda ar: ar, lambda ar: ar.msg_ids[0], lambda ar: ar.msg_ids):
        ar = view.apply_async(abs, -1)
        ar.get()
        [msg_id] = ar.msg_ids[:1]
        rc.purge_results(form(ar))
        with pytest.raises(KeyError):
            rc.get_result(msg_id)


def test_abort_of_targets_leaves_others_alone(rc, gate):
    ar = rc[:].apply_async(gate.task())
    rc.abort(targets=[1, 3])
    gate.open()
    ar.wait()
    assert ar.status == ["ok", "aborted", "ok", "aborted"]


def test_results_are_purged_by_the_engines_they_ran_on(rc):
    both = rc[[0, 1]].apply_async(abs, -1)
    other = rc[2].apply_async(abs, -2)
    balanced = rc.load_balanced_view([0]).apply_async(abs, -3)
    for ar in (both, other, balanced):
        ar.get()
    [of_0, of_1], [of_2], [of_balanced] = both.msg_ids, other.msg_ids, balanced.msg_ids
    rc.purge_results(targets=[0])
    for gone in (of_0, of_balanced):
        with pytest.raises(KeyError):
            rc.get_result(gone)
    assert rc.get_result(of_1).get() == 1
    assert rc.get_result(of_2).get() == 2
    assert of_1 not in rc.results
    both.owner = False
    assert list(rc.results) == [of_1]
    rc.purge_results(targets=1)
    with pytest.raises(KeyError):
        rc.get_result(of_1)


def test_outstanding_tasks_of_an_engine_are_not_purged(rc, gate):
    ar = rc[:2].apply_async(gate.task())
    with pytest.raises(RuntimeError, match="outstanding"):
        rc.purge_results(targets=[0])
    rc.purge_results(targets=[3])
    assert rc.get_result(ar.msg_ids) is ar


def test_the_queue_of_an_engine_that_just_left(rc, monkeypatch):
    monkeypatch.setattr(fake_native.Link, "on_queuestatus", lambda *_: {"Queues": [[0, 0, 0, 0]]})
    assert rc.queue_status(0) == {"queue": 0, "tasks": 0, "completed": 0}
    with pytest.raises(ipp.EngineError, match="engine 2 does not exist"):
        rc.queue_status(2)


def test_whether_a_client_is_closed_can_be_asked(rc):
    assert not rc.closed
    rc.close()
    assert rc.closed


def test_waiting_for_engines_on_a_closed_link_is_no_timeout(rc):
    rc.close()
    for n in (1, 99):
        with pytest.raises(ipp.error.LinkLost):
            rc.wait_for_engines(n, timeout=0.01)
        with pytest.raises(ipp.error.LinkLost):
            rc.wait_for_engines(n, timeout=0.01, block=False).result(10)


def test_some_tasks_are_waited_for_by_one_native_wait(rc, monkeypatch, gate):
    waits = []
    native = fake_native.Link.wait_tasks
    monkeypatch.setattr(fake_native.Link, "wait_tasks", lambda link, *args: waits.append(args) or native(link, *args))
    slow = rc[0].apply_async(gate.task())
    quick = rc[1].apply_async(abs, 1)
    assert rc.wait(quick, timeout=10)
    assert quick.ready()
    assert not slow.ready()
    assert not rc[0].wait(slow, timeout=0.01)
    assert waits == [([1], 10), ([0], 0.01)]
