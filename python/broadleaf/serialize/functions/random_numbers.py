"""Generators of random numbers among what is sent: those of the process stay where they are, and copies are noticed."""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any

from broadleaf.serialize.functions.captured import captured_values
from broadleaf.text.warn import warn_once

# Where the functions `random.random`, `numpy.random.normal` and so on have their generator.
_PROCESS_GENERATORS = (("random", "_inst"), ("numpy.random.mtrand", "_rand"))
_REMEDIES = {
    "Generator": "view.map(f, items, rng.spawn(len(items)))",
    "RandomState": "view.map(f, items, numpy.random.default_rng(seed).spawn(len(items)))",
    "Random": "view.map(f, items, [random.Random(f'{seed} {i}') for i in range(len(items))])",
}


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


def warn_of_generators(function: Any, name: str, generators: list[Any]) -> None:
    """Warns, once for each, that engines get copies of the generators that a function takes along."""
    # What they draw their bits from.
    within = [getattr(one, "bit_generator", None) or getattr(one, "_bit_generator", None) for one in generators]
    for generator in generators:
        if any(generator is inner for inner in within):
            continue
        where = _place(function, generator, depth=3) or "within what it refers to"
        kind = kind_of_generator(generator) or ""
        warn_once(
            f"The function {name!r} takes a random generator along ({where}). Each engine draws the same numbers from "
            f"its copy. Give each item a generator of its own: {_REMEDIES[kind]}",
            UserWarning,
            ("random", name, where),
        )


def _place(function: Any, wanted: Any, depth: int) -> str | None:
    for what, value in captured_values(function):
        if value is wanted:
            return what
        if depth and isinstance(value, FunctionType) and value is not function:
            place = _place(value, wanted, depth - 1)
            if place is not None:
                return f"{place}, in {what}"
    return None
