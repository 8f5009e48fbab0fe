"""`broadleaf doctor`: each step fails once for its own reason, and says what to do."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import broadleaf as ipp
import pytest
from denied_calls import forbid_memfd

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def cluster():
    """A cluster with one engine that listens on the loopback interface."""
    with ipp.Cluster(n=1, listen="127.0.0.1:0") as rc:
        yield rc.cluster


@pytest.fixture(scope="module")
def other_cluster():
    """Another one, with keys of its own."""
    with ipp.Cluster(n=0, listen="127.0.0.1:0") as rc:
        yield rc.cluster


def content(cluster) -> dict:
    """The file with which relays join the cluster."""
    return json.loads(Path(cluster.relay_file).read_text())


def doctor(*arguments, prefix=(), before=None, **environment):
    """Exit code, and findings: step to (result, found, advice)."""
    command = [*prefix, sys.executable, "-m", "broadleaf", "doctor", *arguments, "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, preexec_fn=before,
                          env=os.environ | environment)  # fmt: skip
    assert done.stderr == ""
    findings = json.loads(done.stdout)
    return done.returncode, {one["step"]: (one["result"], one["found"], one["advice"]) for one in findings}


def examined(tmp_path, connection, **options):
    """The findings about a connection file with this content."""
    path = tmp_path / "engine.json"
    path.touch(mode=0o600)
    path.write_text(json.dumps(connection))
    return doctor("--connection", str(path), **options)


def test_all_is_well(cluster, tmp_path):
    for file, key in ((cluster.relay_file, "the engines' key"), (cluster.connection_file, "the clients' key")):
        code, found = doctor("--connection", file)
        assert code == 0
        assert {result for result, _, _ in found.values()} == {"ok"}, found
        assert key in found["our key"][1]
    connection = json.loads(Path(cluster.connection_file).read_text()) | {"unix_path": None}
    assert examined(tmp_path, connection)[1]["controller's key"][1].endswith("holds the key in the file, by TLS 1.3")


def test_it_leaves_no_trace_in_the_cluster(cluster):
    before = cluster.status_sync()
    doctor("--connection", cluster.relay_file)
    after = cluster.status_sync()
    assert [engine["state"] for engine in after["engines"]] == ["up"]
    assert after["hosts"] == before["hosts"]


@pytest.mark.parametrize(
    ("change", "step", "found", "advice"),
    [
        ({"broadleaf": "0.0.1"}, "same version", "the cluster has Broadleaf 0.0.1, this", "install Broadleaf 0.0.1"),
        ({"python": "3.2"}, "same minor", "the cluster has Python 3.2, this", "another Python that has it"),
        ({"tcp": None}, "port", "listens on its own host only", "--tcp ADDRESS"),
        ({"addresses": ["nowhere.invalid"]}, "name", "no address is known for nowhere.invalid", "/etc/hosts"),
    ],
    ids=["version", "python", "no port", "name"],
)
def test_a_step_that_fails_says_what_to_do(cluster, tmp_path, change, step, found, advice):
    code, findings = examined(tmp_path, content(cluster) | change)
    assert code == 1
    result, said, todo = findings[step]
    assert (result, found in said, advice in todo) == ("failed", True, True), findings[step]


def test_what_needs_a_step_that_failed_is_not_tried(cluster, tmp_path):
    _, found = examined(tmp_path, content(cluster) | {"addresses": ["nowhere.invalid"]})
    assert [found[step][0] for step in ("name", "route", "port", "controller's key", "our key")] == [
        "failed", *["not tried"] * 4
    ]  # fmt: skip


def test_a_port_where_nothing_listens(cluster, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    connection = content(cluster)
    _, found = examined(tmp_path, connection | {"tcp": connection["tcp"] | {"port": port}})
    result, said, advice = found["port"]
    assert result == "failed"
    assert f"127.0.0.1:{port} (Connection refused)" in said
    assert "the cluster has stopped" in advice


def test_keys_of_another_cluster(cluster, other_cluster, tmp_path):
    theirs = content(other_cluster)
    _, found = examined(tmp_path, content(cluster) | {"tcp": theirs["tcp"]})
    assert found["controller's key"][0] == "failed"
    assert "something other than this cluster answers there" in found["controller's key"][1]
    assert found["our key"][0] == "not tried"
    _, found = examined(tmp_path, content(cluster) | {"private_key": theirs["private_key"]})
    assert found["controller's key"][0] == "ok"
    assert found["our key"][0] == "failed"
    assert "copy the file again" in found["our key"][2]


def test_what_is_not_broadleaf(cluster, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        connection = content(cluster)
        _, found = examined(tmp_path, connection | {"tcp": {"host": "127.0.0.1", "port": silent.getsockname()[1]}})
    assert found["port"][0] == "ok"
    assert found["controller's key"][0] == "failed"
    assert "no answer" in found["controller's key"][1]


def test_files_that_are_none(tmp_path, cluster):
    missing, cut, other = (tmp_path / name for name in ("missing", "cut.json", "other.json"))
    cut.write_text(json.dumps(content(cluster))[:100])
    other.write_text("{}")
    for path, why in ((missing, "does not exist"), (cut, "is not JSON"), (other, "is not a connection file")):
        code, found = doctor("--connection", str(path))
        assert code == 1
        assert why in found["connection file"][1]
        assert found["our key"][0] == "not tried"


def test_a_file_that_others_can_read(cluster, tmp_path):
    path = tmp_path / "engine.json"
    path.write_text(json.dumps(content(cluster)))
    path.chmod(0o644)
    code, found = doctor("--connection", str(path))
    assert code == 1
    assert found["connection file"] == (
        "failed", f"{path} is open to others (mode 0644), and holds a key", f"chmod 600 {path}"
    )  # fmt: skip
    assert found["our key"][0] == "ok", "the other steps are tried all the same"


def test_few_descriptors(cluster):
    _, found = doctor("--connection", cluster.relay_file, prefix=("sh", "-c", 'ulimit -n 200; exec "$@"', "sh"))
    assert found["descriptors"][0] == "failed"
    assert "may open 200 files" in found["descriptors"][1]


def test_no_memory_files(cluster):
    _, found = doctor("--connection", cluster.relay_file, before=forbid_memfd)
    assert found["memory"][0] in ("warning", "failed"), "by the size of /dev/shm here"
    assert "memfd_create fails" in found["memory"][1]
    assert "/dev/shm larger" in found["memory"][2]


def test_a_cluster_of_this_host(cluster):
    code, found = doctor("--cluster-id", cluster.cluster_id)
    assert code == 0
    assert found["engines"] == ("ok", "1 of 1 up", "")
    assert found["our key"][0] == "ok"
    pid = cluster.status_sync()["engines"][0]["pid"]
    os.kill(pid, 9)
    with cluster.connect_client_sync() as rc:
        while rc.ids:
            rc.wait(timeout=0.01)
    _, found = doctor("--cluster-id", cluster.cluster_id)
    assert found["engines"][0] == "warning"
    assert "broadleaf status" in found["engines"][2]
    cluster.restart_engines_sync()


def test_the_table():
    command = [sys.executable, "-m", "broadleaf", "doctor", "--connection", "/nowhere/engine.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    head, first, *rest = done.stdout.splitlines()
    assert head.split() == ["STEP", "RESULT", "FOUND"]
    assert first.split()[:3] == ["connection", "file", "failed"]
    advice = "check the path; if it is right, the cluster has stopped, and its files were removed"
    assert f"connection file: {advice}" in rest
    assert rest[-1] == "1 step failed"
    assert done.returncode == 1
