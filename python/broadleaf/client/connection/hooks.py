"""What the native client endpoint calls in Python."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ref

from broadleaf.client.connection import failures
from broadleaf.serialize.errors import load_record
from broadleaf.serialize.functions import Lasting, function_name, resolve_function
from broadleaf.serialize.unfindable import shipped, unfindable_modules
from broadleaf.serialize.values import dump_args, load_result

if TYPE_CHECKING:
    from broadleaf.client.client import Client


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
            return client.link_end.lost_task(client, _has_written(pending, part))
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
        from broadleaf.serialize.functions import call_too_large

        return call_too_large(function, function_name(function), args, kwargs or {}, *sizes)

    def on_event(self, kind: str, body: str) -> None:
        """Events of the cluster."""
        client = self._client()
        if client is not None:
            client.on_event(kind, json.loads(body) if body else None)

    def on_wait_behind_others(self) -> None:
        """A call has waited for a second after Ctrl-C has left tasks behind."""
        client = self._client()
        if client is not None:
            client.warn_of_left_behind()

    def on_output(self, seq: int, part: int, stream: int, data: bytes) -> None:
        """Live output of part `part` of the request whose first task is `seq`."""
        client = self._client()
        result = None if client is None else client.tasks.find(seq)
        if result is not None:
            result[0].on_output(part, stream, data)


def _has_written(pending: Any, part: int) -> bool:
    return any(pending.text_since(part, stream, 0)[1] for stream in (1, 2)) or bool(pending.messages(part))
