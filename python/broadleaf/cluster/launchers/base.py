"""What a launcher is: the four verbs that a place where engines can run has to offer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broadleaf.config import Settings
from broadleaf.errors import KernelError


class ClusterStartError(KernelError):
    """A cluster's processes did not start. `log` is the end of what they wrote."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log

    def __str__(self) -> str:
        message = str(self.args[0])
        if not self.log.strip():
            return message
        return message + "\nThe end of its log:\n" + "\n".join("  | " + line for line in self.log.splitlines())


@dataclass(frozen=True)
class StartRequest:
    """Everything that a launcher needs to know to start a cluster."""

    profile: str
    cluster_id: str
    n: int
    settings: Settings
    cluster_dir: Path
    engine_environment: dict[str, str]
    detached: bool


class Launcher(ABC):
    """One cluster's processes on one kind of place."""

    @classmethod
    @abstractmethod
    def start(cls, request: StartRequest) -> Launcher:
        """Starts the cluster's processes, writes its connection files, and returns when the controller listens.

        Raises `ClusterStartError`.
        """

    @classmethod
    @abstractmethod
    def from_dict(cls, state: dict[str, Any]) -> Launcher:
        """The launcher of a cluster that another process started, from its `to_dict`."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """What another process needs to wait for and stop this cluster."""

    @abstractmethod
    def running(self) -> bool:
        """Whether its processes are alive."""

    @abstractmethod
    def wait(self, timeout_s: float | None) -> bool:
        """Whether its processes were gone in time."""

    def exit_code(self, timeout_s: float) -> int | None:
        """With what its controller ended, 128 + n for signal n; None where that is not known within `timeout_s`."""
        return None

    @abstractmethod
    def end(self) -> None:
        """Ends its processes without asking and removes the cluster's files."""

    @abstractmethod
    def release(self) -> None:
        """Tells the cluster that this process is done with it: one that is not detached stops."""

    @abstractmethod
    def log(self, engine_id: int | None = None) -> Path:
        """Path of the node's log, or of an engine's."""
