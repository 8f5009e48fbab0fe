"""Directories and connection files."""

import os
import stat

import pytest
from broadleaf.cluster import files
from broadleaf.cluster.files import ClusterFileError
from broadleaf.errors import ClusterConnectionError


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
        files.write_json(path, {"key": "secret"})
        files.write_json(path, {"key": "other"})
    finally:
        os.umask(old)
    assert _mode(path) == 0o600
    assert files.read_json(path) == {"key": "other"}
    assert os.listdir(tmp_path) == ["x.json"]


def test_a_write_that_fails_leaves_the_old_content(tmp_path):
    path = tmp_path / "x.json"
    files.write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        files.write_json(path, {"a": object()})
    assert files.read_json(path) == {"a": 1}
    assert os.listdir(tmp_path) == ["x.json"]


def test_directories_are_closed_to_others(tmp_path):
    directory = tmp_path / "d"
    directory.mkdir(mode=0o755)
    assert _mode(files.make_private_dir(directory)) == 0o700
    assert _mode(files.make_private_dir(tmp_path / "new")) == 0o700


def test_a_link_in_place_of_a_directory_is_refused(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(ClusterFileError, match="not a directory of yours"):
        files.make_private_dir(tmp_path / "link")


def test_run_directories_leave_room_for_the_socket():
    run_dir = files.make_run_dir("x" * 40)
    try:
        assert _mode(run_dir) == 0o700
        assert len(str(run_dir / "node.sock")) <= files.MAX_SOCKET_PATH_BYTES
    finally:
        run_dir.rmdir()


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".x", "x" * 41, "a b", "a\n"])
def test_ids_that_cannot_be_directories(name):
    with pytest.raises(ValueError, match="cluster id"):
        files.check_id("cluster id", name)


def test_files_that_are_none_of_ours(tmp_path):
    with pytest.raises(ClusterFileError, match="does not exist"):
        files.read_json(tmp_path / "none")
    (tmp_path / "bad").write_text("{")
    with pytest.raises(ClusterFileError, match="cannot be read"):
        files.read_json(tmp_path / "bad")
    (tmp_path / "list").write_text("[]")
    with pytest.raises(ClusterFileError, match="not a file of a cluster"):
        files.read_json(tmp_path / "list")


def test_finding_the_latest_connection_file(base):
    with pytest.raises(ClusterConnectionError, match="no cluster is running in profile 'default'"):
        files.find_connection_file()
    for number, cluster_id in enumerate(["b", "a"]):
        path = files.cluster_dir("default", cluster_id)
        path.mkdir(parents=True)
        files.write_json(path / files.CLIENT_FILE, {})
        os.utime(path / files.CLIENT_FILE, (number, number))
    assert files.find_connection_file().parent.name == "a"
    assert files.find_connection_file(cluster_id="b").parent.name == "b"
    with pytest.raises(ClusterConnectionError, match="'c'"):
        files.find_connection_file(cluster_id="c")


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


def test_a_process_is_known_by_its_marker():
    import subprocess

    environment = os.environ | {"BROADLEAF_CLUSTER_ID": "c1"}
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    child.stdin.write(b"x\n")
    child.stdin.flush()
    assert child.stdout.readline() == b"x\n"  # it runs, so its environment is in place
    assert files.process_of_cluster(child.pid, "c1")
    assert not files.process_of_cluster(child.pid, "c")
    child.communicate()
    assert not files.process_of_cluster(child.pid, "c1")
