"""A relay: the part of a cluster that lives on another host."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

from broadleaf import standard_descriptors
from broadleaf.cluster import addresses
from broadleaf.cluster.cores import engine_count, usable_cores
from broadleaf.cluster.fork_servers import ChildProcess, ForkServer, HostPlan, log_tail
from broadleaf.engine.environment import variables_of
from broadleaf.errors import ClusterStartError
from broadleaf.serialize.search_path import missing_entries, search_path
from broadleaf.state import files
from broadleaf.state.connection import checked_engine_connection, read_engine_connection
from broadleaf.state.directories import ClusterFileError, make_run_dir, write_json
from broadleaf.text import os_text_from_json

NAME_TAKEN = "is already connected"
"""What the controller says to a relay whose name another one has."""
_DIAL_TIMEOUT_S = 10.0
_STOP_GRACE_S = 15.0


class Relay:
    """A relay on this host, with engines, that belongs to a cluster on another host.

    It ends with its cluster, with `stop`, and when this process ends. Its engines look for modules where this process
    does, then where the process that started the cluster does, and use that one's working directory if this host has
    it.

    Args:
        connection_file: The cluster's `Cluster.relay_file`, or the content of one.
        n: Number of engines; by default the cores that this process may use.
        name: The host's name in the cluster; by default this machine's.
        controller: HOST:PORT of the controller, in place of the address in the file.
        listen: Where other relays reach this one for payload: an address, or a network interface, and a port; by
            default the address that the controller is reached from.
        outbound_only: Whether it is never dialled. Its payload goes through the controller's host.
        client_file: The cluster's `Cluster.connection_file`, or the content of one, for tasks on engines of this host
            that submit tasks.
        ends_at: When the batch job that it runs in ends, in seconds since 1970: it takes no new tasks shortly before.

    Raises:
        ClusterStartError: It does not start, or reaches no controller; the message contains the end of the log.
        ClusterFileError: The file is no relay file, or its cluster listens on its own host only.
        ValueError: `n` is negative, or an address is not HOST:PORT.
    """

    def __init__(
        self,
        connection_file: str | Path | dict[str, Any],
        n: int | None = None,
        *,
        name: str | None = None,
        controller: str | None = None,
        listen: str | None = None,
        outbound_only: bool = False,
        client_file: str | Path | dict[str, Any] | None = None,
        ends_at: float | None = None,
    ) -> None:
        self._ends_with_guests = False
        self._ends_at = ends_at
        self._join(connection_file, n, name, controller, listen, outbound_only, client_file)

    @classmethod
    def for_guests(cls, connection: dict[str, Any], *, name: str, client_file: str | None = None) -> Relay:
        """A relay whose engines are processes that it does not start.

        It outlives this process, and ends with the last of them.

        Args:
            connection: The content of the cluster's `Cluster.relay_file`.
            name: The host's name in the cluster.
            client_file: As for other relays.

        Returns:
            The relay.

        Raises:
            ClusterStartError: It does not start, or reaches no controller.
        """
        relay = cls.__new__(cls)
        relay._ends_with_guests = True
        relay._ends_at = None
        relay._join(connection, 0, name, None, None, False, client_file)
        return relay

    def _join(
        self,
        connection_file: str | Path | dict[str, Any],
        n: int | None,
        name: str | None,
        controller: str | None,
        listen: str | None,
        outbound_only: bool,
        client_file: str | Path | dict[str, Any] | None,
    ) -> None:
        standard_descriptors.occupy()
        self.n: int = usable_cores() if n is None else engine_count(n)
        if isinstance(connection_file, dict):
            origin = "what was sent"
            connection = checked_engine_connection(connection_file, origin)
        else:
            origin = str(connection_file)
            connection = read_engine_connection(connection_file)
        self.cluster_id: str = connection["cluster_id"]
        self._drain_s: float = connection["options"]["drain_s"]
        self.name: str = name or socket.gethostname()
        if not connection["tls"]:
            addresses.warn_of_plaintext()
        self.run_dir: Path = Path(make_run_dir(self.cluster_id, outlives_session=True))
        try:
            address = _address(controller) if controller else _controller_of(connection, origin)
            if isinstance(client_file, dict):
                content, client_file = client_file, self.run_dir / files.CLIENT_FILE
                write_json(client_file, content)
            self._client_file = str(Path(client_file).resolve(strict=True)) if client_file is not None else None
            self._host = self._start(connection, address, _listen_address(listen) if listen else None, outbound_only)
        except BaseException:
            files.remove_cluster_files(self.run_dir, self.run_dir)
            raise
        try:
            self._host.wait_ready(connection["options"]["start_timeout_s"], lambda: log_tail(self.log_path))
        except BaseException:
            self.stop()
            raise

    def _start(
        self, connection: dict[str, Any], controller: tuple[str, int], listen: tuple[str, int] | None, outbound: bool
    ) -> ForkServer:
        own_path = search_path()
        others_path = missing_entries(map(os_text_from_json, connection.get("search_path", ())), own_path)
        plan = HostPlan(
            connection=connection
            | {
                "unix_path": str(self.run_dir / "node.sock"),
                "tcp": None,
                "client_file": self._client_file,
                "controller": {"host": controller[0], "port": controller[1]},
                "host": self.name,
            },
            part={
                "relay": {
                    "controller": controller,
                    "tls": connection["tls"],
                    "name": self.name,
                    "listen": listen,
                    "outbound_only": outbound,
                    "ends_in_s": None if self._ends_at is None else max(0.0, self._ends_at - time.time()),
                }
            },
            keys={
                "server": {"public": connection["server_public_key"]},
                "engine": {"private": connection["private_key"]},
            },
            n_engines=self.n,
            run_dir=self.run_dir,
            cluster_dir=self.run_dir,
            sys_path=own_path + [entry for entry in others_path if os.path.exists(entry)],
            engine_env=variables_of(connection),
            ends_with_guests=self._ends_with_guests,
        )
        return plan.start(self.log_path, with_lifeline=not self._ends_with_guests)

    @property
    def process(self) -> ChildProcess:
        """The fork server: the parent of the relay's node and engines."""
        return self._host.child

    @property
    def log_path(self) -> Path:
        """Where the relay's node and fork server write."""
        return self.run_dir / files.NODE_LOG

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Waits until it has ended.

        Args:
            timeout_s: Seconds to wait; None means forever.

        Returns:
            The exit code, or None when it still runs.
        """
        import subprocess

        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def give_notice(self, ends_in_s: float) -> None:
        """Tells the controller that this host will be ended.

        Its engines take no new tasks, finish those that they run, and leave, and so does the relay.

        Args:
            ends_in_s: Seconds until then.
        """
        if self._host.lifeline is not None:
            try:
                os.write(self._host.lifeline, f"ends in {ends_in_s:.3f}\n".encode())
            except BrokenPipeError:
                pass  # it has ended

    @property
    def drain_s(self) -> float:
        """How long its engines may continue what they run when the host is told to end, in seconds."""
        return self._drain_s

    def stop(self) -> None:
        """Ends engines and relay, by force if they do not end by themselves."""
        if self._host.lifeline is not None:
            os.close(self._host.lifeline)
            self._host.lifeline = None
        if self.wait(_STOP_GRACE_S) is None:
            # Engines and node go with the fork server.
            self.process.kill()
            self.process.wait()
        files.remove_cluster_files(self.run_dir, self.run_dir)

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def _listen_address(text: str) -> tuple[str, int]:
    host, port = _address(text)
    return addresses.to_listen(host), port


def _controller_of(connection: dict[str, Any], origin: str) -> tuple[str, int]:
    tcp = connection.get("tcp")
    if not tcp:
        raise ClusterFileError(
            f"{origin}: the cluster listens on its own host only; start it with listen='<address>:0'"
        )
    hosts = connection.get("addresses") or [tcp["host"]]
    if len(hosts) == 1:
        return hosts[0], tcp["port"]  # the process that dials it reports the reason
    try:
        return addresses.first_reachable(hosts, tcp["port"], _DIAL_TIMEOUT_S), tcp["port"]
    except OSError as error:
        raise ClusterStartError(str(error)) from None
