"""A controller that is killed and started again by the steward of its cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import broadleaf as ipp
import pytest
from broadleaf.cli import list as list_
from broadleaf.cli import stop
from broadleaf.cluster.steward import StewardProcess
from broadleaf.state import files
from click.testing import CliRunner
from own_scheduler import Birch, clusters
from processes import cluster_pids
from waiting import until

pytestmark = pytest.mark.timeout(120)


def started(**options: object) -> ipp.Cluster:
    """A cluster with one job that has one engine, unless the options say something else."""
    given = {"n": 1, "cluster_id": "oak", "engines": Birch(engines_per_host=1), "detached": True, "journal": "on"}
    cluster = ipp.Cluster(**(given | options))
    cluster.start_cluster_sync()
    cluster.wait_for_engines_sync()
    assert until(lambda: StewardProcess(cluster.cluster_dir).is_running)
    return cluster


@pytest.fixture
def cluster(folder: Path) -> Iterator[ipp.Cluster]:
    """A detached cluster with a journal and a job. Once it is stopped, nothing of it is left."""
    cluster = started(rejoin_timeout_s=15)
    yield cluster
    cluster.stop_cluster_sync()
    # A job that this scheduler ends without a controller that tells it so ends when its relay finds none.
    assert until(lambda: not cluster_pids(cluster), 60)
    assert not clusters(folder)
    assert not job_runs(folder)


def controller_pid(cluster: ipp.Cluster) -> int | None:
    """The process of the controller that clients are told of now."""
    try:
        return int(json.loads(Path(cluster.connection_file).read_text())["pid"])
    except FileNotFoundError:
        return None


def fork_server(cluster: ipp.Cluster) -> int:
    return int(json.loads(Path(cluster.cluster_file).read_text())["controller"]["fork_server_pid"])


def kill_controller(cluster: ipp.Cluster) -> int:
    """Kills it; returns what its process was."""
    pid = controller_pid(cluster)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


def comes_back(cluster: ipp.Cluster, former: int) -> bool:
    return until(lambda: controller_pid(cluster) not in (None, former) and cluster.running, 60)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def job_runs(folder: Path) -> bool:
    return (folder / "job.1/pid").exists()


def broadleaf(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, which takes a while to start."""
    command = [sys.executable, "-m", "broadleaf", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


class Broken:
    """A cluster whose controller cannot be started again for now."""

    def __init__(self, cluster: ipp.Cluster) -> None:
        self._path = cluster.cluster_dir / files.RESTART_FILE
        self._content = self._path.read_text()
        self._path.write_text("{")

    def mend(self) -> None:
        self._path.write_text(self._content)


def test_jobs_and_engines_and_variables_stay_each_time_and_the_steward_has_started_it(cluster, folder):
    with cluster.connect_client_sync() as rc:
        rc[0].push({"kept": 41}, block=True)
        engine = rc[0].apply_sync(os.getpid)
    steward = StewardProcess(cluster.cluster_dir).pid()
    for _ in range(2):
        former = kill_controller(cluster)
        assert comes_back(cluster, former)
        with cluster.connect_client_sync() as rc:
            rc.wait_for_engines(1, timeout=30)
            assert rc[0].apply(os.getpid).get(timeout=30) == engine
            assert rc[0]["kept"] == 41
            assert rc.load_balanced_view().map_sync(abs, range(-20, 0)) == list(range(20, 0, -1))
        assert parent_of(fork_server(cluster)) == steward == StewardProcess(cluster.cluster_dir).pid()
        pid = controller_pid(cluster)
        assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0), "the steward's is lower"
    assert job_runs(folder)
    assert not (folder / "job.2").exists()
    assert not (folder / "ended").exists(), "no job was cancelled"
    (block,) = cluster.blocks()
    assert (block.state, block.engines) == ("running", [0])
    assert "the controller runs again" in (cluster.cluster_dir / files.STEWARD_LOG).read_text()


def test_a_size_that_is_kept_is_kept_by_the_same_job_and_by_another_one_once_that_is_lost(cluster, folder):
    cluster.scale_sync(1)
    assert cluster.keeps_its_size
    assert comes_back(cluster, kill_controller(cluster))
    with cluster.connect_client_sync() as rc:
        rc.wait_for_engines(1, timeout=30)
        assert rc[:].apply(int).get(timeout=30) == [0]
        assert (folder / "job.1/pid").exists()
        assert not (folder / "job.2").exists()
        assert cluster.keeps_its_size
        subprocess.run(["bkill", "1"], check=True)
        assert until(lambda: (folder / "job.2/pid").exists(), 60)


def test_jobs_wait_while_it_does_not_start_and_the_cause_is_told(cluster, folder):
    broken = Broken(cluster)
    former = kill_controller(cluster)
    assert until(lambda: "could not be started again so far" in cluster.scaling_paused)
    assert cluster.is_coming_back
    assert "its controller is being started again" in repr(cluster)
    with pytest.raises(ipp.ClusterConnectionError, match="is being started again"):
        cluster.status_sync()
    with pytest.raises(ipp.ClusterStateError, match="is being started again"):
        started()
    listed = CliRunner().invoke(list_.command, [], catch_exceptions=False).output
    assert "its controller is being started again" in " ".join(listed.split())
    assert job_runs(folder)
    broken.mend()
    assert comes_back(cluster, former)
    assert until(lambda: not cluster.scaling_paused)
    with cluster.connect_client_sync() as rc:
        rc.wait_for_engines(1, timeout=30)
    assert not (folder / "ended").exists()


def test_one_that_never_starts_is_given_up_and_its_jobs_are_cancelled(cluster, folder):
    Broken(cluster)
    kill_controller(cluster)
    assert until(lambda: not StewardProcess(cluster.cluster_dir).is_running, 60)
    assert not job_runs(folder)
    said = "it was started 5 times, and never lasted for a minute; the last time: "
    assert said in cluster.scaling_paused
    assert not cluster.is_coming_back
    for _ in range(2):  # a command removes what it finds of clusters that are gone
        shown = broadleaf("status", "--cluster-id", "oak")
        assert shown.returncode
        assert said in shown.stderr
    assert said in (cluster.cluster_dir / files.STEWARD_LOG).read_text()


def test_without_its_journal_it_is_given_up_at_once(cluster, folder):
    (cluster.cluster_dir / files.JOURNAL).unlink()
    kill_controller(cluster)
    assert until(lambda: not StewardProcess(cluster.cluster_dir).is_running, 60)
    assert not job_runs(folder)
    assert "has no journal" in cluster.scaling_paused
    assert "has no journal" in broadleaf("status", "--cluster-id", "oak").stderr


def test_it_can_be_stopped_while_it_does_not_start(cluster, folder):
    Broken(cluster)
    kill_controller(cluster)
    assert until(lambda: "could not be started again so far" in cluster.scaling_paused)
    stopped = CliRunner().invoke(stop.command, ["--cluster-id", "oak"], catch_exceptions=False)
    assert stopped.exit_code == 0, stopped.output
    assert not job_runs(folder)
    assert not StewardProcess(cluster.cluster_dir).is_running


@pytest.mark.parametrize("by", ["client", "command"])
def test_one_that_is_stopped_stays_stopped(cluster, folder, by):
    if by == "client":
        with cluster.connect_client_sync() as rc:
            rc.shutdown(hub=True)
    else:
        assert broadleaf("stop", "--cluster-id", "oak").returncode == 0
    assert until(lambda: not cluster_pids(cluster))
    assert not cluster.running
    assert not job_runs(folder)


@pytest.mark.parametrize("options", [{"journal": "off"}, {"detached": False}])
def test_others_are_not_started_again_and_their_jobs_are_cancelled(folder, options):
    cluster = started(rejoin_timeout_s=15, **options)
    try:
        kill_controller(cluster)
        assert until(lambda: not job_runs(folder), 60)
        assert not cluster.running
        assert not cluster.is_coming_back
    finally:
        cluster.stop_cluster_sync()
    assert until(lambda: not cluster_pids(cluster), 60)


def waiting_for(path: Path) -> set[int]:
    """The processes that wait for a file's lock."""
    found = os.stat(path)
    inode = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    lines = (line.split() for line in Path("/proc/locks").read_text().splitlines() if f" {inode} " in line)
    return {int(words[5]) for words in lines if words[1] == "->"}


def test_of_two_that_start_it_at_the_same_time_one_wins_and_the_other_says_so(cluster):
    former = controller_pid(cluster)
    steward = StewardProcess(cluster.cluster_dir).pid()
    lock = cluster.cluster_dir / files.LOCK_FILE
    with cluster.lock:
        kill_controller(cluster)
        command = [sys.executable, "-m", "broadleaf", "start", "--resume", "--cluster-id", "oak"]
        second = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert until(lambda: {steward, second.pid} <= waiting_for(lock))
    said, _ = second.communicate(timeout=60)
    assert ("runs again" in said) if second.returncode == 0 else ("is running; there is nothing to resume" in said)
    assert comes_back(cluster, former)
    with cluster.connect_client_sync() as rc:
        rc.wait_for_engines(1, timeout=30)
    assert StewardProcess(cluster.cluster_dir).pid() == steward
    assert parent_of(fork_server(cluster)) == (steward if second.returncode else 1)


def test_of_many_that_start_it_at_the_same_time_one_wins(cluster):
    former = controller_pid(cluster)
    StewardProcess(cluster.cluster_dir).stop()
    others = [ipp.Cluster.from_file(cluster.cluster_file) for _ in range(4)]
    kill_controller(cluster)
    assert until(lambda: not cluster.running)
    won, lost = list[ipp.Cluster](), list[str]()

    def resume(other: ipp.Cluster) -> None:
        try:
            won.append(other.resume_controller_sync())
        except ipp.ClusterStateError as error:
            lost.append(str(error))

    threads = [threading.Thread(target=resume, args=(other,)) for other in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert lost == ["cluster 'oak' is running; there is nothing to resume"] * 3
    assert comes_back(cluster, former)
    assert all(other.running for other in others)
    assert StewardProcess(cluster.cluster_dir).is_running, "whoever starts it starts the steward, too"
    won[0].stop_cluster_sync()
    assert not any(other.running for other in others)


def test_engines_of_its_own_host_are_started_anew(folder):
    cluster = started(engines="local")
    try:
        assert comes_back(cluster, kill_controller(cluster))
        with cluster.connect_client_sync() as rc:
            rc.wait_for_engines(1, timeout=30)
            assert rc[:].apply(abs, -1).get(timeout=30) == [1]
    finally:
        cluster.stop_cluster_sync()
    assert not clusters(folder)
    assert not cluster_pids(cluster)
