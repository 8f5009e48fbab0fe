"""Unused shared memory is returned to the system: on one host and between hosts, even while nothing is sent."""

from __future__ import annotations

import os

import broadleaf as ipp
import numpy as np
import pytest
from processes import check_memory, cluster_pids, memory_files, memory_held
from waiting import until

pytestmark = pytest.mark.timeout(120)

MIB = 1 << 20


def shared_bytes(cluster: ipp.Cluster) -> int:
    """Bytes of shared memory that the processes of the cluster and this one hold open."""
    pids = [os.getpid(), *cluster_pids(cluster)]
    return sum({inode: size for pid in pids for inode, size in memory_files(pid)}.values())


def test_results_that_were_dropped_leave_no_memory():
    with ipp.Cluster(n=2, shared_memory_warm_s=1) as rc:
        before = shared_bytes(rc.cluster)
        for engine in (0, 1, 0, 1):
            result = rc[engine].apply_sync(np.ones, 4 * MIB)
            assert result.nbytes == 32 * MIB
            del result
        assert until(lambda: shared_bytes(rc.cluster) - before < MIB), "freed segments stay forever"


def test_a_busy_engine_gives_back_what_is_free(tmp_path):
    def wait_for(path: str) -> None:
        import time
        from pathlib import Path

        while not Path(path).exists():
            time.sleep(0.05)

    with ipp.Cluster(n=1, shared_memory_warm_s=1) as rc:
        before = shared_bytes(rc.cluster)
        result = rc[0].apply_sync(np.ones, 4 * MIB)
        assert result.nbytes == 32 * MIB
        del result
        rc[0].apply_sync(int)
        task = rc[0].apply_async(wait_for, str(tmp_path / "go"))
        given_back = until(lambda: shared_bytes(rc.cluster) - before < MIB)
        assert not task.ready()
        (tmp_path / "go").touch()
        task.get(timeout=30)
        assert given_back, "what is free stays while a task runs"


def test_what_a_client_pushed_and_replaced_leaves_no_memory():
    with ipp.Cluster(n=2, shared_memory_warm_s=1) as rc:
        before = shared_bytes(rc.cluster)
        for _ in range(3):
            rc[:].push({"table": np.ones(4 * MIB)}, block=True)
        rc[:].push({"table": None}, block=True)
        assert until(lambda: shared_bytes(rc.cluster) - before < MIB), "freed segments stay forever"


def test_results_that_cross_hosts_are_closed_by_the_controllers_node():
    cluster = ipp.Cluster(n=0, listen="127.0.0.1:0", shared_memory_warm_s=1)
    rc = cluster.start_and_connect_sync()
    node = cluster.status_sync()["pid"]
    sizes = np.random.default_rng(1).choice([100_000, 200_000, 500_000, 1_000_000], 100)
    with ipp.Relay(cluster.relay_file, 1, name="other"):
        rc.wait_for_engines(1, timeout=30)
        before = len(memory_files(node))
        for size in sizes:
            result = rc[0].apply_sync(np.ones, int(size))
            assert result.sum() == size
            del result
        assert until(lambda: len(memory_files(node)) <= before + 1), "segments of dropped results stay open"
        check_memory(cluster)
    rc.close()
    cluster.stop_cluster_sync()


def test_status_tells_what_is_held():
    with ipp.Cluster(n=2) as rc:
        rc.wait_for_engines(2, timeout=30)
        check_memory(rc.cluster)
        for n in (10_000, 20_000, 100_000, 1_000_000):
            rc[:].push({f"x{n}": np.ones(n)}, block=True)
        kept = rc.load_balanced_view().map_sync(np.ones, [20_000] * 500, chunksize=1)
        assert memory_held(rc.cluster.status_sync()["pid"])[1] > 80_000_000
        check_memory(rc.cluster)
        assert sum(map(len, kept)) == 500 * 20_000
