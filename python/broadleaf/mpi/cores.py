"""How the ranks of a host share its cores."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from broadleaf.cluster.cores import usable_cores


def share_of_cores(mpi: Any) -> int:
    """The number of cores for this rank, at least 1. All ranks of the world have to ask."""
    here = mpi.COMM_WORLD.Split_type(mpi.COMM_TYPE_SHARED)
    try:
        masks = here.allgather(sorted(os.sched_getaffinity(0)))
        return share(masks, here.Get_rank(), usable_cores())
    finally:
        here.Free()


def share(masks: Sequence[Sequence[int]], rank: int, usable: int) -> int:
    """The share of one of the ranks of a host, whose cores are `masks`. `mpiexec` may have bound them to some.

    A core counts in equal parts for all ranks that may use it. If a quota leaves fewer of them `usable`, all ranks
    share it.
    """
    cores = int(sum(1 / sum(core in mask for mask in masks) for core in masks[rank]) + 1e-9)
    if usable < len(masks[rank]):
        cores = min(cores, usable // len(masks))
    return max(1, cores)
