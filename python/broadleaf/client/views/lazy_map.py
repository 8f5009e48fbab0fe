"""Maps over sequences that may be endless."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from broadleaf.client.results import AsyncResult

if TYPE_CHECKING:
    from broadleaf.client.views.balanced import LoadBalancedView


class LazyMapIterator:
    """Iterates over the values of a map while it submits it; see `LoadBalancedView.imap`."""

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
        self._function = function
        self._calls: Iterator[tuple[Any, ...]] | None = zip(*sequences, strict=False)
        self._ordered = ordered
        self._max_outstanding = max_outstanding
        self._return_exceptions = return_exceptions
        self._waiting: deque[AsyncResult] = deque()
        # Unordered: results put themselves here when they are done.
        self._done: SimpleQueue[AsyncResult] = SimpleQueue()
        self._n_waiting = 0
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
                # Raised where its value would have been, so what was submitted before is not lost.
                self._calls, self._input_error = None, error
                return
            result = self._submit(self._function, *arguments)
            self._n_waiting += 1
            if self._ordered:
                self._waiting.append(result)
            else:
                result.on_done(_putter(self._done, result))

    def __iter__(self) -> LazyMapIterator:
        return self

    def __next__(self) -> Any:
        self._submit_more()
        if self._n_waiting == 0:
            if self._input_error is not None:
                error, self._input_error = self._input_error, None
                raise error
            raise StopIteration
        result = self._waiting[0] if self._ordered else self._done.get()
        try:
            value = result.get(return_exceptions=self._return_exceptions)
        finally:
            # One that raised has been taken, too: the caller may go on with the next. An interrupted wait has not.
            if result.done():
                if self._ordered:
                    self._waiting.popleft()
                self._n_waiting -= 1
        # Before the caller works on the value, so that the engines have work meanwhile.
        self._submit_more()
        return value

    def cancel(self) -> None:
        """Takes no more items. What is under way still arrives."""
        self._calls = None


def _putter(queue: SimpleQueue[AsyncResult], result: AsyncResult) -> Callable[[], None]:
    return lambda: queue.put(result)
