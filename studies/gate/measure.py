"""Empty tasks through two engines: `measure.py TASKS ITERATIONS` prints what one cost, as a line of JSON.

It uses the public API only, so that the same script measures commits that differ in everything behind it.
"""

import json
import sys
import time

import broadleaf as ipp

ENGINES = 2
ROUND_TRIPS = 300


def nothing(_: int) -> None:
    """The task."""


def main() -> None:
    n_tasks, iterations = int(sys.argv[1]), int(sys.argv[2])
    with ipp.Cluster(n=ENGINES) as client:
        client.wait_for_engines(ENGINES)
        view = client.load_balanced_view()
        parts = []
        for _ in range(iterations):
            begin = time.perf_counter()
            pending = view.map_async(nothing, range(n_tasks), chunksize=1)
            submitted = time.perf_counter()
            pending.get()
            total_s = time.perf_counter() - begin
            parts.append(
                {"time_per_task_us": total_s / n_tasks * 1e6, "total_s": total_s, "submit_s": submitted - begin}
            )
        latencies = []
        for _ in range(ROUND_TRIPS):
            begin = time.perf_counter()
            view.apply_sync(nothing, 0)
            latencies.append(time.perf_counter() - begin)
    latencies.sort()
    figures = {
        "n_tasks": n_tasks,
        "iterations": parts,
        "submit_us": 1e6 * min(part["submit_s"] for part in parts) / n_tasks,
        "latency_p50_us": 1e6 * latencies[len(latencies) // 2],
        "latency_p99_us": 1e6 * latencies[len(latencies) * 99 // 100],
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
