"""mpi4py.futures.MPIPoolExecutor over MPICH, and MPI's own broadcasts; this process is rank 0 under mpiexec."""

from collections.abc import Callable
from typing import Any

import mpi4py
from broadleaf.bench.workload import payloads
from broadleaf.bench.workload.adapter import PoolAdapter, Way
from broadleaf.bench.workload.measure import available_bytes
from mpi4py import MPI
from mpi4py.futures import MPIPoolExecutor

#: What rank 0 has the ranks do next.
END, EMPTY, PICKLED, IN_PLACE, WINDOW, CHECK = range(6)


def arrays_of(value: Any) -> list[Any]:
    return [value.data, value.indices, value.indptr] if hasattr(value, "indptr") else [value]


class Rank:
    """One rank's part in collective operations that rank 0 announces."""

    def __init__(self) -> None:
        self.world: Any = MPI.COMM_WORLD
        self.held: Any = None
        self.window: Any = None

    def take_part(self, action: int, value: Any = None) -> Any:
        world, is_root = self.world, self.world.rank == 0
        if action == PICKLED:
            self.held = None
            self.held = world.bcast(value)
        elif action == IN_PLACE:
            self.held = self.receiver(value)
            for array in arrays_of(self.held):
                world.Bcast(array)
        elif action == WINDOW:
            self.share(value)
        elif action == CHECK:
            return world.gather(payloads.checksum(self.held))
        world.Barrier()
        return None if is_root else action

    def receiver(self, value: Any) -> Any:
        """The receive buffers, made once for values of one form."""
        form = self.world.bcast(None if value is None else form_of(value))
        if self.world.rank == 0:
            return value
        return self.held if self.held is not None and form_of(self.held) == form else blank(form)

    def share(self, value: Any) -> None:
        """Rank 0 copies into a shared window that all ranks of the host read."""
        import numpy as np

        form = self.world.bcast(None if value is None else form_of(value))
        if self.window is None or self.window[0] != form:
            if self.window is not None:
                self.window[1].Free()
            n_bytes = sum(int(np.prod(shape)) * np.dtype(kind).itemsize for shape, kind in form[2])
            node = self.world.Split_type(MPI.COMM_TYPE_SHARED)
            own = n_bytes if self.world.rank == 0 else 0
            self.window = (form, MPI.Win.Allocate_shared(own, 1, comm=node))
        memory, _ = self.window[1].Shared_query(0)
        views, offset = [], 0
        for shape, kind in form[2]:
            count = int(np.prod(shape))
            views.append(np.frombuffer(memory, kind, count, offset).reshape(shape))
            offset += count * np.dtype(kind).itemsize
        if value is not None:
            for view, array in zip(views, arrays_of(value), strict=True):
                np.copyto(view, array)
        self.held = assemble(form, views)


def form_of(value: Any) -> Any:
    return (type(value).__name__, value.shape, [(array.shape, array.dtype.str) for array in arrays_of(value)])


def blank(form: Any) -> Any:
    import numpy as np

    return assemble(form, [np.zeros(shape, kind) for shape, kind in form[2]])


def assemble(form: Any, arrays: list[Any]) -> Any:
    if len(arrays) == 1:
        return arrays[0]
    from scipy import sparse

    made = sparse.csc_matrix(form[1])
    made.data, made.indices, made.indptr = arrays
    return made


def serve() -> None:
    """A worker's loop: takes part until rank 0 ends it."""
    rank = Rank()
    while (action := rank.world.bcast(None)) != END:
        rank.take_part(action)


class Peer(PoolAdapter):
    launched = True
    rank: Rank | None = None

    def version(self) -> str:
        library = MPI.Get_library_version().replace("\0", "").split("\n")[0]
        return f"mpi4py {mpi4py.__version__} / {' '.join(library.replace('MPICH Version:', 'MPICH').split())}"

    def make(self, workers: int, config: str) -> Any:
        pool = MPIPoolExecutor(workers)
        pool.bootup(wait=True)
        return pool

    def collective(self, action: int, value: Any = None) -> Any:
        """Makes all ranks do something together. From the first call on, the workers do nothing else."""
        if self.rank is None:
            self.rank = Rank()
            for _ in range(self.workers):
                self.pool.submit(serve)
        self.rank.world.bcast(action)
        return self.rank.take_part(action, value)

    def stop(self) -> None:
        if self.rank is not None:
            self.rank.world.bcast(END)
        super().stop()

    def fan_out(self) -> dict[str, Callable[[], Any]]:
        return {"bcast of a number, Barrier": lambda: self.collective(EMPTY)}

    def broadcast(self) -> dict[str, Way]:
        def check() -> list[float]:
            return list(self.collective(CHECK))

        def pickled(value: Any) -> None:
            # Every rank holds the pickle and the unpickled value.
            needed, free = 2 * (self.workers + 1) * payloads.n_bytes(value), available_bytes()
            if needed > free:
                raise RuntimeError(
                    f"pickles and arrays of all ranks need {needed / 1e9:.1f} GB, but only {free / 1e9:.1f} are free"
                )
            self.collective(PICKLED, value)

        return {
            "comm.bcast (pickle)": Way(pickled, check),
            "comm.Bcast (in place)": Way(lambda value: self.collective(IN_PLACE, value), check),
            "shared window, used again": Way(lambda value: self.collective(WINDOW, value), check),
        }
