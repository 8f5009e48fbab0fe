"""Futures of several tasks."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from threading import Lock
from typing import Any


class MessageFuture(Future[Any]):
    """A future of the message with the id `msg_id`."""

    def __init__(self, msg_id: str, header: Any = None, *, track: bool = False) -> None:
        super().__init__()
        self.msg_id = msg_id
        self.header: dict[str, Any] = header or {"msg_type": "unknown"}


def multi_future(children: Sequence[Future[Any]]) -> Future[list[Any]]:
    """A future of the results of all `children`, in their order, or of the first exception among them."""
    whole: Future[list[Any]] = Future()
    unfinished = set(children)
    lock = Lock()

    def on_done(child: Future[Any]) -> None:
        with lock:
            unfinished.discard(child)
            if unfinished or whole.done():
                return
            failures = [failed for each in children if (failed := each.exception()) is not None]
            if failures:
                whole.set_exception(failures[0])
            else:
                whole.set_result([each.result() for each in children])

    if not children:
        whole.set_result([])
    for child in children:
        child.add_done_callback(on_done)
    return whole
