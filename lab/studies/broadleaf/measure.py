"""Echo tasks through a Broadleaf cluster on this machine: time per task.

Options come from the environment (BROADLEAF_...), the rest from arguments. The clock runs from the first submission to
the last result; the start of the cluster is not counted, and one batch has run before. Round trips of single calls are
reported beside it.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from typing import Any

_ROUND_TRIPS = 200


def on(text: str) -> bool:
    return text == "on"


def settings() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--iterations", type=int, default=1)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--arg-bytes", type=int, default=0)
    parser.add_argument(
        "--transport", choices=("unix", "tcp"), default="unix", help="tcp is encrypted, unless BROADLEAF_TLS=off"
    )
    parser.add_argument("--collector", type=on, default=True, help="the cyclic garbage collector of the client")
    parser.add_argument(
        "--run-dir", default="", help="a directory in memory, such as /dev/shm, for the cluster's files"
    )
    return parser.parse_args()


def echo(x: bytes) -> bytes:
    return x


def batch(view: Any, tasks: int, payload: bytes) -> dict[str, float]:
    begin = time.perf_counter()
    pending = [view.apply_async(echo, payload) for _ in range(tasks)]
    submitted = time.perf_counter()
    for result in pending:
        result.get()
    total_s = time.perf_counter() - begin
    return {
        "total_s": total_s,
        "time_per_task_us": total_s / tasks * 1e6,
        "submit_us": (submitted - begin) / tasks * 1e6,
    }


def connected(cluster: Any, transport: str) -> Any:
    """A client that uses the requested transport."""
    import broadleaf

    if transport == "unix":
        return cluster.connect_client_sync()
    with open(cluster.connection_file) as file:
        connection = json.load(file) | {"transport": transport}
    return broadleaf.Client(connection)


def run(given: argparse.Namespace) -> dict[str, Any]:
    import broadleaf

    options = {"listen": "127.0.0.1:0"} if given.transport == "tcp" else {}
    cluster = broadleaf.Cluster(n=given.engines, **options)
    cluster.start_cluster_sync()
    try:
        client = connected(cluster, given.transport)
        try:
            client.wait_for_engines(given.engines)
            view = client.load_balanced_view()
            payload = os.urandom(given.arg_bytes)
            batch(view, min(given.tasks, 2000), payload)
            if not given.collector:
                gc.disable()
            iterations = [batch(view, given.tasks, payload) for _ in range(given.iterations)]
            trips = []
            for _ in range(_ROUND_TRIPS):
                begin = time.perf_counter()
                view.apply_sync(echo, payload)
                trips.append((time.perf_counter() - begin) * 1e6)
        finally:
            client.close()
    finally:
        cluster.stop_cluster_sync()
    quantiles = statistics.quantiles(trips, n=100)
    return {
        "n_tasks": given.tasks,
        "iterations": iterations,
        "submit_us": statistics.median(i["submit_us"] for i in iterations),
        "latency_p50_us": quantiles[49],
        "latency_p99_us": quantiles[98],
        "broadleaf": broadleaf.__version__,
    }


def main() -> int:
    given = settings()
    folder = tempfile.mkdtemp(prefix="broadleaf-study-", dir=given.run_dir) if given.run_dir else None
    if folder is not None:
        os.environ["BROADLEAF_DIR"] = folder
    try:
        found = run(given)
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
