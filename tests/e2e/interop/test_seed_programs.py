"""IPython Parallel's published programs on broadcasting, cell by cell, with `import broadleaf as ipp`.

The cells are as published except for the name of the package and the number of engines. Cells with magics run in
IPython; `%px`, which belongs to the notebook, is `view.execute` here.
"""

import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import broadleaf as ipp
import numpy as np
import pytest
from broadleaf import error

pytestmark = pytest.mark.timeout(120)
ENGINES = int(os.environ.get("BROADLEAF_SEED_ENGINES", "8"))
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"

BROADCAST_PAGE = [
    """
import broadleaf as ipp

rc = ipp.Client(profile="mpi")
rc.wait_for_engines(ENGINES)
direct_view = rc.direct_view()
bcast_view = rc.broadcast_view()
""",
    'print(f"I have {len(rc)} engines")',
    "%timeit direct_view.apply_sync(lambda: None)",
    "%timeit bcast_view.apply_sync(lambda: None)",
    """
import numpy as np

dview_times = []
bcast_times = []

n_list = [16, 64, 256, 512]
for n in n_list:
    chunk = np.random.random((n, n))
    b = chunk.nbytes
    unit = 'B'
    if b > 1024:
        b //= 1024
        unit = 'kB'
        if b > 1024:
            b //= 1024
            unit = 'MB'
    print(f"{n:4} x {n:4}: {b:4} {unit}")
    print("Direct view")
    tr = %timeit -o -n 1 direct_view.push({"chunk": chunk}, block=True)
    dview_times.append(tr.average)
    print("Broadcast view")
    tr = %timeit -o -n 1 bcast_view.push({"chunk": chunk}, block=True)
    bcast_times.append(tr.average)
""",
    # Not on the page: every engine has the last array.
    """
received = direct_view["chunk"]
assert len(received) == ENGINES and all((array == chunk).all() for array in received)
""",
    """
import pandas as pd
import matplotlib.pyplot as plt

df = pd.DataFrame({"n": n_list, "direct view": dview_times, "broadcast": bcast_times})
df["broadcast speedup"] = df["direct view"] / df.broadcast
# MB is the total number of megabytes delivered (n * n * 8 * number of engines bytes)
df["MB"] = df["n"] ** 2 * 8 * len(rc) / (1024 * 1024)
df
""",
    """
df.plot(x='MB', y=['direct view', 'broadcast'], style='-o', loglog=True)
plt.ylabel("seconds")
""",
    """
import numpy as np

N = np.logspace(0, 11, 12, base=2, dtype=int)
N

dview_sends = 2 * N

def bcast_sends(N, depth):
    return 1 + (2**depth) + (N / (2**depth))

plt.loglog(N, dview_sends, '--', label="direct view")
for depth in range(5):
    plt.loglog(N, bcast_sends(N, depth), label=f"broadcast (d={depth})")

plt.xlabel("N engines")
plt.ylabel("messages")
plt.title("Serial messages for last engine")
plt.grid(True)
plt.legend(loc=0)
""",
    """
bcast_view.is_coalescing = False
%timeit bcast_view.apply_sync(lambda: None)
""",
    """
bcast_view.is_coalescing = True
%timeit bcast_view.apply_sync(lambda: None)
""",
    "print('all cells ran')",
]

RUN_CELLS = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
for cell in json.load(sys.stdin):
    shell.run_cell(cell).raise_error()
"""


@pytest.fixture(scope="module")
def cluster():
    """A cluster with the profile that the pages name."""
    with ipp.Cluster(n=ENGINES, profile="mpi", shared_memory_warm_s=3600) as client:
        yield client.cluster


@pytest.fixture(scope="module")
def rc(cluster):
    """Found as the pages find it."""
    with ipp.Client(profile="mpi") as client:
        client.wait_for_engines(ENGINES, timeout=60)
        yield client


def run_python(*arguments, tmp_path, text=None):
    package = str(Path(ipp.__file__).parents[1])
    environment = os.environ | {"MPLBACKEND": "Agg", "IPYTHONDIR": str(tmp_path), "PYTHONPATH": package}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], input=text, capture_output=True, text=True, timeout=100, env=environment
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


def test_the_broadcast_page(rc, tmp_path):
    for module in ("IPython", "pandas", "matplotlib"):
        pytest.importorskip(module)
    # `%timeit` would repeat a call until it knows the time well.
    cells = [
        re.sub(r"%timeit (?=\w+_view)", "%timeit -n 2 ", cell.replace("ENGINES", str(ENGINES)))
        for cell in BROADCAST_PAGE
    ]
    printed = run_python("-c", RUN_CELLS, tmp_path=tmp_path, text=json.dumps(cells))
    assert f"I have {ENGINES} engines" in printed
    assert printed.count("per loop (mean ± std. dev. of 7 runs") == 12
    assert printed.endswith("all cells ran\n")


@pytest.mark.parametrize("name", ["broadcast_view.py", "broadcast_memmap.py"])
def test_the_examples_run(rc, tmp_path, name):
    run_python(EXAMPLES / name, tmp_path=tmp_path)


def test_an_example_starts_its_own_cluster(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BROADLEAF_DIR", str(tmp_path / "state"))
        run_python(EXAMPLES / "broadcast_memmap.py", "2", tmp_path=tmp_path)


def test_no_cluster_of_a_profile():
    with pytest.raises(error.ClusterConnectionError, match="profile 'unknown'"):
        ipp.Client(profile="unknown")


# The page on memmap -----------------------------------------------------------------------------


@ipp.interactive
def array_to_file(A, name):
    """write an array to a temporary file, return its filename"""
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".np", delete=False) as tf:
        np.save(tf, A)
        data_path = tf.name
    if name:
        globals()[name] = data_path
    return data_path


@ipp.interactive
def load_memmap(name, path, mode="r+"):
    """load a file on disk into the interactive namespace as a memmapped array"""
    globals()[name] = np.memmap(path, mode=mode)


def bcast_memmap(data, name, client, host_engines):
    """broadcasts a numpy array efficiently, as published; the send's result is returned too, which the page drops"""
    rc = client
    memmap_path_name = f"_bcast_array_{name}"

    one_per_host = rc.broadcast_view([engines[0] for engines in host_engines.values()], coalescing=True)
    send_ar = one_per_host.apply_async(array_to_file, data, name=memmap_path_name)

    e_all = rc.broadcast_view(coalescing=True)
    return e_all.apply_async(load_memmap, name, ipp.Reference(memmap_path_name)), send_ar


@pytest.fixture
def eall(rc):
    view = rc.broadcast_view(coalescing=True)
    view.execute("import numpy as np", block=True)
    return view


@pytest.fixture
def host_engines(eall):
    engine_hosts = eall.apply_async(socket.gethostname).get_dict()
    assert engine_hosts == {engine: socket.gethostname() for engine in range(ENGINES)}
    host_engines = {}
    for eid, host in engine_hosts.items():
        if host not in host_engines:
            host_engines[host] = []
        host_engines[host].append(eid)
    return host_engines


@pytest.fixture
def data():
    return np.random.default_rng(1).random((512, 512))


def form(array):
    return type(array).__name__, array.dtype.str, array.shape


def test_the_published_memmap_program_reaches_one_engine_and_that_with_other_numbers(rc, eall, host_engines, data):
    """The program itself is wrong: here that shows, because every error is kept."""
    ar = rc[:].push({"data": data}, block=False)
    ar.wait_interactive()
    ar, sent = bcast_memmap(data, "data", rc, host_engines)
    try:
        ar.wait_interactive()
        assert ar.status == ["ok"] + ["error"] * (ENGINES - 1)
        with pytest.raises(error.CompositeError, match="_bcast_array_data") as caught:
            ar.get()
        assert {entry[0] for entry in caught.value.elist} == {"NameError"}
        forms = eall.apply_sync(form, ipp.Reference("data"))
        # Header and bytes of the file as numbers on one engine; on the others, what was pushed before.
        assert forms[0] == ("memmap", "|u1", (data.nbytes + 128,))
        assert forms[1:] == [("ndarray", "<f8", (512, 512))] * (ENGINES - 1)
        norms = eall.apply_sync(np.linalg.norm, ipp.Reference("data"))
        assert not np.isclose(norms[0], np.linalg.norm(data))
    finally:
        for path in sent.get():
            os.unlink(path)


def load_example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_corrected_memmap_program_puts_the_array_on_every_engine(rc, eall, host_engines, data):
    page = load_example("broadcast_memmap")
    rc[:].push({"data": -data}, block=True)
    ar, paths = page.bcast_memmap(data, "data", rc, host_engines)
    try:
        ar.wait_interactive()
        assert ar.successful()
        assert eall.apply_sync(form, ipp.Reference("data")) == [("memmap", "<f8", (512, 512))] * ENGINES
        assert np.allclose(eall.apply_sync(np.linalg.norm, ipp.Reference("data")), np.linalg.norm(data))
        assert all((received == data).all() for received in eall["data"])
    finally:
        rc[0].apply_sync(page.remove, paths)
    assert not any(os.path.exists(path) for path in paths.values())


def proportional_bytes():
    """This process's share of the memory that it has mapped from segments, or from files of arrays."""
    found, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            ours = "memfd:broadleaf" in line
        elif ours and line.startswith("Pss:"):
            found += int(line.split()[1]) * 1024
    return found


def test_push_does_by_itself_what_the_page_does_by_hand(rc, eall):
    data = np.random.default_rng(2).random((2048, 2048))
    before = sum(eall.apply_sync(proportional_bytes)) + proportional_bytes()
    counters = rc.counters()
    ar = rc[:].push({"data": data}, block=False)
    ar.wait_interactive()
    assert rc.counters()["copied_bytes"] - counters["copied_bytes"] == data.nbytes
    assert rc.counters()["bytes_out"] - counters["bytes_out"] < 10_000
    assert np.allclose(eall.apply_sync(np.linalg.norm, ipp.Reference("data")), np.linalg.norm(data))
    grown = sum(eall.apply_sync(proportional_bytes)) + proportional_bytes() - before
    print(f"{data.nbytes / 1e6:.1f} MB to {ENGINES} engines: {grown / 1e6:.1f} MB more in all processes together")
    assert 0.9 * data.nbytes < grown < 1.05 * data.nbytes
