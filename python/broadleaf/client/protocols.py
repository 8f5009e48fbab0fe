"""What the parts of a client know of those above them: of a result and of a view, and where a request came from.

`Client` itself is here for type checkers only, for all that is below it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from broadleaf.client.client import Client as Client
    from broadleaf.client.metadata import Metadata


class Origin:
    """The results of one submitter share it, so a result itself does not carry these values. It must not refer to a
    view: a view has submitters, which have origins, and the native objects among them are invisible to the garbage
    collector.
    """

    __slots__ = ("client", "label", "method", "retries", "single", "targets", "timeout_s")

    def __init__(
        self,
        client: Client,
        targets: tuple[int, ...] | None,
        single: bool,
        method: str = "apply",
        label: str | None = None,
        timeout_s: float | None = None,
        retries: int | None = None,
    ) -> None:
        self.client: Client = client
        self.targets: tuple[int, ...] | None = targets
        """Engine of each part, or None when the scheduler chose."""
        self.single: bool = single
        """Whether the value is that of the one part, rather than a list."""
        self.method: str = method
        self.label: str | None = label
        self.timeout_s: float | None = timeout_s
        self.retries: int | None = retries
        """Number of times a task is retried; None for one that is sent to an engine of the user's choice."""


class ResultSide(Protocol):
    """A result, for what shows it, waits for it or asks about its parts."""

    _aborted_by: str

    @property
    def origin(self) -> Origin:
        """Where it came from."""
        ...

    @property
    def n_parts(self) -> int:
        """Number of its parts."""
        ...

    @property
    def progress(self) -> int:
        """Number of parts or items that are done."""
        ...

    @property
    def elapsed(self) -> float:
        """Seconds since it was submitted, or that it took."""
        ...

    @property
    def _name(self) -> str: ...

    @property
    def _kind(self) -> str: ...

    def __len__(self) -> int: ...

    def get(self, timeout: float | None = -1) -> Any:
        """Its value."""

    def wait(self, timeout: float | None = -1) -> Any:
        """Waits until it is done; returns whether it is."""

    def wait_all_done(self, timeout_s: float | None) -> bool:
        """Waits until all parts are done; returns whether they are."""
        ...

    def wait_count(self, n: int, timeout_s: float | None) -> bool:
        """Waits until `n` parts are done; returns whether they are."""
        ...

    def all_done(self) -> bool:
        """Whether all parts are done."""
        ...

    def n_done(self) -> int:
        """Number of parts that are done."""
        ...

    def n_failed(self) -> int:
        """Number of parts that failed."""
        ...

    def failed(self) -> bool:
        """Whether a part failed."""
        ...

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        ...

    def abort_interrupted(self) -> None:
        """Aborts what is not done, after Ctrl-C."""

    def on_done(self, callback: Callable[[], object]) -> None:
        """Calls `callback` once all is done."""

    def task_ranges(self) -> list[tuple[int, int]]:
        """The first number of each contiguous range of its tasks, and how many there are."""
        ...

    def parts(self) -> Sequence[tuple[ResultSide, int]]:
        """For each part the result that has it, and its number there."""
        ...

    def written_parts(self) -> list[int]:
        """The parts that have written something."""
        ...

    def completed_part(self, rank: int) -> int:
        """The part that was completed as the `rank`-th."""
        ...

    def part_done(self, part: int) -> bool:
        """Whether a part is done."""
        ...

    def part_status(self, part: int) -> int:
        """The status of a part, as in `client.failures`."""
        ...

    def part_metadata(self, part: int) -> Metadata:
        """The metadata of a part."""
        ...

    def value(self, part: int) -> Any:
        """The value of a part."""

    def failure(self, part: int) -> BaseException | None:
        """The exception of a part."""
        ...

    def text_since(self, part: int, stream: int, position_bytes: int) -> tuple[str, int]:
        """What a part has written after a position, and the position after that."""
        ...

    def messages(self, part: int) -> list[bytes]:
        """What a part has displayed or published."""
        ...

    def listen(self, listener: Callable[[int, int, bytes], None]) -> None:
        """Calls `listener` for what its parts write from now on."""

    def unlisten(self, listener: Callable[[int, int, bytes], None]) -> None:
        """Undoes `listen`."""

    def _engine_id(self, part: int) -> int | None: ...
    def _part_value(self, part: int) -> Any: ...
    def _values_in(self, part: int) -> Any: ...
    def _unfinished_parts(self) -> list[int]: ...
    def _unfinished_seqs(self) -> list[int]: ...


class ViewSide(Protocol):
    """A view, for functions that are bound to it, executors and maps."""

    client: Client
    targets: Any
    block: Any
    label: Any

    def temp_flags(self, **flags: Any) -> AbstractContextManager[Any]:
        """Flags for a block of code."""
        ...

    def apply_async(self, f: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Calls a function on its engines."""

    def map(self, f: Any, /, *sequences: Any, **options: Any) -> Any:
        """Calls a function on each item."""

    def map_async(self, f: Any, /, *sequences: Any, **options: Any) -> Any:
        """Like `map`, but does not wait."""

    def _engines_in_words(self, targets: str) -> str: ...

    def __len__(self) -> int: ...


class BalancedSide(ViewSide, Protocol):
    """A load-balanced view, for its lazy maps."""

    def map_calls(self, function: Callable[..., Any], calls: list[tuple[Any, ...]], chunksize: int | None) -> Any:
        """Calls a function with each of these arguments."""
