"""Less memory than the payload needs, a small /dev/shm, no memfd: refused with a clear error, or done in another way.

Each case is a separate program, under a limit that it sets itself or gets before it starts; its cluster inherits the
limit. A program that dies of a signal fails its test, and so does a cluster that lost an engine.
"""

import os
import platform
import resource
import subprocess
import sys
from pathlib import Path

import broadleaf as ipp
import pytest
from denied_calls import MEMFD_CREATE, forbid_memfd

pytestmark = pytest.mark.timeout(120)
MIB = 1 << 20

PROGRAM = """
import os
import broadleaf as ipp, numpy as np

def check(rc):
    "The cluster is whole and useful."
    assert rc.ids == [0, 1]
    assert rc[:].apply_sync(os.getpid) == pids
    small = np.arange(100_000.0)
    rc.broadcast_view(coalescing=True).push({"small": small}, block=True)
    assert all((back == small).all() for back in rc[:]["small"])

def refused(function, *words):
    try:
        function()
    except MemoryError as error:
        message = str(error)
    else:
        raise AssertionError("not refused")
    assert all(word in message for word in words), message
    print("refused:", message)

if __name__ == "__main__":
    with ipp.Cluster(n=2) as rc:
        rc.wait_for_engines(2, timeout=60)
        pids = rc[:].apply_sync(os.getpid)
        view = rc.broadcast_view(coalescing=True)
        check(rc)
        BODY
        check(rc)
    print("done")
"""


def run(tmp_path, body, before=None, prefix=()):
    """Runs a program whose cluster is `rc`, with `before` called in the child; returns its output."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.replace("BODY", body.strip().replace("\n", "\n        ")))
    environment = os.environ | {"PYTHONPATH": str(Path(ipp.__file__).parents[1])}
    done = subprocess.run(
        [*prefix, sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=100,
        env=environment,
        preexec_fn=before,
    )
    assert done.returncode == 0, f"ended with {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}"
    assert done.stdout.endswith("done\n"), done.stdout
    print(done.stdout)
    return done.stdout


# What is tried under each limit: 400 MB by every way into a segment.
EVERY_WAY = """
array = np.ones(50_000_000)
refused(lambda: view.push({"x": array}, block=True), "memory")
refused(lambda: view.push({"x": array}, mode="readonly"), "memory")
refused(lambda: view.push({"x": array}, mode="shared"), "memory")
refused(lambda: rc[0].apply_async(len, array), "memory")
refused(lambda: ipp.empty(50_000_000), "memory")
check(rc)
view.push({"x": 0}, block=True)
assert view["x"] == [0, 0]
"""


# Control groups ---------------------------------------------------------------------------------


def memory_group():
    """Where a control group can be made, and the name of its limit; None if none can be made."""
    for parent, limit in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        probe = parent / f"broadleaf-probe-{os.getpid()}"
        try:
            probe.mkdir()
        except OSError:
            continue
        try:
            if (probe / limit).exists() and os.access(probe / limit, os.W_OK):
                return parent, limit
        finally:
            probe.rmdir()
    return None


@pytest.fixture
def group():
    """A function that makes a control group with this many bytes; it returns what a child calls to enter it."""
    found = memory_group()
    if found is None:
        pytest.skip("needs a memory control group that may be written to")
    parent, limit = found
    made = parent / f"broadleaf-limits-{os.getpid()}"
    made.mkdir()

    def enter_with(limit_bytes):
        (made / limit).write_text(str(limit_bytes))
        return lambda: (made / "cgroup.procs").write_text(str(os.getpid()))

    enter_with.path = made
    yield enter_with
    left = (made / "cgroup.procs").read_text()
    assert left == "", f"processes left in the group: {left}"
    made.rmdir()


def oom_kills(path):
    for name in ("memory.oom_control", "memory.events"):
        if (path / name).exists():
            fields = dict(line.split() for line in (path / name).read_text().splitlines())
            return int(fields.get("oom_kill", 0))
    return 0


def test_a_control_group_below_the_payload(tmp_path, group):
    # The array itself has no page of its own: it consists of zeros that were never written, so only the segment is too
    # much.
    body = EVERY_WAY.replace("np.ones(50_000_000)", "np.zeros(50_000_000)")
    run(tmp_path, body, before=group(400 * MIB))
    assert oom_kills(group.path) == 0


def test_a_control_group_that_fills_up(tmp_path, group):
    """Payloads that fit one by one, until they no longer do: the next is refused, and the existing ones stay intact."""
    body = """
kept = []
try:
    for number in range(100):
        view.push({f"x{number}": np.full(4_000_000, float(number))}, block=True)
        kept.append(number)
except MemoryError as error:
    print("refused:", error)
assert 3 <= len(kept) < 50, kept
for number in kept:
    assert view.apply_sync(np.sum, ipp.Reference(f"x{number}")) == [4e6 * number] * 2
"""
    run(tmp_path, body, before=group(600 * MIB))
    assert oom_kills(group.path) == 0


def test_results_one_after_another_in_a_control_group(tmp_path, group):
    """What each engine freed does not prevent the next one."""
    body = """
with ipp.Cluster(n=6) as other:
    for number in range(18):
        result = other[number % 6].apply_sync(np.ones, 12_500_000)
        assert result[-1] == 1
        del result
"""
    run(tmp_path, body, before=group(500 * MIB))
    assert oom_kills(group.path) == 0


# Limits of a process ----------------------------------------------------------------------------


def test_a_limit_on_file_size(tmp_path):
    """Exceeding it raises a signal in the writer."""
    run(tmp_path, EVERY_WAY, before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100 * MIB, 100 * MIB)))


def test_a_limit_on_address_space(tmp_path):
    """Only the client is limited: it cannot map the segment. What it need not map it can still send."""
    limit = """
import resource
array = np.zeros(50_000_000)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 100_000_000, resource.RLIM_INFINITY))
"""
    body = EVERY_WAY.replace("array = np.ones(50_000_000)\n", "").replace(
        'refused(lambda: view.push({"x": array}, mode="shared"), "memory")',
        'view.push({"x": array}, mode="shared", block=True)',
    )
    run(tmp_path, limit + body)


def test_the_bound_of_the_pool(tmp_path):
    body = """
rc.close()
with ipp.Cluster(n=2, pool_max_bytes=100 << 20) as rc:
    pids = rc[:].apply_sync(os.getpid)
    view = rc.broadcast_view(coalescing=True)
    refused(lambda: view.push({"x": np.zeros(50_000_000)}), "pool is full", "asked for")
    check(rc)
rc = rc_before.connect_client_sync()
pids = rc[:].apply_sync(os.getpid)
"""
    run(tmp_path, "rc_before = rc.cluster\n" + body.strip())


# /dev/shm and memfd -----------------------------------------------------------------------------


def can_unshare():
    return subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


def own_dev_shm(size):
    """Command line that runs what follows with a /dev/shm of its own, and then lists what was left there."""
    try:
        allowed = can_unshare()
    except FileNotFoundError:
        allowed = False
    if not allowed:
        pytest.skip("needs the right to a mount namespace of its own (unshare -m)")
    mount = f'mount -t tmpfs -o size={size} shm /dev/shm && "$@"; code=$?; ls -A /dev/shm; exit $code'
    return ["unshare", "-m", "--propagation", "private", "sh", "-c", mount, "sh"]


@pytest.fixture
def small_dev_shm():
    """Command line that runs what follows with a /dev/shm of 64 MB, as containers have it."""
    return own_dev_shm("64m")


ARRIVES = """
array = np.random.default_rng(0).random(25_000_000)
for mode in ("private", "readonly", "shared"):
    view.push({"x": array}, mode=mode, block=True)
    assert view.apply_sync(np.sum, ipp.Reference("x")) == [array.sum()] * 2
view.push({"x": np.zeros(25_000_000)}, block=True)
view.push({"x": array}, mode="inplace", block=True)
assert view.apply_sync(np.sum, ipp.Reference("x")) == [array.sum()] * 2
assert (rc[0]["x"] == array).all()
"""


def test_a_small_dev_shm_does_not_matter(tmp_path, small_dev_shm):
    body = """
size = os.statvfs("/dev/shm")
assert size.f_blocks * size.f_frsize == 64 << 20
"""
    run(tmp_path, body + ARRIVES.strip(), prefix=small_dev_shm)


@pytest.fixture
def without_memfd():
    """What a child calls so that memfd_create is denied to it."""
    if platform.machine() not in MEMFD_CREATE:
        pytest.skip(f"the filter is not written for {platform.machine()}")
    probe = "import os, contextlib\nwith contextlib.suppress(PermissionError): os.memfd_create('x'); os._exit(1)"
    try:
        done = subprocess.run([sys.executable, "-c", probe], preexec_fn=forbid_memfd)
    except subprocess.SubprocessError:
        pytest.skip("needs seccomp filters, which are not permitted here")
    assert done.returncode == 0, "the filter does not forbid memfd_create"
    return forbid_memfd


def test_without_memfd_nameless_files_serve(tmp_path, without_memfd):
    body = """
array = np.ones(1_000_000)
view.push({"x": array}, block=True)
maps = open("/proc/self/maps").read()
assert "memfd:broadleaf" not in maps and "/dev/shm/" in maps, maps
"""
    said = run(tmp_path, body + ARRIVES.strip(), before=without_memfd, prefix=own_dev_shm("50%"))
    assert said == "done\n", "files were left in /dev/shm"


def test_without_memfd_last_words_are_told(tmp_path, without_memfd):
    body = """
def leave():
    print("last words")
    os._exit(3)

result = rc[1].apply_async(leave)
result.wait(60)
assert result.failure(0).certificate.last_output == "last words\\n"
rc.cluster.restart_engines_sync([1])
rc.wait_for_engines(2, timeout=60)
pids = rc[:].apply_sync(os.getpid)
"""
    run(tmp_path, body, before=without_memfd)


def test_without_memfd_and_with_a_small_dev_shm(tmp_path, without_memfd, small_dev_shm):
    body = EVERY_WAY + "refused(lambda: view.push({'x': array[:10_000_000]}), '/dev/shm', '--shm-size')"
    run(tmp_path, body, before=without_memfd, prefix=small_dev_shm)
