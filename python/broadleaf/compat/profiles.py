"""IPython's profile directories, where IPython Parallel stores its files."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from broadleaf.text import warn_once

_PREFIX = "profile_"


def ipython_dir() -> Path:
    """IPython's directory: ``$IPYTHONDIR``, else ``~/.ipython``."""
    return Path(os.environ.get("IPYTHONDIR") or Path.home() / ".ipython")


def profile_name(profile_dir: str | os.PathLike[str]) -> str:
    """Broadleaf's profile for a profile directory of IPython's: the same name, or one derived from another path."""
    path = Path(os.path.expanduser(profile_dir)).absolute()
    name = path.name.removeprefix(_PREFIX)
    if path.parent == ipython_dir().absolute() and path.name.startswith(_PREFIX):
        return name
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    return f"{re.sub('[^A-Za-z0-9]', '-', name).strip('-')[:30] or 'profile'}-{digest}"


def profile_dirs() -> Iterator[Path]:
    """All of IPython's profile directories."""
    return iter(sorted(path for path in ipython_dir().glob(f"{_PREFIX}*") if path.is_dir()))


def cluster_config(profile_dir: Path) -> dict[str, Any]:
    """What `ipcluster_config.json` or `.py` of a profile says about `Cluster`. Raises `ValueError` if it is broken."""
    path = profile_dir / "ipcluster_config.json"
    if path.exists():
        try:
            content = json.loads(path.read_text())
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        return dict(content.get("Cluster", {}))
    path = path.with_suffix(".py")
    if not path.exists():
        return {}
    try:
        from traitlets.config.loader import PyFileConfigLoader  # pyright: ignore[reportMissingImports]
    except ImportError:
        warn_once(
            f"{path} is not read: that requires traitlets (pip install traitlets). "
            "You can write a config.toml for Broadleaf instead"
        )
        return {}
    return dict(PyFileConfigLoader(path.name, str(profile_dir)).load_config().get("Cluster", {}))


def clean_cluster_files(profile_dirs_: Any = None, *, log: Any = None, force: bool = False) -> None:
    """Removes what clusters that are no longer running have left: Broadleaf's, and IPython Parallel's in IPython's
    profiles.

    For IPython Parallel, these are logs, cluster files and connection files. Raises `ValueError` if one of its clusters
    is running, unless `force` is set.
    """
    from broadleaf.cluster import ClusterManager

    ClusterManager().load_clusters()
    if isinstance(profile_dirs_, str | os.PathLike):
        profile_dirs_ = [profile_dirs_]
    for profile_dir in profile_dirs() if profile_dirs_ is None else map(Path, profile_dirs_):
        security = profile_dir / "security"
        for path in (*security.glob("cluster.json"), *security.glob("cluster-*.json")):
            if not force and (pid := _controller_pid(path)) is not None:
                raise ValueError(f"the cluster of {path} is running as process {pid}; stop it first, or use force")
            _remove(path, log)
        for path in (*profile_dir.glob("log/*"), *security.glob("ipcontroller*.json")):
            _remove(path, log)


def _controller_pid(path: Path) -> int | None:
    """The controller process that a cluster file of IPython Parallel names, if it exists."""
    try:
        pid = json.loads(path.read_text())["controller"]["state"]["pid"]
        os.kill(pid, 0)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return int(pid)


def _remove(path: Path, log: Any) -> None:
    if path.is_file():
        if log is not None:
            log.debug(f"Removing {path}")
        path.unlink(missing_ok=True)
