"""Engines in jobs that PSI/J submits: its executor for Slurm, with Slurm's daemons."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from programs import SHARED, check_nothing_is_left, refusal, started
from psij_packages import PackagesUnavailable, psij_packages
from waiting import until

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def env():
    """Variables that tell programs where PSI/J is, and hosts where the clusters' directory is."""
    try:
        return SHARED | {"PYTHONPATH": str(psij_packages())}
    except PackagesUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def nothing_is_left(slurm):
    """A test leaves no job, process or file behind."""
    yield
    check_nothing_is_left(slurm)
    assert until(lambda: not slurm.run("head", "squeue", "-h").stdout, 60), slurm.run("head", "squeue").stdout
    work = slurm.path("head", "/shared/broadleaf/psij/slurm")
    assert not work.exists() or list(work.iterdir()) == []


def test_one_node(slurm, env):
    ids, hosts = started(slurm, "ipp.Cluster(engines=ipp.PSIJ('slurm', engines_per_host=3))", **env)
    assert (len(ids), len(set(hosts))) == (3, 1)


def test_two_nodes_have_a_relay_each(slurm, env):
    program = """
import socket, broadleaf as ipp
with ipp.Cluster(engines=ipp.PSIJ("slurm", nodes=2, queue="main", walltime="5m"), n=4) as rc:
    print(sorted(rc[:].apply_sync(socket.gethostname)))
    (block,) = rc.cluster.blocks()
    print(block.n_hosts, block.n_engines, len(block.hosts))
"""
    hosts, block = slurm.python(program, **env).stdout.splitlines()
    assert re.fullmatch(r"\['(n\d)', '\1', '(n\d)', '\2'\]", hosts)
    assert block == "2 4 2"


def test_another_process_stops_it(slurm, env):
    broadleaf = (sys.executable, "-m", "broadleaf")
    table = 'engines = "psij"\n[psij]\nexecutor = "slurm"\nengines_per_host = 2\n'
    slurm.write("head", "/shared/broadleaf/profiles/psij/config.toml", table)
    shown = slurm.run("head", *broadleaf, "start", "--profile", "psij", "--dry-run", **env).stdout
    assert "#SBATCH --nodes=1" in shown
    assert "#SBATCH --time" not in shown, "nobody asked for a limit"
    assert not slurm.run("head", "squeue", "-h").stdout
    assert "2 engines" in slurm.run("head", *broadleaf, "start", "--profile", "psij", **env).stdout
    slurm.run("head", *broadleaf, "stop", "--profile", "psij", **env)


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ("queue='nowhere'", "slurm refuses the job: .*invalid partition specified: nowhere"),
        ("attributes=['mem=nonsense']", "slurm refuses the job: .*Invalid --mem"),
        ("setup=['exit 3']", r"job \d+ exited with code 3"),
        ("python='/nowhere/python'", r"job \d+ exited with code 127.*/nowhere/python"),
    ],
    ids=["queue", "attribute", "set-up", "python"],
)
def test_a_refusal_names_its_cause(slurm, env, options, cause):
    said = refusal(slurm, f"ipp.Cluster(engines=ipp.PSIJ('slurm', {options}))", **env)
    assert re.search(cause, said, re.DOTALL), said


def test_engines_of_a_cancelled_job_are_gone_and_the_cluster_goes_on(slurm, env):
    program = """
import time, broadleaf as ipp
with ipp.Cluster(engines=ipp.PSIJ("slurm", engines_per_host=1)) as rc:
    running = rc[0].apply_async(time.sleep, 600)
    print(rc.cluster.blocks()[0].facts["job"], flush=True)
    try:
        running.get(120)
    except ipp.EngineError as error:
        print(error)
    rc.cluster.start_engines_sync(1)
    rc.wait_for_engines(1)
    print(rc.load_balanced_view().apply_sync(lambda: "goes on"))
"""
    client = subprocess.Popen(
        slurm.command("head", [sys.executable, "-c", program], env),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    job = client.stdout.readline().strip()
    assert job.isdigit(), client.stderr.read()
    slurm.run("head", "scancel", job)
    said, errors = client.communicate(timeout=240)
    assert "was lost with its host" in said, (said, errors)
    assert said.splitlines()[-1] == "goes on"
