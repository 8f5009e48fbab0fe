"""joblib's backend under the names that IPython Parallel gives it."""

from __future__ import annotations

from broadleaf.interop.joblib import BroadleafBackend as IPythonParallelBackend
from broadleaf.interop.joblib import register_joblib_backend

__all__ = ["IPythonParallelBackend", "register"]


def register(name: str = "ipyparallel", make_default: bool = False) -> None:
    """Registers the backend as `name`; "broadleaf" and "ipyparallel" are registered anyway."""
    register_joblib_backend(name, make_default)
