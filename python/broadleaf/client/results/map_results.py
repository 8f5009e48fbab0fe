"""Results of maps: items in chunks."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Generic, cast

from broadleaf.client.connection.failures import STATUS_OK
from broadleaf.client.results.async_result import AsyncResult
from broadleaf.client.results.chunk_outcomes import Failure
from broadleaf.client.results.metadata import Metadata
from broadleaf.client.results.parts import Value
from broadleaf.errors import ClusterConnectionError, RemoteError, composite, hides_frames

__tracebackhide__ = hides_frames


class AsyncMapResult(AsyncResult[list[Value]]):
    """The result of a map. Its length is that of the sequence, and `get` gives one list.

    It can be iterated over as values arrive: in the order of the sequence, or with `ordered=False` in the order of
    arrival.

    Example:
        >>> result = rc.load_balanced_view().map_async(lambda x: x * x, range(4))
        >>> len(result)
        4
        >>> sum(result)
        14
    """

    ordered = True
    # Items per task: one number for all but the last, or one for each.
    _chunk_items: int | list[int] = 1
    _n_items = 0
    first_item = 0
    """Position of its first item, in the map of which this is a block."""
    bare = False
    """Whether a task's value is its one item rather than a list of its items."""
    _join: Callable[[list[Any]], Any] | None = None
    _kind = "AsyncMapResult"
    _internal_names = frozenset(("bare", "first_item", "ordered", "returned", "values_within"))

    def __len__(self) -> int:
        return self._n_items

    def _first_item(self, part: int) -> int:
        """Position of a part's first item."""
        items = self._chunk_items
        return self.first_item + (sum(items[:part]) if isinstance(items, list) else part * items)

    def _items_in(self, part: int) -> int:
        if isinstance(self._chunk_items, list):
            return self._chunk_items[part]
        return min(self._chunk_items, self._n_items - part * self._chunk_items)

    def returned(self) -> list[Any] | None:
        """All tasks' values if every task is known to have returned; None means that each must be checked."""
        return None

    def _part_value(self, part: int) -> Any:
        value = self.value(part)
        return [value] if self.bare else value

    def locate_failure(self, error: BaseException, part: int) -> None:
        """Adds an item's position in the map to its exception."""
        if isinstance(error, RemoteError):
            within = 0 if self.bare else error.item_index
            error.item_index = None if within is None else self._first_item(part) + within

    def _failure_of(self, errors: list[BaseException]) -> BaseException:
        return self._first_of(errors) if self.raises_original else composite(errors, self._name)

    def _collect(self, return_exceptions: bool, parts: Sequence[int]) -> Any:
        values = self.returned() if self.bare and len(parts) == self.n_parts else None
        if values is not None:
            return values
        outcomes = [self._part_outcome(part) for part in parts]
        failures = [
            (part, outcome.error) for part, outcome in zip(parts, outcomes, strict=True) if isinstance(outcome, Failure)
        ]
        if failures and not return_exceptions:
            raise self._exception_of([error for failure in failures for error in self._errors_of(*failure)])
        if not failures and self._join is not None:
            return self._join(outcomes)
        items: list[Any] = []
        for part, outcome in zip(parts, outcomes, strict=True):
            items.extend(self._items_of(part, outcome))
        return items

    def _items_of(self, part: int, outcome: Any) -> Any:
        """The items of a part: their values, or exceptions in their places."""
        if isinstance(outcome, Failure):
            return [
                item.error if isinstance(item, Failure) else item for item in self._item_outcomes(part, outcome.error)
            ]
        # What a function made of a whole part need not be a sequence.
        return outcome if type(outcome) is list or isinstance(outcome, Iterable) else (outcome,)

    def _item_outcomes(self, part: int, error: BaseException) -> list[Any]:
        """The value of each item of a part that ended with `error`, or its `Failure`."""
        items = self.outcomes_of(part, error)
        if isinstance(items, list):
            return items
        # A whole chunk is lost, say, with its engine.
        return [items or Failure(error)] * self._items_in(part)

    def __iter__(self) -> Iterator[Value]:
        return self.values_within(None)

    def values_within(self, timeout_s: float | None) -> Iterator[Value]:
        """The values as they arrive, as from `iter`; raises `TimeoutError` if one has not come in this time."""
        return self._values_until(None if timeout_s is None else time.monotonic() + timeout_s)

    def _values_until(self, deadline: float | None) -> Iterator[Value]:
        with self._aborting_on_interrupt():
            for rank in range(self.n_parts):
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not (self.wait_part(rank, left) if self.ordered else self.wait_count(rank + 1, left)):
                    raise TimeoutError(f"{self._name} is not ready: {self.progress} of {len(self)} items are done")
                yield from self._values_in(rank if self.ordered else self.completed_part(rank))

    def _values_in(self, part: int) -> Iterator[Any]:
        outcome = self._part_outcome(part)
        if not isinstance(outcome, Failure) or self._return_exceptions:
            yield from self._items_of(part, outcome)
            return
        for item in self._item_outcomes(part, outcome.error):
            if isinstance(item, Failure):
                raise self._exception_of([item.error])
            yield item

    @property
    def metadata(self) -> list[Metadata]:
        """What is known about each item, as dicts with attributes. What a chunk wrote is with its first item."""
        found: list[Metadata] = []
        for part in range(self.n_parts):
            whole = self.part_metadata(part)
            columns = [(key, self._by_item(part, key, value)) for key, value in whole.items()]
            found.extend(
                Metadata({key: column[item] for key, column in columns}) for item in range(self._items_in(part))
            )
        return found

    def _metadata_values(self, key: str) -> list[Any]:
        by_part: list[Any] = super()._metadata_values(key)
        return [value for part, whole in enumerate(by_part) for value in self._by_item(part, key, whole)]

    def _by_item(self, part: int, key: str, whole: Any) -> list[Any]:
        """Metadata of each item of a part, given that of the part."""
        n = self._items_in(part)
        if n == 1:
            return [whole]
        if key in ("status", "error") and self.part_status(part) > STATUS_OK:
            error = cast("BaseException", self.failure(part))
            outcomes = self.outcomes_of(part, error)
            if isinstance(outcomes, list):
                failed = [item.error if isinstance(item, Failure) else None for item in outcomes]
                return failed if key == "error" else ["ok" if error is None else whole for error in failed]
        if key in ("stdout", "stderr"):
            return [whole, *[""] * (n - 1)]
        if key == "outputs":
            return [whole, *([] for _ in range(n - 1))]
        return [whole] * n

    @property
    def progress(self) -> int:
        """How many items are done."""
        done = self.n_done()
        if done == self.n_parts:
            return self._n_items
        if not isinstance(self._chunk_items, list):
            last = self.n_parts - 1
            missing = self._chunk_items - self._items_in(last) if self.part_done(last) else 0
            return done * self._chunk_items - missing
        return sum(self._items_in(self.completed_part(rank)) for rank in range(done))

    def get_dict(self, timeout: float | None = None) -> dict[int, Any]:
        """The chunks by engine id.

        Args:
            timeout: Seconds to wait; None or a negative number: forever.

        Returns:
            The list of values of each engine's chunk.

        Raises:
            ValueError: An engine ran more than one chunk.
            TimeoutError: The tasks are not done after `timeout` seconds.
            CompositeError: The function raised on some item.
        """
        self.get(timeout)
        return self._by_engine(map(self._part_value, range(self.n_parts)))


class MapIterator(Generic[Value]):
    """An iterator over the values of a map, for `for` and `async for` alike.

    It is closed by `close`, by an exception, and when it is dropped: then its unfinished tasks are aborted.

    Args:
        result: The result of the map.
        timeout_s: Seconds from now on after which a value that has not come is a `TimeoutError`; None: never.
    """

    is_wanted: bool = True
    """Whether dropping it aborts its tasks: nobody can get their values then."""

    def __init__(self, result: AsyncMapResult[Value], timeout_s: float | None = None) -> None:
        self._result = result
        self._values: Iterator[Value] = result.values_within(timeout_s)
        self._async_values: AsyncIterator[Value] | None = None

    def __iter__(self) -> MapIterator[Value]:
        return self

    def __next__(self) -> Value:
        self.is_wanted = True
        try:
            return next(self._values)
        except StopIteration:
            raise
        except BaseException:
            # An item failed or took too long, or Ctrl-C: there are no more values.
            self.close()
            raise

    def close(self) -> None:
        """Ends the iteration, and aborts the tasks that are not done.

        An engine whose task does not react is not killed.
        """
        self._values = iter(())
        with suppress(ClusterConnectionError):
            self._result.origin.client.interrupt_tasks(self._result._unfinished_seqs())

    def __del__(self) -> None:
        if self.is_wanted and not self._result.all_done():
            self._result.origin.client.interrupt_unawaited(self._result._unfinished_seqs())

    def __aiter__(self) -> MapIterator[Value]:
        return self

    async def __anext__(self) -> Value:
        self.is_wanted = True
        if self._async_values is None:
            self._async_values = aiter(self._result)
        return await anext(self._async_values)

    def __repr__(self) -> str:
        return f"<MapIterator over {self._result!r}>"
