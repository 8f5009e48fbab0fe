"""A cluster on this machine and a client of it, one for each test module. A `conftest.py` imports what it needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from broadleaf import Client, Cluster
from processes import check_memory

ENGINES = 4

__all__ = ["clean", "cluster", "rc"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A running cluster of four engines, none of which is killed because it gets no processor for some seconds."""
    cluster = Cluster(n=ENGINES, interrupt_grace_s=30)
    cluster.start_cluster_sync()
    yield cluster
    check_memory(cluster)
    cluster.stop_cluster_sync()


@pytest.fixture(scope="module")
def rc(cluster: Cluster) -> Iterator[Client]:
    """A client of it, once all engines are up."""
    client = cluster.connect_client_sync()
    client.wait_for_engines(ENGINES, timeout=30)
    yield client
    client.close()


@pytest.fixture(autouse=True)
def clean(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leaves no task and no variable behind for the next test."""
    yield
    if "rc" in request.fixturenames:
        client = request.getfixturevalue("rc")
        assert client.wait(timeout=20), "a test has left tasks behind"
        client[:].clear(block=True)
