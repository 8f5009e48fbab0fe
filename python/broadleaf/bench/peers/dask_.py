"""dask.distributed on a LocalCluster of one-thread processes."""

import os
import tempfile
from collections.abc import Callable
from typing import Any

import dask
import distributed
from distributed import Client, LocalCluster

from . import tasks
from .adapter import Adapter, Send, Submit


class Peer(Adapter):
    def version(self) -> str:
        return f"distributed {distributed.__version__}"

    def start(self, workers: int, config: str) -> None:
        dask.config.set(
            {
                "temporary_directory": tempfile.gettempdir(),
                "distributed.comm.timeouts.connect": "170s",
                "distributed.admin.large-graph-warning-threshold": "1GB",
            }
        )
        self.cluster = LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address=None,
            silence_logs="ERROR",
            memory_limit=0,
        )
        self.client = Client(self.cluster)
        self.client.wait_for_workers(workers, timeout=175)
        self.pids = sorted(self.client.run(os.getpid).values())

    def stop(self) -> None:
        self.client.close()
        self.cluster.close(timeout=60)

    def worker_pids(self) -> list[int]:
        return self.pids

    def submit(self, function: Callable[..., Any], *args: Any) -> Any:
        return self.client.submit(function, *args, pure=False)

    def latency(self) -> dict[str, Callable[[], Any]]:
        return {"submit": lambda: self.submit(tasks.noop).result()}

    def throughput(self) -> dict[str, Submit]:
        return {
            "submit + gather": (lambda n: [self.submit(tasks.echo, "") for _ in range(n)], self.client.gather),
            "map + gather": (lambda n: self.client.map(tasks.echo, [""] * n, pure=False), self.client.gather),
        }

    def naps(self) -> dict[str, Callable[[list[float]], list[float]]]:
        return {"submit": lambda lengths: self.client.gather([self.submit(tasks.nap, s) for s in lengths])}

    def echo(self) -> dict[str, Callable[[Any, int], Any]]:
        return {"submit + gather": lambda x, n: self.client.gather([self.submit(tasks.echo, x) for _ in range(n)])[-1]}

    def send(self) -> dict[str, Send]:
        return {"submit": (lambda xs: [self.submit(len, x) for x in xs], self.client.gather)}
