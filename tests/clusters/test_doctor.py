"""`broadleaf doctor` on hosts with networks of their own: no route to the controller, a firewall, a job that waits."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from programs import SHARED, check_nothing_is_left

pytestmark = pytest.mark.timeout(240)

BROADLEAF = (sys.executable, "-m", "broadleaf")


def examined(bed, name, *arguments, **env):
    """The findings on a host: step to (result, found, advice)."""
    said = bed.run(name, *BROADLEAF, "doctor", *arguments, "-o", "json", check=False, **env).stdout
    return {one["step"]: (one["result"], one["found"], one["advice"]) for one in json.loads(said)}


@pytest.fixture
def engine_file(bed):
    """The engine.json of a cluster on the head, in a folder that all hosts see."""
    bed.run("head", *BROADLEAF, "start", "-n", "1", "--tcp", "0.0.0.0", **SHARED)
    yield "/shared/broadleaf/profiles/default/default/engine.json"
    bed.run("head", *BROADLEAF, "stop", **SHARED)
    check_nothing_is_left(bed)


def test_a_host_that_can_join(bed, engine_file):
    found = examined(bed, "n1", "--connection", engine_file)
    assert {result for result, *_ in found.values()} == {"ok"}, found
    assert bed.host("head").address in found["port"][1]


def test_no_route_to_the_controller(bed, engine_file):
    bed.run("n1", "sh", "-c", f"ip rule add pref 10 to {bed.host('head').address} unreachable")
    try:
        found = examined(bed, "n1", "--connection", engine_file)
    finally:
        bed.run("n1", "sh", "-c", f"ip rule del pref 10 to {bed.host('head').address} unreachable")
    result, said, advice = found["route"]
    assert result == "failed"
    assert f"no route to {bed.host('head').address} (Network is unreachable)" in said
    assert "interface=" in advice
    assert found["port"][0] == "not tried"


def test_a_firewall(bed, engine_file):
    bed.run("head", "sh", "-c", f"ip rule add pref 10 to {bed.host('n1').address} blackhole")
    try:
        found = examined(bed, "n1", "--connection", engine_file)
    finally:
        bed.run("head", "sh", "-c", f"ip rule del pref 10 to {bed.host('n1').address} blackhole")
    result, said, advice = found["port"]
    assert result == "failed"
    assert "no answer within" in said
    assert "a firewall blocks the port" in advice


def test_a_job_that_waits_says_for_what(slurm):
    program = """
import broadleaf as ipp
cluster = ipp.Cluster(engines=ipp.Slurm(nodes=1, sbatch=["--begin=now+1hour"]), cluster_id="waits")
cluster.start_cluster_sync()
print("submitted", flush=True)
input()
cluster.stop_cluster_sync()
"""
    client = subprocess.Popen(
        slurm.command("head", [sys.executable, "-c", program], SHARED),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert client.stdout.readline() == "submitted\n"
        found = examined(slurm, "head", "--cluster-id", "waits", **SHARED)
        (block,) = (one for step, one in found.items() if step.startswith("slurm-"))
        assert block[0] == "warning"
        assert "is pending: BeginTime" in block[1]
        assert found["our key"][0] == "ok"
    finally:
        client.communicate("\n", timeout=60)
    check_nothing_is_left(slurm)
