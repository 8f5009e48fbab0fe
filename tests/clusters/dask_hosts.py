"""Dask on a bed: a scheduler on the head, a worker on each of some hosts."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bed import Bed
from waiting import until

_WAIT = "import sys; from distributed import Client; Client('tcp://head:8786').wait_for_workers(int(sys.argv[1]), 40)"


@contextmanager
def dask_on(bed: Bed, *hosts: str) -> Iterator[None]:
    """A scheduler at ``tcp://head:8786`` with a worker of two threads on each host."""
    scheduler = ("-m", "distributed.cli.dask_scheduler", "--no-dashboard", "--host", "head")
    worker = ("-m", "distributed.cli.dask_worker", "tcp://head:8786", "--nthreads", "2", "--no-dashboard")
    running = [bed.start("head", sys.executable, *scheduler)]
    running += [bed.start(host, sys.executable, *worker) for host in hosts]
    try:
        bed.run("head", sys.executable, "-c", _WAIT, str(len(hosts)))
        yield
    finally:
        # A worker that is asked to end waits for its scheduler.
        for pid in _processes(bed):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in running:
            process.wait()
        assert until(lambda: not _processes(bed)), _processes(bed)
        assert until(lambda: not bed.processes()), bed.processes()


def _processes(bed: Bed) -> list[int]:
    told = bed.told_by_processes()
    return [pid for pid, text in told.items() if "distributed.cli" in text or "--multiprocessing-fork" in text]
