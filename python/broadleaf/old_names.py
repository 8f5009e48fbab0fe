"""Finds names that IPython Parallel has and Broadleaf lacks. Only then is `broadleaf.compat` loaded."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class OldPaths:
    """Finds module paths of IPython Parallel, once every other finder has been asked."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of a path below `broadleaf`, or None."""
        if not name.startswith("broadleaf."):
            return None
        from broadleaf.compat.paths import find_spec

        return find_spec(name)


def find_attribute(package: str, name: str) -> Any:
    """The attribute `name` of IPython Parallel's package. Raises `AttributeError`."""
    directories = sys.modules[package].__path__
    # An import asks for an attribute first, and only then looks for a module.
    is_module = any(os.path.exists(f"{directory}/{name}{end}") for directory in directories for end in ("", ".py"))
    if is_module or (name.startswith("_") and name != "_version"):
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    from broadleaf.compat.paths import find_attribute as find

    return find(package, name)
