"""Engines as workers of Dask."""

from __future__ import annotations

import ipaddress
import json
import subprocess
import sys

import pytest

pytest.importorskip("distributed")
pytest.importorskip("psutil")
pytestmark = pytest.mark.sites

# In a separate process: Dask's scheduler and its event loop stay in the client's.
PROGRAM = """
import json, os, warnings
import broadleaf as ipp
import psutil

warnings.simplefilter("error", UserWarning)


def listening():
    import os
    import psutil
    return [c.laddr.ip for c in psutil.Process(os.getpid()).net_connections("tcp") if c.status == "LISTEN"]


with ipp.Cluster(n=2) as rc, ipp.Cluster(n=1) as other:
    one = rc.become_dask()
    two = other.become_dask()
    addresses = [listening(), *rc[:].apply_sync(listening), *other[:].apply_sync(listening)]
    values = one.gather(one.map(abs, [-1, -2])) + two.gather(two.map(abs, [-3]))
    for client, dask in ((rc, one), (other, two)):
        dask.close()
        client.stop_dask()
    print(json.dumps([values, addresses]))
"""


@pytest.mark.timeout(180)
def test_two_clusters_become_dask_and_listen_on_this_host_alone():
    """Dask does not ask anyone who connects for a key."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=160)
    assert done.returncode == 0, done.stderr[-3000:]
    values, addresses = json.loads(done.stdout.splitlines()[-1])
    assert values == [1, 2, 3]
    assert all(addresses), "each process has a socket"
    strangers = [ip for process in addresses for ip in process if not ipaddress.ip_address(ip).is_loopback]
    assert strangers == []
