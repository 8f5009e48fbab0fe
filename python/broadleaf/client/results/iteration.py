"""`async for` over results: nothing here blocks the event loop while it waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from broadleaf.client.results.base import PartWatcher
from broadleaf.errors import ClusterConnectionError

if TYPE_CHECKING:
    from broadleaf.client.protocols import ResultSide


class Wake:
    """An event that any thread can set for a coroutine of the running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def set(self) -> None:
        """Wakes the waiting coroutine, or the next one that waits."""
        with suppress(RuntimeError):  # The loop is closed, and nobody waits.
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> None:
        """Waits until `set` has been called since the last wait."""
        await self._event.wait()
        self._event.clear()


async def resolved(result: ResultSide) -> None:
    """Waits until `result` is resolved."""
    wake = Wake()
    with result.origin.client.link_errors():
        result.on_done(wake.set)
    while not result.all_done():
        await wake.wait()


async def iterate(result: ResultSide, ordered: bool) -> AsyncIterator[Any]:
    """The values of `result` in the order of its parts, or as they arrive. If an asyncio task is cancelled while it
    waits here, the unfinished parts are aborted, as with Ctrl-C in plain code.
    """
    try:
        async for part in _resolved_parts(result, ordered):
            for value in result._values_in(part):
                yield value
    except asyncio.CancelledError:
        with suppress(ClusterConnectionError):
            result.abort_interrupted()
        raise


async def _resolved_parts(result: ResultSide, ordered: bool) -> AsyncIterator[int]:
    wake = Wake()
    watched = -1
    parts = result.parts()
    for rank in range(result.n_parts):
        # With order, only the next part is watched; otherwise all of them, once.
        while not (result.part_done(rank) if ordered else result.n_done() > rank):
            for part in range(rank, rank + 1) if ordered else range(result.n_parts):
                if part > watched:
                    watched = part
                    owner, number = parts[part]
                    PartWatcher.of(owner).on_part_done(number, wake.set)
            await wake.wait()
        yield rank if ordered else result.completed_part(rank)
