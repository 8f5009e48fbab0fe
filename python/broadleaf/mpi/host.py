"""Where the ranks of a host join: an existing node, or a relay that the first of them starts."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from typing import Any

from broadleaf.cluster.start_error import ClusterStartError
from broadleaf.cluster.state import run_dirs
from broadleaf.engine.processes.guest_link import SOCKET

_TRIES = 5
_ANSWER_S = 10.0


def connect(connection: dict[str, Any], client_file: str | None) -> socket.socket:
    """A connection to the fork server of this host's node. The node is started if there is none: a relay, which lives
    as long as some rank here is connected.

    All ranks of a host join the same node, whatever their world, so that data is there only once. Raises
    `ClusterStartError`.
    """
    with open(run_dirs.guests_lock(), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for attempt in range(_TRIES):
            for path in run_dirs.sockets_here(connection, SOCKET):
                if (link := _dial(path, connection)) is not None:
                    return link
            from broadleaf.cluster.hosts.relay import Relay  # one rank of a host needs it

            try:
                Relay.for_guests(connection, name=f"{socket.gethostname()}:guests", client_file=client_file)
            except ClusterStartError as error:
                # The previous one has ended, but the controller has not noticed.
                if attempt == _TRIES - 1 or "connected already" not in str(error):
                    raise
                time.sleep(0.2 * 2**attempt)
    raise ClusterStartError("a relay was started on this host for MPI ranks, but accepts none")


def _dial(path: str, connection: dict[str, Any]) -> socket.socket | None:
    """A welcomed connection; None if nobody answers, or another cluster does."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    link.settimeout(_ANSWER_S)
    try:
        # A path may be longer than the name of a socket.
        directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            link.connect(f"/proc/self/fd/{directory}/{os.path.basename(path)}")
        finally:
            os.close(directory)
        link.send(json.dumps({"hello": connection["server_public_key"]}).encode())
        if link.recv(64) == b"welcome":
            link.settimeout(None)
            return link
    except OSError:
        pass
    link.close()
    return None
