"""The error of tasks whose connection is gone: who ended it, what is known about the task, and what to do."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from broadleaf.errors import LinkLost
from broadleaf.errors.death_certificate import ControllerDeath

if TYPE_CHECKING:
    from broadleaf.client.client import Client

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
        self._death: ControllerDeath | None = None

    def lost_task(self, client: Client, has_written: bool) -> LinkLost:
        """The exception for a task whose result did not arrive; `has_written` says whether the task has written any
        output.
        """
        known = "This task had started." if has_written else "Whether this task had started is not known."
        if self.closed_here:
            error = LinkLost(
                f"the client was closed before the result of this task came. {known} Wait for results before close(), "
                "or use leave() to have the cluster keep them"
            )
        else:
            self._death = self._death or self._examine(client)
            error = LinkLost(f"{self._death.text} {known} {self._death.advice}")
            error.certificate = self._death
        error.task_started = True if has_written else None
        return error

    def _examine(self, client: Client) -> ControllerDeath:
        cause, code = "disconnected", None
        log_path = ""
        if client.cluster is not None:
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
