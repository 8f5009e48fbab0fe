"""Direct views: calls, code, variables, targets."""

import functools
import os

import broadleaf as ipp
import pytest
from broadleaf import error
from waiting import until


def test_ids_len_iter_and_indexing(rc):
    assert rc.ids == [0, 1, 2, 3]
    assert len(rc) == 4
    assert [view.targets for view in rc] == rc.ids
    assert rc[:].targets == [0, 1, 2, 3]
    assert rc[-1].targets == 3
    assert rc[::2].targets == [0, 2]
    assert rc[[3, 1]].targets == [3, 1]
    assert rc[1:].targets == [1, 2, 3]
    assert rc.direct_view().targets == "all"
    with pytest.raises(TypeError):
        rc[None]
    with pytest.raises(IndexError, match="No such engine: 17"):
        rc[17]


def test_apply_gives_one_value_or_a_list(rc):
    assert rc[2].apply_sync(lambda x: x + 1, 2) == 3
    assert rc[[2]].apply_sync(lambda x: x + 1, 2) == [3]
    assert rc[:].apply_sync(lambda x: x + 1, 2) == [3] * 4
    pids = rc[:].apply_sync(os.getpid)
    assert len(set(pids)) == 4
    assert os.getpid() not in pids


def test_a_list_of_targets_may_be_changed_in_place(rc):
    view = rc[[0, 1]]
    view["where"] = "there"
    view.targets.append(3)
    assert len(view.apply_sync(os.getpid)) == 3
    view.targets.remove(0)
    assert view.apply_sync(os.getpid) == rc[[1, 3]].apply_sync(os.getpid)


def test_values_come_in_target_order(rc, gate):
    view = rc[[3, 0, 2]]
    view.scatter("rank", range(3), flatten=True)
    ar = view.apply_async(gate.task_for(0), ipp.Reference("rank"))
    assert until(lambda: ar.progress == 2)
    gate.open()
    assert ar.get(20) == [0, 1, 2]


def test_apply_takes_a_keyword_of_any_name(rc):
    assert rc[0].apply_sync(lambda **kw: kw, f=5, function=6, self=7) == {"f": 5, "function": 6, "self": 7}


def test_push_and_pull(rc, dview):
    data = {"a": 10, "b": 1.05, "c": list(range(10)), "d": {"e": (1, 2)}}
    one = rc[-1]
    one.push({"data": data}, block=True)
    assert one.pull("data", block=True) == data
    dview.push({"x": 1, "y": 2}, block=True)
    assert dview.pull(("x", "y"), block=True) == [[1, 2]] * 4
    ar = dview.pull("x", block=False)
    assert isinstance(ar, ipp.AsyncResult)
    assert ar.get() == [1] * 4
    dview.update({"z": "text"})
    assert dview.get("z") == ["text"] * 4
    with pytest.raises(TypeError):
        dview.push([1])
    with pytest.raises(TypeError):
        dview.pull(5)


def test_pushed_values_are_copied_before_the_call_returns(rc):
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(500_000.0)
    ar = rc[0].push({"array": array}, block=False)
    array[:] = -1
    ar.get()
    assert rc[0]["array"][10] == 10.0


def test_dotted_names(rc):
    view = rc[-1]
    view.execute("class A: pass\na = A()\na.b = 128", block=True)
    assert view["a.b"] == 128
    view["a.b"] = 0
    assert view.apply_sync(lambda x: x.b, ipp.Reference("a")) == 0


def test_missing_names_are_name_errors(rc):
    with pytest.raises(ipp.RemoteError) as caught:
        rc[0]["elvis"]
    assert caught.value.ename == "NameError"


def test_arrays_arrive_writable(rc):
    numpy = pytest.importorskip("numpy")
    array = numpy.random.default_rng(0).random((300, 300))
    back = rc[0].apply_sync(lambda a: a * 2, array)
    assert (back == array * 2).all()
    assert rc[0].apply_sync(lambda a: a.flags.writeable, array)
    back[0, 0] = 5.0


def test_scatter_and_gather(rc, dview):
    dview.scatter("part", list(range(18)), block=True)
    assert dview["part"] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11, 12, 13], [14, 15, 16, 17]]
    assert dview.gather("part", block=True) == list(range(18))
    ar = dview.gather("part", block=False)
    assert isinstance(ar, ipp.AsyncMapResult)
    assert ar.get() == list(range(18))
    dview.scatter("part", list(range(18)), dist="r", block=True)
    assert dview["part"][1] == [1, 5, 9, 13, 17]
    assert dview.gather("part", dist="r", block=True) == list(range(18))
    dview.scatter("rank", rc.ids, flatten=True, block=True)
    assert dview["rank"] == rc.ids
    with pytest.raises(ipp.CompositeError):
        dview.gather("nothing", block=True)


def test_scatter_and_gather_arrays(rc):
    numpy = pytest.importorskip("numpy")
    view = rc.direct_view("all")
    array = numpy.arange(64)
    for dist in "br":
        view.scatter("a", array, dist=dist, block=True)
        back = view.gather("a", dist=dist, block=True)
        assert (back == array).all()


def test_execute_and_its_reply(rc, dview):
    dview.execute("a = 5", block=True)
    ar = dview.execute("print(a)\na + 1", silent=False, block=True)
    assert [reply.execute_result["data"]["text/plain"] for reply in ar.get()] == ["6"] * 4
    assert ar.stdout == ["5\n"] * 4
    reply = rc[0].execute("5", silent=False, block=True).get()
    assert str(reply) == f"<ExecuteReply[{reply.execution_count}]: 5>"
    assert reply.plaintext() == f"Out[0]:{reply.execution_count}]: 5".replace("[0]", "[0")
    assert rc[0].execute("5", block=True).execute_result is None


def test_execute_raises(rc):
    ar = rc[-1].execute("1/0", block=False)
    with pytest.raises(ipp.RemoteError) as caught:
        ar.get(10)
    assert caught.value.ename == "ZeroDivisionError"
    assert "1/0" in caught.value.traceback
    assert caught.value.engine_info["method"] == "execute"


def test_run_a_file(rc, tmp_path):
    path = tmp_path / "code.py"
    path.write_text("def g():\n    return 5\n    ")
    rc[0].run(str(path), block=True)
    assert rc[0].apply_sync(lambda f: f(), ipp.Reference("g")) == 5


def test_clear(rc, dview):
    dview.push({"a": 5}, block=True)
    rc.clear(targets=3, block=True)
    assert rc[:3]["a"] == [5] * 3
    with pytest.raises(ipp.RemoteError):
        rc[3]["a"]


def test_references(rc, dview):
    dview.scatter("n", rc.ids, flatten=True, block=True)
    dview.execute("f = lambda x: n*x", block=True)
    assert dview.apply_sync(ipp.Reference("f"), 5) == [0, 5, 10, 15]
    assert dview.map_sync(ipp.Reference("f"), range(4)) == [0, 1, 4, 9]
    assert dview.apply_sync(lambda x: x, [ipp.Reference("n")]) == [[0], [1], [2], [3]]
    assert rc[2].apply_sync(lambda x: x, {"k": ipp.Reference("n + 1")}) == {"k": 3}
    assert dview.map_async(lambda x: x * 2, [ipp.Reference("n")] * 4).get(5) == [0, 2, 4, 6]
    with pytest.raises(ipp.RemoteError) as caught:
        rc[0].apply_sync(lambda x: x, ipp.Reference("elvis"))
    assert caught.value.ename == "NameError"
    # A reference as the function is resolved at each call, not once.
    dview.execute("f = lambda x: -x", block=True)
    assert rc[0].apply_sync(ipp.Reference("f"), 5) == -5


def test_flags(rc):
    view = rc[-1]
    view.block = True
    with view.temp_flags(block=False):
        assert not view.block
        assert isinstance(view.apply(os.getpid), ipp.AsyncResult)
    assert isinstance(view.apply(os.getpid), int)
    view.set_flags(label="work", block=False)
    ar = view.apply_async(os.getpid)
    ar.get()
    assert ar.label == "work"
    with pytest.raises(KeyError):
        view.set_flags(colour="red")


def test_imports_here_and_there(rc, capsys):
    view = rc[-1]
    with view.sync_imports():
        import colorsys
        from json import dumps, loads
    assert dumps
    assert loads
    assert colorsys
    printed = capsys.readouterr().out
    assert "importing colorsys on engine(s)" in printed
    assert "importing dumps, loads from json on engine(s)" in printed
    assert view.apply_sync(ipp.interactive(lambda: colorsys.__name__ + dumps(1))) == "colorsys1"
    with view.sync_imports(quiet=True):
        import bisect
    assert bisect
    assert capsys.readouterr().out == ""


def test_remote_and_parallel_functions(rc, dview):
    @dview.remote(block=True)
    def add(a, b):
        return a + b

    assert add(1, 2) == [3] * 4

    @dview.parallel(block=True)
    def total(part):
        return [sum(part)]

    assert total(range(16)) == [6, 22, 38, 54]
    assert dview.parallel(block=True)(lambda x: -x).map(range(10)) == [-x for x in range(10)]
    with pytest.raises(ValueError, match="equal length"):
        dview.parallel(block=True)(lambda a, b: a)([1], [1, 2])
    double = ipp.remote(rc.load_balanced_view(), block=False)(lambda x: 2 * x)
    assert double(4).get() == 8


def test_history_and_get_result(rc):
    view = rc[-1]
    before = len(rc.history)
    ar = view.apply_async(os.getpid)
    assert len(rc.history) == before + 1
    assert view.history == ar.msg_ids
    assert rc.get_result(ar.msg_ids[0]) is ar
    assert view.get_result() is ar
    assert rc.get_result([ar]) is ar
    assert ar.get()
    assert ar.msg_ids[0] not in rc.outstanding
    other = rc[:2].apply_async(os.getpid)
    both = rc.get_result(ar.msg_ids + other.msg_ids)
    assert both.get() == [ar.get(), *other.get()]
    with pytest.raises(KeyError):
        rc.get_result("nonsense")
    assert rc.result_status(ar.msg_ids)["completed"] == ar.msg_ids


def test_queue_status(rc):
    status = rc.queue_status()
    assert set(status) == {*rc.ids, "unassigned"}
    assert set(status[0]) == {"queue", "tasks", "completed"}
    assert set(rc.queue_status(targets=0)) == {"queue", "tasks", "completed"}


def test_queue_status_names_the_tasks(rc, tmp_path):
    gate = tmp_path / "gate"
    done = rc[1].apply_async(abs, -1)
    done.get(20)
    running = rc[0].apply_async(until, gate.exists)
    queued = rc[0].apply_async(abs, -2)
    following = rc.load_balanced_view()
    following.after = [running]
    waiting = following.apply_async(abs, -3)
    assert until(lambda: rc.queue_status(0, verbose=True)["tasks"] == running.msg_ids)
    status = rc.queue_status(verbose=True)
    assert set(status) == {*rc.ids, "unassigned"}
    assert status[0]["queue"] == queued.msg_ids
    assert done.msg_ids[0] in status[1]["completed"]
    assert not any(status[engine]["queue"] or status[engine]["tasks"] for engine in rc.ids[1:])
    assert status["unassigned"] == waiting.msg_ids
    gate.touch()
    assert [queued.get(20), waiting.get(20)] == [2, 3]
    assert queued.msg_ids[0] in rc.queue_status(0, verbose=True)["completed"]


def test_abort_queued_and_running(rc, gate):
    view = rc[-1]
    running = view.apply_async(gate.task())
    gate.wait_for_tasks()
    queued = view.apply_async(lambda: 2)
    view.abort(queued)
    with pytest.raises(error.TaskAborted):
        queued.get(10)
    running.abort()
    with pytest.raises(error.TaskAborted):
        running.get(10)
    assert view.apply_sync(lambda: 3) == 3
    with pytest.raises(RuntimeError):
        running.abort()


def test_abort_all_of_a_view(rc, gate):
    view = rc[-1]
    results = [view.apply_async(gate.task()) for _ in range(50)]
    gate.wait_for_tasks()
    view.abort()
    assert view.wait(timeout=20)
    assert gate.n_waiting() == 1, "only one has begun"
    for ar in results:
        with pytest.raises(error.TaskAborted):
            ar.get(0)


def test_engines_appear_in_lazy_views(cluster):
    with cluster.connect_client_sync() as client:
        client.wait_for_engines(4, timeout=20)
        view = client.direct_view("all")
        assert view.apply_sync(lambda: 1) == [1] * 4
        cluster.start_engines_sync(1)
        client.wait_for_engines(5, timeout=20)
        assert view.apply_sync(lambda: 1) == [1] * 5
        client.shutdown(client.ids[-1])
        assert until(lambda: len(client.ids) == 4)
        assert view.apply_sync(lambda: 1) == [1] * 4


def test_closed_client(cluster):
    client = cluster.connect_client_sync()
    client.wait_for_engines(4, timeout=20)
    view = client[:]
    client.close()
    client.close()
    with pytest.raises(ipp.LinkLost):
        view.apply_async(lambda: 1)
    with pytest.raises(ipp.LinkLost):
        client.load_balanced_view().apply_async(lambda: 1)


NAMED = dict.fromkeys(["self", "function", "fn", "args", "kwargs", "targets", "timeout", "label", "mode", "view"], 0)


def names_given(*args, **kwargs):
    return args, sorted(kwargs)


@pytest.mark.parametrize("kind", ["function", "lambda", "cached", "partial"])
def test_arguments_may_have_any_name(rc, kind):
    function = {
        "function": names_given,
        "lambda": lambda *args, **kwargs: (args, sorted(kwargs)),
        "cached": functools.lru_cache(names_given),
        "partial": functools.partial(names_given),
    }[kind]
    balanced, direct = rc.load_balanced_view(), rc[0]
    answers = [
        balanced.apply_sync(function, 1, **NAMED),
        balanced.map_sync(functools.partial(function, **NAMED), [1])[0],
        balanced.remote(block=True)(function)(1, **NAMED),
        direct.apply_sync(function, 1, **NAMED),
        direct.remote(block=True)(function)(1, **NAMED),
        rc.broadcast_view([0]).apply_sync(function, 1, **NAMED)[0],
        rc.executor().submit(function, 1, **NAMED).result(),
    ]
    assert answers == [((1,), sorted(NAMED))] * len(answers)
