"""The part that Broadleaf and IPython Parallel share: the same calls of the same views, so the same measurement."""

from collections.abc import Callable
from typing import Any

from .. import tasks
from ..adapter import Adapter, Send, Submit


class ViewsAdapter(Adapter):
    """A system with a cluster, a client, a load-balanced view and a direct view of one engine."""

    cluster: Any
    client: Any
    balanced: Any
    one: Any
    pids: list[int]

    def stop(self) -> None:
        self.client.close()
        self.cluster.stop_cluster_sync()

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
