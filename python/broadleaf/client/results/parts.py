"""The base of every result: parts that are resolved one by one, and who is told when they are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from broadleaf.client.display.public_names import PublicNames
from broadleaf.client.tasks.origin import Origin

if TYPE_CHECKING:
    # From Python 3.13 on, Python's own accepts defaults.
    from typing_extensions import TypeVar

    Value = TypeVar("Value", default=Any)
    """What `get` returns."""
else:
    from typing import TypeVar

    Value = TypeVar("Value")


class Parts(PublicNames):
    """The interface of `_native.Pending`, which submitted results inherit; `CombinedResult` implements it in Python.

    Times are wall-clock nanoseconds since 1970, timeouts seconds (None: forever).
    """

    _internal_names = frozenset(
        (
            "abandon",
            "all_done",
            "completed_part",
            "cpu_ns",
            "failure",
            "function",
            "get_single",
            "link",
            "messages",
            "n_done",
            "n_failed",
            "n_parts",
            "on_done",
            "origin",
            "part_done",
            "part_status",
            "returned",
            "seq",
            "submitted_ns",
            "text_since",
            "times",
            "value",
            "values",
            "wait_all_done",
            "wait_count",
            "wait_part",
            "written_parts",
        )
    )

    origin: Origin
    function: Callable[..., Any]

    @property
    def seq(self) -> int:
        """Number of the first part's task."""
        raise NotImplementedError

    @property
    def submitted_ns(self) -> int:
        """When it was submitted."""
        raise NotImplementedError

    @property
    def n_parts(self) -> int:
        """Number of parts."""
        raise NotImplementedError

    def all_done(self) -> bool:
        """Whether all parts are resolved."""
        raise NotImplementedError

    def n_done(self) -> int:
        """Number of resolved parts."""
        raise NotImplementedError

    def part_done(self, part: int) -> bool:
        """Whether a part is resolved."""
        raise NotImplementedError

    def wait_all_done(self, timeout_s: float | None) -> bool:
        """Waits for all parts; False after a timeout."""
        raise NotImplementedError

    def wait_part(self, part: int, timeout_s: float | None) -> bool:
        """Waits for one part; False after a timeout."""
        raise NotImplementedError

    def wait_count(self, n: int, timeout_s: float | None) -> bool:
        """Waits until `n` parts are resolved; False after a timeout."""
        raise NotImplementedError

    def completed_part(self, rank: int) -> int:
        """The part that was resolved as number `rank` (0 first)."""
        raise NotImplementedError

    def part_status(self, part: int) -> int:
        """How a part ended; see `failures`."""
        raise NotImplementedError

    def value(self, part: int) -> Any:
        """A resolved part's value; raises its exception."""
        raise NotImplementedError

    def failure(self, part: int) -> BaseException | None:
        """A resolved part's exception, or None if it returned."""
        raise NotImplementedError

    def times(self, part: int) -> tuple[int, int, int, int]:
        """(started, completed, received, engine id) of a part. A time not known is 0, no engine is -1."""
        raise NotImplementedError

    def cpu_ns(self, part: int) -> int:
        """Processor time of a part's task; 0 if it never ran."""
        raise NotImplementedError

    def text_since(self, part: int, stream: int, position_bytes: int) -> tuple[str, int]:
        """The text of stream 1 or 2 of a part from a position on, and the position of its end."""
        raise NotImplementedError

    def messages(self, part: int) -> list[bytes]:
        """Pickled messages of a part so far."""
        raise NotImplementedError

    def written_parts(self) -> list[int]:
        """The parts that have written or displayed anything so far, in order."""
        raise NotImplementedError

    def abandon(self, parts: Sequence[int]) -> None:
        """Marks the unresolved parts among these as cancelled, whatever happens to their tasks."""
        raise NotImplementedError

    def n_failed(self) -> int:
        """Number of parts that are resolved but did not return."""
        raise NotImplementedError

    def on_done(self, callback: Callable[[], object]) -> None:
        """Calls back once, when all parts are resolved, at once if they are."""
        raise NotImplementedError

    def get_single(self, timeout_s: float | None) -> Any:
        """The value of part 0. Raises `TimeoutError`."""
        raise NotImplementedError


class PartWatcher:
    """Calls back as individual parts of a submitted result are resolved, from a thread that lives as long as needed."""

    def __init__(self, result: Parts) -> None:
        self._result = result
        self._callbacks: dict[int, list[Callable[[], object]]] = {}
        self._lock = threading.Lock()
        self._running = False

    @classmethod
    def of(cls, result: Parts) -> PartWatcher:
        """The watcher of `result`."""
        watcher: PartWatcher = result.__dict__.setdefault("_watcher", cls(result))
        return watcher

    def on_part_done(self, part: int, callback: Callable[[], object]) -> None:
        """Calls back once when `part` is resolved, at once if it is."""
        with self._lock:
            if not self._result.part_done(part):
                self._callbacks.setdefault(part, []).append(callback)
                if not self._running:
                    self._running = True
                    threading.Thread(target=self._watch, name="broadleaf-parts", daemon=True).start()
                return
        callback()

    def _watch(self) -> None:
        result = self._result
        rank = 0
        while True:
            while rank < result.n_done():
                self._fire(result.completed_part(rank))
                rank += 1
            with self._lock:
                # A part resolved since then fires in the next round, so none is missed.
                if not self._callbacks or result.n_done() == rank == result.n_parts:
                    self._running = False
                    return
            result.wait_count(rank + 1, None)

    def _fire(self, part: int) -> None:
        with self._lock:
            callbacks = self._callbacks.pop(part, [])
        for callback in callbacks:
            callback()
