"""A dictionary that every process has, and no pickle copies."""

from __future__ import annotations

from typing import Any


class EngineCache(dict[Any, Any]):
    """A dictionary of the process that a task runs in: what one task puts there, later tasks on that engine find.

    Wherever a function refers to it, it means the dictionary of the engine; its contents are never sent. All clients
    share it, like the engine's variables, and `view.clear()` empties it.

    Example:
        >>> def predict(x):
        ...     if "model" not in ipp.engine_cache:
        ...         ipp.engine_cache["model"] = {"weight": 2}
        ...     return ipp.engine_cache["model"]["weight"] * x
        >>> rc.load_balanced_view().map_sync(predict, range(4))
        [0, 2, 4, 6]
    """

    def __reduce__(self) -> str:
        return "engine_cache"


engine_cache: EngineCache = EngineCache()
"""This process's own."""
