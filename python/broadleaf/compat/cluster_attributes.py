"""Attributes that IPython Parallel's clusters have and Broadleaf's do not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from broadleaf.cluster.cluster import stops_at_exit
from broadleaf.compat import launchers

if TYPE_CHECKING:
    from broadleaf.cluster import Cluster


def cluster_attribute(cluster: Cluster, name: str) -> Any:
    """The attribute `name` that IPython Parallel's clusters have. Raises `AttributeError`."""
    get = _ATTRIBUTES.get(name)
    if get is None:
        raise AttributeError(f"{type(cluster).__name__!r} object has no attribute {name!r}")
    return get(cluster)


def _controller(cluster: Cluster) -> launchers.LocalControllerLauncher | None:
    return launchers.LocalControllerLauncher(cluster) if cluster.running else None


def _shutdown_atexit(cluster: Cluster) -> bool:
    return stops_at_exit(cluster) or (cluster._controller is None and not cluster.detached)


def _old(name: str, default: Any) -> Callable[[Cluster], Any]:
    return lambda cluster: cluster._old_arguments.get(name, default)


_ATTRIBUTES: dict[str, Callable[[Cluster], Any]] = {
    "config": lambda cluster: cluster._old_arguments.setdefault("config", {}),
    "controller": _controller,
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
    "shutdown_atexit": _shutdown_atexit,
}
