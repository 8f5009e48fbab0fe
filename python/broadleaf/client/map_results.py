"""Results of maps: items in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from broadleaf.client.results import AsyncResult, Failure
from broadleaf.serialize.errors import Failed


class AsyncMapResult(AsyncResult):
    """The result of a map. Its length is that of the sequence, it can be iterated over as results arrive (in the
    order of the sequence, or with `ordered=False` as they come), and `get` gives one list.
    """

    ordered = True
    # Items per task: one number for all but the last, or one for each.
    _chunk_items: int | list[int] = 1
    _n_items = 0
    bare = False
    """Whether a task's value is its one item rather than a list of its items."""
    _join: Callable[[list[Any]], Any] | None = None
    _kind = "AsyncMapResult"

    def __len__(self) -> int:
        return self._n_items

    def _items_in(self, part: int) -> int:
        if isinstance(self._chunk_items, list):
            return self._chunk_items[part]
        return min(self._chunk_items, self._n_items - part * self._chunk_items)

    def returned(self) -> list[Any] | None:
        """All tasks' values if every task is known to have returned; None says to look at each."""
        return None

    def _part_value(self, part: int) -> Any:
        value = self.value(part)
        if self.bare:
            return [value]
        if self._return_exceptions and isinstance(value, list):
            engine_id = self.times(part)[3]
            for i, item in enumerate(value):
                if type(item) is Failed:
                    # In place: the list is kept by the result, so the exception stays the same object.
                    value[i] = item.exception(engine_id)
        return value

    def _exception_of(self, errors: list[BaseException]) -> BaseException:
        from broadleaf.errors import composite

        return composite(errors, self._name)

    def _collect(self, return_exceptions: bool, parts: Sequence[int]) -> Any:
        values = self.returned() if self.bare and len(parts) == self.n_parts else None
        if values is not None:
            return values
        outcomes = [self._part_outcome(part) for part in parts]
        failures = [outcome.error for outcome in outcomes if isinstance(outcome, Failure)]
        if failures and not return_exceptions:
            raise self._exception_of(failures)
        if not failures and self._join is not None:
            return self._join(outcomes)
        items: list[Any] = []
        for part, outcome in zip(parts, outcomes, strict=True):
            items.extend(self._items_of(part, outcome))
        return items

    def _items_of(self, part: int, outcome: Any) -> Any:
        if isinstance(outcome, Failure):
            # Each item of a failed chunk has this error, so that positions stay true.
            return [outcome.error] * self._items_in(part)
        return outcome

    def __iter__(self) -> Iterator[Any]:
        with self._aborting_on_interrupt():
            for rank in range(self.n_parts):
                if self.ordered:
                    part = rank
                    self.wait_part(part, None)
                else:
                    self.wait_count(rank + 1, None)
                    part = self.completed_part(rank)
                outcome = self._part_outcome(part)
                if isinstance(outcome, Failure) and not self._return_exceptions:
                    raise self._exception_of([outcome.error])
                yield from self._items_of(part, outcome)

    @property
    def progress(self) -> int:
        """How many items are done."""
        done = self.n_done()
        if done == self.n_parts:
            return self._n_items
        return sum(self._items_in(self.completed_part(rank)) for rank in range(done))

    def get_dict(self, timeout: float | None = None) -> dict[int, Any]:
        """The chunks by engine id. Raises `ValueError` when an engine ran more than one of them."""
        self.get(timeout)
        return self._by_engine(map(self._part_value, range(self.n_parts)))
