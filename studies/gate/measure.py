"""Empty tasks through two engines: `measure.py TASKS` prints the processor time per task, as a line of JSON.

All processes of the cluster count: client, controller and engines. Only the public API is used, so that the same script
measures commits that differ in everything behind it.
"""

import json
import os
import sys
from pathlib import Path

import broadleaf as ipp

ENGINES = 2
BATCH = 20_000


def nothing(_: int) -> None:
    """The task."""


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
    n_tasks = int(sys.argv[1])
    with ipp.Cluster(n=ENGINES) as client:
        client.wait_for_engines(ENGINES)
        view = client.load_balanced_view()
        view.map_async(nothing, range(BATCH), chunksize=1).get()
        processes = family()
        if len(processes) < ENGINES + 2:
            sys.exit(f"only {len(processes)} processes found: they are not descendants of this one")
        begin_ns = processor_ns(processes)
        for first in range(0, n_tasks, BATCH):
            view.map_async(nothing, range(first, min(first + BATCH, n_tasks)), chunksize=1).get()
        spent_ns = processor_ns(processes) - begin_ns
    print(json.dumps({"processor_us": spent_ns / n_tasks / 1e3, "total_s": spent_ns / 1e9}))


if __name__ == "__main__":
    main()
