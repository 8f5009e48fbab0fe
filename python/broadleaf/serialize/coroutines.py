"""Running coroutines from synchronous code, on one event loop that this process keeps for them."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

_runner: Any = None


def run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Runs `coroutine` to its end and returns its value.

    An interrupt cancels it, and lets it clean up before the interrupt is raised here.
    """
    global _runner
    import asyncio

    if _runner is None:
        _runner = asyncio.Runner()
    loop = _runner.get_loop()
    if loop.is_running():
        # The waiting task below awaits something in it.
        with asyncio.Runner() as runner:
            return runner.run(coroutine)
    task = loop.create_task(coroutine)
    try:
        # Waited for from outside, so that a failure's traceback holds no frames of asyncio.
        loop.run_until_complete(asyncio.wait((task,)))
        return task.result()
    except BaseException:
        # Otherwise it would keep running beside whatever is awaited next.
        if task.cancel():
            loop.run_until_complete(asyncio.wait((task,)))
        raise


def close() -> None:
    """Closes the event loop and cancels what is still running on it."""
    global _runner
    runner, _runner = _runner, None
    if runner is not None:
        runner.close()
