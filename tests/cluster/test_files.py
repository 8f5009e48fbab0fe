"""Directories and connection files."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from broadleaf.errors import ClusterConnectionError
from broadleaf.state import files
from broadleaf.state.directories import (
    ClusterFileError,
    make_private_dir,
    make_run_dir,
    read_json,
    run_dirs,
    write_json,
)


@pytest.fixture(autouse=True)
def base(tmp_path, monkeypatch):
    monkeypatch.setenv("BROADLEAF_DIR", str(tmp_path / "base"))
    return tmp_path / "base"


def _mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_written_files_are_private_and_whole(tmp_path):
    path = tmp_path / "x.json"
    old = os.umask(0)
    try:
        write_json(path, {"key": "secret"})
        write_json(path, {"key": "other"})
    finally:
        os.umask(old)
    assert _mode(path) == 0o600
    assert read_json(path) == {"key": "other"}
    assert os.listdir(tmp_path) == ["x.json"]


def test_a_write_that_fails_leaves_the_old_content(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert read_json(path) == {"a": 1}
    assert os.listdir(tmp_path) == ["x.json"]


def test_directories_are_closed_to_others(tmp_path):
    directory = tmp_path / "d"
    directory.mkdir(mode=0o755)
    for path in (directory, tmp_path / "new"):
        make_private_dir(path)
        assert _mode(path) == 0o700


def test_a_link_in_place_of_a_directory_is_refused(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(ClusterFileError, match="not a directory that you own"):
        make_private_dir(tmp_path / "link")


@pytest.mark.parametrize("umask", [0, 0o777])
def test_what_is_made_above_a_directory_is_closed_too(tmp_path, umask):
    old = os.umask(umask)
    try:
        make_private_dir(tmp_path / "a" / "b" / "c")
    finally:
        os.umask(old)
    assert [_mode(tmp_path / path) for path in ("a", "a/b", "a/b/c")] == [0o700] * 3


def test_run_directories_are_where_only_the_user_can_make_them(tmp_path, monkeypatch):
    monkeypatch.setenv("BROADLEAF_DIR", str(tmp_path / "state"))
    session = tmp_path / "session"
    session.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(session))
    of_session = Path(make_run_dir("c"))
    lasting = Path(make_run_dir("c", outlives_session=True))
    make_run_dir("c-x")  # another cluster
    assert of_session.parent == session / "broadleaf"
    assert lasting.parent == tmp_path / "state" / "run" / os.uname().nodename
    assert run_dirs("c") == [str(of_session), str(lasting)]
    assert len(run_dirs()) == 3
    for path in (of_session, of_session.parent, lasting, lasting.parent, lasting.parent.parent):
        assert _mode(path) == 0o700
    # A directory that others can write to is not used, nor one that does not exist.
    session.chmod(0o770)
    assert os.path.dirname(make_run_dir("c")) == str(lasting.parent)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    assert os.path.dirname(make_run_dir("c")) == str(lasting.parent)
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert os.path.dirname(make_run_dir("c")) == str(lasting.parent)


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".x", "x" * 41, "a b", "a\n"])
def test_ids_that_cannot_be_directories(name):
    with pytest.raises(ValueError, match="cluster id"):
        files.check_id("cluster id", name)


def test_files_that_are_none_of_ours(tmp_path):
    with pytest.raises(ClusterFileError, match="does not exist"):
        read_json(tmp_path / "none")
    (tmp_path / "bad").write_text("{")
    with pytest.raises(ClusterFileError, match="cannot be read"):
        read_json(tmp_path / "bad")
    (tmp_path / "list").write_text("[]")
    with pytest.raises(ClusterFileError, match="not a file of a cluster"):
        read_json(tmp_path / "list")


def test_finding_the_latest_connection_file(base):
    with pytest.raises(ClusterConnectionError, match="no cluster is running in profile 'default'"):
        files.find_connection_file()
    for number, cluster_id in enumerate(["b", "a"]):
        path = files.cluster_dir("default", cluster_id)
        path.mkdir(parents=True)
        write_json(path / files.CLIENT_FILE, {})
        os.utime(path / files.CLIENT_FILE, (number, number))
    assert files.find_connection_file().parent.name == "a"
    assert files.find_connection_file(cluster_id="b").parent.name == "b"
    with pytest.raises(ClusterConnectionError, match="'c'"):
        files.find_connection_file(cluster_id="c")


def _place(profile, cluster_id, pid=None):
    """Files of a cluster, whose process has this id if one is given."""
    path = files.cluster_dir(profile, cluster_id)
    path.mkdir(parents=True)
    write_json(path / files.CLIENT_FILE, {})
    if pid is not None:
        write_json(path / files.CLUSTER_FILE, {"controller": {"fork_server_pid": pid}})
    return path


@pytest.fixture
def process_of_a():
    """The id of a process that belongs to a cluster 'a'."""
    code = "print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          env=os.environ | {"BROADLEAF_CLUSTER_ID": "a"}) as child:  # fmt: skip
        assert child.stdout is not None
        child.stdout.readline()
        yield child.pid
        child.communicate(b"\n")


def test_a_cluster_that_runs_goes_before_a_later_one_that_is_gone(process_of_a):
    _place("default", "a", process_of_a)
    os.utime(files.cluster_dir("default", "a") / files.CLIENT_FILE, (1, 1))
    _place("default", "b", os.getpid())
    assert files.find_connection_file().parent.name == "a"
    assert files.running_clusters() == [("default", "a")]


def test_no_cluster_says_where_it_looked_what_runs_and_how_to_start_one(base, process_of_a):
    _place("default", "a", process_of_a)
    _place("other", "a", process_of_a)
    with pytest.raises(ClusterConnectionError) as raised:
        files.find_connection_file("nope")
    assert str(raised.value) == (
        f"no cluster is running in profile 'nope' (looked in {base}/profiles/nope); running: 'a' in profile 'default', "
        "'a' in profile 'other'. Start one with `broadleaf start --profile nope`"
    )
    with pytest.raises(ClusterConnectionError) as raised:
        files.find_connection_file("other", "b")
    assert str(raised.value) == (
        f"no cluster 'b' is running in profile 'other' (looked in {base}/profiles/other/b); running: 'a', "
        "'a' in profile 'default'. Start one with `broadleaf start --profile other --cluster-id b`"
    )


def test_how_to_start_names_no_default():
    with pytest.raises(ClusterConnectionError) as caught:
        files.find_connection_file("default", "default")
    assert str(caught.value).endswith("Start one with `broadleaf start`")


@pytest.mark.parametrize("name", [3, None, True])
def test_a_name_that_is_no_text(name):
    with pytest.raises(TypeError, match="a profile must be a string, not "):
        files.profile_dir(name)


def test_removal_may_leave_the_logs(tmp_path):
    cluster_dir, run_dir = tmp_path / "c", tmp_path / "r"
    for directory, names in (
        (cluster_dir, ["client.json", "engine.json", "cluster.json", "node.log"]),
        (run_dir, ["node.sock", "engine-0.log"]),
    ):
        directory.mkdir()
        for name in names:
            (directory / name).touch()
    files.remove_cluster_files(cluster_dir, run_dir, keep_logs=True)
    assert sorted(os.listdir(cluster_dir)) == ["cluster.json", "node.log"]
    assert os.listdir(run_dir) == ["engine-0.log"]
    files.remove_cluster_files(cluster_dir, run_dir)
    assert not cluster_dir.exists()
    assert not run_dir.exists()


@pytest.mark.parametrize("leaves_jobs", [True, False])
def test_what_the_next_controller_needs_stays_unless_the_cluster_was_stopped(tmp_path, leaves_jobs):
    cluster_dir, run_dir = tmp_path / "cluster", tmp_path / "run"
    cluster_dir.mkdir()
    run_dir.mkdir()
    needed = ["journal", "restart.json", "order-1.json", "block-1.sh", "state.lock", "steward.lock",
              "steward-order.json", "steward.json", "steward.log", "node.log"]  # fmt: skip
    for name in (*needed, "client.json", "engine.json"):
        (cluster_dir / name).touch()
    write_json(cluster_dir / "cluster.json", {"leaves_jobs": leaves_jobs})
    files.remove_cluster_files(cluster_dir, run_dir, keep_logs=True)
    assert sorted(os.listdir(cluster_dir)) == sorted([*needed, "cluster.json"])
    assert files.can_be_resumed(cluster_dir)
    files.remove_cluster_files(cluster_dir, run_dir)
    assert not files.can_be_resumed(cluster_dir)
    left = sorted(os.listdir(cluster_dir)) if leaves_jobs else []
    assert cluster_dir.exists() == leaves_jobs
    assert left == (["cluster.json", "node.log", "steward.json", "steward.log"] if leaves_jobs else [])


def test_a_process_is_known_by_its_marker():
    import subprocess

    environment = os.environ | {"BROADLEAF_CLUSTER_ID": "c1"}
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    child.stdin.write(b"x\n")
    child.stdin.flush()
    assert child.stdout.readline() == b"x\n"  # it is running, so its environment is in place
    assert files.process_of_cluster(child.pid, "c1")
    assert not files.process_of_cluster(child.pid, "c")
    child.communicate()
    assert not files.process_of_cluster(child.pid, "c1")
