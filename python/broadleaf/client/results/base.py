"""What every result is made of: its parts, waiting for them, being a future, and times."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from datetime import datetime
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import ref

from broadleaf import _native
from broadleaf.client.display.reprs import PublicNames
from broadleaf.client.failures import STATUS_CANCELLED
from broadleaf.client.protocols import Origin, ResultSide
from broadleaf.errors import CompositeError, RemoteError, TaskAborted, hides_frames

# Waiting in a task for something other than a result, while its engine runs other tasks.


def wait_until(
    link: Any, is_done: Callable[[], bool], wait: Callable[[float | None], Any], timeout: float | None
) -> None:
    """Waits up to `timeout` seconds for an effect of a result: with `wait`, or in a task with `link`."""
    if link.frees_engine():
        link.wait_for(is_done, timeout)
    else:
        wait(timeout)


class ResultsEvent(threading.Event):
    """An event of somebody who waits for results: a task frees its engine in the meantime, and Ctrl-C aborts them."""

    def __init__(self, link: Any, result_type: Any) -> None:
        super().__init__()
        self._link = link
        self._result_type = result_type
        # Bare references: Ctrl-C in a callback of theirs, which a WeakSet has, would be swallowed.
        self._results: list[ref[Any]] = []

    def add(self, result: Any) -> None:
        """The waiter waits for this result, too."""
        self._results.append(ref(result))

    def wait(self, timeout: float | None = None) -> bool:
        """See `threading.Event.wait`."""
        try:
            wait_until(self._link, self.is_set, super().wait, timeout)
        except KeyboardInterrupt:
            living = [result for each in self._results if (result := each()) is not None]
            self._result_type.abort_all(living)
            raise
        return self.is_set()


class Waiters(list[Any]):
    """The waiters of a result, as `concurrent.futures.wait` and `as_completed` put themselves there."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._result = ref(result)

    def append(self, waiter: Any) -> None:
        """Adds a waiter."""
        result = self._result()
        if result is not None:
            if not isinstance(waiter.event, ResultsEvent):
                waiter.event = ResultsEvent(result.origin.client.link, type(result))
            waiter.event.add(result)
        super().append(waiter)


# The lock of a future whose state somebody reads while it may change; see `WatchedState`.


_READERS = Future.__init__.__code__.co_filename
"""The standard library's module that acquires it."""


class WatchedState:
    """What `concurrent.futures` acquires and releases around a look at a future's state: the future's `_condition`.

    It blocks nobody. The change of the state waits until nobody looks, and is then made by the last who did.
    `concurrent.futures.wait` acquires one for each future before it waits, and Ctrl-C in the middle leaves those
    acquired for ever: a lock would then block the thread that reads results.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._lookers: set[int] = set()
        self._change: Callable[[], None] | None = None
        self._then: Callable[[], None] | None = None

    def acquire(self) -> bool:
        """This thread looks at the state, which does not change until `release`."""
        with self._lock:
            self._lookers.add(threading.get_ident())
        return True

    def release(self) -> None:
        """This thread does not look any more."""
        with self._lock:
            self._lookers.discard(threading.get_ident())
        self._change_if_unwatched()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def change(self, change: Callable[[], None], then: Callable[[], None]) -> None:
        """Calls `change` when nobody looks, and `then` afterwards: at once, unless somebody does."""
        self._change, self._then = change, then
        self._change_if_unwatched()

    def _change_if_unwatched(self) -> None:
        change: Callable[[], None] | None = None
        then: Callable[[], None] | None = None
        try:
            with self._lock:
                self._lookers = {looker for looker in self._lookers if _is_reading(looker)}
                if not self._lookers:
                    change, then = self._change, self._then
                    self._change = self._then = None
                if change is not None:
                    change()
        finally:
            if then is not None:
                then()


def _is_reading(thread: int) -> bool:
    """Whether a thread is in the code that acquires and releases. If Ctrl-C has ended that, it is not."""
    frame: FrameType | None = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_code.co_filename == _READERS:
            return True
        frame = frame.f_back
    return False


# The base of every result: parts that are resolved one by one, and who is told when they are.


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

    def __init__(self, result: ResultSide) -> None:
        self._result = result
        self._callbacks: dict[int, list[Callable[[], object]]] = {}
        self._lock = threading.Lock()
        self._running = False

    @classmethod
    def of(cls, result: ResultSide) -> PartWatcher:
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


# A `concurrent.futures.Future` whose machinery is made when somebody asks for it.
#
# A plain future makes a condition, a lock and two lists when it is created. Hundreds of thousands of results are made
# per second, and few are ever waited for through the futures API. So the fields that the standard library uses are
# made on first use.


__tracebackhide__ = hides_frames

PENDING = "PENDING"
CANCELLED_AND_NOTIFIED = "CANCELLED_AND_NOTIFIED"
FINISHED = "FINISHED"

_creating = threading.Lock()


class _FutureField:
    """Makes all fields of the future in the instance's dict, which then shadows this descriptor."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: LazyFuture | None, owner: type) -> Any:
        if instance is None:
            return self
        instance.make_future_fields()
        return instance.__dict__[self._name]


class LazyFuture(Parts, Future[Value]):
    """The futures API over `on_done`, `all_done`, `get` and `failed`, which the subclass provides."""

    _condition: Any = _FutureField()
    _state: Any = _FutureField()
    _result: Any = _FutureField()
    _exception: Any = _FutureField()
    _waiters: Any = _FutureField()
    _done_callbacks: Any = _FutureField()
    _cancel_asked = False
    _internal_names = frozenset(("make_future_fields", "set_exception", "set_result", "set_running_or_notify_cancel"))

    def __init__(self) -> None:
        # Future.__init__ would make the fields.
        pass

    def make_future_fields(self) -> None:
        """Makes the fields and keeps them up to date with the result."""
        with _creating:
            fields = self.__dict__
            if "_condition" in fields:
                return
            fields.update(_state=PENDING, _result=None, _exception=None, _done_callbacks=[])
            fields["_waiters"] = Waiters(self)
            fields["_condition"] = WatchedState()
        with self.origin.client.link_errors():
            self.on_done(self._finish_future)

    def _finish_future(self) -> None:
        cancelled = self.cancelled()
        failed = not cancelled and self.failed()

        def finish() -> None:
            self._state = CANCELLED_AND_NOTIFIED if cancelled else FINISHED
            for waiter in self._waiters:
                if cancelled:
                    waiter.add_cancelled(self)
                elif failed:
                    waiter.add_exception(self)
                else:
                    waiter.add_result(self)

        self._condition.change(finish, self._invoke_callbacks)  # type: ignore[attr-defined]

    # What the subclass provides -----------------------------------------------------------------

    def _has_started(self) -> bool:
        """Whether a task of an unresolved result has started."""
        raise NotImplementedError

    def _abort_unfinished(self, by: str) -> None:
        """Asks the controller to abort the tasks that are not done."""
        raise NotImplementedError

    def failed(self) -> bool:
        """Whether a resolved result has a part that did not return."""
        raise NotImplementedError

    def get(self, timeout: float | None = None) -> Value:
        """The value, or raises."""
        raise NotImplementedError

    # The futures API ----------------------------------------------------------------------------

    def done(self) -> bool:
        """Whether all tasks are done, like `ready`.

        Returns:
            True if they are, however they ended.
        """
        return self.all_done()

    def running(self) -> bool:
        """Whether a task has started and not all are done. Asks the controller, unless all are done.

        Returns:
            True if so.

        Raises:
            LinkLost: The connection is closed or was lost.
        """
        return not self.all_done() and self._has_started() and not self.all_done()

    def cancelled(self) -> bool:
        """Whether `cancel` returned True, or all tasks were aborted in another way.

        Returns:
            True if so.
        """
        if not self.all_done():
            return False
        are_cancelled = (self.part_status(part) == STATUS_CANCELLED for part in range(self.n_parts))
        return self.n_parts > 0 and (any if self._cancel_asked else all)(are_cancelled)

    def cancel(self) -> bool:
        """Aborts the tasks that are not done, whether they are queued or running.

        Once it has returned True, `cancelled()` is True and `result()` raises `CancelledError`, whatever happens to the
        tasks. Running tasks are interrupted. If a task does not react, its engine is killed after `interrupt_grace_s`
        (the option). `client.wait()` waits until the tasks have ended. Asks the controller, which takes one round trip.

        Returns:
            True, or False if all tasks were done.

        Raises:
            LinkLost: The connection is closed or was lost.
        """
        if not self.all_done():
            # Set before anything ends, because callbacks ask whether it was cancelled.
            self._cancel_asked = True
            self._abort_unfinished("cancel()")
            self.abandon(range(self.n_parts))
        # All tasks may have ended by themselves.
        return self.cancelled()

    def result(self, timeout: float | None = None) -> Value:
        """The value, as `get` returns it.

        Args:
            timeout: Seconds to wait; None or a negative number means forever.

        Returns:
            The value of a single task, or the list of values of several.

        Raises:
            TimeoutError: The tasks are not done after `timeout` seconds.
            CancelledError: The tasks were aborted. It is a `TaskAborted`.
            RemoteError: The task did not return. With several tasks, a `CompositeError`.
        """
        try:
            return self.get(timeout)
        except CompositeError as error:
            if self.cancelled():
                raise TaskAborted("the tasks were aborted") from error
            raise

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The exception that `result` would raise.

        Args:
            timeout: Seconds to wait; None or a negative number means forever.

        Returns:
            The exception, or None if all tasks returned. It is the same object each time.

        Raises:
            TimeoutError: The tasks are not done after `timeout` seconds.
            CancelledError: The tasks were aborted.
        """
        try:
            self.result(timeout)
        except TimeoutError as error:
            if not self.all_done():
                raise
            # Done in the meantime, or raised by the task.
            return self._known_exception(error) if timeout is None else self.exception()
        except CancelledError:
            raise
        except Exception as error:
            return self._known_exception(error)
        return None

    def _known_exception(self, error: BaseException) -> BaseException:
        # Its frames would hold the result, which holds it.
        known: BaseException = self.__dict__.setdefault("_raised", BaseException.with_traceback(error, None))
        return known

    def set_result(self, result: Any) -> None:
        """Not allowed: the value comes from the engines."""
        raise TypeError("a task's result comes from its engine and cannot be set")

    def set_exception(self, exception: BaseException | None) -> None:
        """Not allowed: the exception comes from the engines."""
        raise TypeError("a task's exception comes from its engine and cannot be set")

    def __await__(self) -> Any:
        import asyncio

        try:
            return (yield from asyncio.wrap_future(self))
        except RemoteError as error:
            raised = error.as_original()
        raise raised


# How long the tasks of a result took.


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
        """Sum of the processor seconds that the tasks took on the engines, in all threads, but without child processes
        and without tasks that the engine ran while a task waited. A task of less than a millisecond counts with its
        duration. Raises `TimeoutError` before the tasks are resolved."""
        self._require_ready()
        return sum(map(self.cpu_ns, range(self.n_parts))) / 1e9

    @property
    def serial_time(self) -> float:
        """Sum of the seconds that the tasks took on the engines, including the time they spent waiting for a processor.
        With more engines than cores, this is more than one process would take; see `cpu_time`. Raises `TimeoutError`
        before the tasks are resolved."""
        self._require_ready()
        return sum(completed - started for started, completed, _, _ in map(self.times, range(self.n_parts))) / 1e9

    @property
    def wall_time(self) -> float:
        """Seconds from submission to the last reply. Raises `TimeoutError` before all are resolved."""
        self._require_ready()
        last_ns = max((self.times(part)[2] for part in range(self.n_parts)), default=self.submitted_ns)
        return max(0, last_ns - self.submitted_ns) / 1e9
