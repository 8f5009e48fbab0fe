"""A `concurrent.futures.Future` whose machinery is made when somebody asks for it.

A plain future makes a condition, a lock and two lists when it is created. Hundreds of thousands of results are made per
second, and few are ever waited for through the futures API. So the fields that the standard library uses are made on
first use.
"""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, Future
from typing import Any

from broadleaf.client.connection.failures import STATUS_CANCELLED
from broadleaf.client.results.parts import Parts, Value
from broadleaf.client.results.watched_state import WatchedState
from broadleaf.client.tasks.nested_waits import Waiters
from broadleaf.errors import CompositeError, RemoteError, TaskAborted, hides_frames

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
        """Whether all tasks are done, as `ready`.

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
        """Aborts the tasks that are not done, queued or running.

        Once it has returned True, `cancelled()` is True and `result()` raises `CancelledError`, whatever becomes of the
        tasks. Those that run are interrupted, and the engine of one that does not react is killed after
        `interrupt_grace_s` (the option). `client.wait()` waits until they have ended. Asks the controller, which takes
        one round trip.

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
            timeout: Seconds to wait; None or a negative number: forever.

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
            timeout: Seconds to wait; None or a negative number: forever.

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
