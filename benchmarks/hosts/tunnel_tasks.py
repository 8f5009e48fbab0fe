"""Empty tasks and round trips through an ssh tunnel, beside a direct connection with TLS.

`python benchmarks/hosts/tunnel_tasks.py FILE SSHSERVER` prints the figures as JSON. FILE is a copy of the
cluster's connection file. This host and SSHSERVER reach the controller by the address in it. With --socket, the
controller runs on SSHSERVER, and its socket is a third way. All ways take turns within a round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TRIPS = 300


def measure(file: str, server: str, n_tasks: int, rounds: int, *, socket: bool = False) -> dict[str, Any]:
    """Seconds for all tasks and microseconds per round trip, for each round, and their ratios."""
    from broadleaf import Client

    read = json.loads(Path(file).read_text())
    connection = read | {"unix_path": None, "transport": "tcp"}
    began = time.monotonic()
    tunnelled = Client(connection, sshserver=server)
    connected_s = time.monotonic() - began
    clients = {"direct": Client(connection), "tunnel": tunnelled}
    if socket:
        clients["socket"] = Client(read | {"tcp": None}, sshserver=server)
    tasks: dict[str, list[float]] = {way: [] for way in clients}
    trips: dict[str, list[float]] = {way: [] for way in clients}
    for round_ in range(-1, rounds):  # one that warms up
        for way in clients if round_ % 2 else reversed(clients):
            view = clients[way].load_balanced_view()
            began = time.perf_counter()
            for _ in range(n_tasks):
                view.apply_async(int)
            clients[way].wait()
            taken_s = time.perf_counter() - began
            times = [_trip_us(view) for _ in range(TRIPS)]
            if round_ >= 0:
                tasks[way].append(taken_s)
                trips[way].append(statistics.median(times))
    for client in clients.values():
        client.close()
    middle = {way: statistics.median(tasks[way]) for way in clients}
    return {
        "tasks": n_tasks,
        "connected_s": connected_s,
        "tasks_s": tasks,
        "tasks_per_s": {way: n_tasks / taken_s for way, taken_s in middle.items()},
        "throughput_of_direct": {way: middle["direct"] / taken_s for way, taken_s in middle.items()},
        "round_trip_us": {way: statistics.median(trips[way]) for way in clients},
    }


def _trip_us(view: Any) -> float:
    began_ns = time.perf_counter_ns()
    view.apply_sync(int)
    return (time.perf_counter_ns() - began_ns) / 1000


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("sshserver")
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--socket", action="store_true")
    given = parser.parse_args(arguments)
    found = measure(given.file, given.sshserver, given.tasks, given.rounds, socket=given.socket)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
