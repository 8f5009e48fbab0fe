"""What became of the items of a chunk of which some failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broadleaf.errors import RemoteError
from broadleaf.serialize.errors import ErrorRecord, Failed
from broadleaf.serialize.values import FAULTS, load_result

# What an error says of its engine besides what is special to a task.
_OF_THE_ENGINE: tuple[str, ...] = ("engine_id", "engine_uuid", "method")


class Failure:
    """Marks an exception that ended a part or an item, as opposed to one that a task returned as its value."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error: BaseException = error


class ChunkOutcomes:
    """The outcomes of the items of a result's failed chunks, which are loaded when somebody asks.

    Args:
        locate: Called with the exception of an item and the part that the item belongs to; see
            `AsyncResult.locate_failure`.
    """

    def __init__(self, locate: Callable[[BaseException, int], None]) -> None:
        self._locate = locate
        self._kept: dict[int, tuple[ErrorRecord, list[Any]]] = {}
        self._loaded: dict[int, list[Any] | Failure] = {}

    def keep(self, part: int, record: ErrorRecord, buffers: list[Any]) -> None:
        """Keeps the outcomes that came with a part's error record."""
        self._kept[part] = record, buffers

    def of(self, part: int, error: BaseException) -> list[Any] | Failure | None:
        """The value of each item, or its `Failure`. A single `Failure` if they cannot be loaded here, and None for a
        part without outcomes.

        `error` is the part's own exception, which is that of one of the items.
        """
        kept = self._kept.get(part)
        if kept is not None and part not in self._loaded:
            # Another thread may have been faster; then its exceptions are those that everybody gets.
            self._loaded.setdefault(part, self._load(part, error, *kept))
            self._kept.pop(part, None)
        return self._loaded.get(part)

    def _load(self, part: int, error: BaseException, record: ErrorRecord, buffers: list[Any]) -> list[Any] | Failure:
        try:
            outcomes: list[Any] = load_result(record.outcomes or b"", buffers)
        except FAULTS as fault:
            return Failure(fault)
        known = error.engine_info if isinstance(error, RemoteError) else {}
        engine_info: dict[str, Any] = {key: known[key] for key in _OF_THE_ENGINE if key in known}
        for position, outcome in enumerate(outcomes):
            if type(outcome) is not Failed:
                continue
            if position == record.item_index:
                outcomes[position] = Failure(error)
                continue
            failed = outcome.exception(engine_info)
            self._locate(failed, part)
            outcomes[position] = Failure(failed)
        return outcomes
