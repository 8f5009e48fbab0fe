"""Ctrl-C in the middle of a call: what the call has begun ends with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

from broadleaf.errors import hides_frames

if TYPE_CHECKING:
    from broadleaf.client.client import Client

__tracebackhide__ = hides_frames


class OfClient(Protocol):
    """What submits tasks of a client, such as a view."""

    @property
    def client(self) -> Client:
        """The client."""


Owner = TypeVar("Owner", bound=OfClient)
Given = ParamSpec("Given")
Returned = TypeVar("Returned")


def ends_with_ctrl_c(
    method: Callable[Concatenate[Owner, Given], Returned],
) -> Callable[Concatenate[Owner, Given], Returned]:
    """Decorator of a method that makes one request: Ctrl-C before it returns aborts the request's tasks.

    Calls of single tasks, where microseconds count, do so themselves.
    """

    @wraps(method)
    def call(self: Owner, /, *args: Given.args, **kwargs: Given.kwargs) -> Returned:
        client = self.client
        client.link.start_call()
        try:
            return method(self, *args, **kwargs)
        except KeyboardInterrupt:
            client.abort_begun()
            raise

    return call
