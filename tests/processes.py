"""What the processes of a cluster are and hold open, according to `/proc`."""

import os
from pathlib import Path

from broadleaf import Cluster
from waiting import until


def processes_with(**variables: str) -> dict[int, str]:
    """Other processes, without zombies, that have these variables set to these values: pid to command line."""
    entries = {f"{name}={value}".encode() for name, value in variables.items()}
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if int(path.name) != os.getpid() and entries <= set((path / "environ").read_bytes().split(b"\0")):
                found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
        except OSError:
            continue
    return found


def cluster_pids(cluster: Cluster) -> list[int]:
    """Ids of the processes of a cluster on this host."""
    return list(processes_with(BROADLEAF_CLUSTER_ID=cluster.cluster_id))


def memory_files(pid: int) -> list[tuple[int, int]]:
    """(inode, bytes taken) of each memfd that a process holds open."""
    found = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if os.readlink(descriptor).startswith("/memfd:"):
                status = os.stat(descriptor)
                found.append((status.st_ino, status.st_blocks * 512))
        except OSError:  # closed meanwhile
            continue
    return found


def memory_held(pid: int) -> tuple[int, int]:
    """Number and bytes of the memfds that a process holds open; one that it holds twice counts once."""
    files = dict(memory_files(pid))
    return len(files), sum(files.values())


def check_memory(cluster: Cluster) -> None:
    """What the controller's node says it holds matches `/proc`: no segment is held that nobody counts."""

    def told_and_held() -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        status = cluster.status_sync()
        node, pid = status["node"], status["pid"]
        n_bytes = node["segment_bytes"] + node["own_bytes"] + node["own_warm_bytes"] + node["lane_bytes"]
        told = (node["segments"] + node["own_segments"] + 1, n_bytes, node["descriptors"])  # the lane is one, too
        return told, (*memory_held(pid), len(os.listdir(f"/proc/{pid}/fd")))

    # The status request uses a connection of its own, which may or may not be gone when `/proc` is read.
    def agrees() -> bool:
        told, held = told_and_held()
        return told[:2] == held[:2] and abs(told[2] - held[2]) <= 1

    assert until(agrees, 20), f"status and /proc disagree: {told_and_held()}"
