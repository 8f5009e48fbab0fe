"""The user's own modules on engines: found where the client finds them, sent if they are not."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import broadleaf as ipp
import pytest
from waiting import until

pytestmark = pytest.mark.timeout(120)

PACKAGE = str(Path(ipp.__file__).parent.parent)


def run(arguments: list[str], cwd: Path, **environment: str) -> str:
    """Runs Python in a folder; returns what it printed."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def program(connection: str, body: str) -> str:
    """A script that runs `body` with a client `rc` of the cluster."""
    return f"import broadleaf as ipp\nrc = ipp.Client({connection!r})\n{textwrap.dedent(body)}"


def write_module(folder: Path, name: str, value: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(
        f"VALUE = {value}\ndef f(x):\n    return x + VALUE\n"
        "class Thing:\n    def __init__(self):\n        self.x = VALUE\n"
    )
    return path


@pytest.fixture(scope="module")
def detached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ipp.Cluster]:
    """A cluster that the command has started in a project's folder, which has a module `started_here`."""
    folder = tmp_path_factory.mktemp("project")
    write_module(folder, "started_here", 100)
    command = [str(Path(sys.executable).parent / "broadleaf"), "start", "-n", "2", "--cluster-id", "modules"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    cluster = ipp.Cluster.from_file(cluster_id="modules")
    yield cluster
    cluster.stop_cluster_sync()


@pytest.fixture
def own_client(detached: ipp.Cluster) -> Iterator[ipp.Client]:
    """A client of it in this process."""
    with ipp.Client(detached.connection_file) as rc:
        rc.wait_for_engines(2, timeout=30)
        yield rc


def forget(*names: str) -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] in names:
            del sys.modules[name]
    importlib.invalidate_caches()


# Found where the client finds them


def test_the_command_starts_engines_that_look_in_the_working_directory(own_client):
    assert own_client[:].apply_sync(lambda: __import__("started_here").f(1)) == [101, 101]


def test_a_client_in_another_folder_brings_its_folder(detached, tmp_path):
    write_module(tmp_path, "brought", 7)
    script = program(detached.connection_file, "import brought\nprint(rc[:].apply_sync(brought.f, 1))")
    assert run(["-c", script], tmp_path) == "[8, 8]\n"


def test_a_script_brings_its_own_folder(detached, tmp_path):
    write_module(tmp_path / "scripts", "beside", 3)
    script = tmp_path / "scripts" / "script.py"
    script.write_text(
        program(detached.connection_file, "import beside\nprint(rc.load_balanced_view().map_sync(beside.f, range(3)))")
    )
    assert run(["scripts/script.py"], tmp_path) == "[3, 4, 5]\n"


def test_a_module_run_with_m_brings_the_working_directory(detached, tmp_path):
    write_module(tmp_path / "pkg", "part", 5)
    (tmp_path / "pkg" / "__init__.py").touch()
    main = program(detached.connection_file, "from pkg.part import f\nprint(rc[:].apply_sync(f, 1))")
    (tmp_path / "pkg" / "mod.py").write_text(main)
    assert run(["-m", "pkg.mod"], tmp_path) == "[6, 6]\n"


def test_a_pythonpath_of_the_client_alone(detached, tmp_path):
    write_module(tmp_path / "lib", "on_path", 2)
    script = program(detached.connection_file, "import on_path\nprint(rc[:].apply_sync(on_path.f, 1))")
    assert run(["-c", script], tmp_path, PYTHONPATH=str(tmp_path / "lib")) == "[3, 3]\n"


def test_an_entry_added_after_the_client_connected(own_client, tmp_path, monkeypatch):
    write_module(tmp_path, "added_later", 9)
    own_client[:].apply_sync(int)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("added_later")
    assert own_client[:].apply_sync(module.f, 1) == [10, 10]
    forget("added_later")


def test_code_that_is_executed_imports_from_the_clients_folder(detached, tmp_path):
    write_module(tmp_path, "executed", 4)
    script = program(detached.connection_file, "rc[:].execute('import executed').get()\nprint(rc[:]['executed.VALUE'])")
    assert run(["-c", script], tmp_path) == "[4, 4]\n"


def test_an_engine_that_starts_later_looks_there_too(detached, own_client, tmp_path, monkeypatch):
    write_module(tmp_path, "for_restarts", 6)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("for_restarts")
    assert own_client[:].apply_sync(module.f, 1) == [7, 7]
    before = {own_client.engine_uuid(engine) for engine in own_client.ids}
    detached.restart_engines_sync([0, 1])
    assert until(lambda: len(own_client) == 2 and not before & set(map(own_client.engine_uuid, own_client.ids)))
    assert own_client[:].apply_sync(module.f, 1) == [7, 7]
    assert own_client[:].apply_sync(getattr, module.Thing(), "x") == [6, 6]
    forget("for_restarts")


def test_entries_come_after_the_engines_own_and_once(own_client, tmp_path, monkeypatch):
    paths = [str(tmp_path / name) for name in ("a", "b", "none")]
    for path in paths[:2]:
        os.mkdir(path)
    before = own_client[0].apply_sync(lambda: __import__("sys").path)
    for path in reversed(paths):
        monkeypatch.syspath_prepend(path)
    for _ in range(2):
        after = own_client[0].apply_sync(lambda: list(__import__("sys").path))
    assert after == [*before, *paths[:2]], "those that exist, in their order"


def test_several_clients_bring_folders_of_their_own(detached, tmp_path):
    for name, value in (("one", 1), ("two", 2)):
        write_module(tmp_path / name, f"of_{name}", value)
        script = program(detached.connection_file, f"import of_{name}\nprint(rc[:].apply_sync(of_{name}.f, 0))")
        assert run(["-c", script], tmp_path / name) == f"[{value}, {value}]\n"


def test_engines_of_a_relay_look_where_the_client_looks_and_work_where_it_works(tmp_path, monkeypatch):
    write_module(tmp_path / "project", "far_away", 8)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.syspath_prepend(str(tmp_path / "project"))
    module = importlib.import_module("far_away")
    cluster = ipp.Cluster(n=0, listen="127.0.0.1:0")
    cluster.start_cluster_sync()
    relay = [sys.executable, "-m", "broadleaf", "relay", "-n", "1", "--connection", cluster.relay_file]
    with subprocess.Popen(relay, cwd=tmp_path / "elsewhere", stdout=subprocess.PIPE, text=True):
        try:
            with cluster.connect_client_sync() as rc:
                rc.wait_for_engines(1, timeout=30)
                assert rc[0].apply_sync(module.f, 1) == 9
                assert rc[0].apply_sync(os.getcwd) == str(tmp_path / "project")
        finally:
            cluster.stop_cluster_sync()
    forget("far_away")
