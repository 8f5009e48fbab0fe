"""Results made of parts of other results: `split`, `join`, and `get_result` of several."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from broadleaf import _native
from broadleaf.client.failures import STATUS_OK
from broadleaf.client.protocols import Origin
from broadleaf.client.results.async_result import AsyncResult
from broadleaf.client.results.base import PartWatcher, wait_until
from broadleaf.client.results.chunk_outcomes import Failure
from broadleaf.client.results.maps import AsyncMapResult

Part = tuple[AsyncResult, int]


class CombinedResult(AsyncResult):
    """Parts of one or more submitted results, in a given order, as one result."""

    def __init__(self, parts: Sequence[Part], origin: Origin, function: Callable[..., Any]) -> None:
        super().__init__()
        self._parts = list(parts)
        self.origin = origin
        self.function = function

    @classmethod
    def of_part(cls, result: AsyncResult, part: int) -> CombinedResult:
        """One part of `result`."""
        old = result.origin
        targets = None if old.targets is None else old.targets[part : part + 1]
        single = not isinstance(result, AsyncMapResult)
        origin = Origin(old.client, targets, single, old.method, old.label, old.timeout_s, old.retries)
        made = cls([(result, part)], origin, result.function)
        made._return_exceptions = result._return_exceptions
        made.raises_original = result.raises_original
        return made

    @classmethod
    def joined(cls, results: Iterable[AsyncResult]) -> CombinedResult:
        """All parts of `results`."""
        results = list(results)
        old = results[0].origin
        targets: list[int] | None = []
        for result in results:
            known = result.origin.targets
            targets = None if targets is None or known is None else [*targets, *known]
        origin = Origin(
            old.client,
            None if targets is None else tuple(targets),
            False,
            old.method,
            old.label,
            old.timeout_s,
            old.retries,
        )
        made = cls([part for result in results for part in result.parts()], origin, results[0].function)
        made._return_exceptions = results[0]._return_exceptions
        made.raises_original = results[0].raises_original
        return made

    # Parts of a result -------------------------------------------------------------------

    @property
    def n_parts(self) -> int:
        return len(self._parts)

    @property
    def seq(self) -> int:
        return self._part_seq(0)

    @property
    def submitted_ns(self) -> int:
        return min((result.submitted_ns for result, _ in self._parts), default=_native.wall_ns())

    def parts(self) -> list[Part]:
        return list(self._parts)

    def _part_seq(self, part: int) -> int:
        result, number = self._parts[part]
        return result._part_seq(number)

    def task_ranges(self) -> list[tuple[int, int]]:
        return [(self._part_seq(part), 1) for part in range(self.n_parts)]

    def part_done(self, part: int) -> bool:
        result, number = self._parts[part]
        return result.part_done(number)

    def n_done(self) -> int:
        return sum(result.part_done(number) for result, number in self._parts)

    def all_done(self) -> bool:
        return all(result.part_done(number) for result, number in self._parts)

    def wait_part(self, part: int, timeout_s: float | None) -> bool:
        result, number = self._parts[part]
        return result.wait_part(number, timeout_s)

    def wait_all_done(self, timeout_s: float | None) -> bool:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for result, number in self._parts:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not result.wait_part(number, left):
                return False
        return True

    def wait_count(self, n: int, timeout_s: float | None) -> bool:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        changed = threading.Event()
        watched = False
        while self.n_done() < n:
            if not watched:
                watched = True
                for result, number in self._parts:
                    PartWatcher.of(result).on_part_done(number, changed.set)
                continue
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            wait_until(self._parts[0][0].origin.client.link, changed.is_set, changed.wait, left)
            changed.clear()
        return True

    def completed_part(self, rank: int) -> int:
        done = [part for part in range(self.n_parts) if self.part_done(part)]
        order = self.__dict__.setdefault("_order", [])
        order.extend(sorted(set(done).difference(order), key=lambda part: self.times(part)[2]))
        return order[rank]  # type: ignore[no-any-return]

    def part_status(self, part: int) -> int:
        result, number = self._parts[part]
        return result.part_status(number)

    def value(self, part: int) -> Any:
        result, number = self._parts[part]
        return result._part_value(number)

    def failure(self, part: int) -> BaseException | None:
        result, number = self._parts[part]
        return result.failure(number)

    def outcomes_of(self, part: int, error: BaseException) -> list[Any] | Failure | None:
        result, number = self._parts[part]
        return result.outcomes_of(number, error)

    def times(self, part: int) -> tuple[int, int, int, int]:
        result, number = self._parts[part]
        return result.times(number)

    def cpu_ns(self, part: int) -> int:
        result, number = self._parts[part]
        return result.cpu_ns(number)

    def text_since(self, part: int, stream: int, position_bytes: int) -> tuple[str, int]:
        result, number = self._parts[part]
        return result.text_since(number, stream, position_bytes)

    def messages(self, part: int) -> list[bytes]:
        result, number = self._parts[part]
        return result.messages(number)

    def written_parts(self) -> list[int]:
        owners = {id(result): result for result, _ in self._parts}
        written = {(owner, number) for owner, result in owners.items() for number in result.written_parts()}
        return [part for part, (result, number) in enumerate(self._parts) if (id(result), number) in written]

    def _task_name(self, part: int) -> tuple[int, int] | None:
        result, number = self._parts[part]
        return result._task_name(number)

    def abandon(self, parts: Sequence[int]) -> None:
        by_result: dict[int, tuple[AsyncResult, list[int]]] = {}
        for part in parts:
            result, number = self._parts[part]
            by_result.setdefault(id(result), (result, []))[1].append(number)
        for result, numbers in by_result.values():
            result.abandon(numbers)

    def n_failed(self) -> int:
        return sum(self.part_status(part) > STATUS_OK for part in range(self.n_parts))

    def part_metadata(self, part: int) -> Any:
        result, number = self._parts[part]
        return result.part_metadata(number)

    def on_done(self, callback: Callable[[], object]) -> None:
        left = len(self._parts)
        if not left:
            callback()
            return
        lock = threading.Lock()

        def on_part() -> None:
            nonlocal left
            with lock:
                left -= 1
                last = left == 0
            if last:
                callback()

        for result, number in self._parts:
            PartWatcher.of(result).on_part_done(number, on_part)


class JoinedMapResult(CombinedResult, AsyncMapResult):
    """The result of a map that was submitted in blocks."""

    def __init__(self, blocks: Sequence[AsyncMapResult]) -> None:
        first = blocks[0]
        super().__init__([part for block in blocks for part in block.parts()], first.origin, first.function)
        self._blocks = list(blocks)
        self._chunk_items = [block._items_in(part) for block in blocks for part in range(block.n_parts)]
        self._n_items = sum(map(len, blocks))
        # Parts in the order of their ends, and how many of each block are among them.
        self._completed: list[int] = []
        self._n_completed = [0] * len(blocks)

    def task_ranges(self) -> list[tuple[int, int]]:
        return [tasks for block in self._blocks for tasks in block.task_ranges()]

    def n_done(self) -> int:
        return sum(block.n_done() for block in self._blocks)

    def all_done(self) -> bool:
        return all(block.all_done() for block in self._blocks)

    def completed_part(self, rank: int) -> int:
        if rank >= len(self._completed):
            first_part = 0
            for number, block in enumerate(self._blocks):
                n_done = block.n_done()
                for within in range(self._n_completed[number], n_done):
                    self._completed.append(first_part + block.completed_part(within))
                self._n_completed[number] = n_done
                first_part += block.n_parts
        return self._completed[rank]


class EmptyMapResult(CombinedResult, AsyncMapResult):
    """The result of a map over nothing."""

    def __init__(self, origin: Origin, function: Callable[..., Any]) -> None:
        super().__init__([], origin, function)
