"""Broadleaf itself, over the same public API its users have."""

import json
import os
import tempfile
from collections.abc import Callable
from typing import Any, ClassVar

import broadleaf as ipp

from . import tasks
from .adapter import Adapter, Send, Submit

# Options of the cluster, and what the client dials. Without a name: unix sockets, everything at its default.
CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "unix": ({}, "unix"),
    "tcp + tls": ({"listen": "127.0.0.1:0"}, "tcp"),
    "tcp": ({"listen": "127.0.0.1:0", "tls": False}, "tcp"),
    "unix, log off": ({"log_level": "off"}, "unix"),
}


class Peer(Adapter):
    configs: ClassVar[dict[str, list[str]]] = {
        "": ["unix"],
        "latency": ["unix", "tcp + tls", "tcp"],
        "throughput": ["unix", "tcp + tls", "tcp"],
        "echo": ["unix", "tcp + tls"],
    }

    def version(self) -> str:
        return f"broadleaf {ipp.__version__}"

    def start(self, workers: int, config: str) -> None:
        options, transport = CONFIGS[config]
        self.cluster = ipp.Cluster(n=workers, **options)
        self.cluster.start_cluster_sync()
        self.client = ipp.Client(connection_by(self.cluster.connection_file, transport))
        self.client.wait_for_engines(workers)
        self.everyone = self.client[:]
        self.pids = sorted(self.everyone.apply_sync(os.getpid))
        self.balanced, self.one = self.client.load_balanced_view(), self.client[0]

    def stop(self) -> None:
        self.client.close()
        self.cluster.stop_cluster_sync()

    def worker_pids(self) -> list[int]:
        return self.pids

    def counters(self) -> dict[str, int]:
        return self.client.counters()

    def latency(self) -> dict[str, Callable[[], Any]]:
        return {
            "load-balanced view": lambda: self.balanced.apply_sync(tasks.noop),
            "direct view, one engine": lambda: self.one.apply_sync(tasks.noop),
        }

    def throughput(self) -> dict[str, Submit]:
        return {
            "load-balanced view": (lambda n: [self.balanced.apply_async(tasks.echo, "") for _ in range(n)], gather),
            "direct view, one engine": (lambda n: [self.one.apply_async(tasks.echo, "") for _ in range(n)], gather),
            "load-balanced view, map(chunksize=1)": (
                lambda n: self.balanced.map_async(tasks.echo, [""] * n, chunksize=1),
                lambda pending: pending.get(),
            ),
        }

    def map(self) -> dict[str, Callable[[int], list[int]]]:
        return {
            "load-balanced view, default chunks": lambda n: list(self.balanced.map_async(tasks.add_one, range(n)).get())
        }

    def naps(self) -> dict[str, Callable[[list[float]], list[float]]]:
        return {
            "load-balanced view": lambda lengths: gather([self.balanced.apply_async(tasks.nap, s) for s in lengths]),
            "load-balanced view, map": lambda lengths: list(self.balanced.map_async(tasks.nap, lengths).get()),
        }

    def echo(self) -> dict[str, Callable[[Any, int], Any]]:
        return {
            "load-balanced view": lambda x, n: gather([self.balanced.apply_async(tasks.echo, x) for _ in range(n)])[-1],
            "direct view, one engine": lambda x, n: gather([self.one.apply_async(tasks.echo, x) for _ in range(n)])[-1],
        }

    def send(self) -> dict[str, Send]:
        return {"load-balanced view": (lambda xs: [self.balanced.apply_async(len, x) for x in xs], gather)}


def connection_by(connection_file: str, transport: str) -> str:
    """The connection file, or a copy of it that says which of the node's sockets to dial."""
    if transport == "unix":
        return connection_file
    with open(connection_file) as f:
        connection = json.load(f) | {"transport": transport}
    copy = os.path.join(tempfile.mkdtemp(), "connection.json")
    with open(os.open(copy, os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
        json.dump(connection, f)
    return copy


def gather(pending: list[Any]) -> list[Any]:
    return [p.get() for p in pending]
