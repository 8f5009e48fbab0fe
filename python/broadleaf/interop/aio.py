"""Several results under asyncio. A single result can be awaited, `await ar`, and iterated over with `async for`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

from broadleaf.client.results.async_result import ALL_COMPLETED, AsyncResult

Done = set[AsyncResult]


async def wait(
    results: Iterable[AsyncResult], *, timeout: float | None = None, return_when: str = ALL_COMPLETED
) -> tuple[Done, Done]:
    """Two sets of results, those done and those pending, as `asyncio.wait` returns for its futures.

    If the asyncio task is cancelled while it waits, as Ctrl-C does, the results are aborted.
    """
    by_future = {asyncio.wrap_future(result): result for result in results}
    try:
        done, pending = await asyncio.wait(by_future, timeout=timeout, return_when=return_when)
    except asyncio.CancelledError:
        AsyncResult.abort_all(by_future.values())
        for future in by_future:
            future.cancel()
        raise
    for future in done:
        # Marks the exception as seen: the caller gets it from the result.
        if not future.cancelled():
            future.exception()
    return {by_future[f] for f in done}, {by_future[f] for f in pending}


async def as_completed(results: Iterable[AsyncResult]) -> AsyncIterator[AsyncResult]:
    """The results in the order in which they are done.

    If the asyncio task is cancelled while it waits, as Ctrl-C does, the others are aborted.
    """
    queue: asyncio.Queue[AsyncResult] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    waiting = list(results)
    for result in waiting:
        result.add_done_callback(lambda done: loop.call_soon_threadsafe(queue.put_nowait, done))  # type: ignore[arg-type]
    for _ in waiting:
        try:
            result = await queue.get()
        except asyncio.CancelledError:
            AsyncResult.abort_all(waiting)
            raise
        yield result
