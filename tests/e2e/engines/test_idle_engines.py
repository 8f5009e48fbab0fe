"""Engines that have nothing to do do not run."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Event

import broadleaf as ipp
import numpy as np
import pytest
from waiting import until

ENGINES = 6


def switches(pids: list[int]) -> int:
    """How often all threads of these processes have been switched to or away from, ever."""
    return sum(
        int(line.split()[1])
        for pid in pids
        for thread in Path(f"/proc/{pid}/task").iterdir()
        for line in (thread / "status").read_text().splitlines()
        if "ctxt_switches" in line
    )


def switches_in(seconds: float, pids: list[int]) -> int:
    before = switches(pids)
    Event().wait(seconds)
    return switches(pids) - before


@pytest.mark.timeout(120)
def test_no_thread_of_an_engine_or_of_the_node_wakes_while_nothing_happens():
    with ipp.Cluster(n=ENGINES, shared_memory_warm_s=1) as rc:
        pids = [rc.cluster.to_dict()["controller"]["node_pid"], *rc[:].apply_sync(os.getpid)]
        rc.load_balanced_view().map_sync(abs, range(10_000), chunksize=1)
        rc[:].apply_sync(print, "output is sent while the task runs")
        rc[:].push({"data": np.ones(1_000_000)}, block=True)
        assert rc[0].pull("data", block=True)[0] == 1
        # Free memory is released first, which a thread watches.
        assert until(lambda: switches_in(2, pids) == 0, 60), "threads wake although nothing happens"
        assert rc[:].apply_sync(lambda: 7) == [7] * ENGINES
