"""The part of each rank: rank 0 runs the controller and the program, the others a relay with engines."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Sequence

from broadleaf import config
from broadleaf.cluster.cluster import Cluster
from broadleaf.cluster.hosts.relay import Relay
from broadleaf.cluster.hosts.session import taken_over
from broadleaf.cluster.hosts.symmetric.member import RunMember
from broadleaf.cluster.hosts.symmetric.rendezvous import Rendezvous
from broadleaf.engine.environment import variables_of
from broadleaf.errors import ClusterConnectionError, ClusterStartError
from broadleaf.state import files
from broadleaf.state.connection import read_engine_connection
from broadleaf.state.directories import ClusterFileError

_LOOK_EVERY_S = 0.05


def run(
    member: RunMember,
    rendezvous: Rendezvous,
    command: Sequence[str],
    *,
    n: int | None,
    profile: str,
    min_hosts: int,
) -> int:
    """Runs this rank's part and returns its exit code; on rank 0 it is that of the command.

    Raises `ClusterStartError` if hosts are missing, and says which.
    """
    if member.rank:
        timeout_s = config.resolve({}, files.profile_dir(profile))["start_timeout_s"]
        return _join(member, n, rendezvous, timeout_s)
    listen, credentials = rendezvous.listen()
    env = rendezvous.engine_env()
    cluster = Cluster(n, profile=profile, cluster_id=member.run_id, engines="local", listen=listen, env=env)
    cluster.credentials = credentials
    try:
        cluster.start_cluster_sync()
        cluster.wait_for_engines_sync()
        _await_hosts(cluster, member, min_hosts or member.size, rendezvous)
        return _run_command(cluster, command)
    finally:
        cluster.stop_cluster_sync()


def _await_hosts(cluster: Cluster, member: RunMember, min_hosts: int, rendezvous: Rendezvous) -> None:
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
            f"{rendezvous.requirement()} With --min-hosts N the program starts on fewer"
        )


def _run_command(cluster: Cluster, command: Sequence[str]) -> int:
    import subprocess

    # The program is the cluster's session: it and the engines may as well agree on hashes.
    engine_env = taken_over(variables_of(read_engine_connection(cluster.relay_file)))
    try:
        child = subprocess.Popen(
            command, env=os.environ | engine_env | {"BROADLEAF_CONNECTION": cluster.connection_file}
        )
    except FileNotFoundError:
        raise ClusterStartError(f"there is no program {command[0]!r} on {socket.gethostname()}") from None
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: child.send_signal(number))
    code = child.wait()
    return code if code >= 0 else 128 - code


def _join(member: RunMember, n: int | None, rendezvous: Rendezvous, timeout_s: float) -> int:
    """A relay of this host, until the cluster of rank 0 stops."""
    relay = _relay(member, n, rendezvous, timeout_s)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are for the program, and this process ends when the program does
    try:
        return relay.wait() or 0
    finally:
        relay.stop()


def _relay(member: RunMember, n: int | None, rendezvous: Rendezvous, timeout_s: float) -> Relay:
    here = socket.gethostname()
    give_up_at = time.monotonic() + timeout_s
    while True:
        failure: Exception | None = None
        try:
            for connection, client in rendezvous.connections():
                try:
                    return Relay(connection, n, name=f"{here}:{member.rank}", client_file=client)
                except (ClusterStartError, ClusterConnectionError) as error:
                    failure = error
        except (ClusterFileError, OSError) as error:
            failure = failure or error
        if time.monotonic() > give_up_at:
            raise ClusterStartError(
                f"rank {member.rank} on {here} found no cluster of rank 0: {failure}. {rendezvous.requirement()}"
            )
        time.sleep(_LOOK_EVERY_S)
