"""Relays that a controller does not accept, or that find another controller in its place: the error says which key is
wrong.
"""

from __future__ import annotations

import json
from pathlib import Path

import broadleaf as ipp
import pytest
from broadleaf.errors import ClusterStartError

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def files():
    """The files with which relays of two clusters join."""
    options = {"n": 0, "listen": "127.0.0.1:0"}
    with ipp.Cluster(**options) as one, ipp.Cluster(**options) as other:
        yield [json.loads(Path(rc.cluster.relay_file).read_text()) for rc in (one, other)]


def test_a_key_that_the_controller_does_not_know(files):
    one, other = files
    with pytest.raises(ClusterStartError, match="the peer refused our key: the connection file is out of date"):
        ipp.Relay(one | {"private_key": other["private_key"]}, 0)


def test_another_cluster_at_the_address(files):
    one, other = files
    with pytest.raises(ClusterStartError, match="its key is not in the connection file"):
        ipp.Relay(one | {"tcp": other["tcp"], "addresses": other["addresses"]}, 0)
