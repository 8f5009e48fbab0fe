"""The owner of a cluster's directories: the host, its boot, and its container.

A home directory may be shared by hosts, and `/tmp` by containers. A process id means something only in its own process
table, so only there can we tell whether a cluster is gone.
"""

import json
import os
from typing import NamedTuple, Self

from broadleaf.private_files import open_private

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


def mark(directory: str | os.PathLike[str]) -> None:
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
