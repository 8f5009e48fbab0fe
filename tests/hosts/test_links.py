"""What the links between namespaced hosts are set to."""

from __future__ import annotations

import pytest
from bed.network import HostedCluster, Network, wait_until, why_not

pytestmark = pytest.mark.timeout(240)
REASON = why_not()


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_hosts_have_one_congestion_control_on_every_machine():
    with Network(1) as network:
        for host in network.hosts:
            used = network.execute(host.namespace, ["sysctl", "-n", "net.ipv4.tcp_congestion_control"]).strip()
            assert used == "reno"


def test_bandwidth_is_measured_before_anybody_broadcasts(hosted):
    def measured(cluster: HostedCluster) -> list[float]:
        return [entry["bytes_per_s"] for entry in cluster.host_status().values() if entry["bytes_per_s"]]

    found = []
    # One probe takes 42 ms. It says little where its host has no processor meanwhile.
    for _ in range(5):
        cluster = hosted(2, rate_mbit=200)
        wait_until(lambda cluster=cluster: measured(cluster), 60, "a measured bandwidth")
        [bytes_per_s] = measured(cluster)
        assert [entry["fetched"]["objects"] for entry in cluster.host_status().values()] == [0, 0]
        found.append(bytes_per_s)
        if 1e7 < bytes_per_s < 5e7:  # the links carry 2.5e7
            break
    else:
        pytest.fail(f"bytes in a second: {found}")
