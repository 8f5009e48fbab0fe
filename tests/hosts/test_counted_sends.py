"""The sends of a broadcast, counted on running clusters, against `broadleaf.plan`."""

from __future__ import annotations

import broadleaf as ipp
import numpy as np
import pytest
from broadleaf import plan

pytestmark = pytest.mark.timeout(180)

N_BYTES = 8_000_000
HOSTS = 6


@pytest.mark.parametrize("algorithm", ["flat", "binomial", "k-ary", "chain"])
def test_every_host_sends_the_payload_as_often_as_the_plan_says(hosted, algorithm):
    cluster = hosted(HOSTS, rate_mbit=400, broadcast_topology=algorithm, tree_arity=2)
    data = np.random.default_rng(0).integers(0, 256, N_BYTES, dtype=np.uint8)
    before = [cluster.network.sent_bytes(host) for host in cluster.network.hosts]
    assert cluster.client[:].apply_sync(len, data) == [N_BYTES] * HOSTS
    after = [cluster.network.sent_bytes(host) for host in cluster.network.hosts]
    copies = [round((b - a) / N_BYTES) for a, b in zip(before, after, strict=True)]
    expected = plan.host_bytes(algorithm, HOSTS, N_BYTES, arity=2)
    assert copies[0] == expected.client_out // N_BYTES
    assert max(copies[1:]) == expected.host_out // N_BYTES
    assert sum(copies) == expected.network // N_BYTES == HOSTS


def sends_of_a_broadcast(n_engines):
    """Frames that client and node send for one to all engines of a host, without the reply to the client."""
    with ipp.Cluster(n=n_engines) as client:
        view = client.broadcast_view(coalescing=True)
        view.apply_sync(int)  # the function is where it is needed from now on

        def frames():
            return client.link.counters()["frames_out"], client.cluster.status_sync()["links"]["frames_out"]

        own, node = frames()
        again_own, again_node = frames()
        view.apply_sync(int)
        after_own, after_node = frames()
        # Asking twice shows what asking costs. The node's one more is the reply to the client.
        asked_own, asked_node = again_own - own, again_node - node
        return after_own - again_own - asked_own, after_node - again_node - asked_node - 1


@pytest.mark.parametrize("n_engines", [1, 3, 7])
def test_one_host_is_a_tree_of_depth_0(n_engines):
    sent_own, sent_node = sends_of_a_broadcast(n_engines)
    assert (sent_own, sent_node) == (1, n_engines)
    assert sent_own + sent_node == plan.broadcast_sends(n_engines) == plan.sends(n_engines, depth=0)


@pytest.mark.parametrize("n_engines", [plan.LANE_ENGINES, 2 * plan.LANE_ENGINES])
def test_many_engines_of_a_host_are_sent_nothing_but_woken_once(n_engines):
    assert sends_of_a_broadcast(n_engines) == (1, 0)
    assert plan.broadcast_sends(n_engines) == 1 + 1
