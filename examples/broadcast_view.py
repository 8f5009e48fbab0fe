"""Telling many engines the same thing: direct view against broadcast view, by size, and the model of the serial sends.

The program of IPython Parallel's page on its broadcast view, as a script. Start a cluster of any size first, say with
`broadleaf start -n 16 --profile mpi`, or let the script start one: `python broadcast_view.py 16`.
"""

import sys
import time
from collections.abc import Callable

import broadleaf as ipp
import numpy as np
from broadleaf import plan

REPEATS = 7


def timeit(function: Callable[[], object]) -> float:
    """Seconds that a call takes, the mean of several; printed with their spread."""
    runs_s = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        function()
        runs_s.append(time.perf_counter() - begin)
    print(f"{np.mean(runs_s) * 1e3:.3g} ms ± {np.std(runs_s) * 1e3:.2g} ms per call (mean ± std. dev. of {REPEATS})")
    return float(np.mean(runs_s))


def compare(rc: ipp.Client) -> list[tuple[int, float, float, float]]:
    """Rows of array size (n x n), seconds by direct view, seconds by broadcast view, MB delivered to all engines."""
    direct_view = rc.direct_view()
    bcast_view = rc.broadcast_view()
    print(f"I have {len(rc)} engines")

    print("An empty call: direct, broadcast, broadcast with replies together")
    timeit(lambda: direct_view.apply_sync(lambda: None))
    timeit(lambda: bcast_view.apply_sync(lambda: None))
    bcast_view.is_coalescing = True
    timeit(lambda: bcast_view.apply_sync(lambda: None))

    rows = []
    for n in [16, 64, 256, 512]:
        chunk = np.random.random((n, n))
        print(f"{n:4} x {n:4}: {chunk.nbytes // 1024:4} kB")
        print("Direct view")
        direct_s = timeit(lambda: direct_view.push({"chunk": chunk}, block=True))  # noqa: B023
        print("Broadcast view")
        bcast_s = timeit(lambda: bcast_view.push({"chunk": chunk}, block=True))  # noqa: B023
        assert all((received == chunk).all() for received in bcast_view["chunk"])
        rows.append((n, direct_s, bcast_s, chunk.nbytes * len(rc) / 1e6))
    return rows


def main() -> None:
    if len(sys.argv) > 1:
        with ipp.Cluster(n=int(sys.argv[1]), profile="mpi") as rc:
            rows = compare(rc)
            n_engines = len(rc)
    else:
        rc = ipp.Client(profile="mpi")
        rows = compare(rc)
        n_engines = len(rc)
        rc.close()
    print(f"{'n':>4} {'direct, s':>10} {'broadcast, s':>13} {'speedup':>8} {'MB':>8}")
    for n, direct_s, bcast_s, mb in rows:
        print(f"{n:4} {direct_s:10.5f} {bcast_s:13.5f} {direct_s / bcast_s:8.2f} {mb:8.2f}")
    print("Sends before the last engine has its message (k branches a level, depth d: 1 + k*d + N/k**d)")
    for depth in range(5):
        print(f"depth {depth}: {plan.sends(n_engines, 2, depth)}")


if __name__ == "__main__":
    main()
