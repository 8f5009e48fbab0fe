"""The end of a Ray cluster whose nodes have engines."""

from __future__ import annotations

import subprocess

import pytest
from programs import check_nothing_is_left
from ray_hosts import PYTHON, ray_command, ray_on, stop_ray
from waiting import until

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(not PYTHON.exists(), reason="Ray is not installed: make .venv/.stamps/ray-venv"),
]

HOSTS = ("n1", "n2")
PROGRAM = """
import ray, broadleaf as ipp
ray.init(address="head:6379", log_to_driver=False)
cluster = ipp.Cluster(engines=ipp.OnRay(hosts=2, cpus=2))
cluster.start_and_connect_sync()
print("up", flush=True)
input()
"""


def test_nothing_is_left_when_ray_is_stopped(bed):
    with ray_on(bed, *HOSTS):
        client = subprocess.Popen(
            ray_command(bed, PROGRAM), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            assert client.stdout.readline() == "up\n", client.stderr.read()
            assert all(bed.processes(name) for name in HOSTS)
            stop_ray(bed)
            for name in HOSTS:
                assert until(lambda name=name: not bed.processes(name), 65), bed.processes(name)
        finally:
            client.communicate("\n", timeout=120)
    check_nothing_is_left(bed)
