"""Engine sets: the kinds of places where engines run, one module a place.

A set turns a request for engines into blocks, and a block runs a relay on each of its hosts. `base` has what all sets
share, `batch` what those of batch schedulers do; `slurm`, `sge`, `pbs` and `lsf` build on it. `dask_task` and
`ray_actor` run inside Dask and Ray. Other packages register their sets under `broadleaf.engine_sets`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from broadleaf import config
from broadleaf.cluster.engine_sets.base import Block, BlockRequest, EngineSet
from broadleaf.cluster.engine_sets.options import checked
from broadleaf.errors import ClusterStartError
from broadleaf.extensions import extension

__all__ = [
    "Block",
    "BlockRequest",
    "EngineSet",
    "describe",
    "described",
    "engine_set_names",
    "find_engine_set",
    "make_engine_set",
    "split_options",
]

ENTRY_POINTS = "broadleaf.engine_sets"
_REGISTER = f"install a package that registers its class under the entry points {ENTRY_POINTS!r}"

# Module and class.
_OURS = {
    "dask": ("dask", "OnDask"),
    "local": ("local", "Local"),
    "lsf": ("lsf", "LSF"),
    "mpi": ("mpi", "MPI"),
    "pbs": ("pbs", "PBS"),
    "psij": ("psij", "PSIJ"),
    "ray": ("ray", "OnRay"),
    "sge": ("sge", "SGE"),
    "slurm": ("slurm", "Slurm"),
    "ssh": ("ssh", "SSH"),
}


def find_engine_set(name: str) -> type[EngineSet]:
    """The class registered as `name`. Raises ValueError that lists the existing ones.

    For a name that only IPython Parallel has, the class is a placeholder whose start fails.
    """
    if name in _OURS:  # need not wait for a scan of the installed packages
        from importlib import import_module

        module, of = _OURS[name]
        ours: type[EngineSet] = getattr(import_module(f"{__name__}.{module}"), of)
        return ours
    from importlib.metadata import entry_points

    for entry_point in entry_points(group=ENTRY_POINTS, name=name):
        found: type[EngineSet] = entry_point.load()
        return found
    absent: type[EngineSet] | None = extension("absent engine set")(name)
    if absent is not None:
        return absent
    raise ValueError(f"unknown engine set {name!r}; known: {', '.join(engine_set_names())}. To add one, {_REGISTER}")


def engine_set_names() -> list[str]:
    """Names of all engine sets installed."""
    from importlib.metadata import entry_points

    return sorted({*_OURS, *entry_points(group=ENTRY_POINTS).names})


def make_engine_set(name: str, profile_dir: Path | None = None, given: Mapping[str, Any] | None = None) -> EngineSet:
    """The engine set `name` with the options from its tables in the files `config.toml`, and then those `given`.

    Raises ValueError for a set that does not exist, and `ConfigError` for an option that it does not have or a value
    that does not fit.
    """
    cls = find_engine_set(name)
    layers = [*config.tables(name, profile_dir), ("argument", given or {})]
    values: dict[str, Any] = {}
    for origin, layer in layers:
        for option, value in layer.items():
            values[option] = checked(cls, cls.name, option, value, origin)
    return cls(**values)


# What another process needs to make the same set: a steward, or a command.


_CLASS = "engine_set_class"
# The classes that their names do not find, as they were given or received.
_handed_on: WeakKeyDictionary[type[EngineSet], dict[str, Any]] = WeakKeyDictionary()


def describe(engines: EngineSet) -> dict[str, Any]:
    """What `described` makes the same set from, ready for JSON.

    A class that is not registered, such as one of a script, is handed on as it is.

    Args:
        engines: The set.

    Returns:
        A dict.

    Raises:
        ClusterStartError: Another process cannot make it, and has to.
    """
    options = engines.options()
    state = {"engines": engines.name, "engine_set_options": options}
    if engines.is_adoptable:
        _refuse_what_is_not_json(engines.name, options)
        if not _is_found_by_name(type(engines)):
            state[_CLASS] = _class_handed_on(type(engines))
    return state


def described(state: Mapping[str, Any]) -> EngineSet:
    """The set that `describe` has described.

    Args:
        state: What it returned, among other things.

    Returns:
        The set.

    Raises:
        ValueError: Its class does not exist here.
    """
    given = state.get(_CLASS)
    kind = find_engine_set(state["engines"]) if given is None else _received(state["engines"], given)
    return kind(**state["engine_set_options"])


def _refuse_what_is_not_json(name: str, options: Mapping[str, Any]) -> None:
    import json

    for option, value in options.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            raise ClusterStartError(
                f"option {option}={value!r} of engine set {name!r} cannot be passed on to the process that manages "
                "its jobs: use a string, a number, or a list of these"
            ) from None


def _is_found_by_name(kind: type[EngineSet]) -> bool:
    try:
        return find_engine_set(kind.name) is kind
    except (ValueError, ImportError, AttributeError):  # it is not registered, or something that cannot be loaded is
        return False


def _class_handed_on(kind: type[EngineSet]) -> dict[str, Any]:
    if kind not in _handed_on:
        from base64 import b64encode

        from broadleaf.serialize.by_value import dumps_by_value
        from broadleaf.serialize.search_path import search_path

        try:
            data = dumps_by_value(kind)
        except Exception as error:
            raise ClusterStartError(
                f"engine set {kind.name!r} cannot be passed on to the process that manages its jobs: {error}; put "
                f"{kind.__qualname__} into a module, and {_REGISTER}"
            ) from error
        _handed_on[kind] = {"pickle": b64encode(data).decode(), "search_path": search_path()}
    return _handed_on[kind]


def _received(name: str, given: Mapping[str, Any]) -> type[EngineSet]:
    from base64 import b64decode

    from broadleaf.serialize.search_path import extend_search_path
    from broadleaf.serialize.values import loads

    extend_search_path(given["search_path"])
    try:
        kind: type[EngineSet] = loads(b64decode(given["pickle"]))
    except Exception as error:
        raise ValueError(
            f"the class of engine set {name!r} cannot be loaded here: {type(error).__name__}: {error}; {_REGISTER}"
        ) from error
    _handed_on[kind] = dict(given)
    return kind


def split_options(engines: Any, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits the keywords of `Cluster` into the options of its engine set and the others."""
    if not isinstance(engines, str) or engines in ("", "local"):
        return {}, dict(options)
    try:
        names = {field.name for field in dataclasses.fields(find_engine_set(engines.lower()))}
    except ValueError:
        return {}, dict(options)  # not a name of ours
    own = {name: value for name, value in options.items() if name in names}
    return own, {name: value for name, value in options.items() if name not in names}
