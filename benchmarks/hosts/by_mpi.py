"""Broadcasts into arrays that hosts in namespaces already have: payload over TCP, by movers, and MPI's own."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import broadleaf
from bed.network import HostedCluster, Network, scheduled_by_thread
from broadleaf.bench.record import OURS, Record, ratio_interval, skipped
from broadleaf.bench.workload import payloads
from broadleaf.bench.workload.measure import available_bytes

from benchmarks.hosts.broadcast import leave_on_signal
from benchmarks.hosts.movers import World, start_movers

TCP = "TCP"
# Movers, by the option `payload`.
MOVERS = {"mpi": "mover", "rma": "one-sided mover"}
MPI4PY = "mpi4py"
# What `mpi_ranks` can do.
MPI_WAYS = ("Bcast", "Get", "Put", "Isend along a chain", "Get along a chain")
WARMING_ROUNDS = 2


@broadleaf.interactive
def checksum() -> float:
    """On an engine: the checksum of the data it holds, as `payloads.checksum` computes it."""
    held = globals()["held"]
    return float((held.data if hasattr(held, "indptr") else held).sum())


def part_sizes(value: Any) -> list[int]:
    """Sizes of the arrays of a value."""
    if hasattr(value, "indptr"):
        return [int(part.nbytes) for part in (value.data, value.indices, value.indptr)]
    return [int(value.nbytes)]


def measure(
    host_counts: Sequence[int], forms: Sequence[str], movers: Sequence[str], gbit: float, repeats: int, python: str
) -> Iterator[Record]:
    """The time until every host has the data, for each way in turn; `python` has mpi4py and MPICH beside it.

    `movers` are keys of `MOVERS`.
    """
    signal.signal(signal.SIGTERM, leave_on_signal)
    for n in host_counts:
        with ExitStack() as opened:
            opened.enter_context(scheduled_by_thread())
            network = opened.enter_context(Network(n, rate_mbit=gbit * 1000))
            clusters = {TCP: opened.enter_context(HostedCluster(network, 1, "tcp"))}
            for payload in movers:
                # The movers end when their cluster has ended.
                world = opened.enter_context(ExitStack())
                cluster = HostedCluster(network, 1, payload, payload=payload, payload_trust="fabric")
                clusters[MOVERS[payload]] = opened.enter_context(cluster)
                world.callback(start_movers(cluster, python).close)
            ranks = Ranks(network, python)
            opened.callback(ranks.close)
            yield from Comparison(network, clusters, ranks, gbit).broadcasts(forms, repeats)


class Ranks:
    """MPI's own broadcasts: a rank on each host, from the first to all."""

    def __init__(self, network: Network, python: str) -> None:
        arguments = [str(Path(__file__).with_name("mpi_ranks.py"))]
        self._world = World(network, python, arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        #: Of mpi4py and the MPI library.
        self.version: str = self._answer("their start")["version"]

    def _answer(self, in_what: str) -> dict[str, Any]:
        stdout = self._world.process.stdout
        assert stdout is not None
        if not (line := stdout.readline()):
            raise RuntimeError(f"the ranks ended with {self._world.process.wait()} in {in_what}")
        answered: dict[str, Any] = json.loads(line)
        return answered

    def broadcast_ms(self, way: str, parts: list[int]) -> float:
        """Milliseconds until the last rank has all parts."""
        stdin = self._world.process.stdin
        assert stdin is not None
        stdin.write(json.dumps({"way": way, "parts": parts}) + "\n")
        stdin.flush()
        answered = self._answer(way)
        if not answered["is_right"]:
            raise RuntimeError(f"{way}: a rank holds other data")
        took_ms: float = answered["ms"]
        return took_ms

    def close(self) -> None:
        """Ends them."""
        if self._world.process.stdin is not None:
            self._world.process.stdin.close()
        self._world.close()


class Comparison:
    """The same hosts and links for each way."""

    def __init__(self, network: Network, clusters: dict[str, HostedCluster], ranks: Ranks, gbit: float) -> None:
        self._network, self._ranks, self._gbit = network, ranks, gbit
        # The cluster of each way.
        self._clusters = clusters

    def broadcasts(self, forms: Sequence[str], repeats: int) -> Iterator[Record]:
        """Every way for every form; within a round all take turns, and each round begins with a different one."""
        for form in forms:
            if (lacking := self._lack_of_memory(form)) is not None:
                shared = {"hosts": len(self._network.hosts) - 1, "gbit": self._gbit, "data": form}
                yield skipped(OURS, broadleaf.__version__, "movers", shared, lacking)
                continue
            value = payloads.make(form)
            for cluster in self._clusters.values():
                cluster.client[:].push({"held": value}, block=True)
            ways = self._ways(value)
            times: dict[str, list[float]] = {way: [] for way in ways}
            into: dict[str, list[float]] = {way: [] for way in ways}
            order = list(ways)
            for round_ in range(-WARMING_ROUNDS, repeats):
                first = round_ % len(order)
                for way in order[first:] + order[:first]:
                    payloads.renew(value, round_ + WARMING_ROUNDS)
                    before = self._received()
                    took_ms = ways[way]()
                    max_received_bytes = max(now - had for now, had in zip(self._received(), before, strict=True))
                    if round_ >= 0:
                        times[way].append(took_ms)
                        into[way].append(max_received_bytes / payloads.n_bytes(value))
            for way in ways:
                for metric, values in (("last_host", times[way]), ("bytes_into_host", into[way])):
                    yield self._record(value, form, way, metric, values)
                if way != TCP:
                    against = f"time over that of TCP: median of {repeats} pairs, and its 95 % interval"
                    of_tcp = list(ratio_interval(times[way], times[TCP]))
                    yield self._record(value, form, way, "of_tcp", of_tcp, against)

    def _record(
        self, value: Any, form: str, way: str, metric: str, values: list[float], note: str | None = None
    ) -> Record:
        shared = {"hosts": len(self._network.hosts) - 1, "gbit": self._gbit, "data": form,
                  "bytes": payloads.n_bytes(value)}  # fmt: skip
        of_mpi = (MPI4PY, self._ranks.version)
        peer, version = of_mpi if way in MPI_WAYS else (OURS, broadleaf.__version__)
        return Record(peer, version, "movers", shared | {"mode": way}, metric, values, note)

    def _lack_of_memory(self, form: str) -> str | None:
        """Why this machine's memory cannot hold a form on all hosts, or None.

        For each cluster a host has one copy in shared memory and one in its engine, and for MPI one in its rank.
        """
        n_hosts, n_clusters = len(self._network.hosts) - 1, len(self._clusters)
        n_copies = (2 * n_clusters + 1) * n_hosts + 2 * n_clusters + 2
        needed, available = n_copies * payloads.expected_bytes(form), available_bytes()
        if needed <= available:
            return None
        return f"needs {needed / 1e9:.1f} GB of memory on {n_hosts} hosts, and {available / 1e9:.1f} GB are free"

    def _received(self) -> list[int]:
        return [self._network.received_bytes(host) for host in self._network.hosts[1:]]

    def _ways(self, value: Any) -> dict[str, Callable[[], float]]:
        parts = part_sizes(value)

        def push(way: str) -> float:
            cluster = self._clusters[way]
            moved = _bytes_by_mpi(cluster)
            began = time.perf_counter()
            cluster.client[:].push({"held": value}, mode="inplace", block=True)
            took_ms = (time.perf_counter() - began) * 1e3
            sums = set(cluster.client[:].apply_sync(checksum))
            if sums != {payloads.checksum(value)}:
                raise RuntimeError(f"{way}: an engine holds wrong data")
            by_mpi = _bytes_by_mpi(cluster) - moved
            is_large = max(parts) > 1 << 20
            if is_large and (by_mpi > 0) != (way != TCP):
                raise RuntimeError(f"{way}: {by_mpi} bytes came by MPI")
            return took_ms

        ways: dict[str, Callable[[], float]] = {way: partial(push, way) for way in self._clusters}
        return ways | {way: partial(self._ranks.broadcast_ms, way, parts) for way in MPI_WAYS}


def _bytes_by_mpi(cluster: HostedCluster) -> int:
    return sum(host["fetched"]["mover_bytes"] for host in cluster.host_status().values())
