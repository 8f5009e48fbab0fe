"""Engines that are ranks: MPICH and Open MPI on this host.

`BROADLEAF_MPI_ROUNDS=100` starts and ends as many worlds.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import broadleaf as ipp
import pytest
from broadleaf.cluster.cores import usable_cores
from broadleaf.state.files import process_ids
from mpi_environments import CHECKOUT, MPIS, EnvironmentUnavailable, mpi_arguments, mpi_python
from refusals import idle_s, refused
from waiting import until

pytestmark = pytest.mark.timeout(240)

ROUNDS = int(os.environ.get("BROADLEAF_MPI_ROUNDS", "5"))
# "Certified within 5 s" is what was promised.
CERTIFIED_S = 5


@pytest.fixture(params=MPIS)
def mpi(request) -> ipp.MPI:
    """An engine set of each MPI."""
    try:
        return ipp.MPI(python=str(mpi_python(request.param)), mpi_args=mpi_arguments(request.param))
    except EnvironmentUnavailable as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def world(mpi) -> Iterator[tuple[ipp.Cluster, ipp.Client]]:
    """A cluster with a world of four."""
    cluster = ipp.Cluster(engines=mpi, n=4)
    with cluster as client:
        yield cluster, client
    assert ranks_of(cluster.cluster_id) == {}


def ranks_of(cluster_id: str) -> dict[int, str]:
    """Processes of a cluster: pid to command line."""
    found = {}
    for pid in process_ids():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if f"BROADLEAF_CLUSTER_ID={cluster_id}".encode() in environment.split(b"\0") and line:
            found[pid] = line
    return found


def take_all_descriptors() -> None:
    """Fails when no descriptor is left, and keeps those that it got."""
    import builtins
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    builtins.kept_files = []  # type: ignore[attr-defined]
    while True:
        builtins.kept_files.append(os.open(os.devnull, os.O_RDONLY))  # type: ignore[attr-defined]


def rank_and_sum() -> tuple[int, int]:
    """This engine's rank, and the sum of all ranks of its world."""
    from mpi4py import MPI

    return MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.Get_rank())


def meet_often(n: int) -> int:
    """The sum of `n` sums of all ranks."""
    from mpi4py import MPI

    return sum(MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.Get_rank()) for _ in range(n))


def test_an_engine_has_the_number_of_its_rank_and_worlds_are_apart(world):
    cluster, client = world
    assert client.ids == [0, 1, 2, 3]
    assert client[:].apply_sync(rank_and_sum) == [(rank, 6) for rank in range(4)]
    cluster.start_engines_sync(3, "second")
    cluster.wait_for_engines_sync()
    assert client.ids == [0, 1, 2, 3, 4, 5, 6]
    both = client[:].apply_sync(rank_and_sum)
    assert both == [(rank, 6) for rank in range(4)] + [(rank, 3) for rank in range(3)]
    assert cluster.engines["second"].engine_ids == [4, 5, 6]
    cluster.stop_engines_sync("second")
    assert until(lambda: client.ids == [0, 1, 2, 3])
    assert client[:].apply_sync(rank_and_sum) == [(rank, 6) for rank in range(4)]


def test_worlds_start_work_and_end_at_once(mpi):
    with ipp.Cluster(engines=mpi, n=1) as client:
        cluster = client.cluster
        sizes = {"two": 2, "three": 3}
        for name, size in sizes.items():
            cluster.start_engines_sync(size, name)
        cluster.wait_for_engines_sync()
        views = {name: client[cluster.engines[name].engine_ids] for name in sizes}
        # Each world meets in its own collective calls while the other does.
        results = [(name, views[name].apply_async(meet_often, 200)) for _ in range(3) for name in sizes]
        for name, result in results:
            size = sizes[name]
            assert result.get(60) == [200 * sum(range(size))] * size
        for name in sizes:
            cluster.stop_engines_sync(name)
        assert until(lambda: client.ids == [0])
        assert client[:].apply_sync(rank_and_sum) == [(0, 0)]
    assert ranks_of(cluster.cluster_id) == {}


def hash_and_threads() -> tuple[int, set[str]]:
    """What depends on the seed of hashes, and the numbers of threads that libraries are told."""
    return hash("leaf"), {value for name, value in os.environ.items() if name.endswith("_THREADS")}


def test_ranks_have_the_environment_of_engines(mpi, monkeypatch):
    for name in [name for name in os.environ if name.endswith("_THREADS")]:
        monkeypatch.delenv(name)
    with ipp.Cluster(engines=mpi, n=2, preload="colorsys", env={"OWN": "x"}) as client:
        # By hand, too, and where nothing of this session's environment is.
        rank = [mpi.python, "-m", "broadleaf.mpi", "--connection", client.cluster.relay_file]
        command = [str(Path(mpi.python).parent / "mpiexec"), *mpi.mpi_args, "-n", "2", *rank]
        bare = {name: os.environ[name] for name in ("PATH", "HOME", "BROADLEAF_DIR", "BROADLEAF_TEST_RUN")}
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, env=bare) as mpiexec:
            client.wait_for_engines(4, timeout=60)
            hashes, threads = zip(*client[:].apply_sync(hash_and_threads), strict=True)
            assert len(set(hashes)) == 1
            assert threads == ({str(max(1, usable_cores() // 2))},) * 4
            assert client[:].apply_sync(lambda: "colorsys" in sys.modules) == [True] * 4
            assert client[:].apply_sync(os.getenv, "OWN") == ["x"] * 4
            client.cluster.stop_engines_sync([2, 3])
            assert mpiexec.wait(30) == 0
    with ipp.Cluster(engines=mpi, n=2, threads_per_engine=3) as client:
        assert [threads for _, threads in client[:].apply_sync(hash_and_threads)] == [{"3"}] * 2


def test_data_is_on_the_host_once_and_every_kind_of_view_works(world):
    np = pytest.importorskip("numpy")
    cluster, client = world
    values = np.arange(2_000_000.0)
    client.broadcast_view().push({"data": values}, block=True)
    part = "data[MPI.COMM_WORLD.Get_rank() :: MPI.COMM_WORLD.Get_size()]"
    client[:].execute(f"from mpi4py import MPI\ntotal = MPI.COMM_WORLD.allreduce(float({part}.sum()))", block=True)
    assert client[:]["total"] == [float(values.sum())] * 4
    assert cluster.status_sync()["hosts"] == []  # the ranks are at the controller's own node
    assert client.load_balanced_view().map_sync(lambda x: 2 * x, range(100)) == [2 * x for x in range(100)]


def test_a_rank_that_is_killed_ends_its_world_alone_and_it_can_be_started_again(world):
    cluster, client = world
    cluster.start_engines_sync(2)
    cluster.wait_for_engines_sync()
    # If mpiexec does not run for a while, its words come too late for the certificate.
    for _ in range(3):
        pids = client[:].apply_sync(os.getpid)
        waiting = client[0].apply_async(time.sleep, 200)
        assert until(lambda: client.queue_status()[0]["tasks"])
        since_s = idle_s()
        os.kill(pids[2], signal.SIGKILL)
        with pytest.raises(ipp.EngineError) as lost:
            waiting.get(60)
        took_s = idle_s() - since_s
        assert until(lambda: client.ids == [4, 5])
        certificate = lost.value.certificate
        if "mpiexec says:" in certificate.last_output and took_s < CERTIFIED_S:
            break
        cluster.restart_engines_sync(1)
        cluster.wait_for_engines_sync()
        assert until(lambda: client.ids == [0, 1, 2, 3, 4, 5])
    assert took_s < CERTIFIED_S
    assert (certificate.cause, certificate.code) == ("rank_died", 2)
    assert "rank 0 of 4 in MPI world mpi-0; mpiexec says:" in certificate.last_output
    assert client[:].apply_sync(rank_and_sum) == [(0, 1), (1, 1)]
    assert until(lambda: [block.state for block in cluster.blocks()] == ["failed", "running"])
    cluster.restart_engines_sync(1)
    cluster.wait_for_engines_sync()
    assert until(lambda: client.ids == [0, 1, 2, 3, 4, 5])
    again = client[:].apply_sync(rank_and_sum)
    assert again == [(rank, 6) for rank in range(4)] + [(0, 1), (1, 1)]
    assert client[4:].apply_sync(os.getpid) == pids[4:]


def test_a_restart_of_a_world_that_lives(world):
    cluster, client = world
    pids = client[:].apply_sync(os.getpid)
    before = {uuid for _, uuid, _, _ in client.link.engines()}
    cluster.restart_engines_sync()
    cluster.wait_for_engines_sync()
    assert until(lambda: client.ids == [0, 1, 2, 3] and not before & {one[1] for one in client.link.engines()})
    assert not set(client[:].apply_sync(os.getpid)) & set(pids)
    assert client[:].apply_sync(rank_and_sum) == [(rank, 6) for rank in range(4)]


def sleep_long(directory: Path) -> None:
    """Sleeps; a file in `directory` says that this engine has begun."""
    Path(directory, str(os.getpid())).touch()
    time.sleep(200)


def test_a_task_is_interrupted_and_its_rank_lives(world, tmp_path):
    cluster, client = world
    pids = client[:].apply_sync(os.getpid)
    aborted, interrupted = tmp_path / "aborted", tmp_path / "interrupted"
    aborted.mkdir()
    interrupted.mkdir()
    waiting = client[:].apply_async(sleep_long, aborted)
    assert until(lambda: len(list(aborted.iterdir())) == 4)
    waiting.abort()
    with pytest.raises(ipp.CompositeError, match="TaskAborted"):
        waiting.get(20)
    # SIGINT may come from anywhere: mpiexec has no part in it.
    waiting = client[:].apply_async(sleep_long, interrupted)
    assert until(lambda: len(list(interrupted.iterdir())) == 4)
    cluster.signal_engines_sync(signal.SIGINT)
    with pytest.raises(ipp.CompositeError, match="KeyboardInterrupt"):
        waiting.get(20)
    assert client[:].apply_sync(os.getpid) == pids
    assert client[:].apply_sync(rank_and_sum) == [(rank, 6) for rank in range(4)]


@pytest.mark.timeout(120 + 20 * ROUNDS)
def test_worlds_end_cleanly_time_after_time(mpi):
    for _ in range(ROUNDS):
        cluster = ipp.Cluster(engines=mpi, n=3)
        with cluster as client:
            assert client[:].apply_sync(rank_and_sum) == [(rank, 3) for rank in range(3)]
            log = Path(cluster.blocks()[0].facts["log"])
            cluster.stop_engines_sync()
            assert log.read_text() == ""  # mpiexec has nothing to complain about
            assert until(lambda: client.ids == [])
        assert ranks_of(cluster.cluster_id) == {}


def test_a_rank_whose_first_task_uses_up_its_descriptors_says_so_and_goes_on(world):
    _, client = world
    with pytest.raises(OSError, match="Too many open files"):
        client[1].apply_sync(take_all_descriptors)
    assert client[:].apply_sync(abs, -1) == [1] * 4


def test_no_key_is_in_a_command_line_an_environment_or_a_log(world):
    cluster, client = world
    keys = [json.loads(Path(path).read_text())["private_key"] for path in (cluster.relay_file, cluster.connection_file)]
    pids = client[:].apply_sync(os.getpid)
    assert set(pids) <= set(ranks_of(cluster.cluster_id))
    seen = "".join(ranks_of(cluster.cluster_id).values())
    seen += "".join(Path(f"/proc/{pid}/environ").read_bytes().decode() for pid in ranks_of(cluster.cluster_id))
    seen += "".join(path.read_text() for path in cluster.cluster_dir.glob("*.log"))
    assert len(seen) > 1000
    assert not any(key in seen for key in keys)


def test_mpiexec_by_hand_joins_a_cluster(mpi):
    with ipp.Cluster(n=1, listen="127.0.0.1:0") as client:
        rank = [mpi.python, "-m", "broadleaf.mpi", "--connection", client.cluster.relay_file]
        command = [str(Path(mpi.python).parent / "mpiexec"), *mpi.mpi_args, "-n", "2", *rank]
        mpiexec = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        client.wait_for_engines(3, timeout=60)
        assert client[1:].apply_sync(rank_and_sum) == [(0, 1), (1, 1)]
        client.cluster.stop_engines_sync([2])
        assert mpiexec.wait(30) == 0  # one rank does not leave without the other
        assert until(lambda: client.ids == [0])


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"mpiexec": "no-such-mpiexec"}, "the program 'no-such-mpiexec' was not found on this host"),
        ({"python": sys.executable}, "MPI cannot be used by"),
        ({"mpi_args": ["--no-such-option"]}, "mpiexec ended with"),
    ],
    ids=["no mpiexec", "no mpi4py", "wrong option"],
)
def test_a_world_that_does_not_start_says_why_in_time(options: dict[str, Any], cause: str):
    try:
        python = mpi_python("mpich")
    except EnvironmentUnavailable as error:
        pytest.fail(str(error), pytrace=False)
    mpiexec = shlex.quote(str(python.parent / "mpiexec"))
    with refused(cause):
        with ipp.Cluster(engines=ipp.MPI(**{"python": str(python), "mpiexec": mpiexec} | options), n=2):
            pass


def test_the_command_line_and_a_profile_name_it(tmp_path, monkeypatch):
    try:
        python = mpi_python("mpich")
    except EnvironmentUnavailable as error:
        pytest.fail(str(error), pytrace=False)
    profile = tmp_path / "profiles" / "mpi"
    profile.mkdir(parents=True)
    (profile / "config.toml").write_text(f'engines = "mpi"\n[mpi]\npython = "{python}"\nmpi_args = ["-prepend-rank"]\n')
    monkeypatch.setenv("BROADLEAF_DIR", str(tmp_path))
    shown = subprocess.run(
        [sys.executable, "-m", "broadleaf", "start", "--profile", "mpi", "-n", "2", "--dry-run"],
        cwd=CHECKOUT, capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    mpiexec = [
        f"{python.parent}/mpiexec",
        "-prepend-rank",
        "-n",
        "2",
        str(python),
        "-m",
        "broadleaf.mpi",
        "--connection",
    ]
    assert shlex.join(mpiexec) in shown
    with ipp.Cluster(profile="mpi", n=2) as client:
        assert client[:].apply_sync(rank_and_sum) == [(0, 1), (1, 1)]
    with ipp.Cluster(engines="MPI", n=2, python=str(python)) as client:
        assert client[:].apply_sync(rank_and_sum) == [(0, 1), (1, 1)]


def test_worlds_are_scaled_as_wholes(world):
    cluster, client = world
    cluster.scale_sync(5)
    client.wait_for_engines(8)
    assert sorted(client[:].apply_sync(rank_and_sum)) == sorted([(rank, 6) for rank in range(4)] * 2)
    cluster.scale_sync(4, stateless=True)
    assert until(lambda: len(client) == 4)
    assert client[:].apply_sync(rank_and_sum) == [(rank, 6) for rank in range(4)]
    assert until(lambda: [block.is_over for block in cluster.blocks()].count(True) == 1)
    # One rank takes its world with it.
    cluster.drain_sync(client.ids[1], stateless=True)
    assert until(lambda: not client.ids or client.ids[0] > 7), "another world comes in its place"
