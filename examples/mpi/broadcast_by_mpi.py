"""One array for all engines: by MPI's broadcast, by a memory window that the ranks of a host share, and by a push.

The second half of IPython Parallel's page on broadcasting: "You can also do the same thing with MPI." There the client
sends the array to one engine, which passes it on to the others by `Bcast`, or writes it to memory that the ranks of its
host share. A push by a broadcast view needs neither: each host gets the array once, and all engines there map it.
Run it with the number of engines: `python broadcast_by_mpi.py 4`.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import broadleaf as ipp
import numpy as np

REPEATS = 5


@ipp.interactive
def by_bcast(name: str, shape: tuple[int, ...], dtype: str) -> None:
    """Passes the array of rank 0 on to all ranks: each has a copy of its own."""
    import numpy as np
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    array = globals()[name] if world.rank == 0 else np.empty(shape, dtype)
    world.Bcast(array, root=0)
    globals()[name] = array


@ipp.interactive
def by_window(name: str, shape: tuple[int, ...], dtype: str) -> None:
    """Passes the array of rank 0 on to one rank of each host, and maps it in the others: one copy per host."""
    import numpy as np
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    host = world.Split_type(MPI.COMM_TYPE_SHARED)
    first = world.Split(0 if host.rank == 0 else MPI.UNDEFINED, world.rank)
    n_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    window = MPI.Win.Allocate_shared(n_bytes if host.rank == 0 else 0, 1, comm=host)
    memory, _ = window.Shared_query(0)
    array = np.ndarray(shape, dtype, buffer=memory)
    if first != MPI.COMM_NULL:
        if world.rank == 0:
            array[...] = globals()[name]
        first.Bcast(array, root=0)
        first.Free()
    host.Barrier()
    if "_window" in globals():
        globals()["_window"].Free()
    globals()[name], globals()["_window"] = array, window


def milliseconds(call: Callable[[], object]) -> float:
    """The median time of a call."""
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        call()
        times.append((time.perf_counter() - begin) * 1e3)
    return sorted(times)[REPEATS // 2]


def main(n: int, rows: int = 512, **options: Any) -> None:
    """Sends an array of `rows` rows to all engines, in three ways."""
    with ipp.Cluster(engines="mpi", n=n, **options) as rc:
        everyone = rc.broadcast_view()
        data = np.random.default_rng(1).random((rows, rows))

        def with_mpi(hand_on: Callable[..., None]) -> None:
            rc[0].push({"data": data}, block=True)
            everyone.apply_sync(hand_on, "data", data.shape, str(data.dtype))

        ways = {
            "MPI's Bcast": lambda: with_mpi(by_bcast),
            "MPI's shared window": lambda: with_mpi(by_window),
            "broadcast view": lambda: everyone.push({"data": data}, block=True),
        }
        for name, way in ways.items():
            took_ms = milliseconds(way)
            assert all(np.array_equal(received, data) for received in rc[:]["data"]), name
            print(f"{name:20} {took_ms:8.2f} ms for {data.nbytes / 1e6:.1f} MB to {len(rc)} ranks")
            everyone.execute("data = None", block=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4)
