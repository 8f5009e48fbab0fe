"""An engine, the client or everything dies during a broadcast: the others continue, and memory is released."""

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import broadleaf as ipp
import numpy as np
import pytest
from broadleaf import error
from broadleaf.state.directories import run_dirs
from waiting import until

pytestmark = pytest.mark.timeout(120)
BROADCASTS = int(os.environ.get("BROADLEAF_BROADCASTS", "500"))
LARGE_BYTES = 200_000_000
# How long it may take until a death is known and settled; the time is printed.
SETTLED_WITHIN_S = 10.0


@pytest.fixture(autouse=True)
def clean():
    """Each test here has a cluster of its own, and leaves it in a state that cannot be cleaned."""


@pytest.fixture
def rc():
    with ipp.Cluster(n=4) as client:
        client.wait_for_engines(4, timeout=30)
        yield client


def segments_of(pids):
    """Memory of segments that these processes hold by descriptor or mapping: inode to bytes."""
    found = {}
    for pid in pids:
        try:
            for path in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(FileNotFoundError):  # Closed since it was listed.
                    if os.readlink(path).startswith("/memfd:broadleaf"):
                        status = path.stat()
                        found[status.st_ino] = status.st_blocks * 512
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                if "/memfd:broadleaf" in line:
                    bounds, _, _, _, inode, *_ = line.split()
                    low, high = (int(address, 16) for address in bounds.split("-"))
                    found.setdefault(int(inode), high - low)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def written_by(pid):
    """Bytes of the largest segment of another process, as far as it has been written."""
    return max(segments_of([pid]).values(), default=0)


# An engine dies ---------------------------------------------------------------------------------

# Runs beside the client, whose threads wait while it copies: kills once this much of the payload is in the segment.
KILLER = """
import os, signal, sys, time
client, engine, min_bytes = map(int, sys.argv[1:])
print("watching", flush=True)
while True:
    for entry in os.scandir(f"/proc/{client}/fd"):
        try:
            if not os.readlink(entry.path).startswith("/memfd:broadleaf"):
                continue
            written = os.stat(entry.path).st_blocks * 512
        except OSError:
            continue
        if written >= min_bytes:
            os.kill(engine, signal.SIGKILL)
            print(time.clock_gettime(time.CLOCK_MONOTONIC), written, flush=True)
            sys.exit()
"""


@contextmanager
def killer(engine_pid, min_bytes):
    arguments = [sys.executable, "-c", KILLER, str(os.getpid()), str(engine_pid), str(min_bytes)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "watching\n"
            yield process.stdout
        finally:
            process.kill()


def settle(rc, result, killed_at_s):
    """Waits for a result for which engine 2 died; prints how long it took."""
    assert result.wait(SETTLED_WITHIN_S)
    took_s = time.clock_gettime(time.CLOCK_MONOTONIC) - killed_at_s
    print(f"settled {took_s * 1e3:.0f} ms after the kill")
    # The result may arrive before the event of the death, which brings the certificate of a refused call.
    assert until(lambda: rc.ids == [0, 1, 3])
    values = result.get(return_exceptions=True)
    lost = [target for target, value in enumerate(values) if isinstance(value, error.EngineError)]
    assert lost == [2], values
    # Whether it was lost with the engine, or refused because the engine was dead before the call was sent.
    assert result.status in (["ok", "ok", end, "ok"] for end in ("lost", "refused"))
    assert values[2].certificate.code == signal.SIGKILL
    assert [value for value in values if not isinstance(value, Exception)] == [values[0]] * 3


def check_memory_comes_back(rc):
    """Once the variables are gone no segment is in use, whatever the dead engine held."""
    living = rc.broadcast_view(rc.ids, coalescing=True)
    living.clear(block=True)

    def in_use():
        living.apply_sync(int)
        counters = rc.counters()
        return counters["segment_bytes"] - counters["warm_bytes"]

    assert until(lambda: in_use() == 0)


@pytest.mark.parametrize("coalescing", [True, False], ids=["coalescing", "each"])
@pytest.mark.parametrize("percent", [0, 50, 99])
def test_an_engine_killed_during_a_push(rc, percent, coalescing):
    view = rc.broadcast_view([0, 1, 2, 3], coalescing=coalescing)
    pids = view.apply_sync(os.getpid)
    array = np.ones(LARGE_BYTES // 8)
    # So that it does not answer if the kill comes late.
    os.kill(pids[2], signal.SIGSTOP)
    with killer(pids[2], max(LARGE_BYTES * percent // 100, 4096)) as killed:
        result = view.push({"x": array}, block=False)
        at_s, written = killed.readline().split()
    print(f"killed at {100 * int(written) / LARGE_BYTES:.0f} %")
    settle(rc, result, float(at_s))
    rest = rc.broadcast_view([0, 1, 3], coalescing=coalescing)
    assert rest.apply_sync(np.sum, ipp.Reference("x")) == [LARGE_BYTES // 8] * 3
    check_memory_comes_back(rc)


@pytest.mark.parametrize("coalescing", [True, False], ids=["coalescing", "each"])
def test_an_engine_stopped_and_then_killed(rc, coalescing):
    view = rc.broadcast_view([0, 1, 2, 3], coalescing=coalescing)
    pids = view.apply_sync(os.getpid)
    os.kill(pids[2], signal.SIGSTOP)
    result = view.push({"x": np.ones(1_000_000)}, block=False)
    # The others have it and answer, and no one waits for the stopped one to use it.
    rest = rc.broadcast_view([0, 1, 3], coalescing=True)
    assert rest.apply_async(np.sum, ipp.Reference("x")).get(timeout=SETTLED_WITHIN_S) == [1_000_000] * 3
    assert not result.ready()
    killed_at_s = time.clock_gettime(time.CLOCK_MONOTONIC)
    os.kill(pids[2], signal.SIGKILL)
    settle(rc, result, killed_at_s)
    check_memory_comes_back(rc)


def test_an_engine_killed_right_before_a_push(rc):
    view = rc.broadcast_view([0, 1, 2, 3], coalescing=True)
    pids = view.apply_sync(os.getpid)
    view.push({"x": 0}, block=True)
    node = rc.status()["pid"]
    os.kill(node, signal.SIGSTOP)
    try:
        os.kill(pids[2], signal.SIGKILL)
        # Sent before the client can have heard of it.
        result = view.push({"x": np.ones(1_000_000)}, block=False)
    finally:
        os.kill(node, signal.SIGCONT)
    settle(rc, result, time.clock_gettime(time.CLOCK_MONOTONIC))
    # Sent after: reported at once, by name and cause; no byte moves.
    copied = rc.counters()["copied_bytes"]
    with pytest.raises(IndexError, match=r"2: it .*SIGKILL"):
        view.push({"x": np.ones(1_000_000)}, block=True)
    assert rc.counters()["copied_bytes"] == copied
    rc.broadcast_view(coalescing=True).push({"x": np.full(1_000_000, 2.0)}, block=True)
    assert rc.broadcast_view().apply_sync(np.sum, ipp.Reference("x")) == [2_000_000] * 3
    check_memory_comes_back(rc)


@pytest.mark.parametrize("mode", ["private", "readonly", "shared", "inplace"])
def test_an_engine_killed_after_a_push(rc, mode):
    view = rc.broadcast_view([0, 1, 2, 3], coalescing=True)
    pids = view.apply_sync(os.getpid)
    view.push({"x": np.zeros(1_000_000)}, block=True)
    view.push({"x": np.ones(1_000_000)}, mode=mode, block=True)
    os.kill(pids[2], signal.SIGKILL)
    assert until(lambda: rc.ids == [0, 1, 3])
    rest = rc.broadcast_view([0, 1, 3], coalescing=True)
    assert rest.apply_sync(np.sum, ipp.Reference("x")) == [1_000_000] * 3
    check_memory_comes_back(rc)


# The client dies --------------------------------------------------------------------------------

CLIENT = """
import sys
import broadleaf as ipp, numpy as np
rc = ipp.Client(sys.argv[1])
view = rc.broadcast_view(coalescing=True)
view.push({"x": np.ones(1000)}, block=True)
array = np.ones(int(sys.argv[2]) // 8)
print("ready", flush=True)
view.push({"x": array})
print("pushed", flush=True)
__import__("time").sleep(1000)
"""


def start_python(code, *arguments, before=None):
    environment = os.environ | {"PYTHONPATH": str(Path(ipp.__file__).parents[1])}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, preexec_fn=before)


def node_counts(rc):
    node = rc.cluster.status_sync()["node"]
    return node["segments"], node["segment_bytes"]


def killed_after_a_push(rc):
    with start_python(CLIENT, rc.cluster.connection_file, LARGE_BYTES) as client:
        assert client.stdout.readline() == "ready\n"
        assert client.stdout.readline() == "pushed\n"
        assert until(lambda: node_counts(rc)[1] >= LARGE_BYTES)
        # An engine that had not begun with it would keep what it had.
        assert until(lambda: not any(engine["outstanding"] for engine in rc.cluster.status_sync()["engines"]))
        client.kill()


def killed_in_a_push(rc):
    """A client that is killed when it has copied half of the data."""
    with start_python(CLIENT, rc.cluster.connection_file, LARGE_BYTES) as client:
        assert client.stdout.readline() == "ready\n"
        while written_by(client.pid) < LARGE_BYTES // 2:
            pass
        client.kill()


@pytest.mark.parametrize("percent", [50, 100])
def test_a_client_killed_in_a_push(rc, cluster_processes, percent):
    rc.broadcast_view(coalescing=True).apply_sync(int)
    pids = list(cluster_processes(rc.cluster.cluster_id))
    before = segments_of(pids), node_counts(rc)
    had, pushed = [1000] * 4, [LARGE_BYTES // 8] * 4
    for _ in range(10):
        (killed_after_a_push if percent == 100 else killed_in_a_push)(rc)
        found = rc[:].apply_sync(len, ipp.Reference("x"))
        assert set(found) <= {had[0], pushed[0]}, "each engine has all of it, or nothing"
        # If this process did not run for a while, the kill came after the push, or when some engines had it.
        if percent == 100 or found == had:
            break
    assert found == (pushed if percent == 100 else had)
    rc[:].clear(block=True)

    def baseline():
        rc[:].apply_sync(int)
        return (segments_of(pids), node_counts(rc)) == before

    assert until(baseline)
    rc[:].push({"x": np.full(100_000, 3.0)}, block=True)
    assert rc[:].apply_sync(np.sum, ipp.Reference("x")) == [300_000] * 4


def test_a_closed_client_holds_no_memory():
    """One that is kept in a variable, for example at the end of a `with` block."""
    before = segments_of([os.getpid()])
    with ipp.Cluster(n=2) as rc:
        rc[:].push({"x": np.ones(1_000_000)}, block=True)
        born = ipp.zeros(1_000_000)
        rc[:].push({"y": born}, block=True)
        late = rc[:].apply_async(np.sum, ipp.Reference("x"), 0, None, None, True)
        arrays = rc[:].apply_async(np.copy, ipp.Reference("x"))
        arrays.wait(20)
        del born
        assert sum(segments_of([os.getpid()]).values()) >= 8_000_000
    # What has arrived can still be read, and is released with it.
    assert [float(array.sum()) for array in arrays.get()] == [1_000_000.0] * 2
    assert [array.shape for array in late.get()] == [(1,)] * 2
    del arrays, late
    left = segments_of([os.getpid()]).keys() - before
    assert rc.closed
    assert not left


# Many broadcasts --------------------------------------------------------------------------------


def resources(pids):
    """Of each process: descriptors, mappings of segments; and of all together the bytes of segments."""
    counts = []
    for pid in pids:
        maps = Path(f"/proc/{pid}/maps").read_text()
        counts.append((len(os.listdir(f"/proc/{pid}/fd")), maps.count("/memfd:broadleaf")))
    return counts


SIZES = [10, 1000, 9_000, 33_000, 100_000, 1_000_000]


def broadcast(rc, view, number):
    """One of some dozen kinds of broadcasts."""
    value = float(number)
    array = np.full(SIZES[number % len(SIZES)], value)
    match number % 7:
        case 0 | 1:
            view.push({"x": array}, block=True)
        case 2:
            view.push({"x": array}, mode="readonly", block=True)
        case 3:
            view.push({"x": array}, mode="shared", block=True)
        case 4:
            born = ipp.empty(array.shape)
            born[:] = array
            view.push({"x": born, "y": [array, "text"]}, block=True)
        case 5:
            view.push({"z": np.zeros(SIZES[number % len(SIZES)])}, block=True)
            view.push({"z": array}, mode="inplace", block=True)
        case 6:
            assert [len(back) for back in view.apply_sync(np.copy, array)] == [len(array)] * 4


@pytest.mark.timeout(120 + BROADCASTS // 20)
def test_nothing_is_left_of_many_broadcasts(rc, cluster_processes):
    views = [rc.broadcast_view(coalescing=coalescing) for coalescing in (True, False)]
    for view in views:
        view.apply_sync(int)
    pids = [os.getpid(), *sorted(cluster_processes(rc.cluster.cluster_id))]
    # From now on these engines take their tasks.
    boards = segments_of(pids)

    def idle():
        def is_idle():
            # The owners of free segments, the client and engines, close them after some seconds, when these have
            # something to do.
            views[0].apply_sync(int)
            counters = rc.counters()
            return not counters["segments"] and not counters["mappings"] and not node_counts(rc)[0]

        views[0].clear(block=True)
        until(is_idle, 40)
        counters = rc.counters()
        return resources(pids), node_counts(rc), counters["segments"], counters["mappings"]

    for number in range(42):
        broadcast(rc, views[number % 2], number)
    before = idle()
    begin = time.monotonic()
    for number in range(BROADCASTS):
        broadcast(rc, views[number % 2], number)
    took_s = time.monotonic() - begin
    at_end = sum(segments_of(pids).values())
    after = idle()
    print(f"{BROADCASTS} broadcasts in {took_s:.1f} s; {at_end / 1e6:.0f} MB of segments then, idle {after}")
    assert at_end < 200_000_000
    assert after[1:] == ((0, 0), 0, 0)
    assert segments_of(pids) == boards
    for count, (now, then) in enumerate(zip(after[0], before[0], strict=True)):
        assert now[0] <= then[0] + 2, (count, now, then)
        assert now[1] <= then[1], (count, now, then)


# Everything dies --------------------------------------------------------------------------------

ALL = """
import sys, os
import broadleaf as ipp, numpy as np
rc = ipp.Cluster(n=4, cluster_id=sys.argv[1]).start_and_connect_sync()
view = rc.broadcast_view(coalescing=True)
n = int(sys.argv[2]) // 8
view.push({"x": np.ones(n)}, block=True)
view.push({"y": np.ones(n)}, mode="shared", block=True)
born = ipp.zeros(n)
view.push({"z": born}, mode="readonly", block=True)
born[:] = 1
view.push({"w": np.ones(1_000_000)}, block=True)
view.push({"w": np.zeros(1_000_000)}, mode="inplace", block=True)
print("ready", flush=True)
view.apply_sync(__import__("time").sleep, 1000)
"""


@pytest.fixture
def own_memory():
    """A function that gives the memory of a control group of our own, in bytes, and one that enters it.

    If no group can be made, it is the shared memory of the host, which others use too.
    """
    group = Path(f"/sys/fs/cgroup/memory/broadleaf-killed-{os.getpid()}")
    usage = group / "memory.usage_in_bytes"
    try:
        group.mkdir()
    except OSError:
        yield shared_memory_bytes, None
        return
    yield lambda: int(usage.read_text()), lambda: (group / "cgroup.procs").write_text(str(os.getpid()))
    group.rmdir()


def shared_memory_bytes():
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["Shmem"].split()[0]) * 1024


def test_nothing_is_left_when_everything_is_killed(cluster_processes, own_memory):
    used_bytes, enter = own_memory
    files = set(os.listdir("/dev/shm"))
    before = used_bytes()
    n_bytes = 2 * LARGE_BYTES
    with start_python(ALL, "killed-all", n_bytes, before=enter) as client:
        assert client.stdout.readline() == "ready\n"
        held = used_bytes() - before
        assert enter is None or held > 3 * n_bytes
        processes = [client.pid, *cluster_processes("killed-all")]
        assert sum(segments_of(processes).values()) > 3 * n_bytes
        ends = [os.pidfd_open(pid) for pid in processes]
        for pid in processes:
            os.kill(pid, signal.SIGKILL)
    for end in ends:
        assert select.select([end], [], [], 20)[0]
        os.close(end)
    assert until(lambda: cluster_processes("killed-all") == {})
    assert {name for name in set(os.listdir("/dev/shm")) - files if "broadleaf" in name} == set()
    # Not to the byte: the group also pays for the pages of files that were read.
    assert until(lambda: used_bytes() < before + n_bytes // 4)
    print(f"{held / 1e6:.0f} MB of memory held, {(used_bytes() - before) / 1e6:.0f} MB left")
    # The files of the connection are found to be stale, and removed.
    killed = ipp.Cluster(n=0, cluster_id="killed-all")
    for path in (Path(killed.cluster_file), killed.cluster_dir, *map(Path, run_dirs("killed-all"))):
        if path.exists():
            os.utime(path, (0, 0))
    ipp.ClusterManager().load_clusters()
