"""Generators of random numbers among what is sent: those of the process stay where they are."""

from __future__ import annotations

import sys
from typing import Any

# Where the functions `random.random`, `numpy.random.normal` and so on have their generator.
_PROCESS_GENERATORS = (("random", "_inst"), ("numpy.random.mtrand", "_rand"))


def reduce_generator(obj: Any) -> Any:
    """How to pickle a generator of the process: every process has its own of that name. None for anything else."""
    for module, name in _PROCESS_GENERATORS:
        if obj is getattr(sys.modules.get(module), name, None):
            return _of_process, (module, name)
    return None


def _of_process(module: str, name: str) -> Any:
    from importlib import import_module

    return getattr(import_module(module), name)


def kind_of_generator(obj: Any) -> str | None:
    """The name of the type that an object has as a generator of random numbers; None if it is none."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        if isinstance(obj, numpy_random.Generator):
            return "Generator"
        if isinstance(obj, numpy_random.RandomState | numpy_random.BitGenerator):
            return "RandomState"
    random = sys.modules.get("random")
    if random is not None and isinstance(obj, random.Random) and not isinstance(obj, random.SystemRandom):
        return "Random"
    return None
