"""Who is believed to be the cluster, who is accepted, and where the keys are."""

import json
import os
import pwd
import re
import shutil
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import broadleaf as ipp
import pytest
from broadleaf import _native
from broadleaf.cluster import addresses
from broadleaf.cluster.relay import Relay
from broadleaf.errors import ClusterConnectionError
from flood import over_tcp
from keys_in_sight import keys_in_sight
from waiting import until

NOBODY = 65534
ROOT_ONLY = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv, to act as other users"
)


def as_user(uid):
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]


def python_of(uid):
    """A Python that this user may run."""
    for python in (sys.executable, f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"):
        again = "import os, sys; os.execv(sys.executable, [sys.executable, '-c', ''])"  # as that user may
        command = [*as_user(uid), python, "-c", again]
        if subprocess.run(command, cwd="/", capture_output=True, timeout=20, check=False).returncode == 0:
            return python
    return pytest.skip("no Python that other users may run")


@pytest.fixture(scope="module")
def rc():
    with ipp.Cluster(n=2, listen="127.0.0.1:0") as rc:
        yield rc


def connection(rc):
    return json.loads(Path(rc.cluster.connection_file).read_text())


# The unix socket: who listens

LISTEN = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o777)
listener.listen()
print("ready", flush=True)
accepted, _ = listener.accept()
print(accepted.recv(65536).hex(), flush=True)
"""


class Impostor:
    """A process of another user in the node's place; `heard` is what a client told it."""

    def __init__(self, path):
        command = [*as_user(NOBODY), python_of(NOBODY), "-c", LISTEN, str(path)]
        self.process = subprocess.Popen(command, cwd="/", stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        assert self.process.stdout.readline() == "ready\n"
        return self

    def heard(self):
        return bytes.fromhex(self.process.stdout.readline())

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@ROOT_ONLY
def test_a_directory_that_another_user_has_made_is_not_believed(rc, tmp_path):
    squatted = tmp_path / "run"
    squatted.mkdir(mode=0o700)
    os.chown(squatted, NOBODY, NOBODY)
    for parent in (tmp_path, *tmp_path.parents[:3]):
        parent.chmod(parent.stat().st_mode | 0o011)
    with Impostor(squatted / "node.sock") as impostor:
        with pytest.raises(ClusterConnectionError, match=rf"belongs to user {NOBODY}"):
            ipp.Client(connection(rc) | {"unix_path": str(squatted / "node.sock")})
        assert impostor.process.poll() is None  # nobody connected


@ROOT_ONLY
def test_a_listener_of_another_user_is_not_believed(rc, tmp_path):
    # One that was left behind in a directory that is ours by now.
    directory = tmp_path / "run"
    directory.mkdir(mode=0o777)
    directory.chmod(0o777)
    for parent in (tmp_path, *tmp_path.parents[:3]):
        parent.chmod(parent.stat().st_mode | 0o011)
    with Impostor(directory / "node.sock") as impostor:
        directory.chmod(0o700)
        with pytest.raises(ClusterConnectionError, match=rf"user {NOBODY} listens .* not your cluster"):
            ipp.Client(connection(rc) | {"unix_path": str(directory / "node.sock")})
        assert impostor.heard() == b""


def test_a_listener_without_the_key_learns_nothing(rc, tmp_path):
    tmp_path.chmod(0o700)
    path = tmp_path / "node.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    heard = []

    def answer():
        accepted, _ = listener.accept()
        heard.append(accepted.recv(65536))
        # An answer as long as a real one, with an invalid proof.
        accepted.sendall(bytes([64, 0, 0, 0, 5, 0, 0, 0]) + bytes(64))
        while part := accepted.recv(65536):
            heard.append(part)
        accepted.close()

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(ClusterConnectionError, match="does not hold the cluster's key"):
        ipp.Client(connection(rc) | {"unix_path": str(path)})
    thread.join(20)
    listener.close()
    assert len(heard) == 1
    assert connection(rc)["cluster_id"].encode() not in heard[0]


AS_ANOTHER_USER = """
import os, sys
sys.path += sys.argv[1].split(os.pathsep)
import broadleaf as ipp
with ipp.Cluster(n=1) as rc:
    print(rc[0].apply_sync(os.getuid))
"""


@ROOT_ONLY
def test_nobody_can_take_anothers_place_in_tmp():
    free = (uid for uid in range(50_000, 60_000) if not _has_user(uid))
    uid = next(uid for uid in free if not Path(f"/tmp/broadleaf-{uid}").exists())
    python = python_of(uid)
    squatted = Path(f"/tmp/broadleaf-{uid}")
    home = Path(f"/var/tmp/broadleaf-home-{uid}")
    squatted.mkdir(mode=0o755)
    home.mkdir(mode=0o700)
    try:
        os.chown(squatted, NOBODY, NOBODY)
        os.chown(home, uid, uid)
        own = ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "BROADLEAF_DIR")
        environment = {name: value for name, value in os.environ.items() if name not in own} | {"HOME": str(home)}
        packages = [str(Path(ipp.__file__).parents[1]), str(Path(pytest.__file__).parents[1])]
        done = subprocess.run(
            [*as_user(uid), python, "-c", AS_ANOTHER_USER, os.pathsep.join(packages)],
            env=environment,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stdout == f"{uid}\n", done.stderr
    finally:
        shutil.rmtree(home)
        squatted.rmdir()


def _has_user(uid):
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


# Keys


def test_another_clusters_key_opens_nothing(rc):
    other = json.loads(_native.generate_keys())["client"]["private"]
    for changed in ({}, {"unix_path": None}):
        with pytest.raises(ClusterConnectionError, match="key"):
            ipp.Client(connection(rc) | changed | {"private_key": other})
    with pytest.raises(ClusterConnectionError, match="has no key"):
        ipp.Client({name: value for name, value in connection(rc).items() if name != "private_key"})


def test_an_engines_key_opens_no_clients_connection_from_elsewhere(rc):
    engine_file = Path(rc.cluster.connection_file).with_name("engine.json")
    with pytest.raises(ClusterConnectionError, match="engine's key"):
        ipp.Client(over_tcp(engine_file))


@pytest.fixture(scope="module")
def plain():
    """A cluster whose TCP connections are not encrypted."""
    cluster = ipp.Cluster(n=1, listen="127.0.0.1:0", tls=False)
    with pytest.warns(addresses.PlaintextWarning, match="can read and change everything"):
        cluster.start_cluster_sync()
    yield cluster
    cluster.stop_cluster_sync()


def test_without_tls_the_keys_are_proven_all_the_same(plain):
    far = over_tcp(plain.connection_file)
    with ipp.Client(far) as client:
        client.wait_for_engines(1, timeout=30)
        assert client[0].apply_sync(lambda: 3) == 3
    other = json.loads(_native.generate_keys())["client"]["private"]
    with pytest.raises(ClusterConnectionError, match="key"):
        ipp.Client(far | {"private_key": other})


def test_without_tls_who_knows_the_port_alone_learns_nothing(plain):
    far = over_tcp(plain.connection_file)
    with socket.create_connection((far["tcp"]["host"], far["tcp"]["port"]), timeout=20) as stranger:
        # A hello, which used to be the first frame.
        stranger.sendall(bytes([4, 0, 0, 0, 1, 0, 0, 0]) + b"\x08\x01x\x01")
        said = b""
        while part := stranger.recv(4096):
            said += part
    assert b"install the same version" in said
    assert plain.cluster_id.encode() not in said
    with pytest.raises(ClusterConnectionError) as refused:
        ipp.Client(far | {"cluster_id": "other"})
    assert plain.cluster_id not in str(refused.value)


def test_without_tls_relays_serve(plain):
    with pytest.warns(addresses.PlaintextWarning):
        relay = Relay(plain.relay_file, 1, name="far")
    with relay, plain.connect_client_sync() as client:
        client.wait_for_engines(2, timeout=30)
        assert client[:].apply_sync(len, b"x" * 3_000_000) == [3_000_000] * 2


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_no_key_is_in_sight_of_a_task(way):
    with ipp.Cluster(n=1, engine_start=way) as rc:
        own = connection(rc)
        assert re.match(r"M[A-Za-z0-9+/]{60}", own["private_key"])
        assert rc[0].apply_sync(keys_in_sight) == []
        # It exists nevertheless: a task's own client connects with it.
        assert rc[0].apply_sync(lambda: ipp.Client().ids) == [0]

        def ask_for_it():
            from broadleaf import _native

            try:
                return _native.give_key()
            except RuntimeError as error:
                return str(error)

        assert "does not reveal" in rc[0].apply_sync(ask_for_it)


def test_an_engine_started_by_hand_shows_no_key():
    with ipp.Cluster(n=0) as rc:
        engine_file = Path(rc.cluster.connection_file).with_name("engine.json")
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", "broadleaf.engine", str(engine_file)]
        with subprocess.Popen(command, env=environment) as engine:
            rc.wait_for_engines(1, timeout=30)
            assert rc[0].apply_sync(keys_in_sight) == []
            rc.cluster.stop_cluster_sync()
            assert engine.wait(20) == 0


# Files

WITH_UMASK = """
import os, sys
os.umask(int(sys.argv[1], 8))
import broadleaf as ipp
with ipp.Cluster(n=1, cluster_id="masked") as rc:
    assert rc[0].apply_sync(lambda: 1) == 1
    print("ready", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("umask", ["000", "277"])
def test_whatever_the_umask_nobody_else_gets_in(tmp_path, umask):
    own = ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "BROADLEAF_DIR")
    environment = {name: value for name, value in os.environ.items() if name not in own} | {"HOME": str(tmp_path)}
    client = subprocess.Popen(
        [sys.executable, "-c", WITH_UMASK, umask], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with client:
        assert client.stdout.readline() == b"ready\n"
        found = {path: path.lstat().st_mode for path in tmp_path.rglob("*")}
        client.stdin.close()
    assert client.returncode == 0
    assert any(stat.S_ISSOCK(mode) for mode in found.values())
    for path, mode in found.items():
        wanted = (0o700,) if stat.S_ISDIR(mode) else (0o600, 0o400)
        assert stat.S_IMODE(mode) in wanted, f"{path}: {stat.S_IMODE(mode):o}"


def test_addresses_in_the_files_can_be_dialled():
    with ipp.Cluster(n=0, listen="0.0.0.0:0") as rc:
        far = over_tcp(rc.cluster.connection_file)
        assert far["tcp"]["host"] != "0.0.0.0"
        with ipp.Client(far) as client:
            assert client.ids == []
        with Relay(rc.cluster.relay_file, 1, name="far"):
            rc.wait_for_engines(1, timeout=30)
            assert rc[0].apply_sync(lambda: 1) == 1


def test_controller_and_relays_listen_on_a_network_interface_that_is_named():
    with ipp.Cluster(n=0, listen="lo:0") as rc:
        connection = over_tcp(rc.cluster.connection_file)
        assert connection["tcp"]["host"] == "127.0.0.1"
        assert connection["addresses"] == ["127.0.0.1"]
        with Relay(rc.cluster.relay_file, 1, name="far", listen="lo:0"):
            rc.wait_for_engines(1, timeout=30)
            [host] = rc.status()["hosts"]
            assert host["listen"].startswith("127.0.0.1:")


def test_a_name_or_an_address_is_told_as_it_is():
    assert addresses.to_dial("login.example.org") == "login.example.org"
    assert addresses.to_dial("10.1.2.3") == "10.1.2.3"
    for anywhere in ("0.0.0.0", "::"):
        assert addresses.to_dial(anywhere) not in ("", "0.0.0.0", "::")


def test_a_socket_deep_down_is_reached(tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 150)
    monkeypatch.setenv("BROADLEAF_DIR", str(deep))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    with ipp.Cluster(n=1) as rc:
        assert len(connection(rc)["unix_path"]) > 150
        assert rc[0].apply_sync(lambda: 1) == 1
        # Others who look at the kernel's list of sockets do not learn where it is.
        assert str(deep) not in Path("/proc/net/unix").read_text()
    assert until(lambda: not list(deep.glob("run/*/*")))
