"""Heat in a rod whose pieces are on engines: in each step the ranks send each other the values at their borders.

The client sets up the pieces, starts the steps and fetches the result; the ranks do the steps among themselves.
Run it with the number of engines: `python halo_exchange.py 4`.
"""

import sys
from typing import Any

import broadleaf as ipp
import numpy as np

STEPS, RATE = 200, 0.25


def diffuse(piece: Any, steps: int, rate: float) -> Any:
    """Takes `steps` steps with a piece of the rod, whose ends are kept cold; returns the resulting piece."""
    import numpy as np
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    left = world.rank - 1 if world.rank else MPI.PROC_NULL
    right = world.rank + 1 if world.rank + 1 < world.size else MPI.PROC_NULL
    u = np.zeros(piece.size + 2)  # with one cell of each neighbour
    u[1:-1] = piece
    for _ in range(steps):
        world.Sendrecv(u[1:2], left, recvbuf=u[-1:], source=right)
        world.Sendrecv(u[-2:-1], right, recvbuf=u[:1], source=left)
        u[1:-1] += rate * (u[:-2] - 2 * u[1:-1] + u[2:])
    return u[1:-1]


def alone(rod: Any) -> Any:
    """The same in one process."""
    u = np.zeros(rod.size + 2)
    u[1:-1] = rod
    for _ in range(STEPS):
        u[1:-1] += RATE * (u[:-2] - 2 * u[1:-1] + u[2:])
    return u[1:-1]


def main(n: int, **options: Any) -> None:
    """Takes the steps on `n` engines, and compares the result with that of one process."""
    rod = np.zeros(1_000)
    rod[480:520] = 1.0
    with ipp.Cluster(engines="mpi", n=n, **options) as rc:
        view = rc[:]
        view.scatter("piece", rod, block=True)
        pieces = view.apply_sync(diffuse, ipp.Reference("piece"), STEPS, RATE)
        together = np.concatenate(pieces)
        assert np.array_equal(together, alone(rod)), "bit for bit"
        print(f"{len(rc)} ranks, {STEPS} steps: the hottest point has {together.max():.4f}, as in one process")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4)
