"""The directories in which clusters keep their files: where they are, whose they are, and how a file is written."""

import json
import os
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from broadleaf.errors import BroadleafError
from broadleaf.private_files import make_private, open_private

if TYPE_CHECKING:
    from pathlib import Path


# The files of clusters that are objects in JSON.


class ClusterFileError(BroadleafError):
    """A directory or file of a cluster is missing, does not belong to this user, or is not what it should be."""


def write_json(path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
    """Writes `path` with mode 0600 so that a reader finds either the old content or the new, never a part."""
    directory, name = os.path.split(path)
    temporary = os.path.join(directory, f".{name}.{os.urandom(4).hex()}")
    descriptor = open_private(temporary, os.O_WRONLY | os.O_EXCL)
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(content, file, indent=1)
            file.write("\n")
        os.replace(temporary, path)
    except BaseException:
        try:
            os.unlink(temporary)
        except FileNotFoundError:
            pass  # it has its name already
        raise


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a file of ours. Raises `ClusterFileError`."""
    try:
        with open(path) as file:
            content = json.load(file)
    except FileNotFoundError:
        raise ClusterFileError(f"{path} does not exist; the cluster has stopped, or was never started") from None
    except (OSError, ValueError) as error:
        raise ClusterFileError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise ClusterFileError(f"{path} is not a file of a cluster")
    return content


# The owner of a cluster's directories: the host, its boot, and its container.
#
# A home directory may be shared by hosts, and `/tmp` by containers. A process id means something only in its own
# process table, so only there can we tell whether a cluster is gone.


# Below a host's run directory: the modules that clients have sent.
MODULES_DIR = "modules"
OWNER_FILE = "owner.json"


class Owner(NamedTuple):
    """A process table."""

    host: str
    machine_id: str
    """Of the installation, the same after a reboot; '' where there is none."""
    boot_id: str
    """Changes with each boot."""
    pid_namespace: str
    """Differs between containers."""

    @classmethod
    def here(cls) -> Self:
        """The owner that the calling process would record."""
        return cls(
            os.uname().nodename,
            _line_of("/etc/machine-id"),
            _line_of("/proc/sys/kernel/random/boot_id"),
            _namespace(),
        )

    def is_here(self) -> bool:
        """Whether the calling process can see its processes."""
        return self == Owner.here()

    def is_gone(self) -> bool:
        """Whether this host has booted since, so that none of its processes can be left."""
        here = Owner.here()
        same_machine = self.machine_id != "" and (self.host, self.machine_id) == (here.host, here.machine_id)
        return same_machine and "" not in (self.boot_id, here.boot_id) and self.boot_id != here.boot_id


def mark_owner(directory: str | os.PathLike[str]) -> None:
    """Records in `directory` that it belongs to a cluster on the calling process's host."""
    path = os.path.join(directory, OWNER_FILE)
    descriptor = open_private(path, os.O_WRONLY | os.O_TRUNC)
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(Owner.here()._asdict(), file)
    except OSError:
        os.unlink(path)
        raise


def unmark_if_empty(directory: str | os.PathLike[str]) -> None:
    """Removes the record from a directory that holds nothing else."""
    try:
        if os.listdir(directory) == [OWNER_FILE]:
            os.unlink(os.path.join(directory, OWNER_FILE))
    except (FileNotFoundError, NotADirectoryError):
        pass


def owner_of(directory: str | os.PathLike[str]) -> Owner | None:
    """The owner of `directory`; None if it does not say."""
    try:
        with open(os.path.join(directory, OWNER_FILE)) as file:
            return Owner(**json.load(file))
    except (OSError, ValueError, TypeError):
        return None


def may_judge(directory: str | os.PathLike[str]) -> bool:
    """Whether the processes of a cluster with this directory are known here to be gone."""
    owner = owner_of(directory)
    return owner is not None and (owner.is_here() or owner.is_gone())


def _line_of(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


# Broadleaf's directory on this host, which holds everything about clusters.


def base_path() -> str:
    """``$BROADLEAF_DIR``, else ``broadleaf`` under the XDG state directory. Raises `ClusterFileError` if the native
    parts cannot use it."""
    path = os.environ.get("BROADLEAF_DIR", "")
    if not path:
        state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
        path = os.path.join(state, "broadleaf")
    if not is_utf8(path):
        raise ClusterFileError(
            f"the path of Broadleaf's directory on {os.uname().nodename}, {path!r}, is not valid UTF-8: set "
            "BROADLEAF_DIR to one that is"
        )
    return path


def is_utf8(path: str) -> bool:
    """Whether a path's bytes are UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def base_dir() -> "Path":
    """`base_path` as a `Path`. It imports `pathlib`, so MPI ranks call `base_path`."""
    from pathlib import Path

    return Path(base_path())


# Run directories, which hold the sockets of a cluster's nodes: where only this user can create files.


def make_private_dir(path: str | os.PathLike[str]) -> None:
    """`make_private`; raises `ClusterFileError` if another user could change what is in the directory."""
    try:
        make_private(path)
    except PermissionError as error:
        if error.errno is not None:
            raise
        raise ClusterFileError(f"{error}; remove it, or set BROADLEAF_DIR to another path") from None


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


def make_run_dir(cluster_id: str, *, outlives_session: bool = False, name: str | None = None) -> str:
    """A run directory: a fresh one, or one of this name. With `outlives_session` it is not in ``$XDG_RUNTIME_DIR``,
    which is emptied at logout."""
    parent = (None if outlives_session else _of_session()) or _lasting()
    run_dir = f"{parent}/{name or f'{cluster_id}-{os.urandom(3).hex()}'}"
    make_private_dir(parent)
    make_private_dir(run_dir)
    try:
        mark_owner(run_dir)
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
        of = owner_of(directory)
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
