"""What the links between namespaced hosts are set to."""

from __future__ import annotations

import pytest
from broadleaf.bench.network import Network, why_not

pytestmark = pytest.mark.timeout(60)
REASON = why_not()


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_hosts_have_one_congestion_control_on_every_machine():
    with Network(1) as network:
        for host in network.hosts:
            used = network.execute(host.namespace, ["sysctl", "-n", "net.ipv4.tcp_congestion_control"]).strip()
            assert used == "reno"
