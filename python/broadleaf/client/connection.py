"""A client's connection: to which cluster, what the native side calls, and how the link ended."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import ref

from broadleaf.client import failures
from broadleaf.client.metadata import MESSAGES
from broadleaf.errors import ClusterConnectionError, LinkLost
from broadleaf.errors.death_certificate import ControllerDeath, Sequel
from broadleaf.serialize.errors import load_record
from broadleaf.serialize.functions import Lasting, call_too_large, function_name, resolve_function
from broadleaf.serialize.unfindable import shipped, unfindable_modules
from broadleaf.serialize.values import dump_args, load_result
from broadleaf.state.connection import client_connection, is_engine

if TYPE_CHECKING:
    from broadleaf.client.protocols import Client
    from broadleaf.client.tunnel import FarCluster, Tunnel


# Where a client's connection to its cluster is described.


SSH_SCHEME = "ssh://"


def profile_name(info: str | os.PathLike[str] | dict[str, Any] | None, profile: str | None, cluster: Any) -> str:
    """The profile of a client's cluster; "default" if nothing says otherwise."""
    if profile is not None:
        return profile
    if cluster is not None:
        return str(cluster.profile)
    if isinstance(info, str) and info.startswith(SSH_SCHEME):
        return far_cluster(info).profile
    if info is not None and not isinstance(info, dict):
        folder = os.path.dirname(os.path.dirname(os.path.abspath(os.path.expanduser(os.fspath(info)))))
        profiles, name = os.path.split(folder)
        if os.path.basename(profiles) == "profiles":
            return name
    return "default"


def far_cluster(url: str) -> FarCluster:
    """The cluster that an ``ssh://`` URL names. Raises ValueError."""
    tunnels = importlib.import_module("broadleaf.client.tunnel")
    far: FarCluster = tunnels.parse(url)
    return far


def tunnel_to(
    info: str | os.PathLike[str] | dict[str, Any] | None,
    profile: str | None,
    cluster_id: str,
    server: str | None,
    key: str | None,
    ssh_args: Sequence[str],
    timeout_s: float,
) -> Tunnel | None:
    """The login through which a client reaches its cluster; None if it needs none.

    Raises `ClusterConnectionError`, ValueError if this names no host, and TypeError if two hosts are named.
    """
    url = info if isinstance(info, str) and info.startswith(SSH_SCHEME) else ""
    if not (url or server):
        if key or ssh_args:
            raise TypeError("sshkey and ssh_args can only be used with Client('ssh://...') and Client(sshserver=...)")
        return None
    if url and server:
        raise TypeError(f"{url!r} names one host to log in to, and sshserver={server!r} another: pass only one of them")
    far = far_cluster(url or SSH_SCHEME + (server or "").removeprefix(SSH_SCHEME))
    if profile is not None or cluster_id:
        far = replace(far, profile=profile or far.profile, cluster_id=cluster_id or far.cluster_id)
    connection = None if url or info is None else json.loads(connection_text(info, profile, cluster_id))
    tunnels = importlib.import_module("broadleaf.client.tunnel")
    tunnel: Tunnel = tunnels.Tunnel(far, timeout_s, key=key or "", ssh_args=ssh_args, connection=connection)
    return tunnel


def connection_text(info: str | os.PathLike[str] | dict[str, Any] | None, profile: str | None, cluster_id: str) -> str:
    """The JSON text of a connection file."""
    if isinstance(info, dict):
        return json.dumps(info)
    if info is None and profile is None and not cluster_id and is_engine():
        return client_connection()
    if info is None and profile is None and not cluster_id:
        info = os.environ.get("BROADLEAF_CONNECTION") or None  # of the cluster of `broadleaf run`
    if info is None:
        files = importlib.import_module("broadleaf.state.files")
        info = files.find_connection_file(profile or "default", cluster_id or None)
    path = os.path.expanduser(os.fspath(info))  # type: ignore[arg-type]
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise ClusterConnectionError(
            f"connection file {path} cannot be read ({error.strerror}). Client() connects to a cluster "
            "that is running on this host, and Client(profile=NAME, cluster_id=ID) to a particular one; "
            "`broadleaf list` shows the running clusters"
        ) from error


# What the native client endpoint calls in Python.


class Hooks:
    """The `ClientHooks` of one client. Holds the client weakly, because the link holds the hooks."""

    def __init__(self, client: Client, ships_local: bool = False) -> None:
        self._client = ref(client)
        self._ships_local = ships_local
        # The modules loaded from a path whose files were sent, and those that there were at the last look.
        self._shipped: frozenset[str] = frozenset()
        self._seen: frozenset[str] = frozenset()
        self.resolve_function: Callable[..., tuple[bytes, Lasting, list[Any]]] = resolve_function
        self.dump_args: Callable[..., tuple[bytes, list[Any]]] = dump_args
        if ships_local:
            self._mind_shipped()
        self.load_value: Callable[..., Any] = load_result
        self.function_name: Callable[[Any], str] = function_name

    def on_new_function(self) -> None:
        """Called before a function is sent for the first time: engines may have to find, or receive, its module."""
        client = self._client()
        if client is not None:
            client.local_modules.update()

    def note_shipped(self, modules: frozenset[str]) -> None:
        """From now on what these unfindable modules define is pickled by name, because their files were sent."""
        if not modules <= self._shipped:
            self._shipped |= modules
            self._mind_shipped()

    def _mind_shipped(self) -> None:
        self.resolve_function, self.dump_args = self._resolve_function, self._dump_args

    def _resolve_function(self, function: Any, out_of_band: bool) -> tuple[bytes, Lasting, list[Any]]:
        """`resolve_function`, after engines have been sent the local modules that decide how it is pickled."""
        if self._ships_local and unfindable_modules() != self._seen:
            self._ship_local()
            self._seen = unfindable_modules()
        with shipped(self._shipped):
            return resolve_function(function, out_of_band)

    def _dump_args(self, args: tuple[Any, ...], kwargs: dict[str, Any], out_of_band: bool) -> tuple[bytes, list[Any]]:
        """`dump_args`, after engines have been sent the local modules that the arguments may need."""
        if self._ships_local:
            self._ship_local()
        with shipped(self._shipped):
            return dump_args(args, kwargs, out_of_band)

    def _ship_local(self) -> None:
        client = self._client()
        if client is not None:
            client.local_modules.ship_local()

    def decode_failure(
        self, status: int, payload: Any, buffers: list[Any], engine_id: int, pending: Any, part: int
    ) -> BaseException:
        """The exception for a part that did not return."""
        if status == failures.STATUS_LOST and not payload:
            client: Client = pending.origin.client
            link_end = client.link_ends[client.tasks.session_number(pending.seq)]
            return link_end.lost_task(client, _has_written(pending, part))
        if status != failures.STATUS_ERROR:
            verdict = failures.decode_failure(status, payload, engine_id, pending.origin)
            pending.locate_failure(verdict, part)
            return verdict
        record = load_record(payload)
        error = failures.raised_by_task(record, engine_id, pending.origin)
        pending.locate_failure(error, part)
        if record.outcomes is not None:
            pending.keep_outcomes(part, record, buffers)
        return error

    def explain_too_large(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, sizes: tuple[int, int, str]
    ) -> BaseException:
        """The exception for a call that does not fit into a message.

        `sizes` are its size and the limit, in bytes, and why it must fit.
        """
        return call_too_large(function, function_name(function), args, kwargs or {}, *sizes)

    def on_event(self, kind: str, body: str) -> None:
        """Events of the cluster."""
        client = self._client()
        if client is not None:
            client.on_event(kind, json.loads(body) if body else None)

    def show_output(self) -> None:
        """Shows what tasks of pools have written, on this process's own streams."""
        client = self._client()
        if client is not None:
            client.own_streams.catch_up()

    def on_wait_behind_others(self) -> None:
        """A call has waited for a second after Ctrl-C has left tasks behind."""
        client = self._client()
        if client is not None:
            client.warn_of_left_behind()

    def on_wait(self) -> None:
        """A wait begins while a debugger waits to be answered."""
        client = self._client()
        if client is not None:
            client.debugging().on_wait()

    def on_output(self, seq: int, part: int, stream: int, data: bytes) -> None:
        """Live output of part `part` of the request whose first task is `seq`."""
        client = self._client()
        if client is None:
            return
        if stream == MESSAGES and b"debugger" in data:
            client.debugging().on_message(seq + part, data)
        result = client.tasks.find(seq)
        if result is not None:
            result[0].on_output(part, stream, data)


def _has_written(pending: Any, part: int) -> bool:
    return any(pending.text_since(part, stream, 0)[1] for stream in (1, 2)) or bool(pending.messages(part))


# The error of tasks whose connection is gone: who ended it, what is known about the task, and what to do.


# How long to wait for a cluster's processes to end after its controller, so that its exit code is known.
_EXIT_WAIT_S = 2.0


class LinkEnd:
    """How a client's connection ended, as far as the client knows."""

    def __init__(self, connection: Mapping[str, Any]) -> None:
        self._pid: int = connection.get("pid") or 0
        self._address = _address(connection)
        self.closed_here = False
        """By `Client.close`."""
        self.is_stopping = False
        """The controller has said that the cluster stops."""
        self.failure = ""
        """What the connection failed with."""
        self.sequel: Sequel = ""
        """Whether another controller is awaited, or has taken the place of this one."""
        self._death: ControllerDeath | None = None

    def of_successor(self) -> LinkEnd:
        """The same for the connection to the next controller, whose process is not known."""
        successor = LinkEnd({})
        successor._address = self._address
        return successor

    def lost_task(self, client: Client, has_written: bool) -> LinkLost:
        """The exception for a task whose result did not arrive; `has_written` says whether the task has written any
        output.
        """
        known = "This task had started." if has_written else "Whether this task had started is not known."
        if self.closed_here:
            error = LinkLost(
                f"the client was closed before this result arrived. {known} Wait for results before close(), "
                "or use leave() to have the cluster keep them"
            )
        else:
            self._death = self._death or self._examine(client)
            death = self._death._replace(sequel=self.sequel)
            error = LinkLost(f"{death.text} {known} {death.advice}")
            error.certificate = death
        error.task_started = True if has_written else None
        return error

    def _examine(self, client: Client) -> ControllerDeath:
        cause, code = "disconnected", None
        log_path = ""
        if self.sequel == "replaced":
            cause = "ended"  # the cluster's processes are those of the next controller
        elif client.cluster is not None:
            code = client.cluster.exit_code(_EXIT_WAIT_S)
            log_path = str(client.cluster.log_path())
        if self.is_stopping or code == 0:
            cause, code = "stopped", None
        elif code is not None:
            cause, code = ("exit", code) if code <= 128 else ("signal", code - 128)
        elif self._pid and not self._address and not _is_running(self._pid):
            cause = "ended"
        return ControllerDeath(self._pid, self._address, cause, code, self.failure, log_path)


def _address(connection: Mapping[str, Any]) -> str:
    """Where the controller is, '' for this host."""
    if reached := connection.get("reached"):
        return str(reached)
    tcp = connection.get("tcp")
    if tcp and (not connection.get("unix_path") or connection.get("transport") == "tcp"):
        return f"{tcp['host']}:{tcp['port']}"
    return ""


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
