"""Modules that somebody else imports: what to do once that has happened, and whether it has."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


def after_import(name: str, action: Callable[[ModuleType], None]) -> None:
    """Calls `action` with the module `name`: at once, or when it has been imported."""
    module = sys.modules.get(name)
    if module is not None:
        action(module)
    else:
        sys.meta_path.insert(0, _Finder(name, action))


def imported(name: str, attribute: str) -> Any:
    """The module `name`, if it has been imported as far as this attribute: another thread may be importing it."""
    module = sys.modules.get(name)
    return module if hasattr(module, attribute) else None


def is_awaited(name: str) -> bool:
    """Whether something is to be done once that module has been imported."""
    return any(isinstance(finder, _Finder) and finder.name == name for finder in sys.meta_path)


class _Finder:
    """Finds nothing itself."""

    def __init__(self, name: str, action: Callable[[ModuleType], None]) -> None:
        self.name = name
        self._action = action

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """The spec that the other finders give, for that one module."""
        if name != self.name:
            return None
        from importlib.util import find_spec

        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_act(module: ModuleType) -> None:
                execute(module)
                self._action(module)

            spec.loader.exec_module = execute_and_act  # type: ignore[method-assign]
        return spec
