"""The rows of `broadleaf plan`: the content of its tables and its JSON, as plain dictionaries."""

from __future__ import annotations

from typing import Any

from broadleaf.plan import cost, transfer

ARITIES = (2, 3, 4, 8)
"""Shown beside each other."""


def depths(engines: int, arity: int = 2) -> list[dict[str, Any]]:
    """One row per depth, up to one past the best of either formula.

    `published`: IPython's formula, which is for two branches, else None. `corrected`: the smooth formula. `sends`: with
    a leaf's share rounded up, which is what counting gives. `to_direct`: `sends` over a direct view's. `best`: whether
    no other depth is better; `published_best`: the depth that the published formula would choose.
    """
    best = cost.best_depth(engines, arity).depth
    wrong = _published_best(engines) if arity == 2 else best
    return [
        {
            "depth": depth,
            "leaves": cost.leaves(arity, depth),
            "published": cost.published_sends(engines, depth) if arity == 2 else None,
            "corrected": cost.smooth_sends(engines, arity, depth),
            "sends": cost.sends(engines, arity, depth),
            "to_direct": cost.sends(engines, arity, depth) / cost.direct_sends(engines),
            "messages": cost.messages(engines, arity, depth),
            "best": depth == best,
            "published_best": arity == 2 and depth == wrong,
        }
        for depth in range(max(best, wrong) + 2)
    ]


def _published_best(engines: int) -> int:
    depth = 0
    while cost.published_sends(engines, depth + 1) < cost.published_sends(engines, depth):
        depth += 1
    return depth


def arities(engines: int, arity: int = 2) -> list[dict[str, Any]]:
    """One row per arity: the usual ones, `arity`, and the best of all; each at its best depth.

    `optimum_depth` and `min_sends` are the lowest point of the smooth curve, `depth` and `sends` the best whole
    numbers.
    """
    best = cost.best_shape(engines)
    rows = []
    for k in sorted({*ARITIES, arity, best.arity}):
        shape = cost.best_depth(engines, k)
        rows.append(
            {
                "arity": k,
                "optimum_depth": cost.optimum_depth(engines, k),
                "min_sends": cost.min_sends(engines, k),
                "depth": shape.depth,
                "sends": shape.sends,
                "messages": cost.messages(engines, k, shape.depth),
                "best": k == best.arity,
            }
        )
    return rows


def algorithms(hosts: int, n_bytes: int, link: transfer.Link) -> list[dict[str, Any]]:
    """One row per algorithm, the fastest first; `chosen` is the one that relays use, `runnable` whether they could use
    it.
    """
    chosen = transfer.choose(hosts, n_bytes, link)
    rows = []
    for found in sorted(transfer.transfers(hosts, n_bytes, link), key=lambda t: (t.seconds, t != chosen)):
        moved = transfer.host_bytes(found.algorithm, hosts, n_bytes, found.arity or 2)
        rows.append(
            {
                "algorithm": found.algorithm,
                "arity": found.arity,
                "seconds": found.seconds,
                "segments": found.segments,
                "segment_bytes": found.segment_bytes,
                "client_out_bytes": moved.client_out,
                "host_in_bytes": moved.host_in,
                "host_out_bytes": moved.host_out,
                "network_bytes": moved.network,
                "runnable": found.algorithm in transfer.RUNNABLE,
                "chosen": found == chosen,
            }
        )
    return rows


def everything(engines: int, arity: int, hosts: int | None, n_bytes: int | None, link: transfer.Link) -> dict[str, Any]:
    """The output of `broadleaf plan --json`; without `transfer` if hosts or bytes are not given."""
    best = cost.best_shape(engines)
    hosts_used = min(hosts or 0, engines)
    found: dict[str, Any] = {
        "engines": engines,
        "arity": arity,
        "direct": {"sends": cost.direct_sends(engines), "messages": cost.direct_messages(engines)},
        "broadleaf": {
            "hosts": hosts_used,
            "sends": cost.broadcast_sends(engines, hosts_used),
            "messages": cost.broadcast_messages(engines, hosts_used),
        },
        "best": {"arity": best.arity, "depth": best.depth, "sends": best.sends},
        "fewest_rounds": cost.binomial_rounds(engines),
        "depths": depths(engines, arity),
        "arities": arities(engines, arity),
    }
    if hosts is not None and n_bytes is not None:
        found["transfer"] = {
            "hosts": hosts,
            "bytes": n_bytes,
            "latency_s": link.latency_s,
            "seconds_per_byte": link.seconds_per_byte,
            "min_possible_s": transfer.min_possible_time(hosts, n_bytes, link),
            "direct_client_out_bytes": engines * n_bytes,
            "algorithms": algorithms(hosts, n_bytes, link),
        }
    return found
