"""What a function carries besides its code, to say which part cannot be sent, and why."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

from broadleaf.errors import SerializationError
from broadleaf.text import warn_once

Function = Callable[..., Any]

_LARGE_BYTES = 16 << 20
_MIB = 1 << 20
# What gives each item of a map random numbers of its own, by the kind of generator.
_REMEDIES = {
    "Generator": "view.map(f, items, rng.spawn(len(items)))",
    "RandomState": "view.map(f, items, numpy.random.default_rng(seed).spawn(len(items)))",
    "Random": "view.map(f, items, [random.Random(f'{seed} {i}') for i in range(len(items))])",
}


def captured_values(function: Function) -> list[tuple[str, Any]]:
    """The values that `function` refers to, each with its role in the function."""
    if isinstance(function, FunctionType):
        return _of_plain_function(function)
    if isinstance(function, functools.partial):
        arguments: list[tuple[str, Any]] = [
            (f"argument {i + 1} of the partial", a) for i, a in enumerate(function.args)
        ]
        arguments += [(f"argument {name!r} of the partial", value) for name, value in function.keywords.items()]
        return [*arguments, *captured_values(function.func)]
    owner = getattr(function, "__self__", None)
    if owner is not None:
        what = "the object it is a method of"
        return [*_attributes(what, owner), (what, owner)]
    return _attributes("it", function)


def _of_plain_function(function: FunctionType) -> list[tuple[str, Any]]:
    from broadleaf.serialize.functions.by_value import global_names

    values: list[tuple[str, Any]] = []
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            values.append((f"its variable {name!r}", cell.cell_contents))
        except ValueError:  # not assigned yet
            continue
    code, defaults = function.__code__, function.__defaults__ or ()
    with_default = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    named = [*zip(with_default, defaults, strict=True), *(function.__kwdefaults__ or {}).items()]
    values += [(f"the default of {name!r}", value) for name, value in named]
    known = function.__globals__
    values += [(f"the global {name!r} it refers to", known[name]) for name in global_names(code) if name in known]
    return values


def _attributes(of: str, owner: Any) -> list[tuple[str, Any]]:
    return [(f"attribute {name!r} of {of}", value) for name, value in getattr(owner, "__dict__", {}).items()]


def reason_of_failure(function: Function, error: Exception) -> str:
    """Which value that `function` refers to cannot be pickled, and why."""
    from broadleaf.serialize.advice import advice_on
    from broadleaf.serialize.pickle import reason_in, unpicklable_reason

    reason = reason_in(error)
    for what, value in captured_values(function):
        why = None if value is function else unpicklable_reason(value)
        if why is not None:
            reason = f"{what} cannot be pickled: {why}"
            break
    while isinstance(function, functools.partial):
        function = function.func
    advice = advice_on(function)
    return reason if advice in reason else reason + advice


def warn_of_large(function: Function, name: str, n_bytes: int) -> None:
    """Warns, once for a function, that each task of a map unpacks all that it holds."""
    sizes = [(pickled_bytes(value), what) for what, value in captured_values(function) if value is not function]
    value_bytes, what = max(sizes, default=(0, ""))
    whole = "what it holds" if 2 * value_bytes < n_bytes else what
    message = (
        f"Each task of this map unpacks {n_bytes / 1e6:.1f} MB for the function {name!r}: {whole}. Push it to the "
        "engines once, client[:].push({'name': value}), and use it by that name; or make it there, in ipp.engine_cache"
    )
    warn_once(message, UserWarning, (name, whole))


def function_too_large(function: Function, name: str, n_bytes: int, limit_bytes: int) -> SerializationError:
    """The exception for a function that carries more than can be sent from this host."""
    sizes = [(pickled_bytes(value), what) for what, value in captured_values(function) if value is not function]
    value_bytes, what = max(sizes, default=(0, ""))
    if 2 * value_bytes < n_bytes:
        what, value_bytes = "all it refers to", n_bytes
    return SerializationError(
        f"the function {name!r}",
        f"{what} is {in_mib(value_bytes)}; from another host a function takes {in_mib(limit_bytes)} along at most. "
        "Push it to the engines, or pass it as an argument",
    )


def call_too_large(
    function: Function,
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    n_bytes: int,
    limit_bytes: int,
    why: str,
) -> SerializationError:
    """The exception for a call that does not fit into a message, which it must because of `why`."""
    named = [*((f"argument {i + 1}", value) for i, value in enumerate(args)), *_named(kwargs)]
    sizes = [(pickled_bytes(value), what, value) for what, value in named]
    value_bytes, what, value = max(sizes, key=lambda entry: entry[0], default=(0, "", None))
    if 2 * value_bytes <= n_bytes and value_bytes < limit_bytes:
        if 2 * sum(size for size, *_ in sizes) < n_bytes:
            return function_too_large(function, name, n_bytes, limit_bytes)
        what, value_bytes, value = f"all arguments of {name!r} together", n_bytes, None
    kind = "" if value is None else f" ({type(value).__name__})"
    return too_large(f"{what}{kind}", value_bytes, limit_bytes, why)


def too_large(what: str, n_bytes: int, limit_bytes: int, why: str) -> SerializationError:
    """The exception for a value that does not fit into a message, which it must because of `why`."""
    return SerializationError(
        what,
        f"{in_mib(n_bytes)} are more than fits into one message, {in_mib(limit_bytes)}, and {why}. Send it in parts, "
        "or pass it in a file",
    )


def _named(kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(f"argument {name!r}", value) for name, value in kwargs.items()]


def pickled_bytes(value: Any) -> int:
    """The size of `value` when it is sent; 0 if it cannot be. Approximate if it is large."""
    from broadleaf.serialize.pickle import dumps

    large_bytes = _large_bytes(value)
    if large_bytes:
        return large_bytes
    try:
        data, buffers = dumps(value)
    except Exception:
        return 0
    return len(data) + sum(memoryview(buffer).nbytes for buffer in buffers)


def _large_bytes(value: Any) -> int:
    """Bytes and text in `value` that are too large to pickle just to count them."""
    items: Any = [value]
    if type(value) in (list, tuple):
        items = value
    elif type(value) is dict:
        items = value.values()
    large = {
        id(item): len(item) for item in items if type(item) in (bytes, bytearray, str) and len(item) >= _LARGE_BYTES
    }
    return sum(large.values())


def in_mib(n_bytes: int) -> str:
    """A size in readable units."""
    return f"{n_bytes / _MIB:,.0f} MiB"


def warn_of_generators(function: Any, name: str, generators: list[Any]) -> None:
    """Warns, once for each, that engines get copies of the generators that a function takes along."""
    from broadleaf.serialize.functions.random_numbers import kind_of_generator

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
