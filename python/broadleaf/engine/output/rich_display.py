"""IPython's `display` on an engine: its arguments go to the task's client, as from a notebook's kernel. Engines are not
IPython shells, so its functions are replaced where they are defined, when somebody imports them. Nothing here imports
IPython before `display` is called.
"""

from __future__ import annotations

import builtins
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from broadleaf.engine.output import display as shown
from broadleaf.engine.output import publish

_DEFINED_IN = "IPython.core.display_functions"
# Modules that hold them by name if they were imported earlier.
_HOLDERS = (_DEFINED_IN, "IPython.display")


def install() -> None:
    """Makes `display` a builtin, and IPython's own functions send what they show."""
    builtins.display = display  # type: ignore[attr-defined]
    for name in _HOLDERS:
        if name in sys.modules:
            _replace(sys.modules[name])
    if _DEFINED_IN not in sys.modules:
        sys.meta_path.insert(0, _ReplacingFinder())


def _replace(module: ModuleType) -> None:
    module.__dict__.update(display=display, publish_display_data=publish_display_data)


class _ReplacingFinder:
    """Finds the module of IPython's functions once, and replaces them as it is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _DEFINED_IN:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        loader: Any = spec.loader if spec is not None else None
        if loader is not None:
            execute = loader.exec_module

            def execute_and_replace(module: ModuleType) -> None:
                execute(module)
                _replace(module)

            loader.exec_module = execute_and_replace
        return spec


def display(
    *objects: Any,
    include: Any = None,
    exclude: Any = None,
    metadata: dict[str, Any] | None = None,
    transient: dict[str, Any] | None = None,
    display_id: str | bool | None = None,
    raw: bool = False,
    clear: bool = False,
    update: bool = False,
    **_: Any,
) -> Any:
    """Shows objects on the task's client; arguments as those of `IPython.display.display`.

    Returns a `DisplayHandle` if there is a `display_id`. Outside a task their plain text goes to the log.
    """
    if display_id is True:
        display_id = os.urandom(16).hex()
    if display_id:
        transient = {**(transient or {}), "display_id": display_id}
    for value in objects:
        bundle: shown.Bundle = (
            {"data": value, "metadata": {}} if raw else shown.rich_representations(value, include, exclude)
        )
        # An object that shows itself has no representations.
        if bundle["data"]:
            merged = {**bundle["metadata"], **(metadata or {})}
            publish_display_data(bundle["data"], merged, transient=transient, update=update)
    if not display_id:
        return None
    from IPython.core.display_functions import DisplayHandle  # pyright: ignore[reportMissingImports]

    return DisplayHandle(display_id)


def publish_display_data(
    data: dict[str, Any],
    metadata: dict[str, Any] | None = None,
    source: Any = None,
    *,
    transient: dict[str, Any] | None = None,
    update: bool = False,
    **_: Any,
) -> None:
    """Shows a MIME bundle on the task's client."""
    if not publish.in_task():
        print(data.get("text/plain", ""))
        return
    message: dict[str, Any] = {"type": "display", "data": data, "metadata": metadata or {}}
    if transient:
        message["transient"] = transient
    if update:
        message["update"] = True
    publish.send(message)
