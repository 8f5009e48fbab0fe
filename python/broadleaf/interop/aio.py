"""Results under asyncio. A single result is awaited as it is: `await ar`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from broadleaf import ALL_COMPLETED, AsyncMapResult, AsyncResult

Done = set[AsyncResult]


async def wait(
    results: Iterable[AsyncResult], *, timeout: float | None = None, return_when: str = ALL_COMPLETED
) -> tuple[Done, Done]:
    """Two sets of results, those done and those pending, as `asyncio.wait` gives of its futures."""
    by_future = {asyncio.wrap_future(result): result for result in results}
    done, pending = await asyncio.wait(by_future, timeout=timeout, return_when=return_when)
    for future in done:
        # Marks the exception as seen: the caller gets it from the result.
        if not future.cancelled():
            future.exception()
    return {by_future[f] for f in done}, {by_future[f] for f in pending}


async def as_completed(results: Iterable[AsyncResult]) -> AsyncIterator[AsyncResult]:
    """The results as they are done."""
    queue: asyncio.Queue[AsyncResult] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    waiting = list(results)
    for result in waiting:
        result.add_done_callback(lambda done: loop.call_soon_threadsafe(queue.put_nowait, done))  # type: ignore[arg-type]
    for _ in waiting:
        yield await queue.get()


async def iterate(result: AsyncResult) -> AsyncIterator[Any]:
    """The values of `result` in order as they arrive, without blocking the loop."""
    for part in result.split():
        value = await asyncio.wrap_future(part)
        if not isinstance(result, AsyncMapResult):
            yield value
            continue
        # A part of a map is a list of one chunk; a map of one chunk is its own part.
        for item in value if part is result else value[0]:
            yield item
