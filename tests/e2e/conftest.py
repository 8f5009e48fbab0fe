"""A cluster of this machine, one for each test module, and its views."""

from __future__ import annotations

import pytest
from broadleaf import Client
from cluster_fixtures import clean, cluster, rc

__all__ = ["clean", "cluster", "rc"]


@pytest.fixture
def lview(rc: Client):
    """A load-balanced view."""
    return rc.load_balanced_view()


@pytest.fixture
def dview(rc: Client):
    """A direct view of all engines."""
    return rc[:]
