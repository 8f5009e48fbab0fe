"""The ways on which a function gets to an engine, and functions as a script defines them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import joblib
from broadleaf import Client

Route = Callable[[Client, Callable[[Any], Any], Any], Any]


def script(source: str, **names: Any) -> dict[str, Any]:
    """The globals of a script with this source."""
    names["__name__"] = "__main__"
    exec(source, names)
    return names


def _by_joblib(rc: Client, function: Callable[[Any], Any], argument: Any) -> Any:
    rc.load_balanced_view().register_joblib_backend("broadleaf-routes")
    return joblib.Parallel(backend="broadleaf-routes")([joblib.delayed(function)(argument)])[0]


async def _awaited(rc: Client, function: Callable[[Any], Any], argument: Any) -> Any:
    return await rc.load_balanced_view().apply_async(function, argument)


def call(function: Callable[[Any], Any], argument: Any) -> Any:
    """Calls a function that was sent as an argument."""
    return function(argument)


ROUTES: dict[str, Route] = {
    "direct apply": lambda rc, f, x: rc[0].apply_sync(f, x),
    "direct map": lambda rc, f, x: rc[0].map_sync(f, [x])[0],
    "balanced apply": lambda rc, f, x: rc.load_balanced_view(0).apply_sync(f, x),
    "balanced map": lambda rc, f, x: rc.load_balanced_view(0).map_sync(f, [x])[0],
    "imap": lambda rc, f, x: next(iter(rc.load_balanced_view(0).imap(f, [x]))),
    "broadcast": lambda rc, f, x: rc.broadcast_view().apply_sync(f, x)[0],
    "executor": lambda rc, f, x: rc.executor().submit(f, x).result(20),
    "executor map": lambda rc, f, x: next(rc.executor().map(f, [x])),
    "partial": lambda rc, f, x: rc[0].apply_sync(functools.partial(f, x)),
    "argument": lambda rc, f, x: rc[0].apply_sync(call, f, x),
    "joblib": _by_joblib,
    "asyncio": lambda rc, f, x: asyncio.run(_awaited(rc, f, x)),
}
