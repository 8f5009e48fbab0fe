"""What is known about a task besides its value."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

# Numbers of the streams.
STDOUT = 1
STDERR = 2
MESSAGES = 3

METADATA_KEYS = (
    "msg_id",
    "submitted",
    "started",
    "completed",
    "received",
    "engine_uuid",
    "engine_id",
    "follow",
    "after",
    "status",
    "execute_input",
    "execute_result",
    "error",
    "stdout",
    "stderr",
    "outputs",
    "data",
    "label",
)


class Metadata(dict[str, Any]):
    """A dict of `METADATA_KEYS`, whose keys are attributes too. Times are aware datetimes."""

    def __getattr__(self, key: str) -> Any:
        try:
            return self[key]
        except KeyError:
            raise AttributeError(key) from None


def moment(ns: int) -> datetime | None:
    """The time `ns` nanoseconds after 1970, or None for 0."""
    return datetime.fromtimestamp(ns / 1e9, UTC) if ns else None


def outputs_of(messages: list[bytes]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Displayed outputs and published data from a task's pickled messages.

    A message is a dict with `type` 'published' (and `data`), 'debugger' (see `broadleaf.client.display.debugger`) or
    'display' (and `data`, `metadata`, `transient`; with `update` it replaces those with the same `display_id`).
    """
    from broadleaf.serialize.values import loads

    return combined_outputs(map(loads, messages))


def combined_outputs(messages: Iterable[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Like `outputs_of`, for unpickled messages."""
    outputs: list[dict[str, Any]] = []
    data: dict[str, Any] = {}
    by_id: dict[Any, list[int]] = {}
    for message in messages:
        if message.get("type") == "published":
            data.update(message["data"])
            continue
        if message.get("type") == "debugger":
            continue
        output = {"data": message["data"], "metadata": message.get("metadata", {})}
        display_id = message.get("transient", {}).get("display_id")
        if message.get("update"):
            for number in by_id.get(display_id, ()):
                outputs[number] = output
        else:
            by_id.setdefault(display_id, []).append(len(outputs))
            outputs.append(output)
    return outputs, data
