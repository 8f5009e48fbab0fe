"""Clusters as a whole: start, stop, find, use from several sides."""

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import broadleaf
import pytest
from broadleaf import Client, Cluster, ClusterManager, config
from broadleaf.cluster.cluster import ClusterStateError
from broadleaf.errors import ClusterConnectionError, ClusterStartError
from broadleaf.serialize.namespace import evaluate
from broadleaf.state import directories, files
from broadleaf.state.directories import ClusterFileError, make_private_dir, write_json
from waiting import until

pytestmark = pytest.mark.timeout(60)


def test_with_gives_a_client_with_all_engines_and_leaves_nothing(cluster_processes):
    cluster = Cluster(n=3)
    with cluster as rc:
        assert rc.ids == [0, 1, 2]
        assert cluster.running
        pids = rc[:].apply_sync(os.getpid)
        assert set(pids) < set(cluster_processes(cluster.cluster_id))
        run_dir = Path(cluster.to_dict()["controller"]["run_dir"])
        assert run_dir.exists()
    assert not cluster.running
    assert cluster_processes(cluster.cluster_id) == {}
    assert not cluster.cluster_dir.exists()
    assert not run_dir.exists()


async def test_async_with():
    async with Cluster(n=1) as rc:
        assert rc.ids == [0]


async def test_each_method_as_a_coroutine():
    cluster = Cluster(n=1)
    assert await cluster.start_cluster() is cluster
    try:
        rc = await cluster.connect_client()
        rc.wait_for_engines(1)
        await cluster.start_engines(1)
        rc.wait_for_engines(2)
        await cluster.stop_engine(1)
    finally:
        await cluster.stop_cluster()


def test_start_and_connect():
    rc = Cluster(n=2).start_and_connect_sync()
    assert len(rc) == 2
    assert rc.cluster.running
    rc.cluster.stop_cluster_sync()
    rc.close()


def test_start_stop_start_again():
    cluster = Cluster(n=1, cluster_id="again")
    for _ in range(2):
        with cluster as rc:
            assert rc[0].apply_sync(lambda: 1) == 1
    cluster.stop_cluster_sync()


def test_files_are_private_and_say_what_there_is():
    with Cluster(n=1, prefetch_max=77) as rc:
        cluster = rc.cluster
        assert stat.S_IMODE(cluster.cluster_dir.stat().st_mode) == 0o700
        for name in (files.CLIENT_FILE, files.ENGINE_FILE, files.CLUSTER_FILE, files.NODE_LOG):
            assert stat.S_IMODE((cluster.cluster_dir / name).stat().st_mode) == 0o600, name
        run_dir = Path(cluster.to_dict()["controller"]["run_dir"])
        assert stat.S_IMODE(run_dir.stat().st_mode) == 0o700
        client, engine = (json.loads((cluster.cluster_dir / n).read_text()) for n in ("client.json", "engine.json"))
        assert client["cluster_id"] == cluster.cluster_id
        assert client["options"]["prefetch_max"] == 77
        assert client["tcp"] is None
        assert client["private_key"] != engine["private_key"]
        command_lines = " ".join(_command_line(pid) for pid in cluster.to_dict()["controller"].values()
                                 if isinstance(pid, int))  # fmt: skip
        assert client["private_key"] not in command_lines


def _command_line(pid):
    return Path(f"/proc/{pid}/cmdline").read_text()


def test_clients_by_file_id_and_profile():
    with Cluster(n=1, profile="p1", cluster_id="c1") as rc:
        rc[0].push({"x": 5})
        assert rc.profile == "p1"
        for other in (Client(rc.cluster.connection_file), Client(profile="p1", cluster_id="c1"), Client(profile="p1")):
            with other:
                assert (other.profile, other[0]["x"]) == ("p1", 5)


def test_no_cluster_to_connect_to():
    with pytest.raises(ClusterConnectionError, match="no cluster is running in profile 'nobody'"):
        Client(profile="nobody")


def test_an_id_in_use_is_refused_and_a_stale_one_is_not():
    with Cluster(n=0, cluster_id="one"):
        with pytest.raises(ClusterStateError, match=r"'one'.*already running"):
            Cluster(n=0, cluster_id="one").start_cluster_sync()
    stale = Cluster(n=0, cluster_id="one").start_cluster_sync()
    state = stale.to_dict()
    stale.stop_cluster_sync()
    make_private_dir(stale.cluster_dir)
    directories.mark_owner(stale.cluster_dir)
    write_json(Path(stale.cluster_file), state)
    with Cluster(n=1, cluster_id="one") as rc:
        assert rc.ids == [0]


def test_a_detached_cluster_outlives_its_client(cluster_processes):
    code = (
        "import broadleaf; cluster = broadleaf.Cluster(n=1, cluster_id='stays', detached=True)\n"
        "cluster.start_and_connect_sync()[0]['x'] = 1"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30, env=_environment())
    assert list(ClusterManager().load_clusters("default")) == ["default:stays"]
    cluster = Cluster.from_file(cluster_id="stays")
    assert cluster.running
    with cluster.connect_client_sync() as rc:
        assert rc[0]["x"] == 1
    cluster.stop_cluster_sync()
    assert cluster_processes("stays") == {}
    assert ClusterManager().load_clusters() == {}


def test_who_looks_for_a_cluster_that_does_not_run_is_told_how_to_start_it(tmp_path):
    with pytest.raises(ClusterFileError, match=r"no cluster 'default' is running.*Start one with `broadleaf start`"):
        Cluster.from_file()
    with pytest.raises(ClusterFileError, match="--profile lab --cluster-id mine"):
        Cluster.from_file(profile="lab", cluster_id="mine")
    with pytest.raises(ClusterFileError, match=r"nothing\.json does not exist"):
        Cluster.from_file(tmp_path / "nothing.json")


def test_a_bound_cluster_ends_with_its_process(cluster_processes):
    code = "import broadleaf; broadleaf.Cluster(n=1, cluster_id='bound').start_and_connect_sync()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30, env=_environment())
    assert cluster_processes("bound") == {}


def _environment():
    package = str(Path(broadleaf.__file__).parent.parent)
    return os.environ | {"PYTHONPATH": package}


# In a process of its own: what a test runner has registered for the end may wait for threads that a fork lacks.
FORKS = """
import atexit, os
from broadleaf import Cluster

with Cluster(n=1) as rc:
    pid = os.fork()
    if pid == 0:
        atexit._run_exitfuncs()
        os._exit(0)
    assert os.waitpid(pid, 0) == (pid, 0)
    assert rc.cluster.running
    assert rc[0].apply_sync(lambda: 2) == 2
"""


def test_a_fork_of_the_client_does_not_stop_the_cluster():
    subprocess.run([sys.executable, "-c", FORKS], check=True, timeout=50, env=_environment())


def test_manager():
    manager = ClusterManager()
    key, cluster = manager.new_cluster(n=0, cluster_id="m")
    assert key == "default:m"
    with pytest.raises(KeyError, match="already exists"):
        manager.new_cluster(n=0, cluster_id="m")
    cluster.start_cluster_sync()
    found = ClusterManager().load_clusters()
    assert found["default:m"].to_dict() == cluster.to_dict()
    cluster.stop_cluster_sync()
    manager.load_clusters()
    with pytest.raises(KeyError, match="known: none"):
        manager.get_cluster(key)


def test_repr_tells_the_state():
    cluster = Cluster(n=0, cluster_id="r")
    assert repr(cluster) == "<Cluster(cluster_id='r', profile='default', n=0, local): not started>"
    with cluster:
        assert repr(cluster).endswith(": running>")
    assert repr(cluster).endswith(": stopped>")


def test_engines_come_and_go():
    with Cluster(n=1) as rc:
        cluster = rc.cluster
        cluster.start_engines_sync(2)
        rc.wait_for_engines(3)
        assert rc.ids == [0, 1, 2]
        cluster.stop_engine_sync(1)
        assert until(lambda: rc.ids == [0, 2])
        rc[0].push({"x": 1})
        before = rc[0].apply_sync(os.getpid)
        cluster.restart_engine_sync(0)
        assert until(lambda: rc.ids == [0, 2] and _has_another_process(rc, 0, before))
        assert rc[0].apply_sync(evaluate, "'x' in globals()") is False


def test_waiting_for_engines_is_for_all_that_were_asked_for_and_clients_know_them_then():
    cluster = Cluster(n=2)
    with cluster as rc:
        for n in range(3, 13):
            cluster.start_engines_sync(1)
            assert cluster.n == n
            cluster.wait_for_engines_sync()
            assert len(rc[:]) == n
        cluster.stop_engines_sync([3, 4])
        assert cluster.n == 10
        cluster.drain_sync(5)
        cluster.scale_sync(8)
        assert cluster.n == 8
        set_id = cluster.start_engines_sync()
        assert cluster.n == 10
        cluster.wait_for_engines_sync()
        cluster.stop_engines_sync(set_id)
        assert cluster.n == 8
        before = rc[:].apply_sync(os.getpid)
        cluster.restart_engines_sync()
        rc.wait_for_engines(timeout=30)
        after = rc[:].apply_sync(os.getpid)
        assert len({*before, *after}) == 16
        cluster.stop_engines_sync()
        assert cluster.n == 0
        cluster.start_engines_sync()
        rc.wait_for_engines(timeout=30)
        assert cluster.n == 2


def _has_another_process(client, engine_id, before):
    """Whether an engine has been replaced. It may be met on its way out."""
    try:
        return client[engine_id].apply_sync(os.getpid) != before
    except (broadleaf.RemoteError, IndexError):
        return False


def test_signal_engines():
    with Cluster(n=1) as rc:
        rc[0].execute("import signal, threading\ngot = threading.Event()\n"
                      "signal.signal(signal.SIGUSR1, lambda *_: got.set())").get()  # fmt: skip
        rc.cluster.signal_engines_sync(signal.SIGUSR1)
        assert rc[0].apply_sync(evaluate, "got.wait(20)")


def test_engine_environment_reaches_engines():
    with Cluster(n=1, env={"MY_VARIABLE": "v"}, threads_per_engine=3) as rc:
        assert rc[0].apply_sync(os.getenv, "MY_VARIABLE") == "v"
        assert rc[0].apply_sync(os.getenv, "OMP_NUM_THREADS") == "3"
        assert rc[0].apply_sync(os.getenv, "BROADLEAF_ENGINE_ID") == "0"
        assert rc[0].apply_sync(os.getenv, "BROADLEAF_CLUSTER_ID") == rc.cluster.cluster_id


@pytest.mark.parametrize("engine_start", ["fork", "spawn"])
def test_engines_are_alike_however_started(engine_start):
    with Cluster(n=1, engine_start=engine_start, affinity="spread") as rc:
        view = rc[0]
        assert view.apply_sync(lambda: __import__("sys").modules["__main__"].engine_id) == 0
        assert view.apply_sync(lambda: os.getpgid(0) == os.getpid())
        assert len(view.apply_sync(os.sched_getaffinity, 0)) == 1
        assert view.apply_sync(lambda: sys.stdin.read()) == ""
        reply = view.execute("import atexit, sys\nprint('part', end='')\nsys.path is not None", silent=False)
        assert reply.get().execute_result["data"]["text/plain"] == "True"
        assert reply.stdout == "part"


def test_forked_engines_draw_different_numbers():
    pytest.importorskip("numpy")
    with Cluster(n=3, preload="numpy,random") as rc:
        draws = rc[:].apply_sync(lambda: (__import__("numpy").random.random(), __import__("random").random()))
        assert rc[0].apply_sync(lambda: "numpy" in __import__("sys").modules)
        assert len({a for a, _ in draws}) == 3
        assert len({b for _, b in draws}) == 3


@pytest.mark.parametrize("engine_start", ["fork", "spawn"])
def test_what_cannot_be_preloaded_is_logged(engine_start):
    with Cluster(n=1, preload="no_such_module", engine_start=engine_start) as rc:
        log = rc.cluster.log_path(0 if engine_start == "spawn" else None)
        assert "cannot preload no_such_module" in log.read_text()


def test_an_interpreter_for_each_engine_has_the_modules_before_its_first_task(tmp_path, monkeypatch):
    # What it writes is more than a pipe holds.
    (tmp_path / "announced.py").write_text("import sys; sys.stderr.write('announced is imported\\n' * 10_000)")
    monkeypatch.syspath_prepend(tmp_path)
    with Cluster(n=2, preload="announced", engine_start="spawn") as rc:
        assert rc[:].apply_sync(lambda: "announced" in __import__("sys").modules) == [True, True]
        assert "announced is imported" in rc.cluster.log_path(0).read_text()


THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "POLARS_MAX_THREADS")


def threads_of_engines(client):
    """The thread counts in the environment of each engine."""
    return client[:].apply_sync(lambda names: {__import__("os").environ[name] for name in names}, THREADS)


@pytest.mark.parametrize("engine_start", ["fork", "spawn"])
def test_a_users_number_of_openmp_threads_holds_for_all_libraries(engine_start, monkeypatch):
    for name in THREADS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    with Cluster(n=2, engine_start=engine_start) as rc:
        assert threads_of_engines(rc) == [{"3"}] * 2
    with Cluster(n=1, engine_start=engine_start, env={"OMP_NUM_THREADS": "5"}) as rc:
        assert threads_of_engines(rc) == [{"5"}]
    with Cluster(n=1, engine_start=engine_start, env={"OMP_NUM_THREADS": "5"}, threads_per_engine=2) as rc:
        assert threads_of_engines(rc) == [{"2"}]


def test_a_library_that_is_preloaded_has_the_engines_number_of_threads():
    pytest.importorskip("numpy")
    threadpoolctl = pytest.importorskip("threadpoolctl")

    def counts():
        return [one["num_threads"] for one in threadpoolctl.threadpool_info() if one["user_api"] == "blas"]

    with Cluster(n=1, preload="numpy", env={"OMP_NUM_THREADS": "1"}) as rc:
        assert set(rc[0].apply_sync(counts)) == {1}


def test_engines_that_are_added_share_the_cores_too(monkeypatch):
    for name in THREADS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("broadleaf.cluster.fork_servers.usable_cores", lambda: 8)
    cluster = Cluster(n=0)
    cluster.start_controller_sync()
    try:
        cluster.start_engines_sync(4)
        with cluster.connect_client_sync() as rc:
            rc.wait_for_engines(4)
            assert threads_of_engines(rc) == [{"2"}] * 4
            cluster.start_engines_sync(4)
            rc.wait_for_engines(8)
            assert threads_of_engines(rc)[4:] == [{"1"}] * 4
    finally:
        cluster.stop_cluster_sync()


def test_modules_are_preloaded_for_the_first_engine(tmp_path, monkeypatch):
    (tmp_path / "announced.py").write_text("import sys; sys.stderr.write('announced is imported\\n')")
    monkeypatch.syspath_prepend(tmp_path)
    cluster = Cluster(n=2, preload="announced")
    cluster.start_controller_sync()
    try:
        assert "announced" not in cluster.log_path().read_text()
        cluster.start_engines_sync()
        with cluster.connect_client_sync() as rc:
            rc.wait_for_engines(2)
            assert rc[:].apply_sync(lambda: "announced" in __import__("sys").modules) == [True, True]
        assert cluster.log_path().read_text().count("announced is imported") == 1
    finally:
        cluster.stop_cluster_sync()


def test_output_outside_of_tasks_goes_to_the_log():
    with Cluster(n=1) as rc:
        rc[0].apply_sync(os.write, 1, b"from C\n")
        assert "from C" in rc.cluster.log_path(0).read_text()


def test_atexit_handlers_of_engines_run(tmp_path):
    mark = tmp_path / "mark"
    with Cluster(n=1) as rc:
        rc[0].execute(f"import atexit, pathlib\natexit.register(pathlib.Path({str(mark)!r}).touch)").get()
        assert not mark.exists()
    assert mark.exists()


def test_tcp_with_tls():
    with Cluster(n=1, controller_ip="127.0.0.1") as rc:
        info = json.loads(Path(rc.cluster.connection_file).read_text())
        assert info["tcp"]["port"] > 0
        assert info["tls"] is True
        info.update(unix_path=None)
        with Client(info) as far:
            assert far[0].apply_sync(lambda: 3) == 3


def test_a_start_that_fails_says_why_and_leaves_nothing(cluster_processes):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        cluster = Cluster(n=1, listen=f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(ClusterStartError, match=r"(?s)did not start.*[Aa]ddress"):
            cluster.start_cluster_sync()
    assert cluster_processes(cluster.cluster_id) == {}
    assert not cluster.cluster_dir.exists()
    with pytest.raises(config.ConfigError, match="expected host:port"):
        Cluster(n=1, listen="nonsense")


def test_use_before_start():
    cluster = Cluster(n=1)
    with pytest.raises(ClusterStateError, match="has not been started"):
        cluster.connect_client_sync()
    with pytest.raises(ClusterStateError, match="has not been started"):
        cluster.status_sync()
    cluster.stop_cluster_sync()


def test_wrong_arguments():
    with pytest.raises(ValueError, match="must not be negative, but is -1"):
        Cluster(n=-1)
    with pytest.raises(ValueError, match=r"unknown engine set 'cloud'; known: .*local"):
        Cluster(engines="cloud")
    with pytest.raises(config.ConfigError, match="did you mean 'prefetch_max'"):
        Cluster(prefetch_mx=1)


def test_two_clusters_at_once_from_two_threads():
    clusters = [Cluster(n=1), Cluster(n=1)]
    results = []
    threads = [threading.Thread(target=lambda c=c: results.append(c.start_and_connect_sync())) for c in clusters]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert len({rc[0].apply_sync(os.getpid) for rc in results}) == 2
    finally:
        for cluster in clusters:
            cluster.stop_cluster_sync()
        for rc in results:
            rc.close()


def test_save_trace(tmp_path):
    with Cluster(n=1) as rc:
        rc[0].apply_sync(lambda: 1)
        rc.cluster.save_trace_sync(tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text())
