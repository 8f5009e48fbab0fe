"""`ipyparallel.error`: the exceptions, with IPython Parallel's names for their base classes."""

from __future__ import annotations

from typing import Any

from broadleaf import errors

_BASES = ("IPythonError", "KernelError")

__all__ = [*errors.__all__, *_BASES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    return errors.BroadleafError if name in _BASES else getattr(errors, name)


def __dir__() -> list[str]:
    return __all__
