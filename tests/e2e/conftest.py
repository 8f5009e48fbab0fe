"""A cluster of this machine, one for each test module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from broadleaf import Client, Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A running cluster of four engines."""
    cluster = Cluster(n=4)
    cluster.start_cluster_sync()
    yield cluster
    cluster.stop_cluster_sync()


@pytest.fixture(scope="module")
def rc(cluster: Cluster) -> Iterator[Client]:
    """A client of it, once all engines are there."""
    client = cluster.connect_client_sync()
    client.wait_for_engines(4, timeout=30)
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


@pytest.fixture
def lview(rc: Client):
    """A load-balanced view."""
    return rc.load_balanced_view()


@pytest.fixture
def dview(rc: Client):
    """A direct view of all engines."""
    return rc[:]
