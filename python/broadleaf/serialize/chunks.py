"""Calls of a function on each item of a chunk, and what became of each item."""

import os
import sys
from collections.abc import Iterable, Sequence
from pickle import PickleBuffer
from types import CoroutineType
from typing import Any, NamedTuple

from broadleaf.errors import SerializationError, UnmetDependency
from broadleaf.serialize.coroutines import run_coroutine
from broadleaf.serialize.errors import ErrorRecord, Failed, FailedItem, without_context
from broadleaf.serialize.values import FAULTS, dump_value, dumps, unsendable_result


class MapChunk:
    """Calls a function on each item of a chunk: `chunk(items)` or `chunk(items1, items2, ...)`.

    It raises `ItemsFailed` if any call raised, after it has made all of them.
    """

    __slots__ = ("__weakref__", "function")

    _returned = 0
    """The identity of the latest list that a chunk returned in this process; see `dump_result`."""

    def __init__(self, function: Any) -> None:
        self.function: Any = function

    def __call__(self, *sequences: Any) -> list[Any]:
        results: list[Any] = []
        failed = _extend(results, map(self.function, *sequences), sequences)
        if results and (failed is not None or type(results[0]) is CoroutineType):
            started, results = results, []
            try:
                failed_later = _extend(results, map(_awaited, started), sequences)
            finally:
                for unstarted in started[len(results) :]:
                    if type(unstarted) is CoroutineType:
                        unstarted.close()
            failed = failed or failed_later
        if failed is None:
            MapChunk._returned = id(results)
            return results
        try:
            raise ItemsFailed(failed, results)
        finally:
            # The exception's traceback leads to this frame.
            del failed

    def __reduce__(self) -> tuple[Any, ...]:
        return MapChunk, (self.function,)


class First(NamedTuple):
    """The first exception of a chunk."""

    error: BaseException
    item: FailedItem


class ItemsFailed(Exception):
    """Calls on some items of a chunk raised. It carries what became of each item to where it is sent.

    Args:
        first: The first exception, which stands for the chunk.
        outcomes: The value of each item, or a `Failed`.
    """

    def __init__(self, first: First, outcomes: list[Any]) -> None:
        super().__init__(type(first.error).__name__)
        self.first = first
        self._outcomes = outcomes

    @property
    def failed(self) -> list[ErrorRecord]:
        """The records of the items that failed."""
        return [ErrorRecord(*outcome.record) for outcome in self._outcomes if type(outcome) is Failed]

    def dump_outcomes(self) -> tuple[bytes, list[PickleBuffer]]:
        """The pickle of the outcomes, and its buffers. Values that cannot be pickled have failed, too."""
        try:
            return dumps(self._outcomes)
        except FAULTS:
            return dumps(_picklable(self._outcomes)[0])


def _extend(results: list[Any], calls: Iterable[Any], sequences: tuple[Any, ...]) -> First | None:
    """Adds what `calls` return to `results`, and a `Failed` for each that raises; returns the first failure.

    Raises what concerns the whole chunk: an interrupt, and a condition that this engine does not meet. A child that the
    function has forked raises everything, because the other items are not its own.
    """
    process = os.getpid()
    n_items = min(map(len, sequences))
    # What a task below this one is handling is not part of what this one raises.
    handled = sys.exception()
    first: First | None = None
    try:
        while True:
            try:
                results.extend(calls)
                if len(results) == n_items:
                    return first
                # To `extend`, it is the end of the calls. It has dropped the exception.
                raise StopIteration
            except (KeyboardInterrupt, UnmetDependency):
                raise
            except BaseException as error:
                if os.getpid() != process:
                    raise
                without_context(error, handled)
                item = _item(sequences, len(results))
                if item.position is None:
                    raise
                first = first or First(error, item)
                results.append(Failed.of(error, item))
    finally:
        # The exception's traceback holds this frame.
        del first


def _awaited(value: Any) -> Any:
    return run_coroutine(value) if type(value) is CoroutineType else value


def _item(sequences: tuple[Any, ...], index: int) -> FailedItem:
    try:
        return FailedItem(index, tuple(sequence[index] for sequence in sequences))
    except KeyboardInterrupt:
        raise
    except BaseException:
        # The sequence itself raised, not a call.
        return FailedItem(None, ())


class Report(NamedTuple):
    """What is told of a task that raised."""

    error: BaseException
    item: FailedItem
    outcomes: bytes | None = None
    """Of a chunk whose items failed: what became of each."""
    buffers: Sequence[PickleBuffer] = ()
    """The buffers of that pickle."""
    failed: Sequence[ErrorRecord] = ()
    """Of a chunk: the records of the items that failed."""


def report(error: BaseException, arguments: tuple[Any, ...]) -> Report:
    """What to tell of a task that raised `error` when it was called with `arguments`."""
    if isinstance(error, ItemsFailed):
        return Report(*error.first, *error.dump_outcomes(), error.failed)
    return Report(error, _failed_item(error, arguments))


def _failed_item(error: BaseException, arguments: tuple[Any, ...]) -> FailedItem:
    """What `error` was raised for: the item of a chunk, or else the call's `arguments`."""
    tb = error.__traceback__
    while tb is not None:
        frame = tb.tb_frame
        if frame.f_code is _extend.__code__:
            return _item(frame.f_locals["sequences"], len(frame.f_locals["results"]))
        tb = tb.tb_next
    return FailedItem(None, arguments)


def dump_result(value: Any) -> tuple[bytes, list[PickleBuffer]]:
    """Pickles a task's result. Raises `SerializationError`, or `ItemsFailed` for single items of a chunk."""
    try:
        return dumps(value)
    except FAULTS as error:
        # The list that a chunk has just returned: perhaps some items can be sent.
        if type(value) is list and id(value) == MapChunk._returned:
            outcomes, first = _picklable(value)
            if first is not None:
                raise ItemsFailed(first, outcomes) from error
        raise unsendable_result(value, error) from error


def _picklable(values: list[Any]) -> tuple[list[Any], First | None]:
    """`values` with a `Failed` in place of each that cannot be pickled, and the first failure."""
    outcomes: list[Any] = []
    first: First | None = None
    for position, value in enumerate(values):
        try:
            dump_value(value)
            outcomes.append(value)
        except SerializationError as error:
            item = FailedItem(position, ())
            first = first or First(error, item)
            outcomes.append(Failed.of(error, item))
    return outcomes, first
