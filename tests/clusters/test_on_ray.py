"""Engines on the nodes of a Ray cluster, which continues with its own tasks."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest
from bed import Bed
from programs import check_nothing_is_left, examples
from ray_hosts import PYTHON, kill_ray, ray_command, ray_on, ray_python

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(not PYTHON.exists(), reason="Ray is not installed: make .venv/.stamps/ray-venv"),
]

HEAD = """
import socket, time, ray, broadleaf as ipp
from broadleaf.errors import ClusterStartError
ray.init(address="head:6379", log_to_driver=False)
def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def ray_hosts(bed) -> Iterator[Bed]:
    """The bed, with Ray on three hosts."""
    with ray_on(bed, "n1", "n2", "n3"):
        yield bed
    check_nothing_is_left(bed)


def run(bed: Bed, program: str) -> list[str]:
    """The lines that a program prints on the head; afterwards Ray has back everything that was taken."""
    end = """
until(lambda: ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"])
print("done")
"""
    *lines, done = ray_python(bed, HEAD + program + end).splitlines()
    assert done == "done"
    check_nothing_is_left(bed)
    return lines


def test_engines_on_two_nodes_while_ray_goes_on(ray_hosts):
    hosts, ids, rays = run(
        ray_hosts,
        """
with ipp.Cluster(engines=ipp.OnRay(hosts=2, cpus=2)) as rc:
    print(len(set(rc[:].apply_sync(socket.gethostname))))
    print(rc.ids)
    assert rc.load_balanced_view().map_sync(abs, range(-100, 0)) == list(range(100, 0, -1))
    successor = ray.remote(lambda x: x + 1)
    print(ray.get([successor.remote(i) for i in range(4)]))
    until(lambda: ray.available_resources()["CPU"] == 12 - 4)
""",
    )
    assert (hosts, ids, rays) == ("2", "[0, 1, 2, 3]", "[1, 2, 3, 4]")


def test_a_detached_cluster_is_stopped_by_another_process(ray_hosts):
    run(
        ray_hosts,
        """
cluster = ipp.Cluster(engines="ray", hosts=1, cpus=1, detached=True)
cluster.start_and_connect_sync().close()
ray.shutdown()
again = ipp.Cluster.from_file(cluster.cluster_file)
assert [block.state for block in again.blocks()] == ["running"]
again.stop_cluster_sync()
""",
    )


def test_refusals_name_their_cause_in_time(ray_hosts):
    run(
        ray_hosts,
        """
from refusals import refused
for n_hosts, cause in (
    (4, "Ray has no room yet: 4 nodes with 2 CPU each are wanted; CPUs of its nodes: "),
    (0, "hosts and cpus must be at least 1, not 0 and 2"),
):
    with refused(cause):
        ipp.Cluster(engines=ipp.OnRay(hosts=n_hosts, cpus=2, queue_timeout_s=2)).start_and_connect_sync()
ray.shutdown()
for address, cause in (
    ("head:7", "Ray at 'head:7' cannot be reached: "),
    ("192.0.2.250:6379", "Ray at '192.0.2.250:6379' cannot be reached: "),
    ("no-such-host:6379", "Ray at 'no-such-host:6379' cannot be reached: "),
):
    with refused(cause):
        ipp.Cluster(engines=ipp.OnRay(address=address)).start_and_connect_sync()
ray.init(address="head:6379", log_to_driver=False)
""",
    )


def test_the_guide(ray_hosts):
    hosts, total = ray_python(ray_hosts, examples("ray.md")).splitlines()
    assert re.fullmatch(r"\['(n\d)', '\1', '(n\d)', '\2'\]", hosts)
    assert total == "6"


def test_what_a_process_leaves_that_is_killed_goes_back_to_ray(ray_hosts):
    run(
        ray_hosts,
        """
cluster = ipp.Cluster(engines=ipp.OnRay(hosts=2, cpus=2))
cluster.start_and_connect_sync()
cluster._controller.release()  # as the end of this process would
""",
    )


def test_a_node_that_is_lost_is_replaced_with_the_same_engine_ids(ray_hosts):
    program = """
cluster = ipp.Cluster(engines=ipp.OnRay(hosts=2, cpus=2), cluster_id="lost")
with cluster as rc:
    places = rc[:].apply_async(socket.gethostname).get_dict()
    print(places[0], flush=True)
    running = rc[0].apply_async(time.sleep, 600)
    try:
        running.get(60)
    except ipp.EngineError as error:
        print(error.certificate.cause, flush=True)
    rc.wait_for_engines(4, timeout=60)
    now = rc[:].apply_async(socket.gethostname).get_dict()
    assert sorted(now) == [0, 1, 2, 3]
    assert now[0] != places[0]
    print("replaced", flush=True)
"""
    client = subprocess.Popen(
        ray_command(ray_hosts, HEAD + program), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert client.stdout is not None
    lost = client.stdout.readline().strip()
    assert lost in ("n1", "n2", "n3"), client.communicate()
    kill_ray(ray_hosts, lost)
    said, errors = client.communicate(timeout=150)
    words = [line for line in said.splitlines() if line in ("host_gone", "replaced")]  # Ray reports its own node, too
    assert words == ["host_gone", "replaced"], errors[-3000:]
    check_nothing_is_left(ray_hosts)
