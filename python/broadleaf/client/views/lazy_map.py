"""Maps over sequences that may be endless."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic

from broadleaf.client.display.public_names import PublicNames
from broadleaf.client.results.async_result import AsyncResult
from broadleaf.client.results.parts import Value
from broadleaf.client.tasks.nested_waits import wait_until
from broadleaf.errors import ClusterConnectionError, RemoteError, hides_frames
from broadleaf.serialize.functions import function_name

if TYPE_CHECKING:
    from broadleaf._native import History
    from broadleaf.client.views.balanced import LoadBalancedView


__tracebackhide__ = hides_frames

Numbered = tuple[int, AsyncResult]


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
    goes on after an item that raised.

    Args:
        view: The view whose engines run it.
        function: The function to call with an item of each sequence.
        sequences: The sequences.
        ordered: Whether values come in the order of the sequences.
        max_outstanding: Maximum number of tasks under way; 0: no bound.
        return_exceptions: Whether an item that raised yields its exception instead of a value.
        history: Where its tasks are recorded, besides those of client and view.
    """

    is_wanted: bool = True
    """Whether dropping it aborts its tasks: nobody can get their values then."""
    raises_original = False
    """Whether a failure is raised as what the task raised, as executors do, in place of a `RemoteError`."""
    _internal_names = frozenset(("is_wanted", "raises_original"))

    def __init__(
        self,
        view: LoadBalancedView,
        function: Callable[..., Any],
        sequences: tuple[Any, ...],
        ordered: bool,
        max_outstanding: int,
        return_exceptions: bool,
        history: History | None = None,
    ) -> None:
        self._submit = view.apply_async
        self._client = view.client
        self._function = function
        self._calls: Iterator[tuple[Any, ...]] | None = zip(*sequences, strict=False)
        self._ordered = ordered
        self._max_outstanding = max_outstanding
        self._return_exceptions = return_exceptions
        self._history = history
        # Results that were not taken, by the positions of their items.
        self._waiting: dict[int, AsyncResult] = {}
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
                arguments = next(self._calls)
            except StopIteration:
                self._calls = None
                return
            except Exception as error:
                # Raised in place of its value, so earlier results are not lost.
                self._calls, self._input_error = None, error
                return
            index = self._n_submitted
            waiting[index] = result = self._submit(self._function, *arguments)
            self._n_submitted = index + 1
            if self._history is not None:
                self._history.record(result.seq, 1)
            if not self._ordered:
                self._arrivals.expect((index, result))

    def __iter__(self) -> LazyMapIterator[Value]:
        return self

    def __next__(self) -> Value:
        self.is_wanted = True
        try:
            return self._take()
        except KeyboardInterrupt:
            self._abort_interrupted()
            raise

    def _take(self) -> Value:
        self._submit_more()
        if not self._waiting:
            if self._input_error is not None:
                error, self._input_error = self._input_error, None
                raise error
            raise StopIteration
        index = self._n_taken if self._ordered else self._next_done()
        result = self._waiting[index]
        value: Any = None
        raised: BaseException | None = None
        try:
            value = result.get(return_exceptions=self._return_exceptions)
            if self._return_exceptions and isinstance(value, RemoteError):
                value.item_index = index
        except RemoteError as error:
            error.item_index = index
            raised = error.as_original() if self.raises_original else error
        finally:
            # A result that raised counts as taken, so the caller may continue with the next one.
            if result.done():
                self._waiting.pop(index, None)
                self._n_taken += 1
        if raised is not None:
            raise raised
        # This is done before the caller works on the value, so that the engines have work in the meantime.
        self._submit_more()
        return value  # type: ignore[no-any-return]

    def __aiter__(self) -> LazyMapIterator[Value]:
        return self

    async def __anext__(self) -> Value:
        import asyncio

        from broadleaf.client.results.async_iteration import Wake, resolved

        self.is_wanted = True
        try:
            self._submit_more()
            if self._waiting and self._ordered:
                await resolved(self._waiting[self._n_taken])
            elif self._waiting:
                wake = Wake()
                self._arrivals.on_done = wake.set
                while self._arrivals.done.empty():
                    await wake.wait()
            return next(self)
        except StopIteration:
            raise StopAsyncIteration from None
        except (asyncio.CancelledError, KeyboardInterrupt):
            self._abort_interrupted()
            raise

    def __repr__(self) -> str:
        name = function_name(self._function)
        return f"<LazyMapIterator({name}): {self._n_taken:,} taken, {len(self._waiting):,} under way>"

    def _next_done(self) -> int:
        done = self._arrivals.done
        wait_until(self._client.link, lambda: not done.empty(), lambda _: None, None)
        return done.get()[0]

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
        left = [result.seq for result in self._waiting.values() if not result.done()]
        self._waiting.clear()
        return left

    def __del__(self) -> None:
        # Without `_waiting` its construction has failed.
        if self.is_wanted and self.__dict__.get("_waiting"):
            self._client.interrupt_unawaited(self._end())


def _ignore() -> None:
    """Called when a result is done and nobody awaits it."""
