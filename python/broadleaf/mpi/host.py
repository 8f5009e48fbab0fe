"""Where the ranks of a host join: an existing node, or a relay that the first of them starts."""

from __future__ import annotations

import fcntl
import os
import time
from typing import Any

from broadleaf.engine.guest_link import SOCKET, GuestLink
from broadleaf.errors import ClusterStartError
from broadleaf.private_files import open_private
from broadleaf.state import directories

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
            from broadleaf.cluster.relay import Relay  # one rank of a host needs it

            try:
                Relay.for_guests(connection, name=f"{os.uname().nodename}:guests", client_file=client_file)
            except ClusterStartError as error:
                # The previous one has ended, but the controller has not noticed.
                if attempt == _TRIES - 1 or "connected already" not in str(error):
                    raise
                time.sleep(0.2 * 2**attempt)
    raise ClusterStartError("a relay was started on this host for MPI ranks, but accepts none")
