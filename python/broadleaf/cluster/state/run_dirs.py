"""Run directories, which hold the sockets of a cluster's nodes: where only this user can create files."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import Any

from broadleaf.cluster.state import owner
from broadleaf.cluster.state.base_dir import base_path, is_utf8
from broadleaf.cluster.state.json_files import ClusterFileError
from broadleaf.private_files import make_private


def make_private_dir(path: str | os.PathLike[str]) -> None:
    """`make_private`; raises `ClusterFileError` if another user could change what is in the directory."""
    try:
        make_private(path)
    except PermissionError as error:
        if error.errno is not None:
            raise
        raise ClusterFileError(f"{error}; remove it, or set BROADLEAF_DIR elsewhere") from None


def run_dirs(cluster_id: str | None = None) -> list[str]:
    """The run directories on this host of one cluster, or of all."""
    found = []
    for parent in (_of_session(), _lasting()):
        try:
            names = os.listdir(parent) if parent is not None else []
        except OSError:
            continue  # there is none, or it is closed to us
        found += [f"{parent}/{name}" for name in names if "-" in name and cluster_id in (None, name.rpartition("-")[0])]
    return found


def make_run_dir(cluster_id: str, *, outlives_session: bool = False) -> str:
    """A fresh run directory. With `outlives_session` it is not in ``$XDG_RUNTIME_DIR``, which is emptied at logout."""
    parent = (None if outlives_session else _of_session()) or _lasting()
    run_dir = f"{parent}/{cluster_id}-{os.urandom(3).hex()}"
    make_private_dir(parent)
    make_private_dir(run_dir)
    try:
        owner.mark(run_dir)
    except OSError:
        os.rmdir(run_dir)
        raise
    return run_dir


def sockets_here(connection: Mapping[str, Any], name: str) -> list[str]:
    """Sockets of this name that may belong to a node of the cluster on this host: the controller's, if this is its
    host, before those of relays.

    `connection` is the content of the cluster's `engine.json`.
    """
    found = []
    for directory in (os.path.dirname(connection["unix_path"]), *run_dirs(connection["cluster_id"])):
        # Another host's socket may be in a directory that both see.
        of = owner.owner_of(directory)
        if os.path.exists(path := f"{directory}/{name}") and of is not None and of.is_here():
            found.append(path)
    return found


def guests_lock() -> str:
    """The file that MPI ranks of this host lock while they look for a node to join."""
    parent = _lasting()
    make_private_dir(parent)
    return f"{parent}/guests.lock"


def _of_session() -> str | None:
    """Where run directories of this login session go, if it has a private directory."""
    directory = os.environ.get("XDG_RUNTIME_DIR", "")
    try:
        found = os.lstat(directory)
    except OSError:
        return None
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) == 0o700
    is_usable = is_ours and os.path.isabs(directory) and is_utf8(directory)
    return os.path.join(directory, "broadleaf") if is_usable else None


def _lasting() -> str:
    """Where run directories go that outlive login sessions. Hosts may share it, but a socket serves only one of
    them."""
    return os.path.join(os.path.abspath(base_path()), "run", os.uname().nodename)
