"""Registers Broadleaf's names among joblib's backends, without importing joblib."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from broadleaf.after_import import after_import, is_awaited
from broadleaf.extensions import extension

NAMES = ("broadleaf", "ipyparallel")
"""The second is what programs for IPython Parallel write."""
_BACKENDS_MODULE = "joblib.parallel"


def offer_backends() -> None:
    """Makes `Parallel(backend="broadleaf")` work without registering: at once, or when joblib is imported.

    joblib has no entry points. A name that is already registered is left alone.
    """
    if not is_awaited(_BACKENDS_MODULE):
        after_import(_BACKENDS_MODULE, _add_names)


def _add_names(module: ModuleType) -> None:
    for name in NAMES:
        module.BACKENDS.setdefault(name, _backend)


def _backend(**kwargs: Any) -> Any:
    return extension("backend of joblib")(**kwargs)
