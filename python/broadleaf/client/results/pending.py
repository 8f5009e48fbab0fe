"""The result types that the native side makes: `AsyncResult` and related types on top of `_native.Pending`."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from broadleaf.client.failures import link_lost
from broadleaf.client.results.async_result import AsyncResult
from broadleaf.client.results.execute_reply import AsyncExecuteResult
from broadleaf.client.results.hub import AsyncHubResult
from broadleaf.client.results.maps import AsyncMapResult
from broadleaf.errors import hides_frames

__tracebackhide__ = hides_frames


class ResultTypes(NamedTuple):
    """The types that submitters get as `result_type`."""

    single: type[Any]
    several: type[Any]
    mapped: type[Any]
    executed: type[Any]
    adopted: type[Any]


@functools.cache
def result_types(native: Any) -> ResultTypes:
    """The result types on top of `native.Pending`."""
    pending: Any = native.Pending
    # Native code makes instances without arguments; an empty Python __init__ would cost a frame each.
    no_init: Any = object.__init__
    native_status: Any = pending.status
    native_values: Any = pending.values

    class PendingResult(pending, AsyncResult):  # type: ignore[misc]
        """A submitted request."""

        __init__ = no_init
        part_status = native_status
        _all_values = native_values
        status: Any = AsyncResult.status  # pyright: ignore[reportIncompatibleMethodOverride]

    class SingleResult(PendingResult):
        """A submitted request with one part, whose value is that of the part: a fast path for the common case."""

        def get(
            self, timeout: float | None = None, return_exceptions: bool | None = None, return_when: str | None = None
        ) -> Any:
            """See `AsyncResult.get`."""
            if timeout is not None or return_exceptions or return_when is not None:
                return super().get(timeout, return_exceptions, return_when)
            try:
                return self.get_single(None)
            except KeyboardInterrupt:
                self.abort_interrupted()
                raise
            except native.LinkClosed as error:
                raise link_lost(error) from error
            except Exception as error:
                raised = self._first_of([error])
                error.__traceback__ = None
            raise raised

    class MapResult(pending, AsyncMapResult):  # type: ignore[misc]
        """A submitted map."""

        __init__ = no_init
        part_status = native_status
        status: Any = AsyncResult.status  # pyright: ignore[reportIncompatibleMethodOverride]
        __len__ = AsyncMapResult.__len__

    class ExecuteResult(pending, AsyncExecuteResult):  # type: ignore[misc]
        """A submitted execution."""

        __init__ = no_init
        part_status = native_status
        status: Any = AsyncResult.status  # pyright: ignore[reportIncompatibleMethodOverride]

    class HubResult(pending, AsyncHubResult):  # type: ignore[misc]
        """Results of tasks of any client."""

        __init__ = no_init
        part_status = native_status
        status: Any = AsyncResult.status  # pyright: ignore[reportIncompatibleMethodOverride]

    types = ResultTypes(SingleResult, PendingResult, MapResult, ExecuteResult, HubResult)
    public = (AsyncResult, AsyncResult, AsyncMapResult, AsyncExecuteResult, AsyncHubResult)
    for kind, known_as in zip(types, public, strict=True):
        # What messages and `help` call them.
        kind.__module__, kind.__name__, kind.__qualname__ = known_as.__module__, known_as.__name__, known_as.__name__
    return types
