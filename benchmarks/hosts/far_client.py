"""A client on another host that nobody can dial: a large result beside a bare socket, and a small task beside both.

`python -m benchmarks.hosts.far_client` prints the figures as JSON. The hosts are network namespaces, which need
root. The systems compared take turns within a round.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PORT = 7708
PIECE_BYTES = 1 << 20


def measure(
    n_bytes: int,
    gbit: float,
    rounds: int,
    trips: int,
    round_trip_ms: float,
    options: Sequence[str],
    streams: Sequence[int] = (),
    send_buffer_max_bytes: int | None = None,
) -> dict[str, Any]:
    """Seconds of each round, and their ratios; with `streams`, those of results over so many connections instead."""
    from bed.network import Network, scheduled_by_thread
    from broadleaf import Cluster

    # Packets are held once in each direction.
    with scheduled_by_thread(), Network(1, rate_mbit=gbit * 1000, latency_ms=round_trip_ms / 2) as network:
        controller, host = network.hosts
        if send_buffer_max_bytes is not None:
            network.limit_send_buffers(controller, send_buffer_max_bytes)
        name = f"far-{os.getpid()}"
        command = ("start", "-n", "2", "--cluster-id", name, "--tcp", f"{controller.address}:0",
                   "--option=kept_results_bytes=0", *(f"--option={option}" for option in options))  # fmt: skip
        if network.start(controller, *command, stdout=subprocess.DEVNULL).wait(60):
            raise RuntimeError("the controller did not start")
        cluster = Cluster.from_file(cluster_id=name)
        sender = [sys.executable, __file__, "--send", controller.address, "--bytes", str(n_bytes)]
        server = subprocess.Popen(["ip", "netns", "exec", controller.namespace, *sender], stdout=subprocess.PIPE)
        try:
            assert server.stdout is not None
            server.stdout.readline()  # it listens
            connection = json.loads(Path(cluster.connection_file).read_text())
            connection |= {"unix_path": None, "transport": "tcp"}
            client = [sys.executable, __file__, "--receive", controller.address, "--bytes", str(n_bytes),
                      "--rounds", str(rounds), "--trips", str(trips), "--streams", *map(str, streams)]  # fmt: skip
            done = subprocess.run(
                ["ip", "netns", "exec", host.namespace, *client], input=json.dumps(connection), stdout=subprocess.PIPE,
                text=True, check=True,
            )  # fmt: skip
        finally:
            server.kill()
            server.communicate()
            cluster.stop_cluster_sync()
    taken: dict[str, list[float]] = json.loads(done.stdout)
    first = taken.pop("first_s", [])
    middle = {what: statistics.median(values) for what, values in taken.items()}
    figures = {
        "bytes": n_bytes,
        "gbit": gbit,
        "round_trip_ms": round_trip_ms,
        "options": list(options),
        "send_buffer_max_bytes": send_buffer_max_bytes,
        "rounds": taken,
        "medians": middle,
    }
    if streams:
        of_link = {what: n_bytes * 8 / (gbit * 1e9) / taken_s for what, taken_s in middle.items()}
        return {**figures, "of_link": of_link, "first_s": dict(zip(taken, first, strict=True))}
    return {
        **figures,
        "result_of_link": n_bytes * 8 / (gbit * 1e9) / middle["result_s"],
        "socket_of_link": n_bytes * 8 / (gbit * 1e9) / middle["socket_s"],
        "result_of_socket": middle["result_s"] / middle["socket_s"],
        "small_task_of_idle": middle["busy_us"] / middle["idle_us"],
        "small_task_beside_socket_of_idle": middle["beside_socket_us"] / middle["idle_us"],
    }


def _send(address: str, n_bytes: int) -> None:
    """Sends this many bytes to each peer that connects."""
    data = memoryview(bytearray(os.urandom(PIECE_BYTES)) * -(-n_bytes // PIECE_BYTES))[:n_bytes]
    with socket.create_server((address, PORT)) as server:
        print("listens", flush=True)
        while True:
            with server.accept()[0] as connection:
                connection.sendall(data)


def _make(n_bytes: int) -> str:
    return f"import numpy; made = numpy.random.default_rng(1).integers(0, 256, {n_bytes}, dtype='uint8')"


def _get_over_socket(address: str, n_bytes: int) -> None:
    # New memory each time, as each result gets.
    with socket.create_connection((address, PORT)) as connection, mmap.mmap(-1, n_bytes) as buffer:
        if connection.recv_into(buffer, n_bytes, socket.MSG_WAITALL) != n_bytes:
            raise ConnectionError("the sender is gone")


def _receive_over_streams(address: str, n_bytes: int, rounds: int, streams: Sequence[int]) -> None:
    """Times a result over each number of connections, with a client for each number."""
    import broadleaf

    connection = json.load(sys.stdin)
    clients = {
        f"streams_{n or 'auto'}_s": broadleaf.Client(
            connection | {"options": connection["options"] | {"payload_streams": n}}
        )
        for n in streams
    }
    next(iter(clients.values()))[0].execute(_make(n_bytes), block=True)
    taken: dict[str, list[float]] = {name: [] for name in ("socket_s", *clients)}
    for _ in range(1 + rounds):
        began = time.monotonic()
        _get_over_socket(address, n_bytes)
        taken["socket_s"].append(time.monotonic() - began)
        for name, client in clients.items():
            began = time.monotonic()
            value = client[0].pull("made", block=True)
            taken[name].append(time.monotonic() - began)
            if len(value) != n_bytes:
                raise RuntimeError("the result is not what was sent")
            del value
    # In the first round, connections are new and nothing is known of the link.
    first = [values.pop(0) for values in taken.values()]
    print(json.dumps(taken | {"first_s": first}))


def _receive(address: str, n_bytes: int, rounds: int, trips: int) -> None:
    import broadleaf

    client = broadleaf.Client(json.load(sys.stdin))
    client[0].execute(_make(n_bytes), block=True)
    small = client[1]
    taken: dict[str, list[float]] = {
        name: [] for name in ("socket_s", "result_s", "idle_us", "busy_us", "beside_socket_us")
    }

    def over_socket() -> None:
        _get_over_socket(address, n_bytes)

    for round_ in range(-1, rounds):  # one that warms up
        idle = [_trip_us(small) for _ in range(trips)]
        began = time.monotonic()
        over_socket()
        socket_s = time.monotonic() - began
        began = time.monotonic()
        value = client[0].pull("made", block=True)
        result_s = time.monotonic() - began
        if len(value) != n_bytes:
            raise RuntimeError("the result is not what was sent")
        del value
        result = client[0].pull("made", block=False)
        busy = []
        while not result.done():
            busy.append(_trip_us(small))
        result.get()
        del result
        beside = []
        thread = threading.Thread(target=over_socket)
        thread.start()
        while thread.is_alive():
            beside.append(_trip_us(small))
        if round_ >= 0:
            for name, value in (("socket_s", socket_s), ("result_s", result_s), ("idle_us", statistics.median(idle)),
                                ("busy_us", statistics.median(busy)),
                                ("beside_socket_us", statistics.median(beside))):  # fmt: skip
                taken[name].append(value)
    print(json.dumps(taken))


def _trip_us(view: Any) -> float:
    began_ns = time.perf_counter_ns()
    view.apply_sync(int)
    return (time.perf_counter_ns() - began_ns) / 1000


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=1_000_000_000, help="size of the result")
    parser.add_argument("--gbit", type=float, default=1.0, help="bandwidth of each host's link, in Gb/s")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trips", type=int, default=500, help="small tasks to time while nothing else is sent")
    parser.add_argument("--round-trip-ms", type=float, default=0.0, help="of the link, by holding packets")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="option of the cluster")
    parser.add_argument("--streams", type=int, nargs="*", default=[], metavar="N", help="compare results over so many "
                        "connections; 0 = automatic")  # fmt: skip
    parser.add_argument("--send-buffer-max", type=int, metavar="BYTES", help="what the kernel lets a connection of the "
                        "controller's host have under way: the last figure of `net.ipv4.tcp_wmem`")  # fmt: skip
    parser.add_argument("--send", help=argparse.SUPPRESS)
    parser.add_argument("--receive", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.send:
        _send(given.send, given.bytes)
    elif given.receive and given.streams:
        _receive_over_streams(given.receive, given.bytes, given.rounds, given.streams)
    elif given.receive:
        _receive(given.receive, given.bytes, given.rounds, given.trips)
    else:
        figures = measure(
            given.bytes, given.gbit, given.rounds, given.trips, given.round_trip_ms, given.option, given.streams,
            given.send_buffer_max,
        )  # fmt: skip
        print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
