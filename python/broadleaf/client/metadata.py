"""What is known of a task besides its value."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

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
    """Displayed outputs, and published data, of a task's pickled messages.

    A message is a dict with `type` 'display' (and `data`, `metadata`, `transient`) or 'published' (and `data`).
    """
    from broadleaf.serialize.pickle import loads

    outputs: list[dict[str, Any]] = []
    data: dict[str, Any] = {}
    for raw in messages:
        message = loads(raw)
        if message.get("type") == "published":
            data.update(message["data"])
        else:
            outputs.append({"data": message["data"], "metadata": message.get("metadata", {})})
    return outputs, data
