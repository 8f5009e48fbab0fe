"""Ctrl-C in the middle of a call: what the call has begun ends with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from broadleaf.errors import hides_frames

__tracebackhide__ = hides_frames

Method = TypeVar("Method", bound=Callable[..., Any])


def ends_with_ctrl_c(method: Method) -> Method:
    """Decorator of a method that makes one request, of an object that has a `client`.

    Ctrl-C before the method returns aborts the request's tasks. Calls of single tasks, where microseconds count, do so
    themselves.
    """

    @wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        client = self.client
        client.link.start_call()
        try:
            return method(self, *args, **kwargs)
        except KeyboardInterrupt:
            client.abort_begun()
            raise

    return cast("Method", call)
