"""`broadleaf run`: the same command on every host of an allocation makes a cluster of them, for a program on one of the
hosts."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broadleaf.cluster.cluster import Cluster
from broadleaf.cluster.hosts.relay import Relay
from broadleaf.cluster.start_error import ClusterStartError
from broadleaf.cluster.state import files
from broadleaf.cluster.state.files import ClusterFileError
from broadleaf.errors import ClusterConnectionError

_LOOK_EVERY_S = 0.05
# Rank, number of ranks, and an id that only the ranks of one start share.
_LAUNCHERS = (
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("PMIX_NAMESPACE",)),
    ("PMI_RANK", "PMI_SIZE", ()),
)


@dataclass(frozen=True)
class RunMember:
    """One of the processes that run `broadleaf run`."""

    rank: int
    size: int
    run_id: str
    """The same for all of them, and for no others: the id of their cluster."""

    @classmethod
    def of(cls, environment: Mapping[str, str], run_id: str = "") -> RunMember:
        """What the launcher, `srun` or an `mpiexec`, has told this process. Raises ValueError if there is no way to
        tell one run from another."""
        for rank, size, names in _LAUNCHERS:
            if rank in environment and size in environment:
                known = "-".join(filter(None, (environment.get(name, "") for name in names)))
                if not (run_id or known):
                    raise ValueError("the launcher does not say which run this is: give --id, the same to all ranks")
                unsafe = run_id or f"run-{known}"
                told = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in unsafe)
                return cls(int(environment[rank]), int(environment[size]), told)
        return cls(0, 1, run_id or f"run-{os.getpid()}")


def run(member: RunMember, command: Sequence[str], *, n: int | None, profile: str, min_hosts: int) -> int:
    """Runs this rank's part and returns its exit code; on rank 0 it is that of the command.

    All ranks must see the same directory of clusters, as they do if hosts share home directories. Raises
    `ClusterStartError` if hosts are missing, and says which.
    """
    if member.rank:
        return _join(member, n, profile)
    cluster = Cluster(n, profile=profile, cluster_id=member.run_id, engines="local", listen="0.0.0.0:0")
    try:
        cluster.start_cluster_sync()
        cluster.wait_for_engines_sync()
        _await_hosts(cluster, member, min_hosts or member.size)
        return _run_command(cluster, command)
    finally:
        cluster.stop_cluster_sync()


def _await_hosts(cluster: Cluster, member: RunMember, min_hosts: int) -> None:
    timeout_s: float = cluster.settings["start_timeout_s"]
    give_up_at = time.monotonic() + timeout_s
    with cluster.control() as control:
        while True:
            up = {int(host["name"].rpartition(":")[2]) for host in control.status()["hosts"] if ":" in host["name"]}
            engines = [host for *_, host in control.engines()]
            if len(up) + 1 >= member.size and all(any(host.endswith(f":{rank}") for host in engines) for rank in up):
                return
            if time.monotonic() > give_up_at:
                break
            time.sleep(_LOOK_EVERY_S)
    if len(up) + 1 < min_hosts:
        missing = ", ".join(str(rank) for rank in range(1, member.size) if rank not in up)
        raise ClusterStartError(
            f"{len(up) + 1} of {member.size} hosts came up within {timeout_s:g} s; ranks without a host: {missing}. "
            f"Do they see {cluster.cluster_dir}? With --min-hosts N the program starts on fewer"
        )


def _run_command(cluster: Cluster, command: Sequence[str]) -> int:
    import subprocess

    try:
        child = subprocess.Popen(command, env=os.environ | {"BROADLEAF_CONNECTION": cluster.connection_file})
    except FileNotFoundError:
        raise ClusterStartError(f"there is no program {command[0]!r} on {socket.gethostname()}") from None
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: child.send_signal(number))
    code = child.wait()
    return code if code >= 0 else 128 - code


def _join(member: RunMember, n: int | None, profile: str) -> int:
    """A relay of this host, until the cluster of rank 0 stops."""
    relay = _relay(member, n, profile)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are for the program, and this process ends when the program does
    try:
        return relay.wait() or 0
    finally:
        relay.stop()


def _relay(member: RunMember, n: int | None, profile: str) -> Relay:
    file = files.cluster_dir(profile, member.run_id) / files.ENGINE_FILE
    give_up_at = time.monotonic() + _start_timeout_s(profile)
    while True:
        try:
            return Relay(file, n, name=f"{socket.gethostname()}:{member.rank}")
        except (ClusterFileError, ClusterStartError, ClusterConnectionError) as error:
            if time.monotonic() > give_up_at:
                raise ClusterStartError(_never_came(member, file, error)) from None
        time.sleep(_LOOK_EVERY_S)


def _never_came(member: RunMember, file: Path, error: Exception) -> str:
    return f"rank {member.rank} on {socket.gethostname()} found no cluster of rank 0 in {file}: {error}"


def _start_timeout_s(profile: str) -> float:
    from broadleaf import config

    options: Any = config.resolve({}, files.profile_dir(profile))
    timeout_s: float = options["start_timeout_s"]
    return timeout_s
