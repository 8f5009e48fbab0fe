"""What packages add to those below them, which do not import them: `offer` says where it is, `extension` imports it.

The root of the package offers everything when it is imported, which is before any other module. Some of it is for
programs that were written for IPython Parallel: `broadleaf.compat` is loaded when one asks for a name or a path of it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# What is added -> module and attribute.
_offered: dict[str, str] = {}


def offer(places: Mapping[str, str]) -> None:
    """Says where each extension is, as ``module:attribute``."""
    _offered.update(places)


def extension(name: str) -> Any:
    """The extension `name`, whose module is imported at the first call."""
    module, _, attribute = _offered[name].partition(":")
    return getattr(import_module(module), attribute)


class OldPaths:
    """Finds module paths of IPython Parallel, once every other finder has been asked."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of a path below `broadleaf`, or None."""
        if not name.startswith("broadleaf."):
            return None
        spec: ModuleSpec | None = extension("old path")(name)
        return spec


def old_attribute(package: str, name: str) -> Any:
    """The attribute `name` of IPython Parallel's package. Raises `AttributeError`."""
    directories = sys.modules[package].__path__
    # An import asks for an attribute first, and only then looks for a module.
    is_module = any(os.path.exists(f"{directory}/{name}{end}") for directory in directories for end in ("", ".py"))
    if is_module or (name.startswith("_") and name != "_version"):
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return extension("old name")(package, name)
