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

from broadleaf import config
from broadleaf.cluster.engine_sets.base import Block, BlockRequest, EngineSet
from broadleaf.extensions import extension

__all__ = [
    "Block",
    "BlockRequest",
    "EngineSet",
    "engine_set_names",
    "find_engine_set",
    "make_engine_set",
    "split_options",
]

ENTRY_POINTS = "broadleaf.engine_sets"

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
    raise ValueError(f"unknown engine set {name!r}; there are {', '.join(engine_set_names())}")


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
            values[option] = _checked(cls, option, value, origin)
    return cls(**values)


def _checked(cls: type[EngineSet], option: str, value: Any, origin: str) -> Any:
    fields = {field.name: field for field in dataclasses.fields(cls)}
    if option not in fields:
        raise config.ConfigError(
            f"engine set {cls.name!r} has no option {option!r} ({origin}); it has {', '.join(sorted(fields))}"
        )
    field = fields[option]
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and field.type == "str | float":
        return value
    kind: config.Kind = {bool: "bool", int: "int", float: "float", str: "str"}.get(type(default), "list")  # type: ignore[assignment]
    return config.Option(option, kind, "", "cluster", "", maximum=2**53).check(value, origin)


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
