"""The files of clusters: their names, finding and removing them, the lock, and `cluster.json`."""

from __future__ import annotations

import fcntl
import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from broadleaf.errors import ClusterConnectionError
from broadleaf.private_files import open_private
from broadleaf.state import directories
from broadleaf.state.directories import MODULES_DIR, base_dir, read_json, run_dirs, write_json

# The file that describes a cluster, written by one process and read by others.


class ClusterFile:
    """`Cluster.cluster_file`, and whether another process has written it since this one last read it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None

    def write(self, content: Mapping[str, Any]) -> None:
        """Replaces it."""
        write_json(self._path, content)
        self._seen = self._stamp()

    def changed(self) -> dict[str, Any] | None:
        """What another process has written since; None if none has, or if the cluster is gone."""
        stamp = self._stamp()
        if stamp is None or stamp == self._seen:
            return None
        content = read_json(self._path)
        self._seen = stamp
        return content

    def _stamp(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns


# A cluster's lock: among the threads of a process and, for clusters that outlive it, among processes.


LOCK_FILE = "state.lock"


class StateLock:
    """Held while a cluster's state is read and changed. The same thread may take it again."""

    def __init__(self) -> None:
        self._threads = threading.RLock()
        self._depth = 0
        self._descriptor = -1
        self._path: Path | None = None
        self._on_taken: Callable[[], None] | None = None

    def share(self, directory: Path, on_taken: Callable[[], None]) -> None:
        """From now on, other processes that share the directory are kept out as well.

        `on_taken` is called each time this process takes the lock, because another one may have changed something.
        """
        self._path, self._on_taken = directory / LOCK_FILE, on_taken

    def __enter__(self) -> None:
        self._threads.acquire()
        self._depth += 1
        if self._depth > 1 or self._path is None or self._on_taken is None:
            return
        try:
            self._descriptor = open_private(self._path, os.O_RDWR)
        except FileNotFoundError:
            return  # the cluster's directory is gone, and the cluster with it
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            self._on_taken()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth and self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._threads.release()


# Where a cluster keeps its files, and how they are written and removed.
#
# Each cluster has a directory of its own under its profile, ``<base>/profiles/<profile>/<cluster_id>``, which holds
#
# - ``client.json`` and ``engine.json``, the connection files: whoever can read one may use the cluster,
# - ``cluster.json``, what the cluster is,
# - ``owner.json``, which host and container it runs on,
# - ``node.log``, the output of the node and the fork server,
# - ``journal`` and ``restart.json``, with the option `journal`: what a controller needs that is started again. Once it
#   has ended, ``restart.json`` says that it was not stopped,
# - ``steward.lock`` and ``steward.json``, by which processes find the one that looks after a cluster's jobs or scales
#   it, ``steward-order.json``, what it is to do, and ``steward.log``, its output,
# - ``state.lock``, held by a process that changes the state of such a cluster,
# - ``block-<id>.log``, the output of a batch job or an ssh connection; ``order-<set>.json``, with which jobs join; and
#   ``block-<id>.sh``, which some jobs run,
#
# and a run directory, which holds the socket, the engines' logs, the modules that clients have sent, and another
# ``owner.json``. The run directory is where only this user can create files: under ``$XDG_RUNTIME_DIR``, or in
# ``<base>/run/<host>``.
#
# Commands remove what a dead cluster left, if they run on the same host and in the same container. Its logs stay for
# a week, or until a cluster with its id is started again.


CLIENT_FILE = "client.json"
ENGINE_FILE = "engine.json"
CLUSTER_FILE = "cluster.json"
NODE_LOG = "node.log"
JOURNAL = "journal"
"""Which hosts and engines a controller has, and the keys of their links."""
RESTART_FILE = "restart.json"
"""What a controller needs beside it to take the place of another one."""
BLOCK_LOG = "block-{}.log"
BLOCK_SCRIPT = "block-{}.sh"
ORDER_FILE = "order-{}.json"
LEAVES_JOBS = "leaves_jobs"
"""The entry of `CLUSTER_FILE` that says whether jobs of the cluster may be in their scheduler's queue."""
STEWARD_FILE = "steward.json"
STEWARD_LOCK = "steward.lock"
STEWARD_LOG = "steward.log"
STEWARD_ORDER = "steward-order.json"
WHY_GIVEN_UP = "why_given_up"
"""The entry of `STEWARD_FILE` that says why the controller, which has ended, is not started again."""

ORPHAN_AGE_S = 60.0
KEPT_LOG_AGE_S = 7 * 86_400.0
_ID = r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}"


def check_id(kind: str, name: str) -> str:
    """`name` if it can be a directory's name; raises ValueError otherwise, and TypeError if it is not a string. `kind`
    is what it names."""
    if not isinstance(name, str):
        raise TypeError(f"a {kind} must be a string, not {name!r} ({type(name).__name__})")
    if not re.fullmatch(_ID, name):
        raise ValueError(
            f"{kind} {name!r}: use up to 40 letters, digits, '.', '_' and '-', starting with a letter or digit"
        )
    return name


def profile_dir(profile: str) -> Path:
    """The profile's directory; it need not exist."""
    return base_dir() / "profiles" / check_id("profile", profile)


def cluster_dir(profile: str, cluster_id: str) -> Path:
    """The cluster's directory; it need not exist."""
    return profile_dir(profile) / check_id("cluster id", cluster_id)


def find_connection_file(profile: str = "default", cluster_id: str | None = None) -> Path:
    """The `client.json` of a cluster; without `cluster_id`, that of the profile's most recent running one.

    Raises `ClusterConnectionError` when there is none; the error says where it looked, and what runs elsewhere.
    """
    if cluster_id is not None:
        path = cluster_dir(profile, cluster_id) / CLIENT_FILE
        if path.exists():
            return path
        raise ClusterConnectionError(no_such_cluster(profile, cluster_id))
    found = [
        (_seems_to_run(path.parent), path.stat().st_mtime_ns, path)
        for path in profile_dir(profile).glob(f"*/{CLIENT_FILE}")
    ]
    if not found:
        raise ClusterConnectionError(no_such_cluster(profile))
    return max(found)[2]


def running_clusters() -> list[tuple[str, str]]:
    """Profile and id of each cluster on this host whose processes exist. Removes nothing."""
    found = sorted(path.parent for path in base_dir().glob(f"profiles/*/*/{CLIENT_FILE}"))
    return [
        (path.parent.name, path.name) for path in found if not _elsewhere(path / CLUSTER_FILE) and _seems_to_run(path)
    ]


def _elsewhere(cluster_file: Path) -> str:
    """The host of a cluster that was started elsewhere; '' for one of this host."""
    of = directories.owner_of(cluster_file.parent)
    return of.host if of is not None and not of.is_here() else ""


def _seems_to_run(path: Path) -> bool:
    """Whether a directory may belong to a running cluster; if it names no process, or another host, it may."""
    if _elsewhere(path / CLUSTER_FILE) and not directories.may_judge(path):
        return True
    try:
        pid = json.loads((path / CLUSTER_FILE).read_text())["controller"]["fork_server_pid"]
    except (OSError, ValueError, KeyError, TypeError):
        return True
    return not isinstance(pid, int) or process_of_cluster(pid, path.name)


def no_such_cluster(profile: str, cluster_id: str | None = None) -> str:
    """The error for a cluster that is not running: where it looked, which clusters run, and how to start one."""
    running = sorted(running_clusters(), key=lambda found: (found[0] != profile, found))
    if cluster_id is None:
        what, where, why = "no cluster", profile_dir(profile), ""
        also = [f"{id_!r} in profile {of!r}" for of, id_ in running]
    else:
        what, where = f"no cluster {cluster_id!r}", cluster_dir(profile, cluster_id)
        why = _why_given_up(where)
        also = [repr(id_) if of == profile else f"{id_!r} in profile {of!r}" for of, id_ in running]
    options = ([] if profile == "default" else ["--profile", profile]) + (
        ["--cluster-id", cluster_id] if cluster_id and cluster_id != "default" else []
    )
    start = " ".join(["broadleaf start", *options])
    others = f"; running: {', '.join(also)}" if also else "; no other cluster is running either" if cluster_id else ""
    hosts = {
        path.parent.name: of for path in profile_dir(profile).glob(f"*/{CLUSTER_FILE}") if (of := _elsewhere(path))
    }
    if cluster_id in hosts or (cluster_id is None and hosts):
        others += (
            f"; on another host or in another container: {', '.join(f'{id_!r} ({of})' for id_, of in hosts.items())}"
        )
    ended = f". Its controller has ended, and was not started again: {why.rstrip('.')}" if why else ""
    return f"{what} is running in profile {profile!r} (looked in {where}){others}{ended}. Start one with `{start}`"


def _why_given_up(cluster_path: Path) -> str:
    """Why the steward of a cluster has not started its controller again; '' if it has, or was not to."""
    try:
        return str(json.loads((cluster_path / STEWARD_FILE).read_text()).get(WHY_GIVEN_UP, ""))
    except (OSError, ValueError, AttributeError):
        return ""


def open_log(path: Path, *, goes_on: bool = False) -> int:
    """Opens a log for appending, and empties it unless it `goes_on`; returns the descriptor."""
    return open_private(path, os.O_WRONLY | os.O_APPEND | (0 if goes_on else os.O_TRUNC))


def remove_cluster_files(cluster_path: str | Path, run_dir: str | Path, keep_logs: bool = False) -> None:
    """Removes the files of a cluster that is gone; its logs and the files that lead to them stay with `keep_logs`, and
    where its jobs have yet to be cancelled. With `keep_logs`, what a controller needs that is started again stays, too.
    """
    cluster_path, run_dir = Path(cluster_path), Path(run_dir)
    may_come_back = keep_logs and (cluster_path / RESTART_FILE).exists()
    dead = [cluster_path / CLIENT_FILE, cluster_path / ENGINE_FILE, *run_dir.glob("*.sock")]
    if not may_come_back:
        # Jobs that are pending need their orders, and whoever starts the controller must be the only one.
        dead += [path for name in (ORDER_FILE, BLOCK_SCRIPT) for path in cluster_path.glob(name.format("*"))]
        dead += [cluster_path / name for name in (LOCK_FILE, STEWARD_LOCK, STEWARD_ORDER)]
    if not keep_logs:
        dead += [cluster_path / name for name in (JOURNAL, f"{JOURNAL}.new", RESTART_FILE)]
    if not (keep_logs or may_have_jobs(cluster_path / CLUSTER_FILE)):
        dead += [cluster_path / name for name in (CLUSTER_FILE, NODE_LOG, STEWARD_LOG, STEWARD_FILE)]
        dead += cluster_path.glob(BLOCK_LOG.format("*"))
        dead += [path for path in run_dir.glob("*") if not path.is_dir()]
    if (modules := run_dir / MODULES_DIR).exists():
        import shutil

        shutil.rmtree(modules, ignore_errors=True)
    for path in dead:
        path.unlink(missing_ok=True)
    for directory in (run_dir, cluster_path):
        directories.unmark_if_empty(directory)
        try:
            directory.rmdir()
        except OSError:
            continue  # gone, or it holds somebody's file


def can_be_resumed(cluster_path: str | Path) -> bool:
    """Whether a controller has left what another one needs to take its place. One that was stopped leaves nothing."""
    return all((Path(cluster_path) / name).exists() for name in (JOURNAL, RESTART_FILE))


def may_have_jobs(cluster_file: str | Path) -> bool:
    """Whether jobs of a cluster may be in their scheduler's queue, as its file says."""
    try:
        return bool(json.loads(Path(cluster_file).read_text()).get(LEAVES_JOBS))
    except (OSError, ValueError, AttributeError):
        return False


def remove_orphans() -> None:
    """Removes the files of clusters that were killed before they could record what they are. Directories younger than
    `ORPHAN_AGE_S` may belong to a cluster that is starting, and are kept. So are those of other hosts and containers,
    whose processes are not visible here.
    """
    kept = {
        Path(path).resolve() for path in map(_kept_run_dir, base_dir().glob(f"profiles/*/*/{CLUSTER_FILE}")) if path
    }
    oldest = time.time() - ORPHAN_AGE_S
    suspects = [
        (path.name.rpartition("-")[0], path) for path in map(Path, run_dirs()) if path.stat().st_mtime < oldest
    ] + [
        (path.name, path)
        for path in base_dir().glob("profiles/*/*")
        if path.is_dir() and not (path / CLUSTER_FILE).exists() and path.stat().st_mtime < oldest
    ]
    if not suspects:
        return
    living = {cluster_id for pid in process_ids() if (cluster_id := _cluster_of(pid))}
    for cluster_id, path in suspects:
        if cluster_id not in living and path.resolve() not in kept and directories.may_judge(path):
            remove_cluster_files(path, path)


def _kept_run_dir(cluster_file: Path) -> str | None:
    """The run directory that a cluster has recorded, which has its engines' logs."""
    try:
        run_dir = json.loads(cluster_file.read_text())["controller"]["run_dir"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return run_dir if isinstance(run_dir, str) else None


def process_ids() -> list[int]:
    """Ids of all processes."""
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
    """Whether `pid` is a live process that was started for this cluster, and not one that reuses its id."""
    return _cluster_of(pid) == cluster_id
