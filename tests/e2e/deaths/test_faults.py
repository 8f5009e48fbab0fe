"""Processes that die, hang or are killed: what the others see, and that nothing is left."""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import broadleaf
import pytest
from broadleaf import Cluster, EngineError
from broadleaf.cluster.state import files
from broadleaf.cluster.state.run_dirs import run_dirs
from broadleaf.errors import ClusterConnectionError, LinkLost, TaskTimeout
from broadleaf.serialize.functions.namespace import evaluate
from processes import processes_with
from waiting import until

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def clean():
    """Each test here has a cluster of its own, and leaves it in a state that cannot be cleaned."""


@pytest.fixture
def rc():
    with Cluster(n=2) as rc:
        yield rc


def _certificate(result):
    with pytest.raises(EngineError) as caught:
        result.get(20)
    return caught.value.certificate


def test_waiting_for_engines_of_a_killed_node_is_no_timeout():
    cluster = Cluster(n=1)
    with cluster as rc:
        os.kill(cluster.to_dict()["controller"]["node_pid"], signal.SIGKILL)
        with pytest.raises(LinkLost):
            rc.wait_for_engines(9, timeout=20)
        for n in (1, 9):
            with pytest.raises(LinkLost):
                rc.wait_for_engines(n, timeout=0)
        assert rc.closed


def test_kill_9_in_a_task(rc, tmp_path):
    def stay(started):
        started.touch()
        signal.pause()

    pid = rc[0].apply_sync(os.getpid)
    started = tmp_path / "started"
    result = rc[0].apply_async(stay, started)
    assert until(started.exists)
    os.kill(pid, signal.SIGKILL)
    certificate = _certificate(result)
    assert (certificate.engine_id, certificate.pid) == (0, pid)
    assert (certificate.cause, certificate.code) == ("signal", signal.SIGKILL)
    assert certificate.task_started
    assert rc[1].apply_sync(lambda: 1) == 1
    assert rc.ids == [1]


def test_a_death_is_known_with_the_result_that_tells_it(rc, monkeypatch):
    # What tells Python about a death may run later than the code that waits for the result.
    monkeypatch.setattr(rc, "on_event", lambda kind, body: None)
    assert rc.ids == [0, 1]
    with pytest.raises(EngineError):
        rc[0].apply_sync(os._exit, 3)
    assert rc.ids == [1]
    assert rc[:].apply_sync(abs, -1) == [1]


def _until_running(rc, engine_id):
    assert until(lambda: rc.cluster.status_sync()["engines"][engine_id]["outstanding"] > 0)


def test_exit_in_a_task_tells_the_code_and_the_last_output(rc):
    def leave():
        os.write(2, b"my last words\n")
        os._exit(3)

    certificate = _certificate(rc[0].apply_async(leave))
    assert (certificate.cause, certificate.code) == ("exit", 3)
    assert certificate.last_output.endswith("my last words\n")


def test_segmentation_fault_shows_where(rc):
    certificate = _certificate(rc[0].apply_async(ctypes.string_at, 0))
    assert (certificate.cause, certificate.code) == ("signal", signal.SIGSEGV)
    assert "Fatal Python error: Segmentation fault" in certificate.last_output
    assert "string_at" in certificate.last_output
    assert "fork_server.py" not in certificate.last_output.split("string_at")[0]


def test_tasks_behind_the_deadly_one_were_not_started(rc, tmp_path):
    def die_when(told):
        while not told.exists():
            time.sleep(0.001)
        os._exit(1)

    told = tmp_path / "told"
    deadly = rc[0].apply_async(die_when, told)
    behind = rc[0].apply_async(lambda: 1)
    rc[1].apply_sync(int)  # What was submitted before it has reached the controller.
    told.touch()
    assert _certificate(deadly).task_started
    assert not _certificate(behind).task_started


def test_a_retry_runs_elsewhere(rc, tmp_path):
    mark = str(tmp_path / "mark")

    def die_once():
        if not os.path.exists(mark):
            open(mark, "w").close()
            os._exit(1)
        return os.getpid()

    view = rc.load_balanced_view()
    view.retries = 1
    assert view.apply_sync(die_once) > 0
    # A task is retried when the link is gone; the engine is reported gone once its process was seen to have ended.
    assert until(lambda: len(rc.ids) == 1)


def test_an_interrupt_that_a_task_missed_is_sent_again(rc, tmp_path):
    """A signal in the instant before a blocking call is as good as lost; this task loses the first on purpose."""
    ready = tmp_path / "ready"

    def miss_one(ready):
        import signal
        import time

        missed = []
        ours = signal.signal(signal.SIGINT, lambda *_: missed.append(1))
        try:
            ready.touch()
            while not missed:
                time.sleep(0.001)
        finally:
            signal.signal(signal.SIGINT, ours)
        time.sleep(40)

    pid = rc[0].apply_sync(os.getpid)
    result = rc[0].apply_async(miss_one, ready)
    assert until(ready.exists)
    result.abort()
    with pytest.raises(broadleaf.TaskAborted):
        result.get(20)
    assert rc[0].apply_sync(os.getpid) == pid, "it was interrupted, not killed"


def test_engines_that_die_are_started_again():
    with Cluster(n=2, restart_engines=True) as rc:
        before = rc[1].apply_sync(os.getpid)
        rc[1].push({"x": 1})
        assert _certificate(rc[1].apply_async(os._exit, 4)).code == 4
        assert until(lambda: rc.ids == [0, 1])
        assert rc[1].apply_sync(os.getpid) != before
        assert rc[1].apply_sync(evaluate, "'x' in globals()") is False
        assert rc.cluster.status_sync()["engines"][1]["restarts"] == 1


def test_what_an_engine_started_ends_with_it(rc):
    child = rc[0].apply_sync(lambda: __import__("subprocess").Popen(["sleep", "1000"]).pid)
    gone = os.pidfd_open(child)
    try:
        _certificate(rc[0].apply_async(os._exit, 0))
        assert select.select([gone], [], [], 20)[0]
    finally:
        os.close(gone)


def test_a_task_that_outlives_its_timeout_is_interrupted(rc):
    view = rc.load_balanced_view(targets=[0])
    view.timeout = 0.2
    pid = rc[0].apply_sync(os.getpid)
    with pytest.raises(TaskTimeout):
        view.apply_async(time.sleep, 1000).get(20)
    assert rc[0].apply_sync(os.getpid) == pid


def test_a_hung_engine_is_killed_after_its_timeout():
    def hang():
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            signal.pause()

    with Cluster(n=1, interrupt_grace_s=0.2, restart_engines=True) as rc:
        pid = rc[0].apply_sync(os.getpid)
        view = rc.load_balanced_view()
        view.timeout = 0.2
        with pytest.raises((TaskTimeout, EngineError)):
            view.apply_async(hang).get(20)
        assert until(lambda: rc.ids == [0] and rc.link.engines()[0][2] != pid)
        assert rc[0].apply_sync(os.getpid) != pid


def test_an_interrupt_reaches_the_task_and_not_the_engine(rc):
    pid = rc[0].apply_sync(os.getpid)
    rc.cluster.signal_engines_sync(signal.SIGINT)
    assert rc[0].apply_sync(os.getpid) == pid
    result = rc[0].apply_async(time.sleep, 1000)
    _until_running(rc, 0)
    result.abort()
    with pytest.raises(broadleaf.TaskAborted):
        result.get(20)
    assert rc[0].apply_sync(os.getpid) == pid


def test_a_killed_node_leaves_no_process(rc, cluster_processes):
    cluster = rc.cluster
    pending = rc[0].apply_async(time.sleep, 1000)
    _until_running(rc, 0)
    os.kill(cluster.to_dict()["controller"]["node_pid"], signal.SIGKILL)
    assert cluster.wait_stopped(20)
    assert cluster_processes(cluster.cluster_id) == {}
    with pytest.raises((LinkLost, EngineError)):
        pending.get(20)
    with pytest.raises(ClusterConnectionError, match="has stopped"):
        cluster.status_sync()


def test_a_killed_fork_server_leaves_no_process(rc, cluster_processes):
    cluster = rc.cluster
    os.kill(cluster.to_dict()["controller"]["fork_server_pid"], signal.SIGKILL)
    cluster.stop_cluster_sync()
    assert cluster_processes(cluster.cluster_id) == {}
    assert not cluster.cluster_dir.exists()


CLIENT = """
import os, signal, sys, time, broadleaf
cluster = broadleaf.Cluster(n=2, cluster_id={cluster_id!r})
{start}
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize(
    "start",
    [
        "rc = cluster.start_and_connect_sync()",
        "rc = cluster.start_and_connect_sync(); r = rc[:].apply_async(time.sleep, 1000)",
        "import threading; threading.Thread(target=cluster.start_and_connect_sync, daemon=True).start()",
    ],
    ids=["idle", "busy", "while it starts"],
)
def test_a_killed_client_leaves_nothing(cluster_processes, start, tmp_path):
    # Known by a mark of the client: a process that it has just forked does not show the cluster's id yet.
    mark = {"KILLED_CLIENT": str(tmp_path)}
    environment = os.environ | mark | {"PYTHONPATH": str(Path(broadleaf.__file__).parent.parent)}
    cluster_id = "killed"
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT.format(cluster_id=cluster_id, start=start)],
        stdout=subprocess.PIPE,
        env=environment,
    )
    with client:
        assert client.stdout.readline() == b"ready\n"
        assert until(lambda: len(cluster_processes(cluster_id)) > 0)
        client.kill()
    assert until(lambda: processes_with(**mark) == {}), processes_with(**mark)
    assert not (files.cluster_dir("default", cluster_id) / files.CLIENT_FILE).exists()
    # If it is killed early, only age distinguishes what it left from a cluster that is just starting.
    for path in (files.cluster_dir("default", cluster_id), *map(Path, run_dirs(cluster_id))):
        if path.exists():
            os.utime(path, (0, 0))
    broadleaf.ClusterManager().load_clusters()
    assert not files.cluster_dir("default", cluster_id).exists()
    assert run_dirs(cluster_id) == []


def test_a_stop_that_is_not_obeyed_becomes_a_kill(rc, cluster_processes):
    cluster = rc.cluster
    state = cluster.to_dict()["controller"]
    os.kill(state["node_pid"], signal.SIGSTOP)
    cluster._controller.end()
    assert cluster_processes(cluster.cluster_id) == {}


def _memory_cgroup():
    path = Path("/sys/fs/cgroup/memory")
    return path if os.access(path / "cgroup.procs", os.W_OK) and (path / "memory.limit_in_bytes").exists() else None


@pytest.mark.skipif(_memory_cgroup() is None, reason="needs a writable memory control group of version 1")
def test_out_of_memory_is_told_from_a_kill():
    group = _memory_cgroup() / f"broadleaf-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(80 << 20))
        with Cluster(n=0) as rc:
            fork_server_pid = rc.cluster.to_dict()["controller"]["fork_server_pid"]
            (group / "cgroup.procs").write_text(str(fork_server_pid))
            rc.cluster.start_engines_sync(2)
            rc.wait_for_engines(2)
            result = rc[0].apply_async(lambda: len(bytearray(b"x") * (200 << 20)))
            assert _certificate(result).cause == "out_of_memory"
            result = rc[1].apply_async(lambda: os.kill(os.getpid(), signal.SIGKILL))
            assert _certificate(result).cause == "signal"
    finally:
        assert until(lambda: (group / "cgroup.procs").read_text() == "")
        group.rmdir()


def test_many_random_kills_lose_nothing():
    import random

    random.seed(7)
    with Cluster(n=3, restart_engines=True, max_restarts=1000) as rc:
        view = rc.load_balanced_view()
        view.retries = 50
        results = view.map_async(lambda x: x * x, range(400), chunksize=1)
        for _ in range(10):
            engines = [engine for engine in rc.cluster.status_sync()["engines"] if engine["up"]]
            if engines:
                try:
                    os.kill(random.choice(engines)["pid"], signal.SIGKILL)
                except ProcessLookupError:
                    pass
        assert results.get(50) == [x * x for x in range(400)]
        assert until(lambda: rc.ids == [0, 1, 2])
