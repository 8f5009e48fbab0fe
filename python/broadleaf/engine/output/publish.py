"""What a task sends its client besides its output and its value: data and rich displays, as pickled messages.

The messages are those of `broadleaf.client.results.metadata.outputs_of`.
"""

from __future__ import annotations

from typing import Any

from broadleaf import errors
from broadleaf.serialize.values import dumps_in_band, unpicklable_reason

# Space in a frame besides its header.
_MESSAGE_BYTES = 255 << 20
# Maximum amount kept of a cell for clients other than its own.
_RECORDED_BYTES = 256 << 10
_RECORDED_DISPLAYS = 16

_engine: Any = None
_recorded: tuple[int | None, list[dict[str, Any]]] | None = None


def install(engine: Any) -> None:
    """Sends messages with `engine.send_message`; None if there is no engine to send them."""
    global _engine
    _engine = engine


def in_task() -> bool:
    """Whether this process is an engine that runs a task."""
    return current_task() is not None


def current_task() -> int | None:
    """The number of the task that this engine runs; None if it is idle."""
    return None if _engine is None else _engine.current_task()


def publish_data(data: dict[str, Any]) -> None:
    """Publishes data to the client of the running task.

    The client can read it as `AsyncResult.data` even before the task ends.

    Args:
        data: Values by key. Later values of a key replace earlier ones.

    Raises:
        TypeError: `data` is not a dict.
        SerializationError: A value cannot be pickled, or they are larger than a message.
        RuntimeError: No task runs here.

    Example:
        >>> def halfway():
        ...     ipp.datapub.publish_data({"done": 0.5})
        >>> result = rc[0].apply_async(halfway)
        >>> result.get()
        >>> result.data
        {'done': 0.5}
    """
    if not isinstance(data, dict):
        raise TypeError(f"publish_data takes a dict, not {type(data).__name__}")
    if not in_task():
        raise RuntimeError("data can only be published in a task, on an engine")
    send({"type": "published", "data": data})


def record(task: int | None, displays: list[dict[str, Any]]) -> Any:
    """Also collects what `task` displays in a list; returns the argument of `restore`."""
    global _recorded
    before = _recorded
    _recorded = (task, displays)
    return before


def restore(before: Any) -> None:
    """Undoes a `record`."""
    global _recorded
    _recorded = before


def send(message: dict[str, Any]) -> None:
    """Sends one message of the running task. Raises `SerializationError`."""
    try:
        body = dumps_in_band(message)
    except Exception as error:
        reason = unpicklable_reason(message["data"]) or str(error)
        raise errors.SerializationError("what the task publishes", reason) from error
    if len(body) > _MESSAGE_BYTES:
        raise errors.SerializationError("what the task publishes", f"{len(body)} bytes are more than a message holds")
    if _recorded is not None and message["type"] == "display":
        task, displays = _recorded
        has_room = len(body) <= _RECORDED_BYTES and len(displays) < _RECORDED_DISPLAYS
        if has_room and current_task() == task:
            displays.append(message)
    _engine.send_message(body)
