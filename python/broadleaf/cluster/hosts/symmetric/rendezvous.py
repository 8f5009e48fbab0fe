"""Where the ranks of one `broadleaf run` find the cluster that rank 0 starts."""

from __future__ import annotations

import hashlib
import hmac
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from broadleaf import config
from broadleaf.cluster import addresses
from broadleaf.cluster.credentials import Credentials
from broadleaf.cluster.hosts.session import session_environment
from broadleaf.cluster.hosts.symmetric.member import RunMember
from broadleaf.errors import ClusterStartError
from broadleaf.state import files

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
                f"BROADLEAF_SECRET has {len(secret)} characters and needs at least {_MIN_SECRET_CHARACTERS}: whoever "
                "guesses it can run code as you. Make one with `openssl rand -hex 32`"
            )
        self._host = controller or member.first_host
        if member.size > 1 and not self._host:
            raise ValueError("the launcher does not say on which host rank 0 runs: give --controller HOST")
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
        raise ClusterStartError(f"other programs listen on {self._said()}: start again with another BROADLEAF_SECRET")

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
