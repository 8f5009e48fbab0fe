"""Broadcasts over hosts in namespaces of this machine, with every topology and with the one that Broadleaf chooses."""

from __future__ import annotations

import signal
import statistics
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import broadleaf
from bed.network import Host, HostedCluster, Network, scheduled_by_thread, wait_until
from broadleaf.bench import table
from broadleaf.bench.record import OURS, Record
from broadleaf.bench.workload import measure

from benchmarks.hosts import raw_chain

LARGE_BYTES = 1_000_000_000
# A chain pays off from this size on.
MIN_RAW_BYTES = 1_000_000
# Short broadcasts vary more from round to round, and cost little to repeat.
SHORT_BYTES, SHORT_REPEATS = 1_000_000, 5
# The data of a broadcast is held until the end of the next one, so it takes two of them until memory is reused.
WARMING_ROUNDS = 2
# Sent to every host before the first broadcast.
IDLE_PINGS = 3
# Repeats of a small task, before and after the broadcast that it is measured beside: the machine may be slower for a
# moment.
IDLE_TRIPS = 2_000

_held: Any = None


def hold(data: Any) -> int:
    """On an engine: keeps the data, and returns when it arrived, in ns of the clock that all namespaces share."""
    global _held
    _held = data
    return time.monotonic_ns()


def checksum() -> int:
    """On an engine: the checksum of the data it holds."""
    return zlib.crc32(_held)


def measure_hosts(
    host_counts: Sequence[int],
    engines: int,
    sizes: list[int],
    topologies: list[str],
    gbit: float,
    repeats: int,
    options: dict[str, object],
    with_small_task: bool,
) -> Iterator[Record]:
    """The figures of each number of hosts. Its namespaces are removed when it ends, even by SIGTERM."""
    signal.signal(signal.SIGTERM, leave_on_signal)
    for n in host_counts:
        with (
            scheduled_by_thread(),
            Network(n, rate_mbit=gbit * 1000) as network,
            HostedCluster(network, engines, max_outstanding_bytes=1 << 40, **options) as cluster,
        ):
            bench = HostBench(cluster, gbit, repeats)
            yield from bench.broadcasts(sizes, topologies)
            if with_small_task:
                yield from bench.small_task()


def progress(record: Record) -> str:
    """A record in one line, printed while others are still missing."""
    return f"{table.settings(record.params):<60} {table.figure(record)}"


class HostBench:
    """Measurements on one cluster."""

    def __init__(self, cluster: HostedCluster, gbit: float, repeats: int) -> None:

        import numpy as np

        self.cluster = cluster
        self.hosts: list[Host] = cluster.network.hosts[1:]
        self.gbit = gbit
        self.repeats = repeats
        self.version: Any = broadleaf.__version__
        self.random: Any = np.random.default_rng(1)
        self.seed: Any = self.random.integers(0, 256, LARGE_BYTES // 15, dtype=np.uint8)
        self.idle_latency_us: float = self._idle_round_trip_ns() / 2000

    def _idle_round_trip_ns(self) -> int:
        """The minimum of a few round trips to every host while nothing else is sent."""
        trips: dict[str, set[int]] = {}

        def has_enough() -> bool:
            for host, entry in self.cluster.host_status().items():
                trips.setdefault(host, set()).add(entry["round_trip_ns"])
            return all(len(of_host - {0}) >= IDLE_PINGS for of_host in trips.values())

        wait_until(has_enough, 60, "round trips to every host")
        return min(set.union(*trips.values()) - {0})

    def record(self, metric: str, values: list[float], **params: Any) -> Record:
        shared = {"hosts": len(self.hosts), "engines": self.cluster.engines_per_host, "gbit": self.gbit}
        return Record(OURS, self.version, "hosts", shared | params, metric, values)

    def data(self, n_bytes: int) -> Any:
        """Bytes that no host has had before."""
        import numpy as np

        start = int(self.random.integers(0, 1000))
        made: Any = np.resize(self.seed[start:], n_bytes)
        made[:8] = self.random.integers(0, 256, 8, dtype=np.uint8)[: min(8, n_bytes)]
        return made

    def broadcast(self, topology: str, n_bytes: int) -> tuple[float, float]:
        """Milliseconds until the last engine holds the data, and payload bytes that the busiest host received."""
        view = self.cluster.client[:]
        view.topology = topology
        data = self.data(n_bytes)
        before = [self.cluster.network.received_bytes(host) for host in self.hosts]
        started_ns = time.monotonic_ns()
        ended_ns = max(view.apply_sync(hold, data))
        received = [self.cluster.network.received_bytes(host) for host in self.hosts]
        sums = set(view.apply_sync(checksum))
        if sums != {zlib.crc32(data)}:
            raise RuntimeError(f"topology {topology}, {n_bytes} bytes: an engine holds wrong data")
        max_received_bytes = max(now - had for now, had in zip(received, before, strict=True))
        return (ended_ns - started_ns) / 1e6, max_received_bytes / n_bytes

    def broadcasts(self, sizes: list[int], topologies: list[str]) -> Iterator[Record]:
        """Every topology for every size; all topologies alternate within a round, and each round begins with a
        different one."""
        self.cluster.client[:].apply_sync(hold, b"")
        yield self.record("link_latency", [self.idle_latency_us])
        for n_bytes in sizes:
            times: dict[str, list[float]] = {topology: [] for topology in topologies}
            into: dict[str, list[float]] = {topology: [] for topology in topologies}
            rounds = self.repeats * (SHORT_REPEATS if n_bytes <= SHORT_BYTES else 1)
            for round_ in range(-WARMING_ROUNDS, rounds):
                first = round_ % len(topologies)
                for topology in topologies[first:] + topologies[:first]:
                    taken_ms, payloads = self.broadcast(topology, n_bytes)
                    if round_ >= 0:
                        times[topology].append(taken_ms)
                        into[topology].append(payloads)
            for topology in topologies:
                yield self.record("last_engine", times[topology], bytes=n_bytes, topology=topology)
                yield self.record("bytes_into_host", into[topology], bytes=n_bytes, topology=topology)
            forced = [statistics.median(times[topology]) for topology in topologies if topology != "auto"]
            if "auto" in topologies:
                if forced:
                    ratios = [value / min(forced) for value in times["auto"]]
                    yield self.record("of_best_plan", ratios, bytes=n_bytes)
                model_ms = self.model_ms(n_bytes)
                yield self.record("of_chain_model", [value / model_ms for value in times["auto"]], bytes=n_bytes)
                if n_bytes >= MIN_RAW_BYTES:
                    raw_ms = raw_chain.measure(self.cluster.network, n_bytes, self.repeats)
                    yield self.record("raw_chain", raw_ms, bytes=n_bytes)
                    floor_ms = statistics.median(raw_ms)
                    yield self.record("of_raw_chain", [value / floor_ms for value in times["auto"]], bytes=n_bytes)

    def model_ms(self, n_bytes: int) -> float:
        """The model's time for the chain, from the link's rate and its idle latency."""
        link = broadleaf.plan.Link.measured(self.idle_latency_us, self.gbit)
        return broadleaf.plan.transfers(len(self.hosts), n_bytes, link, among=("chain",))[0].seconds * 1000

    def small_task(self) -> Iterator[Record]:
        """The round trip of an empty task to an idle engine of the first host, alone and beside 1 GB to all others.

        Yields nothing if this machine's memory cannot hold 1 GB for each host and 4 GB here.
        """
        needed_bytes = (len(self.hosts) + 4) * LARGE_BYTES
        if needed_bytes > (available_bytes := measure.available_bytes()):
            print(f"no small task beside 1 GB: {needed_bytes / 1e9:.0f} GB of memory needed, "
                  f"{available_bytes / 1e9:.0f} GB free", file=sys.stderr)  # fmt: skip
            return
        first, *others = self.cluster.engines_of(self.hosts[0])
        targets = others + [e for host in self.hosts[1:] for e in self.cluster.engines_of(host)]
        one, rest = self.cluster.client[first], self.cluster.client[targets]
        idle = [_trip_us(one) for _ in range(IDLE_TRIPS)]
        data = self.data(LARGE_BYTES)
        # Every host gets warm memory, and frees it again.
        rest.apply_sync(hold, data)
        rest.apply_sync(hold, None)
        data[0] ^= 1
        broadcast = rest.apply_async(hold, data)
        busy = []
        while not broadcast.done():
            busy.append(_trip_us(one))
        broadcast.get()
        idle += [_trip_us(one) for _ in range(IDLE_TRIPS)]
        idle_us = statistics.median(idle)
        yield self.record("small_task", idle, beside="nothing")
        yield self.record("small_task", busy, beside="1 GB")
        yield self.record("small_task_of_idle", [value / idle_us for value in busy])


def leave_on_signal(_signal_number: int, _frame: object) -> None:
    """A handler of SIGTERM: everything that was created is removed."""
    raise SystemExit(143)


def _trip_us(view: Any) -> float:
    started_ns = time.perf_counter_ns()
    view.apply_sync(int)
    return (time.perf_counter_ns() - started_ns) / 1000
