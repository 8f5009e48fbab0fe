"""Where a cluster keeps its files, and how they are written and removed.

Each cluster has a directory of its own under its profile, ``<base>/profiles/<profile>/<cluster_id>``, which holds

- ``client.json`` and ``engine.json``, the connection files: who can read one may use the cluster,
- ``cluster.json``, what the cluster is,
- ``node.log``, what the node and the fork server write,

and a run directory under ``/tmp``, because the path of a unix socket may have no more than 107 bytes. That one holds
the socket and the engines' logs.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broadleaf.config import base_dir
from broadleaf.errors import ClusterConnectionError, KernelError

CLIENT_FILE = "client.json"
ENGINE_FILE = "engine.json"
CLUSTER_FILE = "cluster.json"
NODE_LOG = "node.log"

MAX_SOCKET_PATH_BYTES = 107
ORPHAN_AGE_S = 60.0
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")


class ClusterFileError(KernelError):
    """A directory or file of a cluster is missing, not ours, or not what it should be."""


def check_id(kind: str, name: str) -> str:
    """`name` if it can be a directory's; else ValueError. `kind` is what it names."""
    if not _ID.fullmatch(name):
        raise ValueError(f"{kind} {name!r}: use up to 40 letters, digits, '.', '_' and '-', a letter or digit first")
    return name


def profile_dir(profile: str) -> Path:
    """The profile's directory; it need not exist."""
    return base_dir() / "profiles" / check_id("profile", profile)


def cluster_dir(profile: str, cluster_id: str) -> Path:
    """The cluster's directory; it need not exist."""
    return profile_dir(profile) / check_id("cluster id", cluster_id)


def find_connection_file(profile: str = "default", cluster_id: str | None = None) -> Path:
    """The `client.json` of a cluster; without `cluster_id` that of the profile's latest.

    Raises `ClusterConnectionError` when there is none.
    """
    if cluster_id is not None:
        path = cluster_dir(profile, cluster_id) / CLIENT_FILE
        if path.exists():
            return path
        raise ClusterConnectionError(f"no cluster {cluster_id!r} is running in profile {profile!r}")
    found = [(path.stat().st_mtime_ns, path) for path in profile_dir(profile).glob(f"*/{CLIENT_FILE}")]
    if not found:
        raise ClusterConnectionError(
            f"no cluster is running in profile {profile!r}; start one with broadleaf.Cluster(n=4) or `broadleaf start`"
        )
    return max(found)[1]


def make_private_dir(path: Path) -> Path:
    """Makes `path` (and what is above it) with mode 0700, or checks that it is a directory of ours and closes it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise ClusterFileError(f"{path} is not a directory of yours; remove it or set BROADLEAF_DIR elsewhere")
    if stat.S_IMODE(found.st_mode) != 0o700:
        path.chmod(0o700)
    return path


def _run_dirs() -> Path:
    return Path("/tmp") / f"broadleaf-{os.getuid()}"


def make_run_dir(cluster_id: str) -> Path:
    """A fresh run directory, short enough for a socket's path."""
    parent = make_private_dir(_run_dirs())
    run_dir = parent / f"{cluster_id}-{secrets.token_hex(3)}"
    run_dir.mkdir(mode=0o700)
    return run_dir


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes `path` with mode 0600 so that a reader finds the old content, or the new, and never a part."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(content, file, indent=1)
            file.write("\n")
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any]:
    """The content of a file of ours. Raises `ClusterFileError`."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise ClusterFileError(f"{path} does not exist; the cluster has stopped, or never ran") from None
    except (OSError, ValueError) as error:
        raise ClusterFileError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise ClusterFileError(f"{path} is not a file of a cluster")
    return content


def open_log(path: Path) -> int:
    """Opens a log, emptied, for appending; returns the descriptor."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)


def remove_cluster_files(cluster_path: str | Path, run_dir: str | Path, keep_logs: bool = False) -> None:
    """Removes what a cluster that is gone has left; with `keep_logs` only what is of no more use to anyone."""
    cluster_path, run_dir = Path(cluster_path), Path(run_dir)
    dead = [cluster_path / CLIENT_FILE, cluster_path / ENGINE_FILE, *run_dir.glob("*.sock")]
    if not keep_logs:
        dead += [cluster_path / CLUSTER_FILE, cluster_path / NODE_LOG, *run_dir.glob("*")]
    for path in dead:
        path.unlink(missing_ok=True)
    for directory in (run_dir, cluster_path):
        try:
            directory.rmdir()
        except OSError:
            continue  # gone, or someone keeps a file of theirs there


def remove_orphans() -> None:
    """Removes what clusters have left that were killed before they could write down what they are.

    Younger directories than `ORPHAN_AGE_S` may belong to a cluster that starts just now, and stay.
    """
    oldest = time.time() - ORPHAN_AGE_S
    suspects = [
        (path.name.rpartition("-")[0], path) for path in _run_dirs().glob("*-*") if path.stat().st_mtime < oldest
    ] + [
        (path.name, path)
        for path in base_dir().glob("profiles/*/*")
        if path.is_dir() and not (path / CLUSTER_FILE).exists() and path.stat().st_mtime < oldest
    ]
    if not suspects:
        return
    living = {cluster_id for pid in process_ids() if (cluster_id := _cluster_of(pid))}
    for cluster_id, path in suspects:
        if cluster_id not in living:
            remove_cluster_files(path, path)


def process_ids() -> list[int]:
    """Numbers of all processes there are."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _cluster_of(pid: int) -> str | None:
    """The cluster that a process was started for, or None."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    marker = b"BROADLEAF_CLUSTER_ID="
    for entry in environment.split(b"\0"):
        if entry.startswith(marker):
            return entry[len(marker) :].decode("utf-8", "replace")
    return None


def process_of_cluster(pid: int, cluster_id: str) -> bool:
    """Whether `pid` is a living process that was started for this cluster, and not one that got its number later."""
    return _cluster_of(pid) == cluster_id
