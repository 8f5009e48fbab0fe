"""How long the tasks of a result took."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from broadleaf import _native
from broadleaf.client.results.lazy_future import LazyFuture
from broadleaf.client.results.parts import Value


class TimedResult(LazyFuture[Value]):
    """The part of a result that reports times."""

    def timedelta(
        self,
        start: datetime | Iterable[datetime],
        end: datetime | Iterable[datetime],
        start_key: Callable[..., datetime] = min,
        end_key: Callable[..., datetime] = max,
    ) -> float:
        """Seconds between two sets of times, by default from the earliest start to the latest end.

        Args:
            start: A time, or several: `ar.submitted`, `ar.started`.
            end: A time, or several: `ar.completed`, `ar.received`.
            start_key: A function that chooses one of several starts.
            end_key: A function that chooses one of several ends.

        Returns:
            The time between them in seconds.

        Example:
            >>> result = rc[:].apply_async(pow, 2, 3)
            >>> result.wait()
            True
            >>> result.timedelta(result.submitted, result.received) > 0
            True
        """
        first = start if isinstance(start, datetime) else start_key(start)
        last = end if isinstance(end, datetime) else end_key(end)
        return (last - first).total_seconds()

    @property
    def elapsed(self) -> float:
        """Seconds since submission, or `wall_time` once everything is done."""
        return self.wall_time if self.all_done() else (_native.wall_ns() - self.submitted_ns) / 1e9

    def _require_ready(self) -> None:
        if not self.all_done():
            raise TimeoutError("result not ready")

    @property
    def cpu_time(self) -> float:
        """Processor seconds that the tasks took on the engines, summed: those of all threads of an engine, without
        child processes, and without tasks that the engine ran while a task waited. Of a task that took less than a
        millisecond, its duration. Raises `TimeoutError` before they are resolved."""
        self._require_ready()
        return sum(map(self.cpu_ns, range(self.n_parts))) / 1e9

    @property
    def serial_time(self) -> float:
        """Seconds the tasks took on the engines, summed, whether they had a processor or waited for one. With more
        engines than cores this is more than one process would take; see `cpu_time`. Raises `TimeoutError` before they
        are resolved."""
        self._require_ready()
        return sum(completed - started for started, completed, _, _ in map(self.times, range(self.n_parts))) / 1e9

    @property
    def wall_time(self) -> float:
        """Seconds from submission to the last reply. Raises `TimeoutError` before all are resolved."""
        self._require_ready()
        last_ns = max((self.times(part)[2] for part in range(self.n_parts)), default=self.submitted_ns)
        return max(0, last_ns - self.submitted_ns) / 1e9
