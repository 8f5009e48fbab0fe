"""Few descriptors: arrays share segments, and if no descriptor is left for another segment they are copied.

Each case runs as a program of its own, whose cluster inherits its limit.
"""

import os
import resource
import subprocess
import sys
from pathlib import Path

import broadleaf as ipp
import pytest

pytestmark = pytest.mark.timeout(120)

PROGRAM = """
import os
import broadleaf as ipp, numpy as np

def open_now(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))

def make(i, n):
    import numpy as np
    return np.full(n, float(i))

if __name__ == "__main__":
    with ipp.Cluster(n=2) as rc:
        rc.wait_for_engines(2, timeout=60)
        engines = rc[:].apply_sync(os.getpid)
        pids = [rc.cluster.status_sync()["pid"], os.getpid(), *engines]
        BODY
        assert rc[:].apply_sync(os.getpid) == engines, "an engine has died"
    print("done")
"""


def run(tmp_path, limit, body):
    """Runs a program that may have `limit` descriptors, soft and hard."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.replace("BODY", body.strip().replace("\n", "\n        ")))
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"PYTHONPATH": str(Path(ipp.__file__).parents[1])},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
    )
    assert done.returncode == 0, f"ended with {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}"
    assert done.stdout.endswith("done\n"), done.stdout


def test_thousands_of_arrays_take_few_descriptors(tmp_path):
    body = """
for i in range(1000):
    rc[:].push({f"v{i}": np.full(20_000, float(i))}, block=True)
view = rc.load_balanced_view()
kept = view.map_sync(make, range(10_000), [20_000] * 10_000, chunksize=1)
assert all(open_now(pid) < 300 for pid in pids), [open_now(pid) for pid in pids]
assert all(len(a) == 20_000 and (a == i).all() for i, a in enumerate(kept))
whole = lambda n: all((globals()[f"v{i}"] == i).all() for i in range(n))
assert rc[:].apply_sync(whole, 1000) == [True, True]
a = kept[7]
a[0] = -1
assert (kept[6] == 6).all() and (kept[8] == 8).all(), "neighbours in a segment share pages"
"""
    run(tmp_path, 1024, body)


def test_without_descriptors_arrays_are_copied(tmp_path):
    """Each of these arrays wants a segment of its own, and there cannot be that many."""
    body = """
n = 200_000
for i in range(150):
    rc[:].push({f"v{i}": np.full(n, float(i))}, block=True)
view = rc.load_balanced_view()
kept = [view.apply_async(make, i, n) for i in range(150)]
kept = [result.get() for result in kept]
assert all(open_now(pid) < 128 for pid in pids), [open_now(pid) for pid in pids]
assert all(len(a) == n and (a == i).all() for i, a in enumerate(kept))
whole = lambda n: all((globals()[f"v{i}"] == i).all() for i in range(n))
assert rc[:].apply_sync(whole, 150) == [True, True]
assert all(a.flags.writeable for a in kept)
back = rc[0].apply_sync(lambda a: a, kept[-1])
assert (back == kept[-1]).all()
many = rc[0].apply_sync(lambda *arrays: sum(a.sum() for a in arrays), *kept)
assert many == sum(a.sum() for a in kept)
"""
    run(tmp_path, 128, body)


def test_a_client_with_its_own_files_open_gets_copies(tmp_path):
    body = """
files = [open(os.devnull) for _ in range(150)]
kept = [rc[0].apply_sync(make, i, 200_000) for i in range(100)]
assert all((a == i).all() for i, a in enumerate(kept))
echoed = [rc[0].apply_sync(lambda a: a[:10], a) for a in kept]
assert all((a == i).all() for i, a in enumerate(echoed))
"""
    run(tmp_path, 256, body)


def test_node_and_engines_raise_their_soft_limit_and_the_client_does_not():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = min(soft, 512)
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
    try:
        with ipp.Cluster(n=1) as rc:
            limits = rc[0].apply_sync(lambda: __import__("resource").getrlimit(__import__("resource").RLIMIT_NOFILE))
            assert limits == (min(hard, 65_536), hard)
            node = rc.cluster.status_sync()["pid"]
            line = next(line for line in Path(f"/proc/{node}/limits").read_text().splitlines() if "open files" in line)
            assert int(line.split()[3]) == min(hard, 65_536)
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (low, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def take_all_descriptors():
    import builtins
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    builtins.kept_files = []
    while True:
        builtins.kept_files.append(os.open(os.devnull, os.O_RDONLY))


@pytest.mark.parametrize("engine_start", ["fork", "spawn"])
def test_an_engine_whose_first_task_uses_up_its_descriptors_says_so_and_goes_on(engine_start):
    with ipp.Cluster(n=1, engine_start=engine_start) as client:
        with pytest.raises(OSError, match="Too many open files"):
            client[0].apply_sync(take_all_descriptors)
        assert client[0].apply_sync(abs, -1) == 1


def test_engines_hold_no_pipe_of_others():
    def pipes():
        import stat

        found = set()
        for number in map(int, os.listdir("/proc/self/fd")):
            try:
                about = os.fstat(number)
            except OSError:  # that of the listing itself
                continue
            if stat.S_ISFIFO(about.st_mode):
                found.add(about.st_ino)
        return found

    with ipp.Cluster(n=6) as rc:
        pid = rc[2].apply_sync(os.getpid)
        rc.cluster.restart_engines_sync([2])  # forked when its server holds the pipes of all others
        rc.wait_for_engines(6, timeout=60)
        assert rc[2].apply_sync(os.getpid) != pid
        held = rc[:].apply_sync(pipes)
        assert all(held)
        assert len(set.union(*held)) == sum(map(len, held))
