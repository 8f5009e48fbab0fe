"""Clusters of programs in bad surroundings: names that are not UTF-8, closed descriptors, any umask."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import broadleaf as ipp
import pytest

pytestmark = pytest.mark.timeout(120)

# "café", as a system with Latin-1 names writes it.
NAME = b"caf\xe9"
MODULE = """
def successor(x):
    return x + 1

def fails():
    raise ValueError("from there")
"""
PROGRAM = """
import os, sys
import broadleaf as ipp
import plain_functions

def double(x):
    return 2 * x

def check(client, n):
    assert client[:].apply_sync(os.getcwd) == [os.getcwd()] * n
    assert client[:].apply_sync(os.getenv, "OWN") == ["caf\\udce9"] * n
    assert client[:].apply_sync(double, 3) == [6] * n
    assert client.load_balanced_view().map_sync(plain_functions.successor, range(10)) == list(range(1, 11))
    try:
        client[0].apply_sync(plain_functions.fails)
    except ipp.RemoteError as error:
        assert "ValueError: from there" in str(error)
    else:
        raise AssertionError("no error")

if __name__ == "__main__":
    options = {"engine_start": sys.argv[1], "env": {"OWN": "caf\\udce9"}}
    with ipp.Cluster(n=2, listen="127.0.0.1:0", **options) as client:
        check(client, 2)
        with ipp.Relay(client.cluster.relay_file, 1, name="relay"):
            client.wait_for_engines(3, timeout=60)
            check(client, 3)
    print("done")
"""


@pytest.fixture
def latin_1(tmp_path) -> bytes:
    """A directory whose name is not UTF-8, with a module."""
    directory = os.fsencode(tmp_path) + b"/" + NAME
    os.mkdir(directory)
    Path(os.fsdecode(directory), "plain_functions.py").write_text(MODULE)
    return directory


def run(command: list[str | bytes], cwd: bytes | str, **environment: bytes) -> subprocess.CompletedProcess[str]:
    """Runs a program that uses the Broadleaf of the tests, and may use modules in PYTHONPATH."""
    ours = os.fsencode(Path(ipp.__file__).parents[1])
    variables = {os.fsencode(name): value for name, value in environment.items()}
    variables[b"PYTHONPATH"] = b":".join(filter(None, [ours, variables.get(b"PYTHONPATH", b"")]))
    return subprocess.run(
        command, cwd=cwd, env=dict(os.environb) | variables, capture_output=True, text=True, timeout=100, check=False
    )


@pytest.mark.parametrize("engine_start", ["fork", "spawn"])
@pytest.mark.parametrize("place", ["working directory", "PYTHONPATH"])
def test_a_directory_need_not_be_utf_8(latin_1, tmp_path, engine_start, place):
    (tmp_path / "program.py").write_text(PROGRAM)
    cwd = latin_1 if place == "working directory" else "/"
    done = run([sys.executable, str(tmp_path / "program.py"), engine_start], cwd, PYTHONPATH=latin_1)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"


@pytest.mark.parametrize("variable", ["BROADLEAF_DIR", "XDG_STATE_HOME", "HOME"])
def test_broadleafs_own_directory_must_be_utf_8(latin_1, variable):
    program = "import os\nfor name in ('BROADLEAF_DIR', 'XDG_STATE_HOME'): os.environ.pop(name, None)\n"
    program += "import sys, broadleaf as ipp\nos.environb[sys.argv[1].encode()] = os.fsencode(sys.argv[2])\n"
    program += "with ipp.Cluster(n=1): pass"
    done = run([sys.executable, "-c", program, variable, latin_1], "/")
    assert done.returncode == 1
    assert "is not valid UTF-8: set BROADLEAF_DIR to one that is" in done.stderr
    assert sorted(os.listdir(latin_1)) == [b"plain_functions.py"]


def test_a_runtime_directory_that_is_not_utf_8_is_not_used(latin_1):
    os.chmod(latin_1, 0o700)
    program = "import broadleaf as ipp\nwith ipp.Cluster(n=1) as rc: print(rc[0].apply_sync(abs, -1))"
    done = run([sys.executable, "-c", program], "/", XDG_RUNTIME_DIR=latin_1)
    assert (done.stdout, done.returncode) == ("1\n", 0), done.stderr


CLOSED = """
import os, subprocess, sys
import broadleaf as ipp

def write_as_c_does(text):
    os.write(1, text)
    os.write(2, text)

with ipp.Cluster(n=2, engine_start=sys.argv[2]) as client:
    result = client[0].apply_async(print, "hello")
    result.get(timeout=30)
    assert result.stdout == "hello\\n", result.stdout
    assert client[:].apply_sync(subprocess.check_output, ["echo", "x"]) == [b"x\\n"] * 2
    # None of them is a socket of the cluster.
    write_as_c_does(b"not for the controller")
    assert client[:].apply_sync(abs, -1) == [1, 1]
    shown = [os.readlink(f"/proc/self/fd/{number}") for number in range(3)]
with open(sys.argv[1], "w") as file:
    print(*shown, file=file)
"""


@pytest.mark.parametrize("engine_start", ["fork", "spawn"])
@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)], ids=str)
def test_a_program_may_have_closed_its_standard_descriptors(tmp_path, engine_start, closed):
    told = tmp_path / "told"
    line = f'exec "$@" {" ".join(f"{number}>&-" for number in closed)}'
    done = run(["sh", "-c", line, "sh", sys.executable, "-c", CLOSED, str(told), engine_start], "/")
    assert done.returncode == 0, done.stderr
    shown = told.read_text().split()
    assert [shown[number] for number in closed] == [os.devnull] * len(closed)


ANY_UMASK = """
import os, stat, sys
os.umask(int(sys.argv[1], 8))
import broadleaf as ipp

top = os.environ["BROADLEAF_DIR"]

def open_to_others():
    found = []
    for directory, directories, files in os.walk(top):
        for name in [*directories, *files]:
            mode = stat.S_IMODE(os.lstat(os.path.join(directory, name)).st_mode)
            if mode & 0o077 or not mode & 0o400:
                found.append((os.path.join(directory, name)[len(top):], oct(mode)))
    return found

def show():
    files = sum(len(files) for _, _, files in os.walk(top))
    assert files > 5, files
    print(open_to_others())

cluster = ipp.Cluster(n=2, cluster_id="mine", listen="127.0.0.1:0", log_sink=top + "/events.log")
with cluster as client:
    client.ship_module("plain_functions")
    assert client[:].apply_sync(abs, -1) == [1, 1]
    cluster.restart_engines_sync(0)
    client.wait_for_engines(2, timeout=30)
    with ipp.Relay(cluster.relay_file, 1, name="relay", client_file=cluster.connection_file):
        client.wait_for_engines(3, timeout=30)
        assert client[:].apply_sync(abs, -1) == [1, 1, 1]
        # What tasks write has the mode that they expect.
        assert client[:].apply_sync(os.umask, 0o22) == [int(sys.argv[1], 8)] * 3
        show()
detached = ipp.Cluster(n=1, cluster_id="detached", detached=True)
detached.start_cluster_sync()
try:
    detached.wait_for_engines_sync()
    ipp.Cluster.from_file(cluster_id="detached").scale_sync(2)
    show()
finally:
    detached.stop_cluster_sync()
"""


@pytest.mark.parametrize("umask", ["0", "22", "277", "777"])
def test_files_of_a_cluster_are_private_whatever_the_umask(tmp_path, umask):
    (tmp_path / "plain_functions.py").write_text(MODULE)
    done = run(
        [sys.executable, "-c", ANY_UMASK, umask],
        str(tmp_path),
        BROADLEAF_DIR=os.fsencode(tmp_path / "state"),
        PYTHONPATH=os.fsencode(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n[]\n"


IN_A_NAMESPACE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]

CONNECT = """
import os, sys
import broadleaf as ipp

with ipp.Client(cluster_id="outside") as client:
    assert client[:].apply_sync(os.getpid)
    assert client[:].map_sync(abs, range(-4, 4)) == [4, 3, 2, 1, 0, 1, 2, 3]
print("done")
"""


def has_namespaces() -> bool:
    """Whether this user may make namespaces of processes."""
    return subprocess.run([*IN_A_NAMESPACE, "true"], capture_output=True, timeout=60, check=False).returncode == 0


@pytest.mark.skipif(not has_namespaces(), reason="this user may not make namespaces (unshare --user --pid)")
@pytest.mark.parametrize("inside", ["client", "cluster"])
def test_client_and_cluster_in_different_namespaces_of_processes(tmp_path, inside):
    state = {"BROADLEAF_DIR": os.fsencode(tmp_path / "state")}
    wraps = {"client": ([], IN_A_NAMESPACE), "cluster": (IN_A_NAMESPACE, [])}
    around_cluster, around_client = wraps[inside]
    start = """
import sys
import broadleaf as ipp
with ipp.Cluster(n=2, cluster_id="outside") as client:
    print("up", flush=True)
    sys.stdin.read()
"""
    ours = os.fsencode(Path(ipp.__file__).parents[1])
    environment = dict(os.environb) | {b"PYTHONPATH": ours, b"BROADLEAF_DIR": state["BROADLEAF_DIR"]}
    with subprocess.Popen(
        [*around_cluster, sys.executable, "-c", start],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as cluster:
        assert cluster.stdout is not None
        assert cluster.stdout.readline() == "up\n"
        done = run([*around_client, sys.executable, "-c", CONNECT], str(tmp_path), **state)
        cluster.communicate(timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"


FEW_THREADS = """
import broadleaf as ipp

try:
    with ipp.Cluster(n=8) as client:
        client.wait_for_engines(8, timeout=300)
except (ipp.ClusterStartError, ipp.EngineError, OSError) as error:
    # Whichever thread or process is one too many: an engine's, or one of this program.
    assert not isinstance(error, TimeoutError), error
    assert " within " not in str(error), error
    print(error)
"""
OTHER_USER = 54321


@pytest.fixture
def directory_of_another_user() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as directory:
        os.chown(directory, OTHER_USER, OTHER_USER)
        yield directory


@pytest.mark.skipif(os.geteuid() != 0, reason="the limit counts all processes of a user: needs root, to become another")
def test_a_limit_on_threads_is_told_at_once(directory_of_another_user):
    # Who reads Python and Broadleaf wherever they are.
    identity = [f"--reuid={OTHER_USER}", f"--regid={OTHER_USER}", "--clear-groups"]
    abilities = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    limited = ["setpriv", *identity, *abilities, "bash", "-c", 'ulimit -u 12; exec "$@"', "bash"]
    state = os.fsencode(directory_of_another_user)
    done = run([*limited, sys.executable, "-c", FEW_THREADS], state, BROADLEAF_DIR=state + b"/state", HOME=state)
    assert done.returncode == 0, done.stderr
    assert "ulimit -u" in done.stdout


def test_a_closed_client_keeps_no_descriptor(tmp_path):
    with ipp.Cluster(n=1) as client:
        client[0].apply_sync(abs, -1)
        before = len(os.listdir("/proc/self/fd"))
        kept = []
        for _ in range(5):
            with ipp.Client(cluster_id=client.cluster.cluster_id) as other:
                kept.append((other, other[0].apply_async(abs, -1)))
                assert kept[-1][1].get(30) == 1
        assert len(os.listdir("/proc/self/fd")) <= before
        assert [result.get() for _, result in kept] == [1] * 5


def test_a_log_is_private_whatever_the_umask(tmp_path):
    program = f"""
import os
os.umask(0)
import broadleaf as ipp
with ipp.Cluster(n=1, log_sink={str(tmp_path / "first.log")!r}) as client:
    client.set_log("debug", {str(tmp_path / "second.log")!r})
    client[0].apply_sync(abs, -1)
"""
    done = run([sys.executable, "-c", program], str(tmp_path), BROADLEAF_DIR=os.fsencode(tmp_path / "state"))
    assert done.returncode == 0, done.stderr
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob("*.log")} == {
        "first.log": 0o600,
        "second.log": 0o600,
    }


def test_a_program_that_closes_no_client_ends_after_its_callbacks_and_exit_handlers(tmp_path):
    program = """
import atexit, threading, time
import broadleaf as ipp

def on_done(result):
    begun.set()
    time.sleep(0.3)
    print("called back", flush=True)

begun = threading.Event()
cluster = ipp.Cluster(n=1)
client = cluster.start_and_connect_sync()
atexit.register(lambda: print(client[0].apply_sync(abs, -1), flush=True))
client[0].apply_async(abs, -1).add_done_callback(on_done)
begun.wait(30)
"""
    done = run([sys.executable, "-c", program], str(tmp_path), BROADLEAF_DIR=os.fsencode(tmp_path / "state"))
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.split("\n")) == ["", "1", "called back"]
