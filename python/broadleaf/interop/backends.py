"""Registers Broadleaf's names among joblib's backends, without importing joblib."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

NAMES = ("broadleaf", "ipyparallel")
"""The second is what programs for IPython Parallel write."""
_BACKENDS_MODULE = "joblib.parallel"


def offer_backends() -> None:
    """Makes `Parallel(backend="broadleaf")` work without registering: at once, or when joblib is imported.

    joblib has no entry points. A name that is already registered is left alone.
    """
    module = sys.modules.get(_BACKENDS_MODULE)
    if module is not None:
        _add_names(module)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _add_names(module: ModuleType) -> None:
    for name in NAMES:
        module.BACKENDS.setdefault(name, _backend)


def _backend(**kwargs: Any) -> Any:
    from broadleaf.interop.joblib import BroadleafBackend

    return BroadleafBackend(**kwargs)


class _Finder:
    """Adds the names once joblib's module has been executed; it finds nothing itself."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """The spec that the other finders give, for that one module."""
        if name != _BACKENDS_MODULE:
            return None
        from importlib.util import find_spec

        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_add(module: ModuleType) -> None:
                execute(module)
                _add_names(module)

            spec.loader.exec_module = execute_and_add  # type: ignore[method-assign]
        return spec
