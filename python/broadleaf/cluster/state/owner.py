"""The owner of a cluster's directories: the host, its boot, and its container.

A home directory may be shared by hosts, and `/tmp` by containers. A process id means something only in its own process
table, so only there can we tell whether a cluster is gone.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import NamedTuple, Self

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
            socket.gethostname(),
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


def mark(directory: Path) -> None:
    """Records in `directory` that it belongs to a cluster on the calling process's host."""
    descriptor = os.open(directory / OWNER_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(Owner.here()._asdict(), file)
    except OSError:
        (directory / OWNER_FILE).unlink()
        raise


def unmark_if_empty(directory: Path) -> None:
    """Removes the record from a directory that holds nothing else."""
    try:
        if os.listdir(directory) == [OWNER_FILE]:
            (directory / OWNER_FILE).unlink(missing_ok=True)
    except (FileNotFoundError, NotADirectoryError):
        pass


def owner_of(directory: Path) -> Owner | None:
    """The owner of `directory`; None if it does not say."""
    try:
        return Owner(**json.loads((directory / OWNER_FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def may_judge(directory: Path) -> bool:
    """Whether the processes of a cluster with this directory are known here to be gone."""
    owner = owner_of(directory)
    return owner is not None and (owner.is_here() or owner.is_gone())


def _line_of(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
