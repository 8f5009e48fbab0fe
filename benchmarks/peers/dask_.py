"""dask.distributed on a LocalCluster of one-thread processes."""

import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import dask
import distributed
from broadleaf.bench.workload import payloads, tasks
from broadleaf.bench.workload.adapter import Adapter, Send, Submit, Way, called_after
from distributed import Client, LocalCluster


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
        self.cluster: Any = LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address=None,
            silence_logs="ERROR",
            memory_limit=0,
        )
        self.client: Any = Client(self.cluster)
        self.client.wait_for_workers(workers, timeout=175)
        self.pids: list[int] = sorted(self.client.run(os.getpid).values())

    def stop(self) -> None:
        self.client.close()
        self.cluster.close(timeout=60)

    def worker_pids(self) -> list[int]:
        return self.pids

    takes_after = True

    def submit(self, call: Callable[..., Any], *arguments: Any, after: Sequence[Any] = ()) -> Any:
        if after:
            return self.client.submit(called_after, call, arguments, *after, pure=False)
        return self.client.submit(call, *arguments, pure=False)

    def collect(self, handles: list[Any]) -> list[Any]:
        return list(self.client.gather(handles))

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

    def fan_out(self) -> dict[str, Callable[[], Any]]:
        return {"run": lambda: self.client.run(tasks.noop)}

    def broadcast(self) -> dict[str, Way]:
        def give(value: Any) -> None:
            self.held = self.client.scatter(value, broadcast=True, hash=False)
            distributed.wait(self.held)

        def check() -> list[float]:
            addresses = list(self.client.scheduler_info(n_workers=-1)["workers"])
            sums = [
                self.client.submit(payloads.checksum, self.held, workers=[a], pure=False, allow_other_workers=False)
                for a in addresses
            ]
            return list(self.client.gather(sums))

        return {"scatter(broadcast=True)": Way(give, check)}

    def send(self) -> dict[str, Send]:
        return {"submit": (lambda xs: [self.submit(len, x) for x in xs], self.client.gather)}
