"""Broadleaf itself, over the same public API its users have."""

import json
import os
import tempfile
from collections.abc import Callable
from typing import Any, ClassVar

import broadleaf as ipp

from . import tasks
from .adapter import Submit
from .views import ViewsAdapter

# Options of the cluster, and what the client dials. Without a name: unix sockets, everything at its default.
CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "unix": ({}, "unix"),
    "tcp + tls": ({"listen": "127.0.0.1:0"}, "tcp"),
    "tcp": ({"listen": "127.0.0.1:0", "tls": False}, "tcp"),
    "unix, log off": ({"log_level": "off"}, "unix"),
}


class Peer(ViewsAdapter):
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
        self.pids = sorted(self.client[:].apply_sync(os.getpid))
        self.balanced, self.one = self.client.load_balanced_view(), self.client[0]

    def counters(self) -> dict[str, int]:
        return dict(self.client.counters())

    def throughput(self) -> dict[str, Submit]:
        return super().throughput() | {
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
        return super().naps() | {
            "load-balanced view, map": lambda lengths: list(self.balanced.map_async(tasks.nap, lengths).get()),
        }


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
