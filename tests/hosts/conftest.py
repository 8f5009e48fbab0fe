"""Hosts in network namespaces of this machine; skipped with the reason if they cannot be made."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from bed.network import HostedCluster, Network, why_not
from far_clients import FarClients

REASON = why_not()


@pytest.fixture
def hosted() -> Iterator[Callable[..., HostedCluster]]:
    """A function that makes a cluster over `n` hosts; everything is removed afterwards, whatever happens."""
    if REASON is not None:
        pytest.skip(REASON)
    made: list[Network] = []
    clusters: list[HostedCluster] = []

    def make(n: int, engines: int = 1, *, rate_mbit: float | None = 200, latency_ms: float = 0, **options: object):
        network = Network(n, rate_mbit=rate_mbit, latency_ms=latency_ms)
        made.append(network)
        cluster = HostedCluster(network, engines, **options)
        clusters.append(cluster)
        return cluster

    try:
        yield make
    finally:
        try:
            for cluster in clusters:
                cluster.close()
        finally:
            for network in made:
                network.close()


@pytest.fixture
def far() -> Iterator[Callable[..., FarClients]]:
    """Makes clusters with clients on another host."""
    if REASON is not None:
        pytest.skip(REASON)
    made: list[FarClients] = []

    def make(rate_mbit: float | None = None, latency_ms: float = 0, **options: object) -> FarClients:
        made.append(FarClients(rate_mbit, latency_ms, kept_results_bytes=0, **options))
        return made[-1]

    try:
        yield make
    finally:
        for one in made:
            one.close()
