"""The host of a rank: the node that its ranks join, and the cores that each has."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Sequence
from typing import Any

from broadleaf.cluster.cores import usable_cores
from broadleaf.engine.guest_link import SOCKET, GuestLink
from broadleaf.errors import ClusterStartError
from broadleaf.private_files import open_private
from broadleaf.state import directories

# How the ranks of a host share its cores.


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

    A core is divided equally among all ranks that may use it. If a quota leaves fewer of them `usable`, all ranks
    share it.
    """
    cores = int(sum(1 / sum(core in mask for mask in masks) for core in masks[rank]) + 1e-9)
    if usable < len(masks[rank]):
        cores = min(cores, usable // len(masks))
    return max(1, cores)


# Where the ranks of a host join: an existing node, or a relay that the first of them starts.


_TRIES = 5


def connect(connection: dict[str, Any], client_file: str | None) -> GuestLink:
    """A connection to the fork server of this host's node. The node is started if there is none: a relay, which lives
    as long as some rank here is connected.

    All ranks of a host join the same node, whatever their world, so that data is there only once. Raises
    `ClusterStartError`.
    """
    with os.fdopen(open_private(directories.guests_lock(), os.O_WRONLY), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for attempt in range(_TRIES):
            for path in directories.sockets_here(connection, SOCKET):
                if (link := GuestLink.dial(path, connection["server_public_key"])) is not None:
                    return link
            from broadleaf.cluster.relay import NAME_TAKEN, Relay  # one rank of a host needs it

            try:
                Relay.for_guests(connection, name=f"{os.uname().nodename}:guests", client_file=client_file)
            except ClusterStartError as error:
                # The previous one has ended, but the controller has not noticed.
                if attempt == _TRIES - 1 or NAME_TAKEN not in str(error):
                    raise
                time.sleep(0.2 * 2**attempt)
    raise ClusterStartError("a relay was started on this host for MPI ranks, but it accepts none of them")
