"""Results of maps: in order, as they come, and of maps over iterables without an end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, cast

from broadleaf.client.display.reprs import PublicNames
from broadleaf.client.failures import STATUS_OK
from broadleaf.client.metadata import Metadata
from broadleaf.client.results.async_result import AsyncResult
from broadleaf.client.results.base import Value, wait_until
from broadleaf.client.results.chunk_outcomes import Failure
from broadleaf.errors import ClusterConnectionError, RemoteError, composite, hides_frames
from broadleaf.serialize.functions import function_name

if TYPE_CHECKING:
    from broadleaf._native import History
    from broadleaf.client.protocols import BalancedSide


# Results of maps: items in chunks.


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
    _internal_names = frozenset(("bare", "first_item", "item_outcomes", "ordered", "returned", "values_within"))

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

    def item_outcomes(self) -> Iterator[Any]:
        """The value of each item, or its `Failure`. All tasks are done."""
        for part in range(self.n_parts):
            outcome = self._part_outcome(part)
            failed = isinstance(outcome, Failure)
            yield from self._item_outcomes(part, outcome.error) if failed else self._items_of(part, outcome)

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
        """Everything known about each item, as dicts with attributes. A chunk's output belongs to its first item."""
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
            timeout: Seconds to wait; None or a negative number means forever.

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


# Maps over sequences that may be endless.


Numbered = tuple[int, AsyncResult]


class NotReady(TimeoutError):
    """A value has not come in time, as opposed to a `TimeoutError` that a task raised."""


class _Arrivals:
    """The results of an unordered map in the order in which they are done. Results refer to it until then, and it does
    not refer to the iterator, which may be dropped before."""

    def __init__(self) -> None:
        self.done: SimpleQueue[Numbered] = SimpleQueue()
        self.on_done: Callable[[], None] = _ignore

    def expect(self, numbered: Numbered) -> None:
        """Adds a result when it is done, with the position of its item."""

        def put() -> None:
            self.done.put(numbered)
            self.on_done()

        numbered[1].on_done(put)


class LazyMapIterator(PublicNames, Generic[Value]):
    """An iterator over the values of a map that submits it as values are taken; see `LoadBalancedView.imap`.

    It is closed by `close`, by Ctrl-C while it waits, and when it is dropped: then its unfinished tasks are aborted. It
    continues after an item that failed.

    Args:
        view: The view whose engines run it.
        function: The function to call.
        calls: The arguments of each call.
        ordered: Whether values come in the order of the calls.
        max_outstanding: Maximum number of tasks under way; 0: no bound.
        return_exceptions: Whether an item that failed yields its exception instead of a value.
        chunksize: Number of calls per task.
        history: Where its tasks are recorded, besides those of client and view.
        timeout_s: Seconds from now on after which a value that has not come is a `TimeoutError`; None: never.
    """

    is_wanted: bool = True
    """Whether dropping it aborts its tasks: nobody can get their values then."""
    raises_original = False
    """Whether a failure is raised as what the task raised, as executors do, in place of a `RemoteError`."""
    _internal_names = frozenset(("is_wanted", "raises_original", "submit_rest", "take"))

    def __init__(
        self,
        view: BalancedSide,
        function: Callable[..., Any],
        calls: Iterable[tuple[Any, ...]],
        ordered: bool,
        max_outstanding: int,
        return_exceptions: bool,
        chunksize: int = 1,
        history: History | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self._view = view
        self._client = view.client
        self._function = function
        self._calls: Iterator[tuple[Any, ...]] | None = iter(calls)
        self._ordered = ordered
        self._max_outstanding = max_outstanding
        self._return_exceptions = return_exceptions
        self._chunksize = chunksize
        self._history = history
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
        # Results that were not taken, by their numbers, and what became of the items of a chunk that was.
        self._waiting: dict[int, AsyncResult] = {}
        self._taken: deque[Any] = deque()
        self._arrivals = _Arrivals()
        self._n_submitted = 0
        self._n_taken = 0
        self._input_error: Exception | None = None
        try:
            self._submit_more()
        except KeyboardInterrupt:
            self._abort_interrupted()
            raise

    def _submit_more(self) -> None:
        waiting, bound = self._waiting, self._max_outstanding
        self._client.link.start_call()
        while self._calls is not None and not (0 < bound <= len(waiting)):
            try:
                calls = [next(self._calls)] if self._chunksize == 1 else list(islice(self._calls, self._chunksize))
            except StopIteration:
                calls = []
            except Exception as error:
                # Raised in place of its value, so earlier results are not lost.
                self._calls, self._input_error = None, error
                return
            if not calls:
                self._calls = None
                return
            index = self._n_submitted
            waiting[index] = result = self._submit(index, calls)
            self._n_submitted = index + 1
            if self._history is not None:
                for first, n_tasks in result.task_ranges():
                    self._history.record(first, n_tasks)
            if not self._ordered:
                self._arrivals.expect((index, result))

    def _submit(self, index: int, calls: list[tuple[Any, ...]]) -> AsyncResult:
        if self._chunksize == 1:
            single: AsyncResult = self._view.apply_async(self._function, *calls[0])
            return single
        chunk: AsyncMapResult = self._view.map_calls(self._function, calls, self._chunksize)
        chunk.first_item = index * self._chunksize
        return chunk

    def submit_rest(self) -> None:
        """Submits all that is left, whatever is under way."""
        self._max_outstanding = 0
        self._submit_more()

    def __iter__(self) -> LazyMapIterator[Value]:
        return self

    def __next__(self) -> Value:
        return self.take(None if self._deadline is None else max(0.0, self._deadline - time.monotonic()))

    def take(self, timeout_s: float | None) -> Value:
        """The next value; raises `TimeoutError` if it has not come in this time, and `StopIteration` after the last."""
        self.is_wanted = True
        try:
            return self._next_of_chunk() if self._taken else self._take(timeout_s)
        except KeyboardInterrupt:
            self._abort_interrupted()
            raise

    def _take(self, timeout_s: float | None) -> Value:
        self._submit_more()
        if not self._waiting:
            if self._input_error is not None:
                error, self._input_error = self._input_error, None
                raise error
            raise StopIteration
        index = self._n_taken if self._ordered else self._next_done(timeout_s)
        result = self._waiting[index]
        if timeout_s is not None and not result.wait(timeout_s):
            raise NotReady(f"{result._name} is not ready: its next value has not arrived")
        if self._chunksize != 1:
            result.wait()
            self._taken.extend(cast("AsyncMapResult[Any]", result).item_outcomes())
            self._note_taken(index)
            self._submit_more()
            return self._next_of_chunk()
        value: Any = None
        raised: BaseException | None = None
        try:
            value = result.get(return_exceptions=self._return_exceptions)
            if self._return_exceptions and isinstance(value, RemoteError):
                value.item_index = index
        except RemoteError as error:
            error.item_index = index
            raised = self._as_raised(error)
        finally:
            # A result that raised counts as taken, so the caller may continue with the next one.
            if result.done():
                self._note_taken(index)
        if raised is not None:
            raise raised
        # This is done before the caller works on the value, so that the engines have work in the meantime.
        self._submit_more()
        return value  # type: ignore[no-any-return]

    def _next_of_chunk(self) -> Value:
        outcome = self._taken.popleft()
        if not isinstance(outcome, Failure):
            return outcome  # type: ignore[no-any-return]
        if self._return_exceptions:
            return outcome.error  # type: ignore[return-value]
        raise self._as_raised(outcome.error)

    def _as_raised(self, error: BaseException) -> BaseException:
        return error.as_original() if self.raises_original and isinstance(error, RemoteError) else error

    def _note_taken(self, index: int) -> None:
        self._waiting.pop(index, None)
        self._n_taken += 1

    def __aiter__(self) -> LazyMapIterator[Value]:
        return self

    async def __anext__(self) -> Value:
        import asyncio

        self.is_wanted = True
        try:
            if not self._taken:
                await self._wait_for_next()
            return next(self)
        except StopIteration:
            raise StopAsyncIteration from None
        except (asyncio.CancelledError, KeyboardInterrupt):
            self._abort_interrupted()
            raise

    async def _wait_for_next(self) -> None:
        from broadleaf.client.results.iteration import Wake, resolved

        self._submit_more()
        if self._waiting and self._ordered:
            await resolved(self._waiting[self._n_taken])
        elif self._waiting:
            wake = Wake()
            self._arrivals.on_done = wake.set
            while self._arrivals.done.empty():
                await wake.wait()

    def __repr__(self) -> str:
        name = function_name(self._function)
        what = "" if self._chunksize == 1 else " chunks"
        return f"<LazyMapIterator({name}): {self._n_taken:,}{what} taken, {len(self._waiting):,} under way>"

    def _next_done(self, timeout_s: float | None) -> int:
        done = self._arrivals.done
        wait_until(self._client.link, lambda: not done.empty(), lambda _: None, timeout_s)
        try:
            if self._client.link.frees_engine():
                return done.get_nowait()[0]
            return done.get(timeout=timeout_s)[0]
        except Empty:
            raise NotReady(f"{function_name(self._function)} is not ready: its next value has not arrived") from None

    def cancel(self) -> None:
        """Takes no more items. Pending results still arrive."""
        self._calls = None

    def close(self) -> None:
        """Ends the iteration, and aborts the tasks under way. An engine whose task does not react is not killed."""
        with suppress(ClusterConnectionError):
            self._client.interrupt_tasks(self._end())

    def _abort_interrupted(self) -> None:
        self._client.abort_begun()
        self._client.abort_interrupted(self._end())

    def _end(self) -> list[int]:
        """Ends the iteration. Returns the numbers of the tasks that are not done."""
        self._calls = self._input_error = None
        left = [seq for result in self._waiting.values() for seq in result._unfinished_seqs()]
        self._waiting.clear()
        return left

    def __del__(self) -> None:
        # Without `_waiting` its construction has failed.
        if self.is_wanted and self.__dict__.get("_waiting"):
            self._client.interrupt_unawaited(self._end())


def _ignore() -> None:
    """Called when a result is done and nobody awaits it."""
