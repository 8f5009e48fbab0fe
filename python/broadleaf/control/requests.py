"""Control requests and their replies in the JSON form that a link accepts and returns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from broadleaf.errors import BroadleafError


class RequestFailed(BroadleafError):
    """The controller refused a request, such as to drain an engine that may hold data of clients."""


def target_set(targets: Sequence[int] | None) -> object:
    """Engine ids as a TargetSet: 'All' for None, else half-open ranges that keep their order."""
    if targets is None:
        return "All"
    ranges: list[list[int]] = []
    for engine in targets:
        if ranges and ranges[-1][1] == engine:
            ranges[-1][1] = engine + 1
        else:
            ranges.append([engine, engine + 1])
    return {"Ranges": ranges}


def send(link: Any, request: object, timeout_s: float | None) -> Any:
    """Sends one request over `link`; returns the reply's content, None for a bare 'done'.

    Raises `RequestFailed` with the controller's reason, and whatever the link raises.
    """
    reply = json.loads(link.request(json.dumps(request), timeout_s))
    if reply == "Done":
        return None
    kind, content = next(iter(reply.items()))
    if kind == "Failed":
        raise RequestFailed(content)
    return content


def status(link: Any, timeout_s: float | None = 10.0) -> dict[str, Any]:
    """Counters of the controller and the engines."""
    counters: dict[str, Any] = json.loads(send(link, "Status", timeout_s))
    return counters
