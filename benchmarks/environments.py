"""The systems that are measured beside Broadleaf: each in an environment of its own, made on its first use."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from broadleaf.bench import workload
from broadleaf.bench.record import OURS, RAW
from broadleaf.bench.turn import SOURCES, System, TurnFailed, clean_environment

BENCHMARKS = Path(__file__).resolve().parent
ROOT = BENCHMARKS.parent


class InstallFailed(TurnFailed):
    """A peer's environment could not be made; contains the installer's message."""


@dataclass(frozen=True)
class Peer(System):
    """A system with an environment of its own, unless it needs none, and without Broadleaf, unless `has_ours`."""

    requirements: tuple[str, ...] = ()
    #: Words before the interpreter, given the environment's folder and the number of workers.
    prefix: Callable[[Path, int], list[str]] | None = None
    #: Arguments of the interpreter before those that make it serve the adapter.
    interpreter_arguments: tuple[str, ...] = ()
    #: Whether it uses Broadleaf, too.
    has_ours: bool = False
    #: The folder of all environments.
    environments: Path = Path(".bench-venvs")

    def command(self, workers: int) -> list[str]:
        serve = [*self.interpreter_arguments, *self.serving()]
        if not self.requirements:
            return [sys.executable, *serve]
        folder = self.made()
        prefix = self.prefix(folder, workers) if self.prefix else []
        return [*prefix, str(folder / "bin" / "python"), *serve]

    def path(self) -> list[str]:
        if self.has_ours:
            return [str(SOURCES), str(ROOT)]
        return [str(self._work_alone())]

    def made(self) -> Path:
        """The folder of its environment; created if it does not exist, with its bytecode compiled.

        If workers may not write bytecode, each would recompile its imports, and start-up would measure that.
        """
        folder = self.environments.resolve() / self.name
        stamp = folder / "installed.txt"
        wanted = "\n".join(self.requirements)
        if stamp.is_file() and stamp.read_text() == wanted:
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        python = folder / "bin" / "python"
        install = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        for command in (
            [sys.executable, "-m", "venv", str(folder)],
            [*install, *self.requirements],
            [str(python), "-m", "compileall", "-q", str(folder / "lib")],
        ):
            done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), check=False)
            # compileall complains about files that are templates and not Python; everything that can be imported is
            # compiled anyway.
            if done.returncode and "compileall" not in command:
                raise InstallFailed(f"{self.name}: {' '.join(command[:6])} ...: {done.stderr.strip()[-600:]}")
        stamp.write_text(wanted)
        return folder

    def _work_alone(self) -> Path:
        """A folder for the child's path, with which it finds the work and the adapters, and of Broadleaf nothing else:
        a peer must not pay for what `import broadleaf` does.
        """
        folder = self.environments.resolve() / "work"
        for package in (folder / "broadleaf", folder / "broadleaf" / "bench"):
            package.mkdir(parents=True, exist_ok=True)
            (package / "__init__.py").touch()
        for link, target in (
            (folder / "broadleaf" / "bench" / "workload", Path(workload.__file__).parent),
            (folder / "benchmarks", BENCHMARKS),
        ):
            if link.is_symlink() and link.readlink() == target:
                continue
            # Another run may do the same at this moment, so the link is there as a whole or not at all.
            made = link.with_name(f".{link.name}-{os.getpid()}")
            made.symlink_to(target)
            made.replace(link)
        return folder


def _mpiexec(environment: Path, workers: int) -> list[str]:
    return [str(environment / "bin" / "mpiexec"), "-n", str(workers + 1)]


_ARRAYS = ("numpy==2.4.6", "scipy==1.17.1")
PEERS = {
    system.name: system
    for system in (
        Peer("ppe", "benchmarks.peers.ppe"),
        Peer("loky", "benchmarks.peers.loky_", ("loky==3.7.0", "numpy==2.4.6")),
        Peer(
            "joblib",
            "benchmarks.peers.joblib_",
            ("joblib==1.6.0", *_ARRAYS, "scikit-learn==1.9.1"),
        ),
        Peer("ipyparallel", "benchmarks.peers.ipyparallel_", ("ipyparallel==9.2.0", *_ARRAYS)),
        Peer(
            "dask",
            "benchmarks.peers.dask_",
            ("dask==2026.8.0", "distributed==2026.8.0", *_ARRAYS),
        ),
        Peer("ray", "benchmarks.peers.ray_", ("ray==2.60.0", *_ARRAYS)),
        Peer("parsl", "benchmarks.peers.parsl_", ("parsl==2026.10.26", "numpy==2.4.6")),
        Peer(
            "mpi4py",
            "benchmarks.peers.mpi4py_",
            ("mpi4py==4.1.2", "mpich==5.0.2", *_ARRAYS),
            _mpiexec,
            ("-m", "mpi4py.futures"),
        ),
    )
}

_DASK = ("dask==2026.8.0", "distributed==2026.8.0")
#: Systems that start workers on the hosts of a site.
ON_SITES = {
    system.name: system
    for system in (
        Peer(OURS, "benchmarks.sites.broadleaf_", has_ours=True),
        Peer(RAW, "benchmarks.sites.raw", has_ours=True),
        Peer("ipyparallel", "benchmarks.sites.ipyparallel_", PEERS["ipyparallel"].requirements),
        Peer("dask-jobqueue", "benchmarks.sites.dask_", ("dask-jobqueue==0.9.0", *_DASK)),
        Peer("dask-ssh", "benchmarks.sites.dask_", ("asyncssh==2.24.1", *_DASK)),
    )
}
_NEEDED = ("click==8.5.1", "cloudpickle==3.1.2", "rich==15.0.0")
#: Broadleaf on a site by MPI, Dask or Ray: their environments do not contain Broadleaf, but find it.
WITH_MPI = Peer("broadleaf-mpi", "benchmarks.sites.mpi_", (*_NEEDED, *PEERS["mpi4py"].requirements), has_ours=True)
WITH_DASK = Peer("broadleaf-dask", "benchmarks.sites.on_dask_", (*_NEEDED, *_DASK), has_ours=True)
WITH_RAY = Peer("broadleaf-ray", "benchmarks.sites.on_ray_", (*_NEEDED, *PEERS["ray"].requirements), has_ours=True)


def installed_in(environments: Path, system: System) -> System:
    """The system, with its environment below that folder."""
    return replace(system, environments=environments) if isinstance(system, Peer) else system
