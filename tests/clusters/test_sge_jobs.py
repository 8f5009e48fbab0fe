"""Engines in Grid Engine jobs: its daemons, on a head and four hosts with networks of their own and a shared folder."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from bed.gridengine import SLOTS_PER_HOST
from programs import SHARED, check_nothing_is_left, refusal, started
from waiting import until

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def nothing_is_left(sge):
    """A test leaves no job and no process behind."""
    yield
    check_nothing_is_left(sge)
    assert until(lambda: not sge.run("head", "qstat").stdout, 60), sge.run("head", "qstat").stdout


def test_a_job_of_a_parallel_environment_has_an_engine_for_each_slot(sge):
    ids, hosts = started(sge, "ipp.Cluster(engines=ipp.SGE(slots=6, pe='mp', queue='main.q'))", **SHARED)
    assert len(ids) == len(hosts) == 6
    assert len(set(hosts)) >= 2, f"a host has {SLOTS_PER_HOST} slots"


def test_one_engine_on_each_of_four_hosts(sge):
    program = """
import socket, broadleaf as ipp
with ipp.Cluster(engines=ipp.SGE(slots=4, pe="one", engines_per_host=2)) as rc:
    print(sorted(rc[:].apply_sync(socket.gethostname)))
    (block,) = rc.cluster.blocks()
    print(block.state, block.n_hosts)
"""
    hosts, block = sge.python(program, **SHARED).stdout.splitlines()
    assert hosts == str(sorted(["n1", "n2", "n3", "n4"] * 2))
    assert block == "running 4"


def test_names_of_ipython_parallel_work(sge):
    ids, _ = started(sge, "ipp.Cluster(engines='SGE', n=3)", **SHARED)
    assert len(ids) == 3, "an array of jobs with a slot each: nobody named a parallel environment"


def test_an_array_of_jobs_with_several_slots(sge):
    ids, _ = started(sge, "ipp.Cluster(engines='sge', slots=6, pe='mp', array=True, engines_per_host=3)", **SHARED)
    assert len(ids) == 6


def test_jobs_write_into_a_directory_with_a_space_in_its_name(sge):
    program = """
import broadleaf as ipp
with ipp.Cluster(engines=ipp.SGE(slots=1)) as rc:
    (block,) = rc.cluster.blocks()
    print(rc.cluster.engines_from.log(block).strip())
"""
    sge.run("head", "rm", "-rf", "/shared/odd")
    said = sge.python(program, BROADLEAF_DIR="/shared/odd/my files 100%").stdout
    assert re.search(r"^broadleaf: host n\d:sge-\d+_1 has joined with 1 engines$", said, re.MULTILINE), said


def test_the_command_line_and_the_table_of_a_profile(sge):
    broadleaf = (sys.executable, "-m", "broadleaf")
    table = 'engines = "sge"\n[sge]\npe = "mp"\nwalltime = "5m"\nqueue = "main.q"\n'
    sge.write("head", "/shared/broadleaf/profiles/grid/config.toml", table)
    start = ("start", "--profile", "grid", "--set", "slots=2")
    shown = sge.run("head", *broadleaf, *start, "--dry-run", **SHARED).stdout
    directives = [line.removeprefix("#$ ") for line in shown.splitlines() if line.startswith("#$")]
    assert directives[5:] == ["-pe mp 2", "-l h_rt=0:05:00", "-q main.q"]
    assert not sge.run("head", "qstat").stdout
    assert "2 engines" in sge.run("head", *broadleaf, *start, **SHARED).stdout
    asked = "import broadleaf as ipp; rc = ipp.Client(profile='grid'); print(rc[:].apply_sync(lambda: 6 * 7))"
    assert sge.python(asked, **SHARED).stdout.strip() == "[42, 42]"
    sge.run("head", *broadleaf, "stop", "--profile", "grid", **SHARED)


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ("slots=2, pe='nowhere'", r'the requested parallel environment "nowhere" does not exist'),
        ("slots=99, pe='mp'", r'cannot run in PE "mp" because it only offers \d+ slots; verification: no suitable'),
        ("slots=1, queue='no.q'", r'requests unknown queue "no.q"'),
        ("slots=1, sge=['-l nonsense=1']", r'unknown resource "nonsense"'),
        ("slots=1, queue='short.q', walltime='2h'", r'h_rt=7200\) cannot run in queue "short.q"'),
        ("slots=1, sge=['-h']", r"job \d+_1 is held \(hqw\): Job is in hold state"),
        ("slots=1, sge=['-o /nowhere/log']", r"job \d+_1 cannot be started \(Eqw\): .*/nowhere/log"),
        ("slots=2, pe='mp', setup=['exit 3']", r"job \d+ ended with exit status 3"),
        ("slots=2, pe='mp', python='/nowhere/python'", r"job \d+ ended with exit status 12\d.*/nowhere/python"),
        ("slots=4, engines_per_host=2", r"needs jobs with that many slots: set pe= to a parallel environment"),
    ],
    ids=["environment", "slots", "queue", "resource", "walltime", "held", "output", "set-up", "python", "no pe"],
)
def test_a_refusal_names_its_cause(sge, options, cause):
    said = refusal(sge, f"ipp.Cluster(engines=ipp.SGE({options}))", **SHARED)
    assert re.search(cause, said, re.DOTALL), said


def test_a_job_that_waits_too_long_in_the_queue_says_for_what(sge):
    holders = sge.run(
        "head", "qsub", "-terse", "-S", "/bin/sh", "-q", "main.q", "-pe", "mp", str(4 * SLOTS_PER_HOST),
        "-o", "/dev/null", text="exec sleep 600\n",
    ).stdout.split()  # fmt: skip
    try:
        assert until(lambda: " r " in sge.run("head", "qstat").stdout)
        said = refusal(sge, "ipp.Cluster(engines=ipp.SGE(slots=1, queue='main.q', queue_timeout_s=5))", **SHARED)
        assert re.search(r"job \d+_1 is pending \(qw\): .*dropped because it is full.*, after 5 s", said), said
    finally:
        sge.run("head", "qdel", *holders)


@pytest.mark.parametrize("how", ["qdel", "client", "controller"])
def test_nothing_is_left_when_it_is_ended(sge, how):
    program = """
import broadleaf as ipp
cluster = ipp.Cluster(engines=ipp.SGE(slots=4, pe="one", engines_per_host=1))
cluster.start_and_connect_sync()
print(cluster.blocks()[0].facts["job"], flush=True)
input()
cluster.stop_cluster_sync()
"""
    client = subprocess.Popen(
        sge.command("head", [sys.executable, "-c", program], SHARED),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        job = client.stdout.readline().strip()
        assert job.isdigit(), client.stderr.read()
        check_no_key(sge, job)
        if how == "qdel":
            sge.run("head", "qdel", job)
        else:
            sge.signal("head", which=lambda line: ("ipp.SGE(slots=4" in line) == (how == "client"))
        for name in sge.names[1:]:
            assert until(lambda name=name: not sge.processes(name), 60), sge.processes(name)
    finally:
        client.communicate("\n", timeout=120)


ENDED = """
import time, broadleaf as ipp
from broadleaf.cluster import started_sets
started_sets._ENDING_S = 120.0  # the daemons share few processors here
with ipp.Cluster(engines=ipp.SGE(slots=1, queue="main.q", {options})) as rc:
    running = rc[0].apply_async(time.sleep, 600)
    print(rc.cluster.blocks()[0].facts["job"].replace("_", "."), flush=True)
    try:
        running.get(240)
    except ipp.EngineError as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("options", "cause"),
    [("walltime='25s'", "its walltime has run out, or another limit"), ("", "was deleted or killed")],
    ids=["walltime", "qdel"],
)
def test_a_death_certificate_names_what_ended_the_job(sge, options, cause):
    program = f"import os; os.environ.update({SHARED}){ENDED.format(options=options)}"
    client = sge.start("head", sys.executable, "-c", program, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    job = client.stdout.readline().strip()
    assert job, client.communicate()
    if not options:
        sge.run("head", "qdel", job)
    said, errors = client.communicate(timeout=240)
    assert f"was lost with its host: job {job.replace('.', '_')}" in said, (said, errors)
    assert cause in said, said


def check_no_key(bed, job):
    """The key is in files of mode 0600, and in no command line, script or log."""
    (file,) = bed.path("head", "/shared/broadleaf").glob("profiles/default/*/engine.json")
    key = json.loads(file.read_text())["private_key"]
    scripts = [bed.path(name, f"/var/spool/gridengine/execd/{name}/job_scripts/{job}") for name in bed.names]
    (script,) = [path.read_text() for path in scripts if path.exists()]
    told = [
        script,
        bed.run("head", "qstat", "-j", job).stdout,
        *bed.processes().values(),
        *(log.read_text() for log in file.parent.glob("*.log")),
    ]
    assert all(key not in text for text in told)
    with_key = [path for path in file.parent.iterdir() if path.is_file() and key in path.read_text(errors="replace")]
    assert {path.name for path in with_key} == {"engine.json", "order-sge.json"}
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in with_key)
