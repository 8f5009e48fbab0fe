"""Launcher classes under their names in IPython Parallel.

In Broadleaf, a cluster starts its own processes, wherever its engine set says (`Cluster(engines="local")`). These
classes stand for engine sets, and hold the arguments that old programs set on them.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from broadleaf.cluster.engine_sets import engine_set_names
from broadleaf.cluster.engine_sets.base import EngineSet
from broadleaf.cluster.engine_sets.local import Local
from broadleaf.cluster.started_sets import StartedSet
from broadleaf.errors import ClusterStartError

if TYPE_CHECKING:
    from broadleaf.cluster import Cluster

LauncherError = ClusterStartError


class ProcessStateError(LauncherError):
    """A process is not in the required state."""


class NotRunning(LauncherError):
    """Something that should be running is not."""


class BaseLauncher:
    """Something that starts processes. `launcher` is its name here, as in `Cluster(engines=launcher)`."""

    launcher = "local"


class ControllerLauncher(BaseLauncher):
    """How a controller is started. `controller_args` are options of `ipcontroller`."""

    controller_args: list[str] = []  # noqa: RUF012


class LocalProcessLauncher(BaseLauncher):
    """Processes of this host."""


class LocalControllerLauncher(LocalProcessLauncher, ControllerLauncher):
    """The controller of a running cluster."""

    def __init__(self, cluster: Cluster | None = None, **_arguments: Any) -> None:
        self.cluster = cluster

    @property
    def pid(self) -> int:
        """The process id. Raises `NotRunning` when there is no process."""
        if self.cluster is None or not self.cluster.running:
            raise NotRunning("the controller is not running")
        return int(self.cluster.to_dict()["controller"]["fork_server_pid"])

    @property
    def process(self) -> Any:
        """The process as psutil shows it. Raises `ImportError` without psutil."""
        import psutil  # pyright: ignore[reportMissingImports]

        return psutil.Process(self.pid)

    @property
    def state(self) -> str:
        """'running' or 'after'."""
        return "running" if self.cluster is not None and self.cluster.running else "after"

    @property
    def config(self) -> Any:
        """The cluster's configuration."""
        return getattr(self.cluster, "config", None)

    def get_output(self) -> str:
        """The controller's log."""
        path = None if self.cluster is None else self.cluster.log_path()
        return path.read_text(errors="replace") if path is not None and path.exists() else ""

    def signal(self, signum: int = signal.SIGINT) -> None:
        """Sends a signal to the process that holds the controller."""
        os.kill(self.pid, signum)

    def stop(self) -> None:
        """Stops the cluster."""
        if self.cluster is not None:
            self.cluster.stop_cluster_sync()


LocalEngineSetLauncher = StartedSet


class _AbsentSet(Local):
    """An engine set that IPython Parallel has and Broadleaf does not: a cluster with it cannot be started."""

    def require(self) -> None:
        raise ClusterStartError(
            f"engine set {self.name!r} is not installed here; the known ones are: {', '.join(engine_set_names())}. "
            "Start the controller with `broadleaf start --tcp HOST`, and run `broadleaf relay` on each host in your "
            "scheduler's jobs"
        )


_OTHERS = {"MPI": "mpi", "SSH": "ssh", "SSHProxy": "sshproxy", "PBS": "pbs", "Slurm": "slurm", "SGE": "sge",
           "LSF": "lsf", "HTCondor": "htcondor"}  # fmt: skip


def _define() -> dict[tuple[str, str], type]:
    """Classes of the other launchers, by kind and name in lower case."""
    classes: dict[tuple[str, str], type] = {
        ("engine", "local"): LocalEngineSetLauncher,
        ("controller", "local"): LocalControllerLauncher,
    }
    for prefix, launcher in _OTHERS.items():
        members = {"launcher": launcher, "__module__": __name__}
        engine = type(f"{prefix}EngineSetLauncher", (BaseLauncher,), members)
        controller = type(f"{prefix}ControllerLauncher", (ControllerLauncher,), members)
        classes["engine", launcher], classes["controller", launcher] = engine, controller
    return classes


_CLASSES = _define()
globals().update({cls.__name__: cls for cls in _CLASSES.values() if cls is not StartedSet})


def find_launcher_class(name: str, kind: str) -> Any:
    """The class of the launcher `name`, in any case; `kind` is 'engine' or 'controller'. Raises KeyError."""
    if kind not in ("engine", "controller"):
        raise ValueError(f"kind must be 'engine' or 'controller', not {kind!r}")
    return _CLASSES[kind, name.lower()]


def abbreviate_launcher_class(cls: Any) -> str:
    """The name that `find_launcher_class` takes for this class, or its path."""
    for (_, name), known in _CLASSES.items():
        if known is cls:
            return name
    return f"{cls.__module__}:{cls.__name__}"


def launcher_name(engines: Any) -> str:
    """The launcher meant by one of these classes, its path, its name, or an abbreviation in any case."""
    if isinstance(engines, type):
        return str(getattr(engines, "launcher", "local"))
    if not isinstance(engines, str):
        raise TypeError(f"engines must be the name of a launcher, not {engines!r}")
    name = engines.rpartition(".")[2]
    for suffix in ("EngineSetLauncher", "EngineLauncher", "ControllerLauncher", "Launcher"):
        name = name.removesuffix(suffix)
    return name.lower() or "local"


def absent_set(name: str) -> type[EngineSet] | None:
    """Stands for an engine set of IPython Parallel's that does not exist here; None for a name that IPython Parallel
    does not have.
    """
    return type("AbsentSet", (_AbsentSet,), {"name": name}) if name in _OTHERS.values() else None
