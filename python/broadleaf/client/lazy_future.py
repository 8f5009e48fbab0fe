"""A `concurrent.futures.Future` whose machinery is made when somebody asks for it.

A plain future makes a condition, a lock and two lists at birth. Results are made by the hundred thousand a second and
few are ever waited for through the futures API, so here the fields that the standard library reaches into appear at
first use.
"""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, Future
from typing import Any

from broadleaf.client.parts import Parts

PENDING = "PENDING"
CANCELLED_AND_NOTIFIED = "CANCELLED_AND_NOTIFIED"
FINISHED = "FINISHED"

_creating = threading.Lock()


class _FutureField:
    """Makes all fields of the future in the instance's dict, which then hides this descriptor."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: LazyFuture | None, owner: type) -> Any:
        if instance is None:
            return self
        instance.make_future_fields()
        return instance.__dict__[self._name]


class LazyFuture(Parts, Future[Any]):
    """The futures API over `on_done`, `all_done`, `get` and `failed`, which the subclass provides."""

    _condition: Any = _FutureField()
    _state: Any = _FutureField()
    _result: Any = _FutureField()
    _exception: Any = _FutureField()
    _waiters: Any = _FutureField()
    _done_callbacks: Any = _FutureField()

    def __init__(self) -> None:
        # Future.__init__ would make the fields.
        pass

    def make_future_fields(self) -> None:
        """Makes the fields and has them follow the result."""
        with _creating:
            fields = self.__dict__
            if "_condition" in fields:
                return
            fields.update(_state=PENDING, _result=None, _exception=None, _waiters=[], _done_callbacks=[])
            fields["_condition"] = threading.Condition()
        self.on_done(self._finish_future)

    def _finish_future(self) -> None:
        cancelled = self.cancelled()
        failed = not cancelled and self.failed()
        with self._condition:
            self._state = CANCELLED_AND_NOTIFIED if cancelled else FINISHED
            for waiter in self._waiters:
                if cancelled:
                    waiter.add_cancelled(self)
                elif failed:
                    waiter.add_exception(self)
                else:
                    waiter.add_result(self)
            self._condition.notify_all()
        self._invoke_callbacks()  # type: ignore[attr-defined]

    # What the subclass provides -----------------------------------------------------------------

    def failed(self) -> bool:
        """Whether a resolved result has a part that did not return."""
        raise NotImplementedError

    def get(self, timeout: float | None = None, return_exceptions: bool | None = None) -> Any:
        """The value, or raises."""
        raise NotImplementedError

    # The futures API ----------------------------------------------------------------------------

    def done(self) -> bool:
        """Whether everything is resolved."""
        return self.all_done()

    def running(self) -> bool:
        """False: whether a task has started is known only once it has ended."""
        return False

    def result(self, timeout: float | None = None) -> Any:
        """The value; raises `TimeoutError` when it is not there in `timeout` seconds."""
        return self.get(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The exception `result` would raise, or None. Raises `TimeoutError` and `CancelledError`."""
        try:
            self.get(timeout)
        except TimeoutError:
            if not self.all_done():
                raise
            return self.exception()  # done since then
        except CancelledError:
            raise
        except Exception as error:
            return error
        return None

    def set_result(self, result: Any) -> None:
        """Not allowed: the value comes from the engines."""
        raise TypeError("a task's result comes from its engine and cannot be set")

    def set_exception(self, exception: BaseException | None) -> None:
        """Not allowed: the exception comes from the engines."""
        raise TypeError("a task's exception comes from its engine and cannot be set")

    def __await__(self) -> Any:
        import asyncio

        return asyncio.wrap_future(self).__await__()
