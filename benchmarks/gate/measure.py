"""`measure.py TASKS --workload NAME` prints the processor time per task, as a line of JSON.

- `throughput`: empty tasks, load-balanced over two engines.
- `latency`: synchronous calls of an engine, one after the other.
- `map`: the items of a map, with the default chunks.
- `broadcast`: calls of both engines with an array of 2 MB, another one each time.

All processes of the cluster count: client, controller and engines. Only the public API is used, so that the same script
measures commits that differ in everything behind it.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import broadleaf as ipp
import numpy as np

ENGINES = 2
BATCH = 20_000
ITEMS = 200_000
ARRAY_BYTES = 2_000_000


def nothing(_: object = None) -> None:
    """The task."""


def throughput(client: ipp.Client, n_tasks: int) -> None:
    """Empty tasks, a batch at a time."""
    view = client.load_balanced_view()
    for first in range(0, n_tasks, BATCH):
        view.map_async(nothing, range(first, min(first + BATCH, n_tasks)), chunksize=1).get()


def latency(client: ipp.Client, n_tasks: int) -> None:
    """Calls of one engine, each after the other's result."""
    view = client[0]
    for _ in range(n_tasks):
        view.apply_sync(nothing)


def map_items(client: ipp.Client, n_tasks: int) -> None:
    """Maps of many small items; an item is a task here."""
    view = client.load_balanced_view()
    for first in range(0, n_tasks, ITEMS):
        view.map_sync(abs, range(first, min(first + ITEMS, n_tasks)))


def broadcast(client: ipp.Client, n_tasks: int) -> None:
    """Arrays for all engines. Each differs from the one before, so that none is there already."""
    view = client.broadcast_view()
    array: Any = np.zeros(ARRAY_BYTES, np.uint8)
    for number in range(n_tasks):
        array[:8] = np.frombuffer(number.to_bytes(8, "little"), np.uint8)
        view.apply_sync(nothing, array)


WORKLOADS: dict[str, tuple[Callable[[ipp.Client, int], None], int]] = {
    "throughput": (throughput, BATCH),
    "latency": (latency, 2_000),
    "map": (map_items, ITEMS),
    "broadcast": (broadcast, 50),
}
"""Each with the number of tasks of its warm-up."""


def family() -> set[int]:
    """This process and all its descendants."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # The name, in parentheses, may itself contain any character.
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def processor_ns(processes: set[int]) -> int:
    """The time that their threads have spent on a processor."""
    threads = (thread for pid in processes for thread in Path(f"/proc/{pid}/task").iterdir())
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("n_tasks", type=int)
    parser.add_argument("--workload", choices=WORKLOADS, default="throughput")
    chosen = parser.parse_args()
    run, warm_up_tasks = WORKLOADS[chosen.workload]
    with ipp.Cluster(n=ENGINES) as client:
        client.wait_for_engines(ENGINES)
        run(client, warm_up_tasks)
        processes = family()
        if len(processes) < ENGINES + 2:
            sys.exit(f"only {len(processes)} processes found: they are not descendants of this one")
        begin_ns = processor_ns(processes)
        run(client, chosen.n_tasks)
        spent_ns = processor_ns(processes) - begin_ns
    print(json.dumps({"processor_us": spent_ns / chosen.n_tasks / 1e3, "total_s": spent_ns / 1e9}))


if __name__ == "__main__":
    main()
