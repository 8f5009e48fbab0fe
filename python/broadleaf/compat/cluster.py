"""The arguments that IPython Parallel's `Cluster` takes, in terms of Broadleaf's.

| argument | here |
|---|---|
| `cluster_id=""` | "default", the one of `broadleaf start` |
| `controller`, `controller_launcher_class` | their `controller_args` |
| `controller_args` | `--ip`, `--port` become `listen`, `--log-level` and `--debug` `log_level`; others warn |
| `controller_location` | warns: clients and relays use the address in `listen` |
| `config`, `load_profile` | the section `Cluster` of traitlets' configuration and of `ipcluster_config.json`, `.py` |
| `delay`, `send_engines_connection_env`, `parent`, `log`, `cluster_file` | a warning: see `_NEEDLESS` |
| `engine_launcher_class` | `engines` |
| `engine_timeout` | `start_timeout_s` |
| `log_level` as a number | the option's word |
| `profile_dir` | a profile named after it |
| `shutdown_atexit=False` | `detached=True` |
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broadleaf.cluster.cluster import stops_at_exit
from broadleaf.cluster.engine_sets.base import EngineSet
from broadleaf.compat import launchers
from broadleaf.compat.launchers import launcher_name
from broadleaf.compat.profiles import cluster_config, profile_name
from broadleaf.config import OPTIONS, ConfigError, resolve
from broadleaf.text import warn_once

if TYPE_CHECKING:
    from broadleaf.cluster import Cluster


_DATABASES = ("--dictdb", "--nodb", "--sqlitedb", "--mongodb")
_NEEDLESS = {
    "cluster_file": "the file is always in the cluster's directory, see `cluster.cluster_file`",
    "controller_location": "clients and relays use the address in the option `listen`",
    "delay": "engines need not wait for the controller, nor for one another",
    "log": "what a cluster writes is in its log files, see `cluster.log_path()`",
    "parent": "configuration is in `config.toml` and the environment, see `broadleaf config show`",
    "send_engines_connection_env": "engines get their connection from the process that starts them",
}
_OWN = ("n", "profile", "cluster_id", "engines", "detached", "controller_ip", "env")


def split_arguments(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Translates the `given` arguments of `Cluster`; also returns the old ones among them unchanged.

    Raises `ConfigError` for a name that neither has.
    """
    old = _with_configuration({name: value for name, value in given.items() if name not in _OWN})
    configured = {name: old.pop(name) for name in _OWN if name in old}
    own = {name: configured.get(name) if _is_default(name, given.get(name)) else given[name] for name in _OWN}
    own["profile"] = own["profile"] or "default"
    for name in list(old):
        if name == "log_level":
            own[name] = option_log_level(old[name])
        elif name in _TRANSLATED:
            _TRANSLATED[name](own, old[name])
        else:
            own[name] = old.pop(name)  # an option, or something that `Cluster` does not know
    if "controller_args" in old:
        _controller_args(own, old["controller_args"])
    resolve({name: value for name, value in own.items() if name not in _OWN})
    if own["engines"] is not None and not isinstance(own["engines"], EngineSet):
        own["engines"] = launcher_name(own["engines"])
    return {name: value for name, value in own.items() if value is not None}, old


def check_manager_arguments(old: Mapping[str, Any]) -> None:
    """Warns about arguments of IPython Parallel's `ClusterManager` that have no effect. Raises `TypeError` for other
    names.
    """
    for name in old:
        if name not in ("log", "parent", "config"):
            raise TypeError(f"ClusterManager() got an unexpected keyword argument {name!r}")
        warn_once(f"ClusterManager({name}=...) does nothing: it reads the files of clusters and needs no {name}")


def _is_default(name: str, value: Any) -> bool:
    return value is None or {"profile": "default", "detached": False}.get(name) == value


def _with_configuration(old: dict[str, Any]) -> dict[str, Any]:
    """Adds what configuration files and objects say, unless an argument says otherwise."""
    layers: list[Mapping[str, Any]] = []
    if old.get("profile_dir") is not None and old.get("load_profile", True):
        layers.append(cluster_config(Path(os.path.expanduser(old["profile_dir"]))))
    if old.get("config") is not None:
        layers.append(old["config"].get("Cluster", {}))
    layers.append(old)
    merged: dict[str, Any] = {}
    for layer in layers:
        merged.update(layer)
    return merged


def option_log_level(level: int | str) -> str:
    """The value of the option `log_level` for a level of Python's logging."""
    if isinstance(level, str) and level.lower() in OPTIONS["log_level"].choices:
        return level.lower()
    number = logging.getLevelName(level.upper()) if isinstance(level, str) and not level.isdigit() else int(level)
    if not isinstance(number, int):
        raise ConfigError(f"log_level: {level!r} is not a logging level")
    return "debug" if number <= logging.DEBUG else "info" if number <= logging.INFO else "error"


def _elsewhere(own: dict[str, Any], value: Any) -> None:
    """Read elsewhere in this module."""


def _needless(name: str) -> Callable[[dict[str, Any], Any], None]:
    def warn(own: dict[str, Any], value: Any) -> None:
        if value:
            warn_once(f"{name} does nothing: {_NEEDLESS[name]}")

    return warn


def _controller(own: dict[str, Any], value: Any) -> None:
    """A launcher class, or the name of one."""
    if launcher_name(value) != "local":
        warn_once(
            f"controller={value!r}: the controller runs on this host; engines on other hosts join through a relay"
        )
    if isinstance(value, type):
        _controller_args(own, getattr(value, "controller_args", []))


def _controller_args(own: dict[str, Any], arguments: list[str]) -> None:
    waiting = ""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if waiting:
            name, equals, value, waiting = waiting, "=", argument, ""
        if name in ("--ip", "--IPController.ip") and equals:
            own["controller_ip"] = value.strip("'\"").replace("*", "0.0.0.0")
        elif name in ("--ip", "--port", "--log-level"):
            if not equals:
                waiting = name
            elif name == "--log-level":
                own["log_level"] = option_log_level(value)
            else:
                own["listen"] = f"{own.pop('controller_ip', None) or '127.0.0.1'}:{value}"
        elif name == "--debug":
            own["log_level"] = "debug"
        elif name in _DATABASES:
            _database(name)
        elif name == "--ping":
            warn_once("--ping does nothing: a dead engine is noticed at once, a silent host after `host_timeout_s`")
        else:
            warn_once(f"{argument} in controller_args does nothing; `broadleaf config show` lists Broadleaf's options")


def _database(name: str) -> None:
    warn_once(f"{name} does nothing: results are kept up to the limit in the option kept_results_bytes")


def _engine_timeout(own: dict[str, Any], seconds: Any) -> None:
    own["start_timeout_s"] = seconds


def _engines(own: dict[str, Any], value: Any) -> None:
    own["engines"] = value


def _profile_dir(own: dict[str, Any], path: Any) -> None:
    if path is not None:
        own["profile"] = profile_name(path)


def _shutdown_atexit(own: dict[str, Any], value: Any) -> None:
    own["detached"] = not value


_TRANSLATED: dict[str, Callable[[dict[str, Any], Any], None]] = {
    "config": _elsewhere,
    "controller": _controller,
    "controller_args": _elsewhere,
    "controller_launcher_class": _controller,
    "engine_launcher_class": _engines,
    "engine_timeout": _engine_timeout,
    "load_profile": _elsewhere,
    "profile_dir": _profile_dir,
    "shutdown_atexit": _shutdown_atexit,
    **{name: _needless(name) for name in _NEEDLESS},
}


# Attributes that IPython Parallel's clusters have and Broadleaf's do not.


def cluster_attribute(cluster: Cluster, name: str) -> Any:
    """The attribute `name` that IPython Parallel's clusters have. Raises `AttributeError`."""
    get = _ATTRIBUTES.get(name)
    if get is None:
        raise AttributeError(f"{type(cluster).__name__!r} object has no attribute {name!r}")
    return get(cluster)


def _controller_launcher(cluster: Cluster) -> launchers.LocalControllerLauncher | None:
    return launchers.LocalControllerLauncher(cluster) if cluster.running else None


def _is_stopped_at_exit(cluster: Cluster) -> bool:
    return stops_at_exit(cluster) or (cluster._controller is None and not cluster.detached)


def _old(name: str, default: Any) -> Callable[[Cluster], Any]:
    return lambda cluster: cluster._old_arguments.get(name, default)


_ATTRIBUTES: dict[str, Callable[[Cluster], Any]] = {
    "config": lambda cluster: cluster._old_arguments.setdefault("config", {}),
    "controller": _controller_launcher,
    "controller_args": _old("controller_args", []),
    "controller_launcher_class": lambda cluster: launchers.LocalControllerLauncher,
    "delay": _old("delay", 0.0),
    "engine_launcher_class": lambda cluster: launchers.find_launcher_class(cluster.launcher_name, "engine"),
    "engine_set": lambda cluster: next(iter(cluster.engines.values()), None),
    "engine_timeout": lambda cluster: cluster.settings["start_timeout_s"],
    "log": lambda cluster: logging.getLogger(f"broadleaf.cluster.{cluster.cluster_id}"),
    "log_level": _old("log_level", logging.INFO),
    "profile_dir": lambda cluster: str(cluster._old_arguments.get("profile_dir") or cluster.cluster_dir.parent),
    "remove_cluster_file": lambda cluster: cluster.remove_files,
    "shutdown_atexit": _is_stopped_at_exit,
}
