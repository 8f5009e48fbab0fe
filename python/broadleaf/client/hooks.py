"""What the native client endpoint asks of Python."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ref

from broadleaf.client import failures
from broadleaf.serialize.functions import resolve_function
from broadleaf.serialize.pickle import dump_args, loads

if TYPE_CHECKING:
    from broadleaf.client.client import Client


class Hooks:
    """The `ClientHooks` of one client; holds it weakly, since the link holds the hooks."""

    def __init__(self, client: Client) -> None:
        self._client = ref(client)
        self.resolve_function: Callable[..., tuple[bytes, bool]] = resolve_function
        self.dump_args: Callable[..., tuple[bytes, list[Any]]] = dump_args
        self.load_value: Callable[..., Any] = loads

    def decode_failure(self, status: int, payload: bytes, engine_id: int, pending: Any, part: int) -> BaseException:
        """The exception for a part that did not return."""
        return failures.decode_failure(status, payload, engine_id, pending.origin)

    def on_event(self, kind: str, body: str) -> None:
        """News of the cluster."""
        client = self._client()
        if client is not None:
            client.on_event(kind, json.loads(body) if body else None)

    def on_output(self, pending: Any, part: int, stream: int, data: bytes) -> None:
        """Live output of a task."""
        pending.on_output(part, stream, data)
