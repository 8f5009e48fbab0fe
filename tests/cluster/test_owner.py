"""Who owns a cluster's files, and who removes them when."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import broadleaf
import pytest
from broadleaf.cluster import ClusterManager
from broadleaf.cluster.cluster import ClusterStateError
from broadleaf.state import directories, files
from broadleaf.state.directories import OWNER_FILE, Owner, make_private_dir, read_json, write_json

pytestmark = pytest.mark.timeout(60)

HERE = Owner.here()
OTHERS = {
    "another host": {"host": "elsewhere", "machine_id": "x" * 32, "boot_id": "b"},
    "another host of the same name": {"machine_id": "x" * 32, "boot_id": "b"},
    "a host of the same name without a machine id": {"machine_id": "", "boot_id": "b"},
    "another container": {"pid_namespace": "pid:[1]"},
}


def give_to(directory: Path, **changes: str) -> None:
    """Makes a directory look as if it was made elsewhere."""
    (directory / OWNER_FILE).write_text(json.dumps(HERE._replace(**changes)._asdict()))


@pytest.fixture(params=OTHERS)
def elsewhere(request):
    return OTHERS[request.param]


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.setenv("BROADLEAF_DIR", str(tmp_path / "base"))
    cluster = broadleaf.Cluster(n=1, cluster_id="owned", detached=True).start_cluster_sync()
    cluster.wait_for_engines_sync()
    yield cluster
    make_private_dir(cluster.cluster_dir)
    directories.mark_owner(cluster.cluster_dir)
    cluster.stop_cluster_sync()
    shutil.rmtree(cluster.to_dict()["controller"]["run_dir"], ignore_errors=True)


def contents(cluster: broadleaf.Cluster) -> list[str]:
    run_dir = Path(cluster.to_dict()["controller"]["run_dir"])
    return sorted(path.name for directory in (cluster.cluster_dir, run_dir) for path in directory.glob("*"))


def command(*arguments: str, code: int = 0, before: tuple[str, ...] = ()) -> str:
    run = "import sys; sys.argv[0] = 'broadleaf'; from broadleaf.cli import main; main()"
    environment = os.environ | {"PYTHONPATH": str(Path(broadleaf.__file__).parent.parent)}
    done = subprocess.run(
        [*before, sys.executable, "-c", run, *arguments], capture_output=True, text=True, timeout=50, env=environment
    )
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


def end_of(cluster: broadleaf.Cluster) -> None:
    """Kills the whole cluster at once, so that nobody cleans up."""
    state = cluster.to_dict()["controller"]
    for pid in (state["fork_server_pid"], state["node_pid"]):
        os.kill(pid, signal.SIGKILL)
    assert cluster.wait_stopped(20)


def test_directories_say_whose_they_are(cluster):
    assert contents(cluster).count(OWNER_FILE) == 2
    assert directories.owner_of(cluster.cluster_dir) == HERE
    assert directories.may_judge(cluster.cluster_dir)
    assert "" not in (HERE.host, HERE.boot_id, HERE.pid_namespace)


def test_whose_processes_can_be_judged_here(tmp_path, elsewhere):
    assert not directories.may_judge(tmp_path), "it does not say"
    give_to(tmp_path, **elsewhere)
    assert not directories.may_judge(tmp_path)
    (tmp_path / OWNER_FILE).write_text("{")
    assert not directories.may_judge(tmp_path)
    if HERE.machine_id:
        give_to(tmp_path, boot_id="an earlier boot", pid_namespace="pid:[1]")
        assert directories.may_judge(tmp_path), "this host has booted since"


def test_a_list_elsewhere_removes_nothing_of_a_living_cluster(cluster, elsewhere):
    run_dir = Path(cluster.to_dict()["controller"]["run_dir"])
    before = contents(cluster)
    # Seen from elsewhere, the process has another id, or none.
    state = read_json(Path(cluster.cluster_file))
    unseen = state | {"controller": state["controller"] | {"fork_server_pid": 2**22 + 1}}
    write_json(Path(cluster.cluster_file), unseen)
    for directory in (cluster.cluster_dir, run_dir):
        give_to(directory, **elsewhere)
        os.utime(directory, (0, 0))
    assert ClusterManager().load_clusters() == {}
    assert contents(cluster) == before
    assert files.running_clusters() == []
    with pytest.raises(
        ClusterStateError, match=r"'owned' .* was started (on host 'elsewhere'|in a container) that shares"
    ):
        broadleaf.Cluster(n=0, cluster_id="owned").start_cluster_sync()
    assert f"'owned' ({elsewhere.get('host', HERE.host)})" in command("status", "--cluster-id", "owned", code=1)
    assert contents(cluster) == before
    write_json(Path(cluster.cluster_file), state)


def test_orphans_of_others_in_a_shared_folder_stay(cluster, elsewhere, monkeypatch, tmp_path):
    run_dir = Path(cluster.to_dict()["controller"]["run_dir"])
    give_to(run_dir, **elsewhere)
    os.utime(run_dir, (0, 0))
    before = contents(cluster)
    # There nobody sees the processes, or has the cluster's own directory.
    monkeypatch.setattr(files, "process_ids", list)
    monkeypatch.setenv("BROADLEAF_DIR", str(tmp_path / "another base"))
    files.remove_orphans()
    monkeypatch.setenv("BROADLEAF_DIR", str(tmp_path / "base"))
    assert contents(cluster) == before


def test_a_list_in_another_process_table(cluster):
    before = contents(cluster)
    enter = ("unshare", "--pid", "--fork", "--mount", "--mount-proc")
    if shutil.which("unshare") is None or subprocess.run([*enter, "true"], capture_output=True).returncode:
        pytest.skip("may not make namespaces")
    assert command("list", before=enter) == "no cluster is running\n"
    assert contents(cluster) == before
    assert "owned" in command("list")
    assert "ENGINE" in command("status", "--cluster-id", "owned")


def test_the_logs_of_a_cluster_that_was_killed_are_kept_for_the_logs_command(cluster):
    with cluster.connect_client_sync() as client:
        client[0].apply_sync(lambda: os.write(2, b"said by engine 0\n"))
    with open(cluster.log_path(), "a") as log:
        log.write("said by the controller\n")
    with open(cluster.log_path(0), "a") as log:
        log.write("said outside of tasks\n")
    end_of(cluster)
    assert command("list") == "no cluster is running\n"
    names = contents(cluster)
    assert files.NODE_LOG in names
    assert not {files.CLIENT_FILE, files.ENGINE_FILE, "node.sock"} & set(names)
    assert command("logs", "--cluster-id", "owned") == (
        "said by the controller\n-- cluster 'owned' has ended without being stopped\n"
    )
    assert command("logs") == command("logs", "--cluster-id", "owned")
    assert "said outside of tasks\n" in command("logs", "--engine", "0")
    assert "its engine 7 has left no log" in command("logs", "--engine", "7", code=1)
    assert "no cluster 'owned' is running" in command("status", "--cluster-id", "owned", code=1)


def test_kept_logs_go_after_a_week_or_with_the_next_of_the_id(cluster):
    end_of(cluster)
    ClusterManager().load_clusters()
    assert files.NODE_LOG in contents(cluster)
    week_ago = os.stat(cluster.cluster_file).st_mtime - files.KEPT_LOG_AGE_S - 1
    os.utime(cluster.cluster_file, (week_ago, week_ago))
    ClusterManager().load_clusters()
    assert not cluster.cluster_dir.exists()
    assert contents(cluster) == []
