"""`broadleaf run`: the same command on every host of an allocation makes a cluster of them, for a program on one."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import signal
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broadleaf import config
from broadleaf.cluster import addresses
from broadleaf.cluster.cluster import Cluster
from broadleaf.cluster.credentials import Credentials
from broadleaf.cluster.relay import Relay
from broadleaf.cluster.session import session_environment, taken_over
from broadleaf.engine.environment import variables_of
from broadleaf.errors import ClusterConnectionError, ClusterStartError
from broadleaf.state import files
from broadleaf.state.connection import read_engine_connection
from broadleaf.state.directories import ClusterFileError

# What a process that runs `broadleaf run` learns from the launcher that started it.


# Rank, number of ranks, and an id that only the ranks of one start share. Open MPI comes first: inside a Slurm job its
# daemons are steps of their own, whose variables its ranks inherit.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("PMIX_NAMESPACE",)),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")),
    ("PMI_RANK", "PMI_SIZE", ()),
)
# The first name of a list such as `n[08-11,14],login`.
_FIRST_NAME = re.compile(r"(?:[^\[,]|\[[^\]]*\])+")
_FIRST_OF_RANGE = re.compile(r"\[([^\]\-,]*)[^\]]*\]")


@dataclass(frozen=True)
class RunMember:
    """One of the processes that run `broadleaf run`."""

    rank: int
    size: int
    run_id: str
    """The same for all of them, and for no others: the id of their cluster."""
    first_host: str = ""
    """The host of rank 0; empty where the launcher does not say."""

    @classmethod
    def of(cls, environment: Mapping[str, str], run_id: str = "") -> RunMember:
        """What the launcher, `srun` or an `mpiexec`, has told this process. Raises ValueError if there is no way to
        tell one run from another."""
        for rank, size, names in _LAUNCHERS:
            if rank in environment and size in environment:
                known = "-".join(filter(None, (environment.get(name, "") for name in names)))
                if not (run_id or known):
                    raise ValueError("the launcher does not identify this run: pass the same --id to every rank")
                unsafe = run_id or f"run-{known}"
                told = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in unsafe)
                hosts = environment.get("SLURM_STEP_NODELIST", "") if rank == "SLURM_PROCID" else ""
                return cls(int(environment[rank]), int(environment[size]), told, first_of(hosts))
        return cls(0, 1, run_id or f"run-{os.getpid()}")


def first_of(hosts: str) -> str:
    """The first host of a list in Slurm's notation, such as `n[08-11,14],login`."""
    first = _FIRST_NAME.match(hosts)
    return _FIRST_OF_RANGE.sub(r"\1", first[0]) if first else ""


# Where the ranks of one `broadleaf run` find the cluster that rank 0 starts.


# Whoever guesses the secret can run code as its owner: 128 bits in hexadecimal.
_MIN_SECRET_CHARACTERS = 32
# Below the ports that Linux gives to connections. There are several, because other programs may listen on one.
_PORTS = range(20_000, 30_000)
_N_PORTS = 4
_DIAL_TIMEOUT_S = 2.0

ConnectionFile = Path | dict[str, Any]
"""A connection file, or its content."""


class Rendezvous(ABC):
    """What the ranks know before they have met."""

    @abstractmethod
    def listen(self) -> tuple[str, Credentials | None]:
        """Where the controller of rank 0 listens, and its keys; None for new ones.

        Raises `ClusterStartError` if it cannot.
        """

    @abstractmethod
    def engine_env(self) -> dict[str, str]:
        """What the engines of all ranks have in their environment, as far as all ranks know it."""

    @abstractmethod
    def connections(self) -> Iterator[tuple[ConnectionFile, ConnectionFile]]:
        """Connection files of engines and of clients for the places where the cluster may be now.

        Raises `ClusterFileError` or OSError if it cannot be anywhere yet.
        """

    @abstractmethod
    def requirement(self) -> str:
        """What a rank that does not come up may lack, as a question."""


class SharedDirectory(Rendezvous):
    """All hosts see the directory of clusters."""

    def __init__(self, member: RunMember, profile: str) -> None:
        self._directory = files.cluster_dir(profile, member.run_id)

    def listen(self) -> tuple[str, Credentials | None]:
        """Where the controller listens, and that its keys are new."""
        return "0.0.0.0:0", None

    def engine_env(self) -> dict[str, str]:
        """Nothing: it is in the files."""
        return {}

    def connections(self) -> Iterator[tuple[ConnectionFile, ConnectionFile]]:
        """The files that the controller writes."""
        yield self._directory / files.ENGINE_FILE, self._directory / files.CLIENT_FILE

    def requirement(self) -> str:
        """Whether hosts see the directory."""
        return f"Do all hosts see {self._directory}? If they share no directory, set BROADLEAF_SECRET"


class SharedSecret(Rendezvous):
    """All ranks hold a secret: keys and ports follow from it and from the run's id.

    Raises ValueError for a secret that is too short, and if no host of rank 0 is known.
    """

    def __init__(self, member: RunMember, profile: str, secret: str, controller: str = "") -> None:
        if len(secret) < _MIN_SECRET_CHARACTERS:
            raise ValueError(
                f"BROADLEAF_SECRET has {len(secret)} characters, but needs at least {_MIN_SECRET_CHARACTERS}: anyone "
                "who guesses it can run code as you. Create one with `openssl rand -hex 32`"
            )
        self._host = controller or member.first_host
        if member.size > 1 and not self._host:
            raise ValueError("the launcher does not say on which host rank 0 runs: pass --controller HOST")
        self._settings = config.resolve({}, files.profile_dir(profile))
        self._credentials = Credentials.derive(secret, member.run_id)
        digest = hmac.digest(secret.encode(), f"ports of {member.run_id}".encode(), hashlib.sha256)
        chosen = (_PORTS[int.from_bytes(digest[at : at + 4]) % len(_PORTS)] for at in range(0, len(digest), 4))
        drawn = hmac.digest(secret.encode(), f"hashes of {member.run_id}".encode(), hashlib.sha256)
        self._engine_env = session_environment(drawn[:4])
        self._ports = list(dict.fromkeys(chosen))[:_N_PORTS]

    def listen(self) -> tuple[str, Credentials | None]:
        """The first of the ports that is free on this host, and the keys."""
        for port in self._ports:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("0.0.0.0", port))
                except OSError:
                    continue
                return f"0.0.0.0:{port}", self._credentials
        raise ClusterStartError(
            f"other programs are listening on {self._said()}: start again with another BROADLEAF_SECRET"
        )

    def engine_env(self) -> dict[str, str]:
        """What follows from the secret, and what the launcher has set for all ranks."""
        return self._engine_env

    def connections(self) -> Iterator[tuple[ConnectionFile, ConnectionFile]]:
        """One for each of the ports on which something listens: the keys decide."""
        unreachable = None
        for port in self._ports:
            try:
                addresses.first_reachable([self._host], port, _DIAL_TIMEOUT_S)
            except addresses.Unreachable as error:
                unreachable = error
                continue
            engine, client = (
                self._credentials.connection_at(role, self._settings, self._host, port, self._engine_env)
                for role in ("engine", "client")
            )
            yield engine, client
        if unreachable is not None:
            raise unreachable

    def requirement(self) -> str:
        """Whether hosts can connect."""
        return f"Can all hosts connect to {self._said()}, and do they have the same BROADLEAF_SECRET?"

    def _said(self) -> str:
        *others, last = map(str, self._ports)
        return f"{self._host or socket.gethostname()}, port {', '.join(others)} or {last}"


# The part of each rank: rank 0 runs the controller and the program, the others a relay with engines.


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
            f"{rendezvous.requirement()} With --min-hosts N, the program also starts with fewer hosts"
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
        raise ClusterStartError(f"the program {command[0]!r} was not found on {socket.gethostname()}") from None
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
                f"rank {member.rank} on {here} found no cluster started by rank 0: {failure}. "
                f"{rendezvous.requirement()}"
            )
        time.sleep(_LOOK_EVERY_S)
