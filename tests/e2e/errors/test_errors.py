"""What goes wrong arrives as a typed error, and the cluster stays usable."""

import os
import pickle
import threading
from pathlib import Path

import broadleaf as ipp
import pytest
from broadleaf import error


@pytest.fixture(autouse=True)
def _usable(rc):
    yield
    assert rc.load_balanced_view().apply_sync(lambda: "usable") == "usable"


def test_one_engine_raises_a_remote_error(rc):
    with pytest.raises(ipp.RemoteError) as caught:
        rc[1].apply_sync(lambda: {}["key"])
    e = caught.value
    assert e.ename == "KeyError"
    assert e.evalue == "'key'"
    assert e.engine_info == {"engine_id": 1, "engine_uuid": rc.engine_uuid(1), "method": "apply"}
    assert isinstance(e.__cause__, KeyError)
    assert str(e) == "[1:apply] KeyError: 'key'"
    assert e.render_traceback()[0] == "[1:apply]"
    assert "<lambda>" in e.traceback
    # The package's own frames say nothing to the user. A checkout may be in a folder of any name.
    assert str(Path(ipp.__file__).parent) not in e.traceback
    again = pickle.loads(pickle.dumps(e))
    assert (again.ename, again.engine_info) == (e.ename, e.engine_info)


def test_several_engines_raise_a_composite_error(rc, dview):
    with pytest.raises(ipp.CompositeError) as caught:
        dview.execute("1 / 0", block=True)
    e = caught.value
    assert len(e.elist) == 4
    assert isinstance(e, ZeroDivisionError)
    assert [entry[-1]["engine_id"] for entry in e.elist] == rc.ids
    assert {entry[-1]["method"] for entry in e.elist} == {"execute"}
    with pytest.raises(ipp.RemoteError, match="ZeroDivisionError"):
        e.raise_exception()
    with pytest.raises(IndexError):
        e.raise_exception(7)
    assert "and 3 more on engines 1-3" in str(e)
    each = rc.get_result([rc[i].execute(f"raise ValueError({i}, {k})", block=False) for i in rc.ids for k in "ab"])
    with pytest.raises(ipp.CompositeError) as caught:
        each.get()
    assert "4 more exceptions" in caught.value.render_traceback()[-1]


def test_the_survivors_values_are_kept(rc, dview):
    dview.scatter("rank", rc.ids, flatten=True, block=True)

    def fail_on_1(rank):
        if rank == 1:
            raise ValueError("1 is bad")
        return rank

    ar = dview.apply_async(fail_on_1, ipp.Reference("rank"))
    with pytest.raises(ipp.CompositeError):
        ar.get()
    values = ar.get(return_exceptions=True)
    assert [*values[:1], *values[2:]] == [0, 2, 3]
    assert isinstance(values[1], ipp.RemoteError)
    assert ar.status == ["ok", "error", "ok", "ok"]


def test_exceptions_with_awkward_constructors(rc):
    def fail():
        class Awkward(Exception):
            def __init__(self, a, b):
                super().__init__(a)
                self.b = b

        raise Awkward(1, 2)

    with pytest.raises(ipp.RemoteError) as caught:
        rc[0].apply_sync(fail)
    assert caught.value.ename == "Awkward"


def test_unpicklable_arguments(rc):
    lock = threading.Lock()
    with pytest.raises(ipp.SerializationError, match=r"argument 2 .*\['k'\]"):
        rc[0].apply_async(max, 1, {"k": lock})
    with pytest.raises(ipp.SerializationError, match="argument 'key'"):
        rc.load_balanced_view().apply_async(max, 1, key=lock)
    with pytest.raises(ipp.SerializationError, match="'lock'"):
        rc[0].apply_async(lambda: lock)
    ar = rc[0].apply_async(lambda: 1)
    with pytest.raises(ipp.SerializationError, match=r"async_result\.AsyncResult\) .*: a result cannot be sent"):
        rc[0].apply_async(abs, ar)
    assert ar.get() == 1


def test_unpicklable_results(rc):
    def make_lock():
        import threading

        return [threading.Lock()]

    with pytest.raises(ipp.RemoteError, match=r"the result .*at \[0\]") as caught:
        rc[0].apply_sync(make_lock)
    assert caught.value.ename == "SerializationError"


def test_wrong_targets(rc):
    with pytest.raises(IndexError):
        rc[99]
    with pytest.raises(IndexError):
        rc.load_balanced_view([0, 99])
    with pytest.raises(TypeError):
        rc.direct_view("some")
    with pytest.raises(TypeError):
        rc["0"]


def test_a_dead_engine(cluster):
    with cluster.connect_client_sync() as rc:
        rc.wait_for_engines(4, timeout=20)
        cluster.start_engines_sync(1)
        rc.wait_for_engines(5, timeout=20)
        engine = rc.ids[-1]
        ar = rc[engine].apply_async(os._exit, 3)
        with pytest.raises(ipp.EngineError) as caught:
            ar.get(20)
        certificate = caught.value.certificate
        assert certificate.engine_id == engine
        assert (certificate.cause, certificate.code) == ("exit", 3)
        assert certificate.task_started
        assert f"engine {engine} " in str(caught.value)
        assert "exited with code 3" in str(caught.value)
        assert isinstance(caught.value, ipp.RemoteError)


def test_timeouts_stop_the_work(lview, gate):
    with lview.temp_flags(timeout=0.2):
        ar = lview.apply_async(gate.task())
    with pytest.raises(error.TaskTimeout, match=r"0\.2 s"):
        ar.get(20)


def test_retries(lview, tmp_path):
    def succeed_the_third_time(path):
        with open(path, "a+") as file:
            file.write("x")
            file.seek(0)
            if len(file.read()) < 3:
                raise ValueError("not yet")
        return "done"

    with lview.temp_flags(retries=2):
        assert lview.apply_sync(succeed_the_third_time, str(tmp_path / "a")) == "done"
    with lview.temp_flags(retries=1), pytest.raises(ipp.RemoteError, match="not yet"):
        lview.apply_sync(succeed_the_third_time, str(tmp_path / "b"))


def test_after(lview, gate):
    first = lview.apply_async(gate.task())
    with lview.temp_flags(after=first):
        second = lview.apply_async(lambda: 1)
    assert lview.apply_sync(abs, -1) == 1, "an engine is free for the second"
    assert "task" in lview.client.explain(second)
    gate.open()
    assert second.get() == 1
    assert second.started >= first.completed


def test_follow(lview):
    first = lview.apply_async(lambda: 1)
    first.get()
    with lview.temp_flags(follow=first):
        followers = [lview.apply_async(lambda: 1) for _ in range(8)]
    for ar in followers:
        ar.get()
    assert {ar.engine_id for ar in followers} == {first.engine_id}


def test_impossible_and_invalid_dependencies(rc, lview):
    failed = lview.apply_async(lambda: 1 / 0)
    with lview.temp_flags(after=failed), pytest.raises(error.ImpossibleDependency):
        lview.apply_sync(lambda: 1)
    with lview.temp_flags(after=ipp.Dependency([failed], success=False, failure=True)):
        assert lview.apply_sync(lambda: 1) == 1
    with lview.temp_flags(after="12345"), pytest.raises(error.InvalidDependency):
        lview.apply_sync(lambda: 1)
    with pytest.raises(ValueError):
        lview.set_flags(after=5)
    here, there = rc[0].apply_async(abs, 1), rc[1].apply_async(abs, 1)
    with lview.temp_flags(follow=[here, there]), pytest.raises(error.ImpossibleDependency):
        lview.apply_sync(lambda: 1)


def test_depend_and_require(rc, lview):
    rc[:].scatter("number", rc.ids, flatten=True, block=True)

    def is_number_2():
        return number == 2  # noqa: F821

    @ipp.depend(ipp.interactive(is_number_2))
    @ipp.interactive
    def where():
        return number  # noqa: F821

    assert [lview.apply_sync(where) for _ in range(8)] == [2] * 8

    @ipp.require("base64", answer=42)
    @ipp.interactive
    def encode():
        return base64.b64encode(b"foo"), answer  # noqa: F821

    assert lview.apply_sync(encode) == (b"Zm9v", 42)

    @ipp.require("there_is_no_such_module")
    def never():
        return 1

    with pytest.raises(error.ImpossibleDependency):
        lview.apply_sync(never)


def test_targets_of_balanced_tasks(rc, gate):
    view = rc.load_balanced_view([1, 3])
    ars = [view.apply_async(gate.task()) for _ in range(20)]
    gate.wait_for_tasks(2)
    gate.open()
    for ar in ars:
        ar.get()
    assert {ar.engine_id for ar in ars} == {1, 3}
    assert view.map_sync(abs, range(5)) == list(range(5))


def test_a_failed_result_is_freed_with_its_frames(rc):
    import gc
    import weakref

    def fail(view):
        ar = view.apply_async(lambda: 1 / 0)
        for get in (ar.get, lambda: ar.get(10), ar.result, lambda: ar.split()[0].get()):
            with pytest.raises(ipp.RemoteError):
                get()
        assert ar.exception() is not None
        return weakref.ref(ar)

    gone = [fail(view) for view in (rc[0], rc[:], rc.load_balanced_view())]
    gc.collect()
    assert [ref() for ref in gone] == [None] * 3


def test_closing_a_client_ends_the_waiting_for_its_results(cluster, gate):
    client = cluster.connect_client_sync()
    client.wait_for_engines(4, timeout=20)
    one, several = client[0].apply_async(gate.task()), client[:].apply_async(gate.task())
    client.close()
    for ar in (one, several):
        with pytest.raises(ipp.LinkLost):
            ar.get()


def test_dill_pickles_what_nothing_else_can_once_asked(rc):
    pytest.importorskip("dill")
    view = rc[0]
    with pytest.raises(ipp.SerializationError):
        view.push({"lock": threading.Lock()})
    with pytest.raises(ipp.RemoteError, match="lock"):
        view.apply_sync(lambda: __import__("threading").Lock())
    view.use_dill().get(20)
    try:
        view["lock"] = threading.Lock()
        assert not view.apply_sync(ipp.interactive(lambda: lock.locked()))  # noqa: F821
        assert not view.apply_sync(lambda: __import__("threading").Lock()).locked()
        assert view.apply_sync(lambda: [lambda: 3])[0]() == 3
    finally:
        view.use_pickle().get(20)
    with pytest.raises(ipp.SerializationError):
        view.push({"lock": threading.Lock()})
