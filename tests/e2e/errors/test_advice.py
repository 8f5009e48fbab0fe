"""What messages advise works: each piece of advice is provoked, and followed."""

from __future__ import annotations

import ast
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

import broadleaf as ipp
import numpy as np
import pytest
from waiting import until

pytestmark = pytest.mark.timeout(120)

PACKAGE = Path(ipp.__file__).parent
# The parts of the package whose messages users of views see.
SPEAKERS = ("client", "control", "engine", "errors", "modules", "serialize")
ADVISED = re.compile(r"\b(?:client|cluster|view|broadleaf)(?:\[:\])?\.\w+\(|\bpip install \w+|\b(?:leave|get)\(\)")
followed: set[str] = set()
# Advice that tests of its own subject follow: the file of each, and its name.
ELSEWHERE = {
    "client[:].push(": (
        "serialize/test_kept_state",
        "test_a_map_whose_tasks_unpack_much_says_so_once_and_the_advice_works",
    ),
    "cluster.resume_controller_sync(": (
        "clusters/test_restarted_controllers",
        "test_the_same_client_and_views_go_on",
    ),
    "view.map(": ("serialize/test_random_numbers", "test_the_advice_works"),
}


def follows(*advice: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Marks a test that follows this advice."""
    followed.update(advice)
    return lambda test: test


def messages() -> Iterator[str]:
    """The texts in those parts, without docstrings."""
    for path in (path for speaker in SPEAKERS for path in (PACKAGE / speaker).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        statements = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in statements:
                yield node.value


def test_all_calls_that_messages_advise_are_followed_below():
    advised = {match for text in messages() for match in ADVISED.findall(text)}
    assert advised == followed | ELSEWHERE.keys()
    for file, name in ELSEWHERE.values():
        assert f"def {name}(" in (Path(__file__).parents[1] / f"{file}.py").read_text()


def test_they_exist_on_what_they_are_called_on():
    owners: dict[str, tuple[type, ...]] = {
        "client": (ipp.Client,),
        "client[:]": (ipp.DirectView,),
        "cluster": (ipp.Cluster,),
        "view": (ipp.DirectView, ipp.BroadcastView),
    }
    for advice in followed | ELSEWHERE.keys():
        owner, _, name = advice.rstrip("()").rpartition(".")
        for kind in owners.get(owner, ()):
            assert callable(getattr(kind, name)), f"{advice} on a {kind.__name__}"


# Modules


class OnlyHere:
    """A finder of this process, which engines do not have."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(self, name: str, path: object, target: Any = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [str(self.folder)]) if path is None else None


@pytest.fixture
def only_here(tmp_path: Path) -> Iterator[Path]:
    """A folder whose modules this process finds, and engines do not."""
    before = set(sys.modules)
    finder = OnlyHere(tmp_path)
    sys.meta_path.append(finder)
    importlib.invalidate_caches()
    yield tmp_path
    sys.meta_path.remove(finder)
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@follows("client.ship_module(")
@pytest.mark.parametrize("call", ["apply", "map", "argument", "executor", "push"])
def test_a_missing_module_is_shipped(only_here, call):
    (only_here / "advised.py").write_text("class Thing:\n    x = 1\ndef f(y):\n    return y + Thing.x\n")
    module = importlib.import_module("advised")
    with ipp.Cluster(n=2) as client:
        view = client.load_balanced_view()
        ways = {
            "apply": lambda: view.apply_sync(module.f, 1),
            "map": lambda: client[:].map_sync(module.f, [1])[0],
            "argument": lambda: view.apply_sync(lambda thing: thing.x + 1, module.Thing()),
            "executor": lambda: next(view.executor.map(module.f, [1])),
            "push": lambda: client[0].push({"thing": module.Thing()}, block=True) or 2,
        }
        with pytest.raises((ipp.RemoteError, ModuleNotFoundError)) as caught:
            ways[call]()
        assert "client.ship_module('advised')" in str(caught.value)
        client.ship_module("advised")
        assert ways[call]() == 2


@follows("cluster.restart_engines_sync(")
def test_engines_with_an_older_module_are_restarted(tmp_path, monkeypatch):
    (tmp_path / "older.py").write_text("def f():\n    return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("older")
    try:
        with ipp.Cluster(n=1) as client:
            cluster = client.cluster
            assert client[0].apply_sync(module.f) == 1
            (tmp_path / "older.py").write_text("def f():\n    return 1\ndef newer():\n    return 'newer'\n")
            module = importlib.reload(module)
            with pytest.raises(ipp.RemoteError, match=r"has no 'newer'.*cluster\.restart_engines_sync\(\)"):
                client[0].apply_sync(module.newer)
            before = client.engine_uuid(0)
            cluster.restart_engines_sync()
            assert until(lambda: 0 in client.ids and client.engine_uuid(0) != before)
            assert client[0].apply_sync(module.newer) == "newer"
    finally:
        del sys.modules["older"]


# Pickling


def contents(file: Any) -> bytes:
    with file:
        return file.read()


def test_a_generator_is_sent_as_a_list(rc):
    view = rc.load_balanced_view()
    advice = "generator.*; send what it yields, as a list"
    with pytest.raises(ipp.SerializationError, match=advice):
        view.apply_sync(sum, (-n for n in range(3)))
    with pytest.raises(ipp.RemoteError, match=advice):
        view.apply_sync(lambda: (-n for n in range(3)))
    assert view.apply_sync(sum, [-n for n in range(3)]) == -3
    assert view.apply_sync(lambda: [-n for n in range(3)]) == [0, -1, -2]


@follows("client[:].use_dill(", "pip install dill")
@pytest.mark.parametrize("call", ["direct", "broadcast", "balanced", "map", "executor", "captured", "result"])
def test_dill_sends_an_open_file(rc, tmp_path, call, monkeypatch):
    pytest.importorskip("dill")
    client = rc
    (tmp_path / "text").write_text("some text")
    read = lambda f: f.read()  # noqa: E731
    with open(tmp_path / "text", "rb") as file:
        ways = {
            "direct": lambda: rc[0].apply_sync(read, file),
            "broadcast": lambda: rc.broadcast_view([0]).apply_sync(read, file)[0],
            "balanced": lambda: rc.load_balanced_view().apply_sync(read, file),
            "map": lambda: rc.load_balanced_view().map_sync(read, [file])[0],
            "executor": lambda: rc.executor().submit(read, file).result(20),
            "captured": lambda: rc.load_balanced_view().apply_sync(lambda: file.read()),
            "result": lambda: contents(rc.load_balanced_view().apply_sync(open, str(tmp_path / "text"), "rb")),
        }
        with pytest.raises((ipp.SerializationError, ipp.RemoteError)) as caught:
            ways[call]()
        assert "client[:].use_dill() has dill send it" in str(caught.value)
        if call != "result":
            with monkeypatch.context() as without:
                without.setitem(sys.modules, "dill", None)
                with pytest.raises(ipp.SerializationError, match=r"pip install dill\), client\[:\]\.use_dill\(\)"):
                    ways[call]()
        client[:].use_dill().get(20)
        try:
            assert ways[call]() == b"some text"
        finally:
            client[:].use_pickle().get(20)


@follows("broadleaf.get_client(")
def test_a_task_gets_a_client_of_its_own(rc):
    with pytest.raises(ipp.SerializationError, match=r"use broadleaf\.get_client\(\) inside the task"):
        rc[0].apply_sync(lambda client: client.ids, rc)

    def ids():
        import broadleaf

        return list(broadleaf.get_client().ids)

    assert rc[0].apply_sync(ids) == list(rc.ids)


@follows("get()")
def test_a_result_is_sent_as_its_value(rc):
    result = rc.load_balanced_view().apply_async(int, 3)
    with pytest.raises(ipp.SerializationError, match=r"call its get\(\) first, or use it as a dependency \(after="):
        rc[0].apply_sync(lambda r: r, result)
    assert rc[0].apply_sync(lambda r: r, result.get()) == 3
    with rc.load_balanced_view().temp_flags(after=result) as view:
        assert view.apply_sync(int, 4) == 4


async def test_a_single_result_is_awaited(rc):
    result = rc.load_balanced_view().apply_async(int, 3)
    with pytest.raises(TypeError, match="use `await result`"):
        async for _ in result:
            pass
    assert await result == 3


@follows("broadleaf.Client(")
def test_a_client_outside_of_a_task(cluster):
    with pytest.raises(ipp.ClusterConnectionError, match=r"broadleaf\.Client\(\) or Cluster\(n=4\)\.start_and_connect"):
        ipp.get_client()
    other = ipp.Cluster(n=1)
    with other.start_and_connect_sync() as client:
        assert client[0].apply_sync(int) == 0
        with ipp.Client() as newest:
            assert len(newest.ids) > 0
    other.stop_cluster_sync()


# Engines


@follows("client.wait_for_engines(")
def test_a_view_without_engines_waits_for_them():
    with ipp.Cluster(n=0) as client:
        cluster = client.cluster
        advice = r"wait for some with client\.wait_for_engines\(n\)"
        with pytest.raises(ipp.NoEnginesRegistered, match=advice):
            client[:].apply_sync(int)
        with pytest.raises(ipp.NoEnginesRegistered, match=advice):
            client.load_balanced_view().apply_sync(int)
        cluster.start_engines_sync(1)
        client.wait_for_engines(1, timeout=30)
        assert client[:].apply_sync(int) == [0]
        assert client.load_balanced_view().apply_sync(int) == 0


@follows("cluster.scale_sync(")
def test_a_death_advises_to_retry_and_to_start_engines_again(tmp_path):
    marker = tmp_path / "died"

    def die_once():
        import os

        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), 9)
        return "alive"

    with ipp.Cluster(n=3) as client:
        cluster = client.cluster
        view = client.load_balanced_view()
        with pytest.raises(ipp.EngineError, match=r"Set retries=1 on the view .*cluster\.restart_engines_sync\(\)"):
            view.apply_sync(os.kill, 0, 9)
        view.retries = 1
        assert view.apply_sync(die_once) == "alive"
        cluster.restart_engines_sync()
        client.wait_for_engines(3, timeout=30)
        n_engines = len(client)
        cluster.scale_sync(n_engines + 1)
        client.wait_for_engines(n_engines + 1, timeout=30)
        assert client[:].apply_sync(int) == [0] * (n_engines + 1)


@follows("client.send_signal(")
def test_an_engine_that_does_not_react_is_killed():
    with ipp.Cluster(n=1) as client:
        result = client[0].apply_async(__import__("time").sleep, 600)
        assert until(lambda: client.queue_status(0)["tasks"] == 1)
        targets = [0]
        client.send_signal("SIGKILL", targets)
        with pytest.raises(ipp.EngineError, match="SIGKILL"):
            result.get(timeout=30)
    with pytest.raises(ValueError, match="'nothing' is not a signal: use a number, or a name such as 'SIGINT'"):
        raise_for_signal("nothing")


def raise_for_signal(name: str) -> None:
    from broadleaf.requests import signal_number

    assert signal_number("SIGINT") == 2
    signal_number(name)


@follows("leave()")
def test_a_client_that_leaves_has_its_results_kept(cluster, tmp_path):
    def wait_for(path):
        import os
        import time

        while not os.path.exists(path):
            time.sleep(0.01)
        return "kept"

    client = cluster.connect_client_sync()
    client.wait_for_engines(4, timeout=30)
    result = client.load_balanced_view().apply_async(wait_for, str(tmp_path / "file"))
    client.close()
    with pytest.raises(ipp.LinkLost, match=r"Wait for results before close\(\), or use leave\(\)"):
        result.get(timeout=20)
    client = cluster.connect_client_sync()
    client.wait_for_engines(4, timeout=30)
    result = client.load_balanced_view().apply_async(wait_for, str(tmp_path / "file"))
    client.leave()
    (tmp_path / "file").touch()
    with cluster.connect_client_sync() as other:
        assert other.get_result(result.msg_ids, block=False).get(timeout=30) == ["kept"]


# Views


@follows("view.execute(")
def test_imports_on_the_engines_alone(rc):
    with pytest.raises(NotImplementedError, match=r"use view\.execute\('import \.\.\.'\)"):
        with rc[:].sync_imports(local=False):
            pass
    for view in (rc[:], rc.broadcast_view()):
        view.execute("import colorsys").get(20)
        assert rc[:].apply_sync(ipp.interactive(lambda: colorsys.__name__)) == ["colorsys"] * 4  # noqa: F821


def test_what_cannot_be_overwritten_is_pushed(rc):
    view = rc[:]
    strided = np.arange(20.0)[::2]
    with pytest.raises(ipp.InPlaceMismatch, match="a is not contiguous: push it instead, or use a contiguous copy"):
        view.push({"a": strided}, mode="inplace", block=True)
    view.push({"a": strided}, block=True)
    view.push({"a": np.ascontiguousarray(strided) + 1}, mode="inplace", block=True)
    assert [a.tolist() for a in view["a"]] == [(strided + 1).tolist()] * 4
    for value in ("text", np.array([None])):
        with pytest.raises(ipp.InPlaceMismatch, match="cannot be overwritten in place: push it"):
            view.push({"b": value}, mode="inplace", block=True)
        view.push({"b": value}, block=True)
    view.push({"c": strided.copy()}, mode="readonly", block=True)
    with pytest.raises(ipp.RemoteError, match="is read-only here: push it again, or push it in mode 'private'"):
        view.push({"c": strided.copy()}, mode="inplace", block=True)
    view.push({"c": strided.copy()}, mode="private", block=True)
    view.push({"c": strided + 1}, mode="inplace", block=True)
