"""Broadleaf itself, over the same public API its users have."""

import importlib.util
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import broadleaf as ipp

from . import tasks
from .adapter import Submit, Way
from .measure import expect
from .views import ViewsAdapter, gather

# By setting: options of the cluster, and the transport of the client.
CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "unix": ({}, "unix"),
    "tcp + tls": ({"listen": "127.0.0.1:0"}, "tcp"),
    "tcp": ({"listen": "127.0.0.1:0", "tls": False}, "tcp"),
}


# Applies a setting, and returns the view whose tasks run under it.
Switch = Callable[[], Any]


def overhead(peer: "Peer", of: str, n: int, seconds: float, warmup: int) -> dict[str, list[float]]:
    """Throughput with a setting and without it, in pairs of short runs whose order alternates."""
    with peer.switches(of) as (with_it, without):
        rates: dict[Switch, list[float]] = {with_it: [], without: []}
        for switch in rates:
            rate(switch(), warmup)
        order = [with_it, without]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for switch in order:
                rates[switch].append(rate(switch(), n))
            order.reverse()
    return {"rate_with": rates[with_it], "rate_without": rates[without]}


def rate(view: Any, n: int) -> float:
    """Empty tasks per second, submitted and collected."""
    begin = time.perf_counter()
    gather([view.apply_async(tasks.echo, "") for _ in range(n)])
    return n / (time.perf_counter() - begin)


# The task that calls are queued behind: all calls are sent before it ends, however fast the engines are.
QUEUE_BEHIND_S = 0.05
# More than fits inline.
SMALL_BYTES = 80_000


def in_place(peer: "Peer", size_bytes: int, rounds: int, warmup: int) -> dict[str, float]:
    """Page faults of the client and the node over repeated broadcasts into the same arrays, and over as many of the
    smallest that go through a segment: the faults of the latter come from the bookkeeping of tasks, which grows to its
    limits.
    """
    small = in_place_rounds(peer, SMALL_BYTES, rounds, warmup)
    large = in_place_rounds(peer, size_bytes, rounds, warmup)
    return large | {f"{name}_of_small": small[name] for name in ("client_faults", "node_faults")}


def in_place_rounds(peer: "Peer", size_bytes: int, rounds: int, warmup: int) -> dict[str, float]:
    import numpy as np

    view = peer.client.broadcast_view(coalescing=True)
    value = np.zeros(size_bytes // 8)
    view.push({"held": value}, block=True)
    node = json.loads(Path(peer.cluster.connection_file).read_text())["pid"]

    def faults() -> tuple[int, int]:
        fields = Path(f"/proc/{node}/stat").read_text().rsplit(")", 1)[1].split()
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt, int(fields[7])

    # Written beforehand: a growing list of floats would cause a page fault.
    times_ms = np.full(warmup + rounds, np.nan)
    before = faults()
    for round in range(warmup + rounds):
        if round == warmup:
            before = faults()
        value += 1
        begin = time.perf_counter()
        view.push({"held": value}, mode="inplace", block=True)
        times_ms[round] = (time.perf_counter() - begin) * 1e3
    after = faults()
    expect(set(view.apply_sync(tasks.held_checksum)) == {float(value.sum())}, "an engine holds wrong data")
    return {
        "delivered": float(np.median(times_ms[warmup:])),
        "client_faults": after[0] - before[0],
        "node_faults": after[1] - before[1],
    }


class Peer(ViewsAdapter):
    measures: ClassVar[dict[str, Callable[..., dict[str, Any]]]] = {"overhead": overhead, "in-place": in_place}
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
        self.cluster: Any = ipp.Cluster(n=workers, **options)
        self.cluster.start_cluster_sync()
        with connection_by(self.cluster.connection_file, transport) as connection_file:
            self.client: Any = ipp.Client(connection_file)
        self.client.wait_for_engines(workers)
        self.pids: list[int] = sorted(self.client[:].apply_sync(os.getpid))
        self.balanced: Any = self.client.load_balanced_view()
        self.one: Any = self.client[0]

    held_form: Any = None

    @contextmanager
    def switches(self, of: str) -> Iterator[tuple[Switch, Switch]]:
        """How to set and unset one of our settings: the log of this cluster, or TLS with two clusters."""
        if of == "log":

            def logged(*level: str) -> Any:
                self.client.set_log(*level)
                return self.balanced

            yield logged, lambda: logged("off")
            logged()
            return
        with ExitStack() as stack:
            views = []
            for config in ("tcp + tls", "tcp"):
                other = Peer()
                other.start(len(self.pids), config)
                stack.callback(other.stop)
                views.append(other.balanced)
            yield lambda: views[0], lambda: views[1]

    def counters(self) -> dict[str, int]:
        return dict(self.client.counters())

    def throughput(self) -> dict[str, Submit]:
        return super().throughput() | {
            "load-balanced view, map(chunksize=1)": (
                lambda n: self.balanced.map_async(tasks.echo, [""] * n, chunksize=1),
                lambda pending: pending.get(),
            ),
        }

    def fan_out(self) -> dict[str, Callable[[], Any]]:
        return {f"{name}, apply": partial(view.apply_sync, tasks.noop) for name, view in self.spreading().items()}

    def fan_out_queued(self) -> dict[str, Callable[[int, int], Any]]:
        def queue(name: str, n: int, engines: int) -> None:
            view = self.spreading(slice(engines))[name]
            gather([view.apply_async(tasks.nap, QUEUE_BEHIND_S), *(view.apply_async(tasks.noop) for _ in range(n))])

        return {f"{name}, apply": partial(queue, name) for name in self.spreading()}

    def spreading(self, engines: slice = slice(None)) -> dict[str, Any]:
        """Views of some of the engines, or all of them, by name."""
        return {
            "broadcast view, coalescing": self.client.broadcast_view(engines, coalescing=True),
            "broadcast view": self.client.broadcast_view(engines),
            "direct view": self.client[engines],
        }

    def broadcast(self) -> dict[str, Way]:
        together = self.client.broadcast_view(coalescing=True)
        check = partial(together.apply_sync, tasks.held_checksum)

        def give(view: Any, mode: str) -> Callable[[Any], Any]:
            return lambda value: view.push({"held": value}, mode=mode, block=True)

        def give_in_place(value: Any) -> None:
            form = (type(value), value.shape, getattr(value, "nnz", 0))
            mode = "inplace" if self.held_form == form else "private"
            self.held_form = form
            together.push({"held": value}, mode=mode, block=True)

        ways = {f"{name}, private": Way(give(view, "private"), check) for name, view in self.spreading().items()}
        modes = {mode: Way(give(together, mode), check) for mode in ("readonly", "shared")}
        modes["in place"] = Way(give_in_place, check)
        modes["born shared"] = Way(give(together, "private"), check, born_shared)
        modes["born shared, shared"] = Way(give(together, "shared"), check, born_shared)
        return ways | {f"broadcast view, coalescing, {mode}": way for mode, way in modes.items()}

    def parallel_contexts(self) -> dict[str, Any]:
        if importlib.util.find_spec("joblib") is None or importlib.util.find_spec("sklearn") is None:
            return {}
        import joblib

        self.balanced.register_joblib_backend()
        return {"joblib backend": lambda: joblib.parallel_config(backend="broadleaf", n_jobs=len(self.pids))}

    def parallel_program(self) -> str:
        return f"""
import broadleaf, joblib
from broadleaf.bench.workload.parallel import timed_search
broadleaf.Client({str(self.cluster.connection_file)!r}).load_balanced_view().register_joblib_backend()
joblib.parallel_config(backend="broadleaf", n_jobs={len(self.pids)})
"""

    def map(self) -> dict[str, Callable[[int], list[int]]]:
        return {
            "load-balanced view, default chunks": lambda n: list(self.balanced.map_async(tasks.add_one, range(n)).get())
        }

    def naps(self) -> dict[str, Callable[[list[float]], list[float]]]:
        return super().naps() | {
            "load-balanced view, map": lambda lengths: list(self.balanced.map_async(tasks.nap, lengths).get()),
        }


def born_shared(value: Any) -> Any:
    """The value with its arrays written into memory that is sent without a copy."""
    if hasattr(value, "indptr"):
        parts = (ipp.asarray(value.data), ipp.asarray(value.indices), ipp.asarray(value.indptr))
        return type(value)(parts, shape=value.shape, copy=False)
    return ipp.asarray(value)


@contextmanager
def connection_by(connection_file: str, transport: str) -> Iterator[str]:
    """The connection file, or a copy of it that says which of the node's sockets to dial."""
    if transport == "unix":
        yield connection_file
        return
    connection = json.loads(Path(connection_file).read_text()) | {"transport": transport}
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, "connection.json")
        with open(os.open(copy, os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
            json.dump(connection, f)
        yield copy
