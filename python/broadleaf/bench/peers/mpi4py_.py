"""mpi4py.futures.MPIPoolExecutor over MPICH; this process is rank 0 under mpiexec."""

from typing import Any

import mpi4py
from mpi4py import MPI
from mpi4py.futures import MPIPoolExecutor

from .adapter import PoolAdapter


class Peer(PoolAdapter):
    launched = True

    def version(self) -> str:
        library = MPI.Get_library_version().replace("\0", "").split("\n")[0]
        return f"mpi4py {mpi4py.__version__} / {' '.join(library.replace('MPICH Version:', 'MPICH').split())}"

    def make(self, workers: int, config: str) -> Any:
        pool = MPIPoolExecutor(workers)
        pool.bootup(wait=True)
        return pool
