"""Modules that engines cannot find: the error, and how they are sent."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

import broadleaf as ipp
import numpy as np
import pytest

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def far() -> Iterator[ipp.Cluster]:
    """A cluster whose engines do not see this process's folders: of the controller's host and of a relay's."""
    cluster = ipp.Cluster(n=1, listen="127.0.0.1:0")
    cluster.start_cluster_sync()
    with ipp.Relay(cluster.relay_file, 1, name="far"):
        yield cluster
        cluster.stop_cluster_sync()


@pytest.fixture
def client(far: ipp.Cluster) -> Iterator[ipp.Client]:
    with far.connect_client_sync() as client:
        client.wait_for_engines(2, timeout=30)
        yield client


class Project:
    """Modules of this process that engines cannot find: a finder of this process has their folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(self, name: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        """What importing asks a finder for."""
        return PathFinder.find_spec(name, [str(self.folder)]) if path is None else None

    def module(self, name: str, text: str) -> ModuleType:
        path = self.folder / (name.replace(".", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        for package in path.relative_to(self.folder).parents:
            if package.name:
                (self.folder / package / "__init__.py").touch()
        path.write_text(text)
        os.utime(path, ns=(0, hash(text) % 10**18))  # another text, another time: no stale bytecode
        importlib.invalidate_caches()
        return importlib.reload(sys.modules[name]) if name in sys.modules else importlib.import_module(name)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    before = set(sys.modules)
    project = Project(tmp_path)
    sys.meta_path.append(project)
    yield project
    sys.meta_path.remove(project)
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


THING = "class Thing:\n    x = {}\ndef f(y):\n    return y + Thing.x\n"


# Missing


def test_a_missing_module_is_named_with_the_engine_and_what_to_do(client, project):
    module = project.module("lacking", THING.format(1))
    with pytest.raises(ipp.RemoteError) as caught:
        client[1].apply_sync(module.f, 1)
    text = caught.value.evalue
    assert caught.value.ename == "ModuleNotFoundError"
    assert text.startswith(
        f"No module named 'lacking' on engine 1 on {os.uname().nodename}. It looked in these folders: "
    )
    assert os.getcwd() in text or str(Path(ipp.__file__).parent.parent) in text
    assert "site-packages" not in text.partition("Python's own")[0]
    assert "client.ship_module('lacking')" in text
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    assert caught.value.__cause__.name == "lacking"


def test_so_it_is_for_an_argument(client, project):
    module = project.module("lacking_class", THING.format(1))
    with pytest.raises(ipp.RemoteError, match=r"client\.ship_module\('lacking_class'\)"):
        client[0].apply_sync(len, [module.Thing()])


def test_so_it_is_for_an_import_in_a_task(client):
    with pytest.raises(ipp.RemoteError, match=r"No module named 'lacks_this' on engine 0 .*ship_module"):
        client[0].apply_sync(lambda: __import__("lacks_this"))


def test_so_it_is_for_an_item_of_a_map(client):
    got = client.load_balanced_view().map_sync(lambda x: __import__("lacks_this"), [1], return_exceptions=True)
    assert "client.ship_module('lacks_this')" in str(got[0])


def test_a_missing_part_of_a_package_says_which_package_was_found(client):
    with pytest.raises(ipp.RemoteError, match=r"No module named 'numpy.nothing' on engine 0 .*numpy/__init__.py"):
        client[0].apply_sync(lambda: __import__("numpy.nothing"))


def test_an_error_of_the_users_own_is_left_alone(client):
    def fail():
        raise ModuleNotFoundError("no luck")

    with pytest.raises(ipp.RemoteError) as caught:
        client[0].apply_sync(fail)
    assert caught.value.evalue == "no luck"


def test_a_result_of_a_module_that_the_client_lacks(client, tmp_path, monkeypatch):
    (tmp_path / "only_there.py").write_text(THING.format(1))
    client[0].execute(f"import sys; sys.path.append({str(tmp_path)!r})").get()
    result = client[0].apply_async(lambda: __import__("only_there").Thing())
    with pytest.raises(ModuleNotFoundError, match=r"'only_there' on this process.*Install it here, or add its folder"):
        result.get(timeout=30)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert client[0].apply_sync(lambda: __import__("only_there").Thing()).x == 1
    del sys.modules["only_there"]


# Sent


def test_a_module_is_sent(client, project):
    module = project.module("sent", THING.format(5))
    with pytest.raises(ipp.RemoteError):
        client[:].apply_sync(module.f, 1)
    client.ship_module(module)
    assert client[:].apply_sync(module.f, 1) == [6, 6], "on every host, though it could not be loaded before"
    assert client[:].apply_sync(lambda t: type(t).__module__, module.Thing()) == ["sent"] * 2
    client[:].execute("import sent").get()
    assert client[:]["sent.Thing.x"] == [5, 5]
    assert type(client[0].apply_sync(module.Thing)) is module.Thing


def test_a_package_is_sent_whole(client, project):
    (project.folder / "whole").mkdir()
    (project.folder / "whole" / "data.txt").write_text("data")
    project.module("whole.inner.numbers", "ONE = 1\n")
    text = (
        "from .inner.numbers import ONE\nfrom pathlib import Path\n"
        "def f():\n    return ONE, Path(__file__).with_name('data.txt').read_text()\n"
    )
    module = project.module("whole.outer", text)
    client.ship_module(module)
    assert client[:].apply_sync(module.f) == [(1, "data")] * 2


def test_a_module_is_named_by_text(client, project):
    module = project.module("by_name", THING.format(2))
    client.ship_module("by_name")
    assert client[0].apply_sync(module.f, 1) == 3


def test_sent_again_it_is_the_new_one(client, project):
    module = project.module("edited", THING.format(1))
    client.ship_module(module)
    assert client[:].apply_sync(module.f, 0) == [1, 1]
    for value in (2, 3, 4):
        project.module("edited", THING.format(value))
        assert client[:].apply_sync(module.f, 0) == [value - 1] * 2, "engines keep what they have"
        client.ship_module(module)
        assert client[:].apply_sync(module.f, 0) == [value] * 2
    assert client[0].apply_sync(lambda: sum("/edited-" in entry for entry in __import__("sys").path)) == 1


def test_functions_that_were_sent_before_see_the_new_one(client, project):
    module = project.module("used", THING.format(1))
    client.ship_module(module)

    def by_value(y):
        return module.f(y)

    view = client.load_balanced_view()
    assert view.map_sync(by_value, [0, 0]) == [1, 1]
    project.module("used", THING.format(2))
    client.ship_module(module)
    assert view.map_sync(by_value, [0, 0]) == [2, 2]


def test_an_outdated_module_says_so(client, project):
    module = project.module("outdated", THING.format(1))
    client.ship_module(module)
    client[:].apply_sync(module.f, 0)
    module = project.module("outdated", THING.format(1) + "def g():\n    return 'new'\n")
    with pytest.raises(
        ipp.RemoteError, match=r"Module 'outdated' on engine 0 .* has no 'g'.*ship_module\('outdated'\)"
    ):
        client[0].apply_sync(module.g)
    client.ship_module(module)
    assert client[0].apply_sync(module.g) == "new"


def test_engines_that_start_again_have_it(far, client, project):
    module = project.module("restarted", THING.format(1))
    client.ship_module(module)
    for engine in client.ids:
        with pytest.raises(ipp.EngineError):
            client[engine].apply_sync(os.kill, 0, signal.SIGKILL)
    far.restart_engines_sync()
    client.wait_for_engines(2, timeout=30)
    assert client[:].apply_sync(module.f, 1) == [2, 2]


def test_a_later_client_does_not_undo_it(far, client, project):
    module = project.module("kept", THING.format(1))
    client.ship_module(module)
    with far.connect_client_sync() as other:
        assert other[:].apply_sync(module.f, 1) == [2, 2]
    assert client[:].apply_sync(module.f, 1) == [2, 2]


def test_what_cannot_be_sent(client, project):
    with pytest.raises(ModuleNotFoundError, match="module 'nowhere' was not found here"):
        client.ship_module("nowhere")
    for name in ("os", "sys", "broadleaf"):
        with pytest.raises(ValueError, match="every engine has its own"):
            client.ship_module(name)
    with pytest.raises(ValueError, match="__main__"):
        client.ship_module("__main__")
    module = project.module("heavy.part", "")
    (project.folder / "heavy" / "data.bin").write_bytes(bytes(33 << 20))
    with pytest.raises(ValueError, match="more than 32 MiB"):
        client.ship_module(module)
    assert client[:].apply_sync(len, np.zeros(3)) == [3, 3]


def test_nothing_of_it_is_left_behind(project):
    module = project.module("left", THING.format(1))
    with ipp.Cluster(n=1) as rc:
        rc.ship_module(module)
        folder = Path(rc[0].apply_sync(lambda: __import__("left").__file__)).parent
        assert folder.is_dir()
        run_dir = Path(rc.cluster.to_dict()["controller"]["run_dir"])
        assert folder.is_relative_to(run_dir)
    assert not run_dir.exists()


# Sent by themselves


def test_local_modules_are_sent_by_themselves(tmp_path):
    """In a separate process, because what is local depends on its working directory and its script."""
    (tmp_path / "elsewhere").mkdir()
    for folder in ("beside", "below"):
        (tmp_path / folder).mkdir()
    (tmp_path / "beside" / "near.py").write_text(THING.format(1))
    (tmp_path / "below" / "local_package").mkdir()
    (tmp_path / "below" / "local_package" / "__init__.py").write_text(THING.format(2))
    (tmp_path / "beside" / "script.py").write_text(
        """
import importlib, os, sys, broadleaf as ipp
cluster = ipp.Cluster(n=1, ship_local_modules=True)
project = os.getcwd()
script_folder = sys.path.pop(0)  # the engines' host has none of it
os.chdir("../elsewhere")
cluster.start_cluster_sync()
os.chdir(project)
with cluster.connect_client_sync() as rc:
    rc.wait_for_engines(1)
    sys.path[:0] = [script_folder, project]
    rc.local_modules._known |= set(sys.path)
    import near, local_package
    print(rc[0].apply_sync(near.f, 0), rc[0].apply_sync(local_package.f, 0))
    print(rc[0].apply_sync(lambda: "/near-" in __import__("near").__file__))
    print(rc[0].apply_sync(lambda: "click" in __import__("sys").modules))
    path = local_package.__file__
    open(path, "a").write("\\ndef g():\\n    return 'reloaded'\\n")
    importlib.reload(local_package)
    print(rc[0].apply_sync(local_package.g))
    rc[0].apply_sync(repr, 1)
    open("late.py", "w").write("class Thing:\\n    def __repr__(self):\\n        return 'late'\\n")
    importlib.invalidate_caches()
    import late
    print(rc[0].apply_sync(repr, late.Thing()))
cluster.stop_cluster_sync()
"""
    )
    done = subprocess.run(
        [sys.executable, "../beside/script.py"], cwd=tmp_path / "below", capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["1 2", "True", "False", "reloaded", "late"]
