"""The sum of parts that are on engines: by MPI among the engines, and by the client.

Every engine is a rank and holds a part of an array. `MPI.COMM_WORLD.Allreduce` adds up the parts where they are. Run it
with the number of engines: `python psum.py 4`.
"""

import sys
from typing import Any

import broadleaf as ipp
import numpy as np


def psum(a: Any) -> float:
    """The sum of an array whose parts the engines hold; every rank calls it, and every rank gets the sum."""
    import numpy as np
    from mpi4py import MPI

    local, total = np.array([a.sum()]), np.empty(1)
    MPI.COMM_WORLD.Allreduce(local, total, op=MPI.SUM)
    return float(total[0])


def main(n: int, **options: Any) -> None:
    """Scatters an array, and sums it up in both ways."""
    with ipp.Cluster(engines="mpi", n=n, **options) as rc:
        view = rc[:]
        values = np.random.default_rng(1).random(1_000_000)
        view.scatter("a", values, block=True)
        by_mpi = view.apply_sync(psum, ipp.Reference("a"))
        by_client = sum(view.apply_sync(lambda a: float(a.sum()), ipp.Reference("a")))
        assert len(set(by_mpi)) == 1, "every rank has the same sum"
        assert np.isclose(by_mpi[0], values.sum())
        assert np.isclose(by_client, values.sum())
        print(f"{len(rc)} ranks: {by_mpi[0]:.6f} by MPI, {by_client:.6f} by the client")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4)
