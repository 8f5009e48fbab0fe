"""What the links between namespaced hosts are set to."""

from __future__ import annotations

import pytest
from broadleaf.bench.hosts.network import Network, wait_until, why_not

pytestmark = pytest.mark.timeout(60)
REASON = why_not()


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_hosts_have_one_congestion_control_on_every_machine():
    with Network(1) as network:
        for host in network.hosts:
            used = network.execute(host.namespace, ["sysctl", "-n", "net.ipv4.tcp_congestion_control"]).strip()
            assert used == "reno"


def test_bandwidth_is_measured_before_anybody_broadcasts(hosted):
    cluster = hosted(2, rate_mbit=200)

    def measured() -> list[float]:
        return [entry["bytes_per_s"] for entry in cluster.host_status().values() if entry["bytes_per_s"]]

    wait_until(measured, 20, "a measured bandwidth")
    [bytes_per_s] = measured()
    assert 1e7 < bytes_per_s < 5e7  # the links carry 2.5e7
    assert [entry["fetched"]["objects"] for entry in cluster.host_status().values()] == [0, 0]
