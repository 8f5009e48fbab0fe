"""IPython Parallel: the direct and the load-balanced view of a local cluster."""

import os
import tempfile
from collections.abc import Callable
from typing import Any, ClassVar

os.environ["IPYTHONDIR"] = tempfile.mkdtemp(prefix="bench-ipython-")

import ipyparallel as ipp

from . import tasks
from .adapter import Adapter, Send, Submit

CONTROLLER_ARGUMENTS = {"default": [], "hwm=0, nodb": ["--nodb", "--TaskScheduler.hwm=0"]}


class Peer(Adapter):
    configs: ClassVar[dict[str, list[str]]] = {
        "": ["default"],
        "latency": ["default", "hwm=0, nodb"],
        "throughput": ["default", "hwm=0, nodb"],
        "sleep-map": ["hwm=0, nodb"],
    }

    def version(self) -> str:
        return f"ipyparallel {ipp.__version__}"

    def start(self, workers: int, config: str) -> None:
        self.cluster = ipp.Cluster(
            n=workers,
            controller_ip="127.0.0.1",
            log_level=40,
            controller_args=CONTROLLER_ARGUMENTS[config],
            engine_timeout=170,
        )
        self.cluster.start_cluster_sync()
        self.client = self.cluster.connect_client_sync()
        self.client.wait_for_engines(workers, timeout=170, interactive=False)
        self.pids = sorted(self.client[:].apply_sync(os.getpid))
        self.balanced, self.one = self.client.load_balanced_view(), self.client[0]

    def stop(self) -> None:
        self.client.close()
        self.cluster.stop_cluster_sync()

    def after_step(self) -> None:
        """Both sides keep every result until told to forget."""
        self.client.purge_everything()

    def worker_pids(self) -> list[int]:
        return self.pids

    def latency(self) -> dict[str, Callable[[], Any]]:
        return {
            "load-balanced view": lambda: self.balanced.apply_sync(tasks.noop),
            "direct view, one engine": lambda: self.one.apply_sync(tasks.noop),
        }

    def throughput(self) -> dict[str, Submit]:
        return {
            "load-balanced view": (lambda n: [self.balanced.apply_async(tasks.echo, "") for _ in range(n)], gather),
            "direct view, one engine": (lambda n: [self.one.apply_async(tasks.echo, "") for _ in range(n)], gather),
        }

    def map(self) -> dict[str, Callable[[int], list[int]]]:
        return {
            "load-balanced view, map(chunksize=100)": lambda n: list(
                self.balanced.map_async(tasks.add_one, range(n), chunksize=100).get()
            )
        }

    def naps(self) -> dict[str, Callable[[list[float]], list[float]]]:
        return {
            "load-balanced view": lambda lengths: gather([self.balanced.apply_async(tasks.nap, s) for s in lengths])
        }

    def echo(self) -> dict[str, Callable[[Any, int], Any]]:
        return {
            "load-balanced view": lambda x, n: gather([self.balanced.apply_async(tasks.echo, x) for _ in range(n)])[-1],
            "direct view, one engine": lambda x, n: gather([self.one.apply_async(tasks.echo, x) for _ in range(n)])[-1],
        }

    def send(self) -> dict[str, Send]:
        return {"load-balanced view": (lambda xs: [self.balanced.apply_async(len, x) for x in xs], gather)}


def gather(pending: list[Any]) -> list[Any]:
    return [p.get() for p in pending]
