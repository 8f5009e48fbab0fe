"""What the objects show: tab completion, `repr`, and progress in a file."""

import io
import sys
import time

import broadleaf as ipp
import pytest
from waiting import until


@ipp.interactive
def fail_on_odd(n):
    if n % 2:
        raise ValueError(f"{n} is odd")
    return n


@ipp.interactive
def wait_for(path):
    import os
    import time

    while path and not os.path.exists(path):
        time.sleep(0.01)


def offered(obj):
    return {name for name in dir(obj) if not name.startswith("_")}


def completions(source, names):
    """What IPython offers after a dot, by its own completer and by Jedi."""
    completer = pytest.importorskip("IPython.core.completer")
    found = []
    for use_jedi in (False, True):
        ip = completer.IPCompleter(namespace=names, use_jedi=use_jedi)
        with completer.provisionalcompleter():
            texts = {c.text.lstrip(".") for c in ip.completions(source, len(source))}
        found.append({text for text in texts if not text.startswith("_")})
    return found


INTERNAL = {
    "rc": {"native", "link", "hub", "submitted", "on_event", "remember", "find", "link_errors"},
    "ar": {"seq", "n_parts", "function", "link", "origin", "part_done", "make_future_fields", "set_result", "listen"},
    "mapped": {"returned", "bare", "wait_count", "values"},
    "view": {"map_parts", "flag_names", "on_flag_changed"},
    "ipp": {"Any", "annotations", "import_module", "TYPE_CHECKING"},
}
PUBLIC = {
    "rc": {"ids", "wait", "load_balanced_view", "cluster", "shutdown", "get_result"},
    "ar": {"get", "result", "cancel", "stdout", "engine_id", "add_done_callback", "wall_time", "running"},
    "mapped": {"get", "progress", "wait_interactive"},
    "view": {"apply", "map_sync", "targets", "block", "scatter", "use_dill"},
    "ipp": {"Client", "Cluster", "error", "require", "ViewExecutor", "plan"},
}


def test_public_names_alone_are_offered(rc, cluster):
    view = rc[:]
    names = {"rc": rc, "view": view, "ar": view.apply_async(abs, 1), "mapped": view.map_async(abs, [1]), "ipp": ipp}
    for name, obj in names.items():
        for words in (offered(obj), offered(type(obj)) if name != "ipp" else offered(obj)):
            assert not words & INTERNAL[name]
        assert offered(obj) >= PUBLIC[name]
        for words in completions(f"{name}.", names):
            assert not words & INTERNAL[name], "IPython"
            assert words >= PUBLIC[name] - {"stdout", "engine_id"}, "IPython"
    assert offered(ipp) == {*ipp.__all__, "version_info"}
    for obj in (rc, view, names["ar"], names["mapped"], cluster, rc.executor(), rc.load_balanced_view()):
        undocumented = [n for n in offered(type(obj)) if not getattr(type(obj), n).__doc__]
        assert not undocumented, "what is offered is documented"
    rc.wait(timeout=20)


def test_views_say_what_they_address(rc):
    assert repr(rc[0]) == "<DirectView of engine 0>"
    assert repr(rc[:3]) == "<DirectView of engines 0-2>"
    assert repr(rc[[0, 2, 3]]) == "<DirectView of engines 0, 2-3>"
    assert repr(rc.direct_view("all")) == "<DirectView of all engines (4 now)>"
    assert repr(rc.broadcast_view([0, 1], coalescing=True)) == "<BroadcastView of engines 0-1, coalescing>"
    assert repr(rc.load_balanced_view()) == "<LoadBalancedView of any engine (4 now)>"
    assert (
        repr(rc.load_balanced_view([1, 2], label="night")) == "<LoadBalancedView of any of engines 1-2, label 'night'>"
    )
    view = rc[:]
    view.targets = object()
    assert "DirectView" in repr(view)


def test_results_say_how_far_they_are(rc, lview, tmp_path):
    gate = str(tmp_path / "gate")
    single = rc[0].apply_async(wait_for, gate)
    mapped = lview.map_async(wait_for, [""] * 1500 + [gate], chunksize=1)
    assert until(lambda: mapped.n_done() == 1500)
    assert repr(single) == "<AsyncResult(wait_for): pending>"
    assert repr(mapped) == "<AsyncMapResult(wait_for): 1,500 of 1,501 done>"
    (tmp_path / "gate").touch()
    mapped.wait(20)
    single.wait(20)
    assert repr(single) == "<AsyncResult(wait_for): finished>"
    assert repr(mapped) == "<AsyncMapResult(wait_for): 1,501 of 1,501 done>"
    failing = lview.map_async(fail_on_odd, range(5), chunksize=1)
    failing.wait(20)
    assert repr(failing) == "<AsyncMapResult(fail_on_odd): 5 of 5 done, 2 failed>"
    chunks = lview.map_async(fail_on_odd, [0, 1, 2, 4], chunksize=2)
    chunks.wait(20)
    assert repr(chunks) == "<AsyncMapResult(fail_on_odd): 4 of 4 done, 1 of 2 tasks failed>"
    failed = rc[0].apply_async(fail_on_odd, 3)
    failed.wait(20)
    assert repr(failed) == "<AsyncResult(fail_on_odd): failed: ValueError: 3 is odd>"
    assert repr(lview.map_async(abs, [])) == "<AsyncMapResult(abs): 0 of 0 done>"


def test_what_was_aborted_says_why(rc, lview):
    cancelled, aborted = (rc[0].apply_async(time.sleep, 30) for _ in range(2))
    cancelled.cancel()
    assert repr(cancelled) == "<AsyncResult(sleep): aborted by cancel()>"
    aborted.abort()
    aborted.wait(20)
    assert repr(aborted) == "<AsyncResult(sleep): aborted by abort()>"
    partly = lview.map_async(time.sleep, [0, 30, 30], chunksize=1)
    assert until(lambda: partly.n_done() == 1)
    partly.cancel()
    assert repr(partly) == "<AsyncMapResult(sleep): aborted by cancel(), 3 of 3 done, 2 failed>"
    view = rc.load_balanced_view([1])
    view.timeout = 0.1
    late = view.apply_async(time.sleep, 30)
    late.wait(20)
    assert repr(late).startswith(
        "<AsyncResult(sleep): timeout: TaskTimeout: the task ran longer than its timeout of 0.1"
    )


def test_clients_executors_and_lazy_maps(cluster, tmp_path):
    gate = str(tmp_path / "gate")
    client = cluster.connect_client_sync()
    client.wait_for_engines(4, timeout=20)
    view = client[:]
    host = client._known_engines()[0][2]
    idle = f"<Client of cluster {cluster.cluster_id}: 4 engines on {host}"
    assert repr(client) == f"{idle}>"
    executor = client.executor()
    future = executor.submit(wait_for, gate)
    assert repr(client) == f"{idle}, 1 task not done>"
    assert repr(executor) == f"<ViewExecutor over {executor.view!r}: open, 1 call not done>"
    values = client.load_balanced_view().imap(abs, range(100), max_outstanding=10)
    next(values)
    assert repr(values) == "<LazyMapIterator(abs): 1 taken, 10 under way>"
    (tmp_path / "gate").touch()
    future.result(20)
    list(values)
    executor.shutdown()
    assert repr(executor) == f"<ViewExecutor over {executor.view!r}: shut down>"
    client.close()
    assert repr(client) == f"<Client of cluster {cluster.cluster_id}: closed>"
    assert repr(view) == "<DirectView of engines 0-3, closed>"
    assert "shut down" in repr(executor)


def test_progress_in_a_file_is_lines(rc, lview, monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    lview.map_async(fail_on_odd, range(0, 40, 2)).wait_interactive(interval=0.01)
    lview.map_async(abs, range(2000)).wait_interactive(interval=0.01)
    text = written.getvalue()
    assert "\r" not in text
    first, *_, last = text.splitlines()
    assert first.startswith("fail_on_odd: ")
    assert "20/20 tasks" in text
    assert last.startswith("abs: 2000/2000 tasks, ")
    assert len(text.splitlines()) <= 6


def test_waiting_interactively_for_nothing(rc):
    assert rc.wait(timeout=20)
    assert rc.wait_interactive()
    assert rc.wait_interactive([])
    assert rc.wait_interactive(rc[0].apply_async(abs, -1))
