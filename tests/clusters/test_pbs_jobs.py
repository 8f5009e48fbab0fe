"""Engines in jobs of PBS, with the commands that Slurm brings for its users, and Slurm's daemons."""

from __future__ import annotations

import re
import sys

import pytest
from bed.torque import PATH
from programs import SHARED, check_nothing_is_left, refusal, started
from waiting import until

pytestmark = pytest.mark.timeout(240)

ENV = SHARED | {"PATH": PATH}


@pytest.fixture(autouse=True)
def nothing_is_left(pbs):
    """A test leaves no job and no process behind."""
    yield
    check_nothing_is_left(pbs)
    assert until(lambda: not pbs.run("head", "squeue", "-h").stdout, 60), pbs.run("head", "squeue").stdout


def test_one_host(pbs):
    ids, hosts = started(pbs, "ipp.Cluster(engines=ipp.PBS(walltime='5m'), n=3)", **ENV)
    assert (len(ids), len(set(hosts))) == (3, 1)


def test_two_hosts_have_a_relay_each(pbs):
    ids, hosts = started(pbs, "ipp.Cluster(engines=ipp.PBS(nodes=2, engines_per_host=2))", **ENV)
    assert len(ids) == 4
    assert re.fullmatch(r"(n\d) \1 (n\d) \2", " ".join(hosts))


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ("queue='nowhere'", "PBS refuses the job: .*invalid partition specified: nowhere"),
        ("setup=['exit 3']", "set-up command failed with code 3: exit 3"),
    ],
    ids=["queue", "set-up"],
)
def test_a_refusal_names_its_cause(pbs, options, cause):
    said = refusal(pbs, f"ipp.Cluster(engines=ipp.PBS({options}), n=1)", **ENV)
    assert re.search(cause, said, re.DOTALL), said


def test_a_job_that_is_lost_is_replaced_and_told(pbs):
    program = """
import subprocess, time, broadleaf as ipp
cluster = ipp.Cluster(engines=ipp.PBS(engines_per_host=2))
cluster.start_controller_sync()
try:
    cluster.scale_sync(2)
    rc = cluster.connect_client_sync()
    rc.wait_for_engines(2, timeout=60)
    (block,) = cluster.blocks()
    running = rc[0].apply_async(time.sleep, 600)
    subprocess.run(["qdel", block.facts["job"]], check=True)
    try:
        running.get(60)
    except ipp.EngineError as error:
        print(error)
    rc.wait_for_engines(2, timeout=60)
    print(len(cluster.blocks()))
finally:
    cluster.stop_cluster_sync()
"""
    said = pbs.python(program, timeout_s=200, **ENV).stdout
    assert re.search(r"job \d+ has ended.*\n2\n", said, re.DOTALL), said


def test_the_command_line(pbs):
    broadleaf = (sys.executable, "-m", "broadleaf")
    pbs.write("head", "/shared/broadleaf/profiles/pbs/config.toml", 'engines = "pbs"\n[pbs]\nwalltime = "30m"\n')
    shown = pbs.run("head", *broadleaf, "start", "--profile", "pbs", "-n", "2", "--dry-run", **ENV).stdout
    assert "#PBS -l nodes=1:ppn=2\n#PBS -l walltime=0:30:00\n" in shown
    assert "2 engines" in pbs.run("head", *broadleaf, "start", "--profile", "pbs", "-n", "2", **ENV).stdout
    pbs.run("head", *broadleaf, "stop", "--profile", "pbs", **ENV)
