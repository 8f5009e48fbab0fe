"""The part that Broadleaf and IPython Parallel share: the same calls of the same views, so the same measurement."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from . import tasks
from .adapter import Adapter, Carry, Send, Submit, returned


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

    takes_after = True

    def submit(self, call: Callable[..., Any], *arguments: Any, after: Sequence[Any] = ()) -> Any:
        if not after:
            return self.balanced.apply_async(call, *arguments)
        with self.balanced.temp_flags(after=list(after)):
            return self.balanced.apply_async(call, *arguments)

    def collect(self, handles: list[Any]) -> list[Any]:
        return gather(handles)

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

    def carry(self, route: str) -> dict[str, Carry]:
        """By views of all engines. Maps and parts go through a broadcast view as through a direct one."""
        direct, together = self.client[:], self.client.broadcast_view()
        both = {"direct view": direct, "broadcast view": together}
        if route == "map":
            views = {"direct view": direct, "load-balanced view": self.balanced}
            return {name: Carry(partial(view.map_sync, tasks.echo), returned) for name, view in views.items()}
        if route == "scatter":
            parts = partial(direct.scatter, "scattered", block=True)
            return {"direct view": Carry(parts, lambda values, _: direct.gather("scattered", block=True))}
        if route == "push":
            return {name: Carry(pusher(view), lambda values, _: puller(direct)(values)) for name, view in both.items()}
        if route == "pull":
            push = pusher(together)
            return {name: Carry(puller(view), returned, push) for name, view in both.items()}
        task = {"apply": tasks.echo, "send": tasks.name_of_type}[route]
        ways = {name: Carry(caller(view, task), of_engines, wanted=task) for name, view in both.items()}
        return ways | {"load-balanced view": Carry(caller(self.balanced, task), returned, wanted=task)}


def caller(view: Any, task: Callable[[Any], Any]) -> Callable[[list[Any]], list[Any]]:
    """A call for each value, one at a time."""
    return lambda values: [view.apply_sync(task, x) for x in values]


def of_engines(values: list[Any], found: list[Any]) -> list[Any]:
    """What calls to several engines returned, engine by engine."""
    return [x for of_engine in zip(*found, strict=True) for x in of_engine]


def pusher(view: Any) -> Callable[[list[Any]], Any]:
    return lambda values: [view.push({"held": x}, block=True) for x in values]


def puller(view: Any) -> Callable[[list[Any]], Any]:
    return lambda values: view.pull("held", block=True)


def gather(pending: list[Any]) -> list[Any]:
    return [p.get() for p in pending]
