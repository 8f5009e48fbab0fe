"""Maps over sequences that may be endless."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic

from broadleaf.client.results.async_result import AsyncResult
from broadleaf.client.results.parts import Value
from broadleaf.client.tasks.nested_waits import wait_until
from broadleaf.errors import RemoteError, hides_frames
from broadleaf.serialize.functions.bodies import function_name
from broadleaf.text.public_names import PublicNames

if TYPE_CHECKING:
    from broadleaf.client.views.balanced import LoadBalancedView


__tracebackhide__ = hides_frames

Numbered = tuple[int, AsyncResult]


class LazyMapIterator(PublicNames, Generic[Value]):
    """An iterator over the values of a map that submits it as values are taken; see `LoadBalancedView.imap`.

    Args:
        view: The view whose engines run it.
        function: The function to call with an item of each sequence.
        sequences: The sequences.
        ordered: Whether values come in the order of the sequences.
        max_outstanding: Maximum number of tasks under way; 0: no bound.
        return_exceptions: Whether an item that raised yields its exception instead of a value.
    """

    raises_original = False
    """Whether a failure is raised as what the task raised, as executors do, in place of a `RemoteError`."""
    _internal_names = frozenset(("put", "raises_original"))

    def __init__(
        self,
        view: LoadBalancedView,
        function: Callable[..., Any],
        sequences: tuple[Any, ...],
        ordered: bool,
        max_outstanding: int,
        return_exceptions: bool,
    ) -> None:
        self._submit = view.apply_async
        self._link = view.client.link
        self._function = function
        self._calls: Iterator[tuple[Any, ...]] | None = zip(*sequences, strict=False)
        self._ordered = ordered
        self._max_outstanding = max_outstanding
        self._return_exceptions = return_exceptions
        # Results with the positions of their items.
        self._waiting: deque[Numbered] = deque()
        # Unordered: results put themselves here when they are done.
        self._done: SimpleQueue[Numbered] = SimpleQueue()
        self._n_submitted = 0
        self._on_done: Callable[[], None] = _ignore
        self._n_waiting = 0
        self._n_taken = 0
        self._input_error: Exception | None = None
        self._submit_more()

    def _submit_more(self) -> None:
        while self._calls is not None and not (0 < self._max_outstanding <= self._n_waiting):
            try:
                arguments = next(self._calls)
            except StopIteration:
                self._calls = None
                return
            except Exception as error:
                # Raised in place of its value, so earlier results are not lost.
                self._calls, self._input_error = None, error
                return
            result = self._submit(self._function, *arguments)
            numbered = self._n_submitted, result
            self._n_submitted += 1
            self._n_waiting += 1
            if self._ordered:
                self._waiting.append(numbered)
            else:
                result.on_done(_putter(self, numbered))

    def __iter__(self) -> LazyMapIterator[Value]:
        return self

    def __next__(self) -> Value:
        self._submit_more()
        if self._n_waiting == 0:
            if self._input_error is not None:
                error, self._input_error = self._input_error, None
                raise error
            raise StopIteration
        index, result = self._waiting[0] if self._ordered else self._next_done()
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
            # A result that raised counts as taken, so the caller may continue with the next one. After an interrupted
            # wait it does not.
            if result.done():
                if self._ordered:
                    self._waiting.popleft()
                self._n_waiting -= 1
                self._n_taken += 1
        if raised is not None:
            raise raised
        # This is done before the caller works on the value, so that the engines have work in the meantime.
        self._submit_more()
        return value  # type: ignore[no-any-return]

    def __aiter__(self) -> LazyMapIterator[Value]:
        return self

    async def __anext__(self) -> Value:
        from broadleaf.client.results.async_iteration import Wake, resolved

        self._submit_more()
        if self._n_waiting and self._ordered:
            await resolved(self._waiting[0][1])
        elif self._n_waiting:
            wake = Wake()
            self._on_done = wake.set
            while self._done.empty():
                await wake.wait()
        try:
            return next(self)
        except StopIteration:
            raise StopAsyncIteration from None

    def __repr__(self) -> str:
        name = function_name(self._function)
        return f"<LazyMapIterator({name}): {self._n_taken:,} taken, {self._n_waiting:,} under way>"

    def put(self, numbered: Numbered) -> None:
        """Adds a finished result, with the position of its item."""
        self._done.put(numbered)
        self._on_done()

    def _next_done(self) -> Numbered:
        wait_until(self._link, lambda: not self._done.empty(), lambda _: None, None)
        return self._done.get()

    def cancel(self) -> None:
        """Takes no more items. Pending results still arrive."""
        self._calls = None


def _putter(values: LazyMapIterator, numbered: Numbered) -> Callable[[], None]:
    return lambda: values.put(numbered)


def _ignore() -> None:
    """Called when a result is done and nobody awaits it."""
