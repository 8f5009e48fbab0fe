"""Engines for which the operating system has no process: only their start fails, and it is tried again."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import broadleaf as ipp
import pytest
from broadleaf.cluster import credentials
from broadleaf.config import Settings
from broadleaf.errors import ClusterStartError
from broadleaf.state import directories, files
from broadleaf.state.directories import run_dirs
from waiting import until

pytestmark = pytest.mark.timeout(60)

SCRIPT = """
import resource, sys, time
import broadleaf as ipp

cluster = ipp.Cluster(n=2)
rc = cluster.start_and_connect_sync()
pids = rc[:].apply_sync(__import__("os").getpid)
running = rc[:].apply_async(lambda: __import__("time").sleep(1) or "fine")
host = cluster.to_dict()["controller"]["fork_server_pid"]
before = resource.prlimit(host, resource.RLIMIT_NPROC, (1, resource.getrlimit(resource.RLIMIT_NPROC)[1]))
cluster.start_engines_sync(1)
print(running.get(timeout=20))
while not rc.death_certificate(2):
    rc.wait(timeout=0.01)
print(rc.death_certificate(2).reason)
print(rc[:].apply_async(__import__("os").getpid).get(timeout=20) == pids)
resource.prlimit(host, resource.RLIMIT_NPROC, before)
rc.wait_for_engines(3, timeout=20)
print(rc[2].apply_sync(lambda: "engine 2"))
print(cluster.log_path().read_text())
cluster.stop_cluster_sync()
"""


@pytest.fixture
def as_user(tmp_path):
    """A function that runs a program as a user who is subject to limits on processes; returns its lines."""

    def run(program, uid):
        command = [sys.executable, "-c", program]
        if os.getuid() == 0:  # who is exempt
            if shutil.which("setpriv") is None:
                pytest.skip("needs setpriv to run as another user")
            # Folders above the interpreter may be closed to others.
            capabilities = [f"--{kind}-caps=-all,+dac_read_search" for kind in ("inh", "ambient")]
            command = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *capabilities, *command]
            os.chown(tmp_path, uid, uid)
        environment = os.environ | {
            "HOME": str(tmp_path),
            "BROADLEAF_DIR": str(tmp_path / "state"),
            "PYTHONPATH": str(Path(ipp.__file__).parent.parent),
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=55, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def test_a_fork_that_fails_is_that_engines_trouble_alone(as_user):
    running, reason, same, engine, *log = as_user(SCRIPT, 64321)
    assert (running, same, engine) == ("['fine', 'fine']", "True", "engine 2")
    assert "could not be started: [Errno 11] Resource temporarily unavailable" in reason
    assert "ulimit -u" in reason
    assert any("broadleaf: engine 2 could not be started: [Errno 11]" in line for line in log)


FEW_PROCESSES = """
import os, resource
import broadleaf as ipp
resource.setrlimit(resource.RLIMIT_NPROC, ({limit}, {limit}))
try:
    with ipp.Cluster(n=4) as rc:
        print(rc[:].apply_sync(abs, -1))
except (ipp.ClusterStartError, ipp.ClusterConnectionError, ipp.RemoteError) as error:
    print(error)
print("left:", [name for _, _, names in os.walk(os.environ["BROADLEAF_DIR"]) for name in names])
"""


@pytest.mark.skipif(os.getuid() != 0, reason="the limit would count all processes of this user")
@pytest.mark.parametrize("limit", range(1, 9))
def test_a_start_without_processes_for_all_says_so_at_once(as_user, limit):
    # Another user for each limit: one's last processes may just be ending.
    *said, left = as_user(FEW_PROCESSES.format(limit=limit), 64330 + limit)
    assert "ulimit -u" in "\n".join(said)
    assert left == "left: []"


@pytest.fixture
def limited():
    """A cluster whose fork server cannot open more descriptors until the limits returned with it are restored."""
    with ipp.Cluster(n=2, engine_start="spawn", start_timeout_s=20) as client:
        host = client.cluster.to_dict()["controller"]["fork_server_pid"]
        limits = resource.prlimit(host, resource.RLIMIT_NOFILE)
        resource.prlimit(host, resource.RLIMIT_NOFILE, (3, limits[1]))
        yield client, host, limits


def test_an_interpreter_that_cannot_be_started_is_started_later(limited):
    client, host, limits = limited
    client.cluster.start_engines_sync(1)
    assert until(lambda: client.death_certificate(2))
    assert "ulimit -n" in client.death_certificate(2).reason
    with pytest.raises(IndexError, match="it could not be started"):
        client[2]
    with pytest.raises(
        TimeoutError, match=r"only 2 of 3 engines registered.*; engine 2 could not be started: .*Too many open files"
    ):
        client.wait_for_engines(3, timeout=0.1)
    entry = client.cluster.status_sync()["engines"][2]
    assert entry["last_death"]["cause"] == "not_started"
    assert client[:].apply_sync(lambda: "fine") == ["fine"] * 2
    resource.prlimit(host, resource.RLIMIT_NOFILE, limits)
    client.wait_for_engines(3, timeout=20)
    assert client[:].apply_sync(lambda: "fine") == ["fine"] * 3


def test_a_cluster_whose_engines_get_no_process_says_so():
    cluster = ipp.Cluster(n=1, engine_start="spawn")
    cluster.start_cluster_sync()
    try:
        cluster.wait_for_engines_sync()
        host = cluster.to_dict()["controller"]["fork_server_pid"]
        resource.prlimit(host, resource.RLIMIT_NOFILE, (3, resource.prlimit(host, resource.RLIMIT_NOFILE)[1]))
        cluster.start_engines_sync(1)
        cluster.n = 2
        assert until(lambda: cluster.status_sync()["engines"][1]["last_death"])
        values = cluster.settings.values | {"start_timeout_s": 1.0}
        cluster.settings = Settings(values, cluster.settings.origins)
        with pytest.raises(ClusterStartError, match=r"only 1 of 2 engines came up.*: engine 1 could not be started"):
            cluster.wait_for_engines_sync()
    finally:
        cluster.stop_cluster_sync()


@pytest.fixture
def unlicensed(tmp_path):
    """Keywords of a cluster whose engines' interpreters end with a message before they become engines."""
    text = "import sys\nif '--setup-from-stdin' in sys.orig_argv:\n    raise SystemExit('no licence')\n"
    (tmp_path / "sitecustomize.py").write_text(text)
    return {"engine_start": "spawn", "env": {"PYTHONPATH": str(tmp_path)}}


@pytest.fixture
def no_such_core():
    """Keywords of a cluster whose engines fail after they were forked."""
    return {"affinity": "4000"}


@pytest.mark.parametrize(("keywords", "last_words"), [("unlicensed", "no licence"), ("no_such_core", "setaffinity")])
def test_nobody_waits_for_engines_that_died_at_their_start(request, keywords, last_words):
    cluster = ipp.Cluster(n=2, **request.getfixturevalue(keywords))
    cluster.start_cluster_sync()
    try:
        with cluster.connect_client_sync() as client:
            with pytest.raises(ipp.EngineError, match=r"only 0 of 2 engines came up: engine [01] exited") as caught:
                client.wait_for_engines()
            assert last_words in str(caught.value)
            assert caught.value.certificate.cause == "exit"
            with pytest.raises(TimeoutError, match="only 0 of 3 engines registered"):  # one may be started by hand
                client.wait_for_engines(3, timeout=0.5)
            with pytest.raises(ipp.EngineError, match=last_words):
                client.wait_for_engines(2, block=False).result(timeout=30)
        with pytest.raises(ClusterStartError, match=last_words):
            cluster.wait_for_engines_sync()
    finally:
        cluster.stop_cluster_sync()


def test_a_cluster_whose_engines_die_at_their_start_does_not_stay(no_such_core, cluster_processes):
    cluster = ipp.Cluster(n=2, cluster_id="no-core", **no_such_core)
    with pytest.raises(ClusterStartError, match="setaffinity"):
        cluster.start_and_connect_sync()
    assert cluster_processes("no-core") == {}


def test_an_engine_that_is_started_again_is_waited_for(tmp_path, unlicensed):
    script = tmp_path / "sitecustomize.py"
    cluster = ipp.Cluster(n=1, restart_engines=True, restart_backoff_max_s=0.1, max_restarts=1000, **unlicensed)
    cluster.start_cluster_sync()
    try:
        with cluster.connect_client_sync() as client:
            waiting = client.wait_for_engines(1, block=False)
            assert until(lambda: client.status()["engines"][0]["restarts"] > 1)
            script.unlink()
            waiting.result(timeout=30)
            assert client[0].apply_sync(lambda: "fine") == "fine"
    finally:
        cluster.stop_cluster_sync()


@pytest.mark.parametrize("name", ["owner.json", "engine.json", "client.json", "cluster.json"])
@pytest.mark.parametrize("detached", [True, False])
def test_a_start_that_cannot_write_its_files_leaves_nothing(monkeypatch, cluster_processes, name, detached):
    def full(path, content, write=directories.write_json):
        if path.name == name:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, content)

    def no_mark(directory):
        raise OSError(errno.ENOSPC, "No space left on device")

    for module in (files, credentials):
        monkeypatch.setattr(module, "write_json", full)
    if name == "owner.json":
        monkeypatch.setattr(directories, "mark_owner", no_mark)
    cluster = ipp.Cluster(n=1, cluster_id="full-disk", detached=detached)
    with pytest.raises(OSError, match="No space left"):
        cluster.start_cluster_sync()
    assert cluster_processes("full-disk") == {}
    assert not cluster.running
    assert not cluster.cluster_dir.exists()
    assert run_dirs("full-disk") == []


def test_a_start_that_finds_no_place_for_its_sockets_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("BROADLEAF_DIR", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    (tmp_path / "run").touch()
    cluster = ipp.Cluster(n=1, cluster_id="no-place")
    with pytest.raises(OSError, match="run"):
        cluster.start_cluster_sync()
    assert not cluster.cluster_dir.exists()


@pytest.mark.filterwarnings("error::broadleaf.cluster.addresses.PlaintextWarning")
def test_a_start_that_a_warning_ends_leaves_nothing():
    cluster = ipp.Cluster(n=1, cluster_id="warned", listen="127.0.0.1:0", tls=False)
    with pytest.raises(UserWarning, match="not encrypted"):
        cluster.start_cluster_sync()
    assert not cluster.cluster_dir.exists()
