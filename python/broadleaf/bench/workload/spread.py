"""Measurements of the same value going to every worker."""

import os
import statistics
import time
from typing import Any

from . import payloads
from .adapter import Adapter
from .measure import Values, clock, descendants, expect, pss_mb

# Enough that the workers' effect on the caller's caches, on shared cores, is spread over many calls.
QUEUED_CALLS = 1000


def fan_out(peer: Adapter, mode: str, calls: int, warmup: int) -> Values:
    """Empty calls to all workers at once: the time until the caller knows that each has run it."""
    call = peer.fan_out()[mode]
    for _ in range(warmup):
        call()
    times = []
    for _ in range(calls):
        begin = clock()
        call()
        times.append((clock() - begin) * 1e3)
    return {"delivered": statistics.median(times)}


def fan_out_cost(peer: Adapter, mode: str, workers: list[int], rounds: int, warmup: int) -> dict[str, list[float]]:
    """What an empty call to a number of workers costs the caller, with many calls in flight, so that it seldom waits.
    The numbers alternate on one system, because another system, or the same one a minute later, has other costs. Each
    round begins with a different number, so that none always follows the same one.
    """
    queue = peer.fan_out_queued()[mode]
    values: dict[str, list[float]] = {f"client_{what}_{n}": [] for what in ("processor", "bytes_sent") for n in workers}
    for round in range(-warmup, rounds):
        for turn in range(len(workers)):
            n = workers[(round + turn) % len(workers)]
            sent_before, processor_before = peer.counters()["bytes_out"], time.process_time()
            queue(QUEUED_CALLS, n)
            processor, sent = time.process_time() - processor_before, peer.counters()["bytes_out"] - sent_before
            if round >= 0:
                values[f"client_processor_{n}"].append(processor / QUEUED_CALLS * 1e6)
                values[f"client_bytes_sent_{n}"].append(sent / QUEUED_CALLS)
    return values


def broadcast(peer: Adapter, mode: str, payload: str, rounds: int, warmup: int) -> Values:
    """One value to all workers, with new contents each round: the time until the last one has it and the caller knows.

    `first` is the first round of all, whose memory nobody has touched yet. Every worker then answers with a checksum of
    what it holds, outside the time measured.
    """
    way = peer.broadcast()[mode]
    # What the workers import for it is not part of the transfer.
    way.give(way.prepare(payloads.make(payload.split()[0] + " 2" if payload.startswith("array") else "csc 0.0001")))
    way.check()
    value = payloads.make(payload)
    times: list[float] = []
    for round in range(warmup + rounds):
        payloads.renew(value, round)
        given = way.prepare(value)
        begin = clock()
        way.give(given)
        times.append((clock() - begin) * 1e3)
        wanted = payloads.checksum(value)
        found = way.check()
        expect(len(found) > 0 and all(abs(f - wanted) <= 1e-9 * abs(wanted) for f in found), f"{found} for {wanted}")
        del given
    return {
        "first": times[0],
        "delivered": statistics.median(times[warmup:]),
        "payload": payloads.n_bytes(value) / 1e6,
    }


def broadcast_memory(peer: Adapter, mode: str, payload: str) -> Values:
    """How much proportional memory all processes together gained by one broadcast that every worker has read."""
    way = peer.broadcast()[mode]
    way.give(way.prepare(payloads.make("array 100")))
    way.check()
    value = payloads.make(payload)

    def total() -> float:
        return sum(map(pss_mb, descendants() | {os.getpid()}))

    before = total()
    given = way.prepare(value)
    way.give(given)
    way.check()
    grown = total() - before
    return {"pss_growth": grown, "pss_share": grown * 1.048576e6 / payloads.n_bytes(value)}


MEASURES: dict[str, Any] = {
    "fan-out": fan_out,
    "fan-out-cost": fan_out_cost,
    "broadcast": broadcast,
    "broadcast-memory": broadcast_memory,
}
