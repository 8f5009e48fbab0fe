"""Requests to a running cluster's controller, in the controller's own terms."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from broadleaf import _native
from broadleaf.errors import ClusterConnectionError, KernelError

Targets = int | Sequence[int] | str | None


class RequestFailed(KernelError):
    """The controller could not do what it was asked."""


class _NoHooks:
    """Hooks of a connection that submits no task."""

    def on_event(self, kind: str, body: str) -> None:
        """Not of interest."""


class ControlLink:
    """A connection for requests only; use it as a context manager."""

    def __init__(self, connection: str, timeout_s: float = 10.0) -> None:
        hooks: Any = _NoHooks()
        try:
            self._link = _native.Link(connection, hooks, timeout_s, "control")
        except (OSError, _native.LinkClosed, _native.ConnectionRefused) as error:
            raise ClusterConnectionError(f"the cluster does not answer: {error}") from error

    def __enter__(self) -> ControlLink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection."""
        self._link.close()

    def request(self, request: str | dict[str, Any], timeout_s: float | None = 10.0) -> Any:
        """Sends one request; returns the text of its reply, or None. Raises `RequestFailed`."""
        try:
            reply = json.loads(self._link.request(json.dumps(request), timeout_s))
        except _native.LinkClosed as error:
            raise ClusterConnectionError(f"the cluster closed the connection: {error}") from error
        if reply == "Done":
            return None
        kind, body = next(iter(reply.items()))
        if kind == "Failed":
            raise RequestFailed(body)
        return body

    def engines(self) -> list[tuple[int, str, int, str]]:
        """(engine id, uuid, pid, host) of every engine known now, by id."""
        return self._link.engines()

    def wait_for_engines(self, n: int, timeout_s: float | None) -> bool:
        """Whether at least `n` engines came up in time."""
        return self._link.wait_for_engines(n, timeout_s)

    def add_engines(self, n: int) -> None:
        """Asks for `n` more engines; they come up later."""
        self.request({"AddEngines": n})

    def stop_engines(self, targets: Targets = None) -> None:
        """Stops engines for good."""
        self.request({"StopEngines": target_set(targets)})

    def restart_engines(self, targets: Targets = None) -> None:
        """Stops engines and starts them afresh under the same ids."""
        self.request({"RestartEngines": target_set(targets)})

    def signal(self, number: int, targets: Targets = None) -> None:
        """Sends a signal to engines."""
        self.request({"Signal": [target_set(targets), int(number)]})

    def status(self) -> dict[str, Any]:
        """Counters of controller and engines."""
        status: dict[str, Any] = json.loads(self.request("Status"))
        return status

    def shutdown(self) -> None:
        """Stops the whole cluster; it may be gone before it answers."""
        self.request("Shutdown", 2.0)


def target_set(targets: Targets) -> Any:
    """JSON form of a target set: None and 'all' mean every engine."""
    if targets is None or targets == "all":
        return "All"
    if isinstance(targets, str):
        raise TypeError(f"targets are an engine id, a sequence of them or 'all', not {targets!r}")
    ids = [targets] if isinstance(targets, int) else list(targets)
    ranges: list[list[int]] = []
    for engine_id in ids:
        if ranges and ranges[-1][1] == engine_id:
            ranges[-1][1] += 1
        else:
            ranges.append([engine_id, engine_id + 1])
    return {"Ranges": ranges}
