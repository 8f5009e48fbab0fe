"""The file that engines join with, and the cluster that this process is an engine of."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from broadleaf import _native
from broadleaf.errors import ClusterConnectionError, ClusterStartError
from broadleaf.state.directories import ClusterFileError, base_dir, read_json

# What engines and relays read of a cluster: its `engine.json`.


def read_engine_connection(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of an `engine.json`. Raises `ClusterFileError` for any other file, and `ClusterStartError` for one of
    another version of Broadleaf."""
    return checked_engine_connection(read_json(path), os.fspath(path))


def checked_engine_connection(connection: dict[str, Any], origin: str) -> dict[str, Any]:
    """`connection`, if it belongs to this version of Broadleaf; `origin` says where it came from."""
    if "private_key" not in connection or "cluster_id" not in connection:
        raise ClusterFileError(f"{origin} is not a connection file")
    if (theirs := connection["broadleaf"]) != _native.__version__:
        raise ClusterStartError(
            f"wrong version of Broadleaf: {sys.executable} on {os.uname().nodename} has {_native.__version__}, but the "
            f"cluster has {theirs}; install that version there, or set python= to an interpreter that has it"
        )
    return connection


# The cluster that this process is an engine of, for clients made in its tasks.
#
# Engine and client do not know of each other; what one knows and the other needs is stored here.


_connection: str | None = None


def set_connection(text: str) -> None:
    """Records the connection file's text with which this process connects to its node, without its key."""
    global _connection
    _connection = text


def is_engine() -> bool:
    """Whether this process is an engine."""
    return _connection is not None


def client_connection() -> str:
    """The text of a connection file for clients of the cluster that this process is an engine of.

    On the controller's host this is the engine's own connection file, whose key the native module holds. Over the unix
    socket, that key also opens clients' connections. Raises `ClusterConnectionError` on other hosts, unless their relay
    was given a connection file for clients.
    """
    if _connection is None:
        raise ClusterConnectionError("this process is not an engine of a cluster")
    connection = json.loads(_connection)
    if "client_file" not in connection:
        return _connection
    path = connection["client_file"]
    if path is None:
        raise ClusterConnectionError(
            f"engines of host {connection['host']!r} cannot be clients of the cluster: their relay has only the "
            "key for engines, not the one for clients; give its engine set nested_tasks=True, or start the relay with "
            "`broadleaf relay --client-connection FILE`, where FILE is a copy of the cluster's client.json"
        )
    try:
        with open(path) as file:
            client = json.load(file)
    except (OSError, ValueError) as error:
        raise ClusterConnectionError(
            f"the relay's connection file for clients, {path}, cannot be read: {error}"
        ) from error
    # The socket that the file names belongs to another host's node.
    return json.dumps(client | {"unix_path": None, "tcp": connection["controller"], "transport": "tcp"})


def connection_for_child() -> str:
    """Like `client_connection`, but with the key, for a process that this one starts: from the cluster's own file."""
    text = client_connection()
    connection = json.loads(text)
    if "private_key" in connection:
        return text
    for path in base_dir().glob(f"profiles/*/{connection['cluster_id']}/client.json"):
        found = path.read_text()
        if json.loads(found).get("server_public_key") == connection["server_public_key"]:
            return found
    raise ClusterConnectionError(f"the connection file for clients of cluster {connection['cluster_id']!r} is gone")
