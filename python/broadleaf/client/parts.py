"""What every result is made on: parts that are resolved one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broadleaf.client.origin import Origin


class Parts:
    """The interface of `_native.Pending`, which submitted results inherit; `CombinedResult` implements it in Python.

    Times are wall-clock nanoseconds since 1970, timeouts seconds (None: for ever).
    """

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
        """How many parts there are."""
        raise NotImplementedError

    def all_done(self) -> bool:
        """Whether all parts are resolved."""
        raise NotImplementedError

    def n_done(self) -> int:
        """How many parts are resolved."""
        raise NotImplementedError

    def part_done(self, part: int) -> bool:
        """Whether a part is resolved."""
        raise NotImplementedError

    def wait_all_done(self, timeout_s: float | None) -> bool:
        """Waits for all parts; False if in vain."""
        raise NotImplementedError

    def wait_part(self, part: int, timeout_s: float | None) -> bool:
        """Waits for one part; False if in vain."""
        raise NotImplementedError

    def wait_count(self, n: int, timeout_s: float | None) -> bool:
        """Waits until `n` parts are resolved; False if in vain."""
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
        """(started, completed, received, engine id) of a part; 0, and -1 for no engine."""
        raise NotImplementedError

    def output(self, part: int) -> tuple[str, str, list[bytes]]:
        """Standard output, standard error and pickled messages of a part so far."""
        raise NotImplementedError

    def on_done(self, callback: Callable[[], object]) -> None:
        """Calls back once, when all parts are resolved, at once if they are."""
        raise NotImplementedError

    def get_single(self, timeout_s: float | None) -> Any:
        """The value of part 0. Raises `TimeoutError`."""
        raise NotImplementedError
