"""The cases, each measured once with an adapter. Definitions: docs/benchmarks.md."""

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

from . import values
from .adapter import Adapter

Values = dict[str, float]
clock: Callable[[], float] = time.perf_counter


def percentile(sorted_values: list[float], share: float) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]


def latency(peer: Adapter, mode: str, calls: int, warmup: int) -> Values:
    """One batch of synchronous empty tasks, one at a time."""
    call = peer.latency()[mode]
    for _ in range(warmup):
        call()
    return round_trips(call, calls)


def round_trips(call: Callable[[], Any], calls: int) -> Values:
    times = []
    for _ in range(calls):
        begin = clock()
        call()
        times.append((clock() - begin) * 1e6)
    times.sort()
    return {"roundtrip_median": statistics.median(times), "roundtrip_p99": percentile(times, 0.99)}


def throughput(peer: Adapter, mode: str, n: int, warmup: int) -> Values:
    """n empty tasks submitted one by one without waiting, then all results collected."""
    submit, collect = peer.throughput()[mode]
    collect(submit(min(n, warmup)))
    begin = clock()
    pending = submit(n)
    sent = clock() - begin
    results = collect(pending)
    done = clock() - begin
    expect(list(results) == [""] * n, "a result of an empty task is wrong or missing")
    return {"sent": n / sent, "roundtrip": n / done}


def map_items(peer: Adapter, mode: str, n: int, warmup: int) -> Values:
    """n trivial items through the system's own map, results collected in order."""
    go = peer.map()[mode]
    go(min(n, warmup))
    begin = clock()
    values = go(n)
    seconds = clock() - begin
    expect(len(values) == n and values[0] == 1 and values[-1] == n, "the map's results are wrong")
    return {"items": n / seconds}


def sleep_map(peer: Adapter, mode: str, n: int, ms: float, workers: int, warmup: int) -> Values:
    """n tasks that sleep; the share of the workers' time spent sleeping."""
    go = peer.naps()[mode]
    go([ms / 1e3] * warmup)
    begin = clock()
    go([ms / 1e3] * n)
    seconds = clock() - begin
    return {"efficiency": n * ms / 1e3 / workers / seconds, "elapsed": seconds}


def straggler(peer: Adapter, mode: str, n: int, ms: float, straggler_s: float, position: int, warmup: int) -> Values:
    """One long task among n short ones: when the last short one ended, how many ended after the long
    one, and how long all took.
    """
    go = peer.naps()[mode]
    go([ms / 1e3] * warmup)
    lengths = [ms / 1e3] * n
    lengths.insert(position, straggler_s)
    begin_wall, begin = time.time(), clock()
    ends = go(lengths)
    seconds = clock() - begin
    long_end = ends[position]
    short_ends = ends[:position] + ends[position + 1 :]
    return {
        "elapsed": seconds,
        "last_short_task": max(short_ends) - begin_wall,
        "stranded": sum(end > long_end for end in short_ends),
    }


def echo(peer: Adapter, mode: str, size_bytes: int, n: int, warmup: int) -> Values:
    """An array to n queued tasks and back; both directions count.

    Warm: after `warmup` whole rounds, so that any memory that a system keeps has been touched.
    """
    import numpy as np

    go = peer.echo()[mode]
    array = np.random.default_rng(0).random(size_bytes // 8)
    for _ in range(warmup):
        go(array, n)
    before = peer.counters()
    begin = clock()
    last = go(array, n)
    seconds = clock() - begin
    after = peer.counters()
    expect(last.shape == array.shape and last[-1] == array[-1], "the array did not come back as it was")
    values = {"bandwidth": 2 * size_bytes * n / seconds / 1e9, "time_per_task": seconds / n * 1e6}
    return values | copies(before, after, size_bytes * n)


def copies(before: dict[str, int], after: dict[str, int], sent_bytes: int) -> Values:
    """Copies that this process made of what it sent; nothing if none are counted, as when bytes go through a socket."""
    copied_bytes = after.get("copied_bytes", 0) - before.get("copied_bytes", 0)
    return {"copies": copied_bytes / sent_bytes} if copied_bytes else {}


def send(peer: Adapter, mode: str, size_bytes: int, n: int, warmup: int) -> Values:
    """n different arrays to one task each: the time until the caller can continue, and until all have arrived.

    Warm: the arrays were written before, and the system has already moved as many bytes once.
    """
    import numpy as np

    submit, collect = peer.send()[mode]
    arrays = [np.full(size_bytes // 8, float(i)) for i in range(n)]
    for _ in range(warmup):
        collect(submit(arrays))
    before = peer.counters()
    begin = clock()
    pending = submit(arrays)
    sent = clock() - begin
    lengths = collect(pending)
    done = clock() - begin
    after = peer.counters()
    expect(list(lengths) == [size_bytes // 8] * n, "an array arrived with another length")
    values = {"returns": sent * 1e3, "complete": done * 1e3}
    return values | copies(before, after, size_bytes * n)


def sizes(peer: Adapter, mode: str, route: str, value: str, size_bytes: int, n: int, calls: int, warmup: int) -> Values:
    """n values of one kind and size in a call, with new contents every time: the median time of a value.

    Warm: the system has carried as many bytes before. What came with the call before is dropped outside the time.
    """
    way = peer.carry(route)[mode]
    given = values.several(value, size_bytes, n)
    times = []
    for call in range(warmup + calls):
        given = [values.renewed(x, call * n + i) for i, x in enumerate(given)]
        way.prepare(given)
        begin = clock()
        found = way.go(given)
        times.append((clock() - begin) / n)
        if call < warmup + calls - 1:
            del found
    arrived, wanted = way.arrived(given, found), [way.wanted(x) for x in given]
    each_arrived = len(arrived) > 0 and len(arrived) % n == 0
    are_same = all(values.same(x, wanted[i % n]) for i, x in enumerate(arrived))
    expect(each_arrived and are_same, "a value did not arrive as it was")
    return {"per_value": statistics.median(times[warmup:])}


def memory(peer: Adapter, settle_s: float) -> Values:
    """Proportional set size of an idle worker and of everything else that was started."""
    time.sleep(settle_s)
    workers = peer.worker_pids()
    held = {pid: pss_mb(pid) for pid in descendants()}
    return {
        "pss_per_worker": sum(held.pop(pid, 0.0) for pid in workers) / len(workers),
        "pss_other_processes": sum(held.values()),
    }


def bounded(peer: Adapter, mode: str, n: int, step: int, warmup: int) -> Values:
    """n tasks in steps, with results consumed and dropped: how much resident memory grew after the warm-up, by
    process."""
    submit, collect = peer.throughput()[mode]
    workers = set(peer.worker_pids())

    def resident() -> tuple[float, float]:
        others = descendants() - workers
        return rss_mb("self"), max((rss_mb(str(pid)) for pid in others), default=0.0)

    for _ in range(max(1, warmup // step)):
        collect(submit(step))
    base = peak = resident()
    done = 0
    while done < n:
        collect(submit(step))
        done += step
        now = resident()
        peak = (max(peak[0], now[0]), max(peak[1], now[1]))
    return {"client_growth": peak[0] - base[0], "controller_growth": peak[1] - base[1]}


MEASURES: dict[str, Callable[..., Values]] = {
    "latency": latency,
    "throughput": throughput,
    "map": map_items,
    "sleep-map": sleep_map,
    "straggler": straggler,
    "echo": echo,
    "send": send,
    "sizes": sizes,
    "memory": memory,
    "bounded": bounded,
}


def expect(condition: bool, message: str) -> None:
    """A figure of a run with wrong results means nothing."""
    if not condition:
        raise RuntimeError(message)


# ---------------------------------------------------------------- processes


def descendants() -> set[int]:
    """This process's descendants, including orphans.

    Those are all processes of its process namespace if it has its own, otherwise also those that carry the turn's tag.
    """
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as f:
                    text = f.read()
            except OSError:
                continue
            parents[int(name)] = int(text[text.rindex(")") + 2 :].split()[1])
    own = os.getpid()
    if own == 1:
        return set(parents) - {own}
    tag = os.environ.get("BROADLEAF_BENCH_TAG", "").encode()
    found: set[int] = set()
    todo = [own]
    while todo:
        parent = todo.pop()
        children = {pid for pid, p in parents.items() if p == parent} - found
        found |= children
        todo += children
    if tag:
        for pid in set(parents) - found - {own, os.getppid()}:
            try:
                with open(f"/proc/{pid}/environ", "rb") as f:
                    if b"BROADLEAF_BENCH_TAG=" + tag in f.read():
                        found.add(pid)
            except OSError:
                continue
    return found


def pss_mb(pid: int) -> float:
    """Memory of a process, shared pages divided among their users; 0 once it is gone."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as f:
            return next((int(line.split()[1]) / 1024 for line in f if line.startswith("Pss:")), 0.0)
    except OSError:
        return 0.0


def rss_mb(pid: str) -> float:
    try:
        with open(f"/proc/{pid}/status") as f:
            return next((int(line.split()[1]) / 1024 for line in f if line.startswith("VmRSS:")), 0.0)
    except OSError:
        return 0.0


def available_bytes() -> int:
    """Memory that programs can use without swapping."""
    with open("/proc/meminfo") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("MemAvailable:"))
