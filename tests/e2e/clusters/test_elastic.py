"""Clusters that change their size while they run, and engines that are released with care."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import ClassVar

import pytest
from broadleaf import Client, Cluster, EngineSet
from broadleaf.cluster.elastic import ScalingError
from broadleaf.cluster.engine_sets import Block
from broadleaf.cluster.steward import StewardProcess
from broadleaf.errors import EngineError, NoEnginesRegistered
from broadleaf.requests import RequestFailed
from broadleaf.state.files import StateLock
from waiting import until

pytestmark = pytest.mark.timeout(120)


def states(cluster: Cluster) -> dict[int, str]:
    """What the controller says about each engine."""
    return {engine["engine"]: engine["state"] for engine in cluster.status_sync()["engines"]}


def living(cluster: Cluster) -> int:
    """Engines that are up or will come."""
    return sum(state not in ("gone", "draining", "leaving", "dying") for state in states(cluster).values())


def wait_for_file(path: str, begun: str | None = None) -> str:
    """A task that runs until there is a file. The file `begun` says that it runs: an engine that drains gives back what
    has not begun."""
    if begun is not None:
        open(begun, "w").close()
    while not os.path.exists(path):
        time.sleep(0.01)
    return path


def write_line(path: str, line: int) -> int:
    """A task that leaves a trace of each time it runs."""
    with open(path, "a") as file:
        file.write(f"{line}\n")
    return line


def test_an_engine_that_drains_ends_its_task_and_the_others_run_elsewhere(tmp_path):
    with Cluster(n=2) as rc:
        lview = rc.load_balanced_view()
        gate, log = str(tmp_path / "gate"), str(tmp_path / "log")
        begun = [tmp_path / "begun-0", tmp_path / "begun-1"]
        running = [lview.apply_async(wait_for_file, gate, str(path)) for path in begun]
        assert until(lambda: all(path.exists() for path in begun), 30)
        queued = [lview.apply_async(write_line, log, i) for i in range(50)]
        with rc.cluster.control() as control:
            control.drain([0])
        assert until(lambda: rc.ids == [1], 30)
        assert states(rc.cluster)[0] == "draining"
        (tmp_path / "gate").touch()
        assert [one.get(30) for one in running] == [gate, gate]
        assert [one.get(30) for one in queued] == list(range(50))
        assert sorted(map(int, (tmp_path / "log").read_text().split())) == list(range(50)), "each once"
        assert {one.metadata.engine_id for one in queued} == {1}
        assert until(lambda: states(rc.cluster)[0] == "gone", 30)
        with pytest.raises((EngineError, IndexError)):
            rc[0].apply_sync(os.getpid)


def test_drain_waits_until_the_engine_is_gone_and_names_what_it_would_lose():
    with Cluster(n=3) as rc:
        rc[1].push({"x": 1})
        with pytest.raises(RequestFailed, match=r"may have left data on engines 1,"):
            rc.cluster.drain_sync([0, 1])
        assert rc.ids == [0, 1, 2]
        rc.cluster.drain_sync(0)
        assert states(rc.cluster)[0] == "gone"
        rc.cluster.drain_sync(1, stateless=True)
        assert until(lambda: rc.ids == [2])
        with pytest.raises(RequestFailed, match="no such engine: 7"):
            rc.cluster.drain_sync(7)
        with pytest.raises(KeyError, match="unknown host, block or engine set 'nowhere'"):
            rc.cluster.drain_sync("nowhere")


def test_time_that_is_over_ends_a_task(tmp_path):
    with Cluster(n=1, stop_grace_s=0.1) as rc:
        begun = tmp_path / "begun"
        result = rc.load_balanced_view().apply_async(wait_for_file, str(tmp_path / "never"), str(begun))
        assert until(begun.exists, 30)
        rc.cluster.drain_sync("all", within_s=0.1)
        with pytest.raises(EngineError, match="stopped"):
            result.get(30)


def test_scale_up_and_down():
    with Cluster(n=1) as rc:
        rc.cluster.scale_sync(3)
        rc.wait_for_engines(3)
        rc[1].push({"x": 1})
        rc.cluster.scale_sync(1)
        assert until(lambda: len(rc) == 1, 30)
        assert rc.ids == [1], "it holds data"
        assert rc[1]["x"] == 1
        with pytest.raises(ScalingError, match="clients may have left data on engines 1,"):
            rc.cluster.scale_sync(0)
        rc.cluster.scale_sync(0, stateless=True)
        assert until(lambda: not rc.ids, 30)
        with pytest.raises(ValueError, match="n must not be negative"):
            rc.cluster.scale_sync(-1)


async def test_scale_and_drain_as_coroutines():
    async with Cluster(n=1) as rc:
        await rc.cluster.scale(2)
        rc.wait_for_engines(2)
        await rc.cluster.drain(0)
        assert until(lambda: rc.ids == [1])
        await rc.cluster.adapt(1, 1)


def test_adapt_follows_the_queue(tmp_path):
    cluster = Cluster(n=0)
    cluster.start_cluster_sync()
    try:
        with cluster.connect_client_sync() as rc:
            lview = rc.load_balanced_view()
            cluster.adapt_sync(0, 3, idle_s=0.5)
            gate = str(tmp_path / "gate")
            results = [lview.apply_async(wait_for_file, gate) for _ in range(10)]
            assert until(lambda: len(rc) == 3, 60)
            assert living(cluster) == 3
            (tmp_path / "gate").touch()
            assert [one.get(60) for one in results] == [gate] * 10
            assert until(lambda: not rc.ids, 60)
            # It comes back for one task, and only for that.
            assert lview.apply_sync(lambda: 42) == 42
            assert living(cluster) <= 1
            assert until(lambda: not rc.ids, 60)
            assert cluster.scaling_paused == ""
            result = lview.apply_async(os.getpid)
            assert result.get(60)
            cluster.stop_steward()
            assert until(lambda: living(cluster) <= 1, 30)
        with pytest.raises(ValueError, match="0 <= minimum <= maximum"):
            cluster.adapt_sync(2, 1)
    finally:
        cluster.stop_cluster_sync()


def test_a_steward_that_is_killed_comes_back(cluster_processes):
    cluster = Cluster(n=0, detached=True)
    cluster.start_cluster_sync()
    try:
        cluster.adapt_sync(0, 1)
        steward = StewardProcess(cluster.cluster_dir)
        killed = steward.pid()
        os.kill(killed, signal.SIGKILL)
        assert until(lambda: steward.pid() not in (None, killed))
        with cluster.connect_client_sync() as rc:
            assert until(lambda: answers(rc)), cluster.scaling_paused
        os.kill(cluster.status_sync()["pid"], signal.SIGKILL)
        assert until(lambda: not cluster.keeps_its_size), "it ends with its cluster"
        assert until(lambda: not cluster_processes(cluster.cluster_id)), cluster_processes(cluster.cluster_id)
    finally:
        cluster.stop_cluster_sync()
        cluster.remove_files()


def answers(rc: Client) -> bool:
    """Whether tasks wait for engines, and one comes for them."""
    try:
        return rc.load_balanced_view().apply_sync(abs, -42) == 42
    except NoEnginesRegistered:
        return False


def test_a_steward_that_is_stopped_stays_so():
    cluster = Cluster(n=0, detached=True)
    cluster.start_cluster_sync()
    try:
        cluster.adapt_sync(0, 1)
        cluster.stop_steward()
        assert not cluster.keeps_its_size
        assert cluster.scaling_paused == ""
    finally:
        cluster.stop_cluster_sync()


def test_a_steward_that_was_killed_is_told_where_nobody_starts_it_again():
    program = """
from broadleaf import Cluster
cluster = Cluster(n=0, detached=True)
cluster.start_cluster_sync()
cluster.adapt_sync(0, 1)
print(cluster.cluster_file)
"""
    file = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
    cluster = Cluster.from_file(file)
    try:
        assert cluster.scaling_paused == ""
        os.kill(StewardProcess(cluster.cluster_dir).pid(), signal.SIGKILL)
        assert until(lambda: cluster.scaling_paused)
        assert cluster.scaling_paused.endswith("was killed: scale the cluster again")
        cluster.adapt_sync(0, 1)
        assert cluster.scaling_paused == ""
    finally:
        cluster.stop_cluster_sync()


def test_engines_that_join_call_what_a_client_has_them_call():
    with Cluster(n=1) as first, Client(first.cluster.connection_file, on_join=set_mark) as rc:
        assert rc[0].apply_sync(get_mark) == "set"
        first.cluster.scale_sync(2)
        rc.wait_for_engines(2)
        assert rc[:].apply_sync(get_mark) == ["set", "set"]


def set_mark() -> None:
    """Leaves something in the process."""
    os.environ["MARK"] = "set"


def get_mark() -> str | None:
    """What `set_mark` left."""
    return os.environ.get("MARK")


@dataclass
class Broken(EngineSet):
    """A place where every block fails."""

    name: ClassVar[str] = "broken"

    def submit(self, request):
        return [Block(f"broken-{request.first_block}", n_engines=1)]

    def poll(self, blocks):
        for block in blocks:
            block.state, block.reason = "failed", "out of order"

    def cancel(self, blocks):
        pass

    def log(self, block):
        return ""


def test_adapt_tries_again_where_blocks_failed_before():
    cluster = Cluster(engines=Broken())
    cluster.start_controller_sync()
    try:
        for n_blocks in (3, 6):
            cluster.adapt_sync(1, 1)
            assert until(lambda: cluster.scaling_paused)
            assert cluster.scaling_paused == "3 blocks in a row did not start; the last one: out of order"
            assert len(cluster.blocks()) == n_blocks
    finally:
        cluster.stop_cluster_sync()


ADAPT = """
import sys
from broadleaf import Cluster
cluster = Cluster.from_file(sys.argv[1])
cluster.adapt_sync(0, 2, idle_s=0.5)
assert cluster.keeps_its_size
"""


def test_a_detached_cluster_follows_its_queue_when_nobody_is_left():
    cluster = Cluster(n=0, detached=True)
    cluster.start_cluster_sync()
    try:
        subprocess.run([sys.executable, "-c", ADAPT, cluster.cluster_file], check=True, timeout=60)
        assert cluster.keeps_its_size
        for _ in range(2):
            with cluster.connect_client_sync() as rc:
                assert rc.load_balanced_view().map_sync(abs, range(-3, 0)) == [3, 2, 1]
            assert until(lambda: living(cluster) == 0, 60)
        assert cluster.scaling_paused == ""
        # A second one replaces it; a fixed number ends it.
        subprocess.run([sys.executable, "-c", ADAPT, cluster.cluster_file], check=True, timeout=60)
        assert cluster.keeps_its_size
        Cluster.from_file(cluster.cluster_file).scale_sync(1)
        assert not cluster.keeps_its_size
        assert until(lambda: living(cluster) == 1, 60)
        cluster.adapt_sync(1, 2)
        assert cluster.keeps_its_size
    finally:
        cluster.stop_cluster_sync()
    assert not cluster.keeps_its_size
    assert not cluster.cluster_dir.exists()


def test_the_state_of_a_cluster_is_changed_by_one_process_at_a_time(tmp_path):
    seen = []
    locks = [StateLock(), StateLock()]
    for lock in locks:
        lock.share(tmp_path, lambda: seen.append(None))
    held, free = threading.Event(), threading.Event()

    def hold() -> None:
        with locks[0], locks[0]:
            held.set()
            assert free.wait(30)
        seen.append("released")

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(30)
    assert seen == [None], "asked once, however often the same thread takes it"
    free.set()
    with locks[1]:
        assert seen[0] is None
    holder.join(30)
    assert sorted(map(str, seen)) == ["None", "None", "released"]
