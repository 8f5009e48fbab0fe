"""Loading pickles that name what this process has loaded under a name that it could not import."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Iterable
from typing import Any


class _LoadedNames(pickle.Unpickler):
    """Takes what a loaded module has without importing the packages that its name mentions.

    A module that was loaded from a path, as `plugins.weather`, may have none here.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Called for each name once."""
        try:
            return super().find_class(module, name)
        except ModuleNotFoundError:
            found: Any = sys.modules.get(module)
            if found is None:
                raise
            for part in name.split("."):
                found = getattr(found, part)
            return found


def unpickled(data: Any, buffers: Iterable[Any] = ()) -> Any:
    """Like `pickle.loads`, with the names of modules that are loaded here. Raises whatever unpickling raises."""
    try:
        return pickle.loads(data, buffers=buffers)
    except ModuleNotFoundError as error:
        if error.name is None or not any(name.startswith(f"{error.name}.") for name in list(sys.modules)):
            raise
        return _LoadedNames(io.BytesIO(data), buffers=buffers).load()
