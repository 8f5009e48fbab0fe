"""A peer's own environment, made on its first use, and the command that serves it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
OURS = "broadleaf"
RAW = "raw"
#: Every process of a turn carries it, so that it can be found.
TAG_VARIABLE = "BROADLEAF_BENCH_TAG"


@dataclass(frozen=True)
class System:
    """A system under test: its adapter, the contents of its environment, and how to start it."""

    name: str
    adapter: str
    requirements: tuple[str, ...] = ()
    #: Words before the interpreter, given the environment's folder and the number of workers.
    prefix: Callable[[Path, int], list[str]] | None = None
    #: Arguments of the interpreter before `-m peers`.
    interpreter_arguments: tuple[str, ...] = ()
    #: Whether its own environment must also find the Broadleaf that this process uses.
    has_ours: bool = False

    @property
    def own_environment(self) -> bool:
        return bool(self.requirements)


def _mpiexec(environment: Path, workers: int) -> list[str]:
    return [str(environment / "bin" / "mpiexec"), "-n", str(workers + 1)]


SYSTEMS = {
    system.name: system
    for system in (
        System(OURS, "broadleaf_"),
        System(RAW, "raw"),
        System("ppe", "ppe"),
        System("loky", "loky_", ("loky==3.7.0", "numpy==2.4.6")),
        System("joblib", "joblib_", ("joblib==1.6.0", "numpy==2.4.6", "scipy==1.17.1", "scikit-learn==1.9.1")),
        System("ipyparallel", "ipyparallel_", ("ipyparallel==9.2.0", "numpy==2.4.6", "scipy==1.17.1")),
        System("dask", "dask_", ("dask==2026.8.0", "distributed==2026.8.0", "numpy==2.4.6", "scipy==1.17.1")),
        System("ray", "ray_", ("ray==2.60.0", "numpy==2.4.6", "scipy==1.17.1")),
        System("parsl", "parsl_", ("parsl==2026.10.26", "numpy==2.4.6")),
        System(
            "mpi4py",
            "mpi4py_",
            ("mpi4py==4.1.2", "mpich==5.0.2", "numpy==2.4.6", "scipy==1.17.1"),
            _mpiexec,
            ("-m", "mpi4py.futures"),
        ),
    )
}
PEERS = [name for name in SYSTEMS if name not in (OURS, RAW)]

_DASK = ("dask==2026.8.0", "distributed==2026.8.0")
#: Systems that start workers on the hosts of a site.
ON_SITES = {
    system.name: system
    for system in (
        System(OURS, "sites.broadleaf_"),
        System(RAW, "sites.raw"),
        System("ipyparallel", "sites.ipyparallel_", SYSTEMS["ipyparallel"].requirements),
        System("dask-jobqueue", "sites.dask_", ("dask-jobqueue==0.9.0", *_DASK)),
        System("dask-ssh", "sites.dask_", ("asyncssh==2.24.1", *_DASK)),
    )
}
_NEEDED = ("click==8.5.1", "cloudpickle==3.1.2", "rich==15.0.0")
#: Broadleaf on a site by MPI, Dask or Ray: their environments do not contain Broadleaf, but find it.
WITH_MPI = System("broadleaf-mpi", "sites.mpi_", (*_NEEDED, *SYSTEMS["mpi4py"].requirements), has_ours=True)
WITH_DASK = System("broadleaf-dask", "sites.on_dask_", (*_NEEDED, *_DASK), has_ours=True)
WITH_RAY = System("broadleaf-ray", "sites.on_ray_", (*_NEEDED, *SYSTEMS["ray"].requirements), has_ours=True)


class InstallFailed(Exception):
    """A peer's environment could not be made; contains the installer's message."""


def make(system: System, root: Path) -> Path:
    """The folder of the system's environment under `root`; created if it does not exist, with its bytecode compiled.

    If workers may not write bytecode, each would recompile its imports, and start-up would measure that.
    """
    folder = root / system.name
    stamp = folder / "installed.txt"
    wanted = "\n".join(system.requirements)
    if stamp.is_file() and stamp.read_text() == wanted:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    python = folder / "bin" / "python"
    install = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [*install, *system.requirements],
        [str(python), "-m", "compileall", "-q", str(folder / "lib")],
    ):
        done = subprocess.run(command, capture_output=True, text=True, env=_clean(), check=False)
        # compileall complains about files that are templates and not Python; everything that can be imported is
        # compiled anyway.
        if done.returncode and "compileall" not in command:
            raise InstallFailed(f"{system.name}: {' '.join(command[:6])} ...: {done.stderr.strip()[-600:]}")
    stamp.write_text(wanted)
    return folder


def command(system: System, root: Path, workers: int) -> list[str]:
    """The command that serves the system for this many workers."""
    serve = [*system.interpreter_arguments, "-m", "peers", system.adapter]
    if not system.own_environment:
        return [sys.executable, *serve]
    folder = make(system, root)
    prefix = system.prefix(folder, workers) if system.prefix else []
    return [*prefix, str(folder / "bin" / "python"), *serve]


def variables(system: System, tag: str, isolated: bool) -> dict[str, str]:
    """The child's environment variables: `peers` is importable, its workers carry our tag, bytecode may be written."""
    path = [str(HERE), *([str(HERE.parent.parent)] if system.has_ours else [])]
    found = _clean() | {"PYTHONPATH": os.pathsep.join(path), TAG_VARIABLE: tag}
    if isolated:
        found["BROADLEAF_BENCH_NAMESPACE"] = "1"
    return found


def _clean() -> dict[str, str]:
    dropped = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in dropped}
