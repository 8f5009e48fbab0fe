"""Engines in Slurm jobs: its daemons, on a head and four hosts with networks of their own and a shared folder."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from bed import Bed
from bed.slurmd import status_calls
from programs import SHARED, check_nothing_is_left, refusal, started
from waiting import until

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def nothing_is_left(slurm):
    """A test leaves no job and no process behind."""
    yield
    check_nothing_is_left(slurm)
    assert until(lambda: not slurm.run("head", "squeue", "-h").stdout, 60), slurm.run("head", "squeue").stdout


def test_one_block_of_four_nodes(slurm):
    before = status_calls(slurm)
    program = """
import socket, broadleaf as ipp
with ipp.Cluster(engines=ipp.Slurm(nodes=4, engines_per_host=2, walltime="5m")) as rc:
    print(sorted(rc[:].apply_sync(socket.gethostname)))
    (block,) = rc.cluster.blocks()
    print(block.state, block.n_hosts, block.n_engines)
"""
    hosts, block = slurm.python(program, **SHARED).stdout.splitlines()
    assert hosts == str(sorted(["n1", "n2", "n3", "n4"] * 2))
    assert block == "running 4 8"
    # The first report of a pending block, if it was pending that long.
    assert status_calls(slurm) - before <= 1


def test_tasks_submit_tasks(slurm):
    program = """
import socket, broadleaf as ipp
with ipp.Cluster(engines=ipp.Slurm(nodes=2, engines_per_host=1, nested_tasks=True)) as rc:
    print(sorted(rc[0].apply_sync(lambda: ipp.get_client()[:].apply_sync(socket.gethostname))))
"""
    assert slurm.python(program, **SHARED).stdout == "['n1', 'n2']\n"


def test_names_of_ipython_parallel_work(slurm):
    ids, _ = started(slurm, "ipp.Cluster(engines='Slurm', n=6)", **SHARED)
    assert len(ids) == 6, "one task each, wherever Slurm puts them"


def test_a_job_array_has_a_node_in_each_of_its_jobs(slurm):
    ids, hosts = started(slurm, "ipp.Cluster(engines='slurm', nodes=3, array=True, engines_per_host=1)", **SHARED)
    assert len(ids) == len(hosts) == 3


def test_jobs_write_into_a_directory_of_any_name(slurm):
    program = """
import socket, broadleaf as ipp
with ipp.Cluster(engines=ipp.Slurm(nodes=1, engines_per_host=1, sbatch=["--comment=a b"])) as rc:
    (block,) = rc.cluster.blocks()
    print(rc.cluster.engines_from.log(block).strip())
"""
    slurm.run("head", "rm", "-rf", "/shared/odd")
    said = slurm.python(program, BROADLEAF_DIR="/shared/odd/my 'files' #1, 100%j").stdout
    assert re.search(r"^broadleaf: host n\d:slurm-\d+ has joined with 1 engines$", said, re.MULTILINE), said


def test_the_command_line_and_the_table_of_a_profile(slurm):
    bed, broadleaf = slurm, (sys.executable, "-m", "broadleaf")
    table = 'engines = "slurm"\n[slurm]\npartition = "main"\nwalltime = "5m"\nengines_per_host = 1\n'
    bed.write("head", "/shared/broadleaf/profiles/site/config.toml", table)
    shown = bed.run("head", *broadleaf, "start", "--profile", "site", "--set", "nodes=2", "--dry-run", **SHARED).stdout
    directives = [line.removeprefix("#SBATCH ") for line in shown.splitlines() if line.startswith("#SBATCH")]
    assert directives[2:] == ["--nodes=2", "--ntasks-per-node=1", "--time=0:05:00", "--partition=main"]
    assert not bed.run("head", "squeue", "-h").stdout
    said = bed.run("head", *broadleaf, "start", "--profile", "site", "--set", "nodes=2", **SHARED).stdout
    assert "2 engines" in said
    asked = "import broadleaf as ipp; rc = ipp.Client(profile='site'); print(rc[:].apply_sync(lambda: 6 * 7))"
    assert bed.python(asked, **SHARED).stdout.strip() == "[42, 42]"
    bed.run("head", *broadleaf, "stop", "--profile", "site", **SHARED)


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ("nodes=1, partition='nowhere'", r"invalid partition specified: nowhere.*\(from partition='nowhere'\)"),
        ("nodes=9", "is pending: PartitionNodeLimit"),
        ("nodes=1, sbatch=['--mem=nonsense']", r"Invalid --mem.*\(from the line '--mem=nonsense' in sbatch\)"),
        ("nodes=1, walltime='2h'", "is pending: PartitionTimeLimit"),
        ("nodes=1, sbatch=['--hold']", "job [0-9]+ is pending: JobHeldUser"),
        ("nodes=1, walltime='fortnight'", r"Invalid --time.*\(from walltime='fortnight'\)"),
        (
            "nodes=1, setup=['exit 3']",
            r"job [0-9]+ is failed \(NonZeroExitCode\).*set-up command failed with code 3: exit 3",
        ),
        ("nodes=1, python='/nowhere/python'", "job [0-9]+ is failed.*/nowhere/python"),
    ],
    ids=["partition", "nodes", "directive", "walltime", "held", "no time", "set-up", "python"],
)
def test_a_refusal_names_its_cause(slurm, options, cause):
    said = refusal(slurm, f"ipp.Cluster(engines=ipp.Slurm({options}))", **SHARED)
    assert re.search(cause, said, re.DOTALL), said


def test_a_directory_that_hosts_do_not_share_is_told(slurm):
    said = refusal(slurm, "ipp.Cluster(engines=ipp.Slurm(nodes=1, engines_per_host=1))")
    assert re.search(r"access /root/.local/state/broadleaf/\S*, set BROADLEAF_DIR to another one that they can", said)


def test_modules_of_a_login_shell_are_there(slurm):
    for name in slurm.names[1:]:
        slurm.write(name, "/etc/profile.d/modules.sh", 'module() { export LOADED="$2"; }\n')
    program = """
import os, broadleaf as ipp
with ipp.Cluster(engines=ipp.Slurm(nodes=1, engines_per_host=1, setup=["module load gcc/12"])) as rc:
    print(rc[0].apply_sync(os.getenv, "LOADED"))
"""
    assert slurm.python(program, **SHARED).stdout == "gcc/12\n"


def test_a_job_that_waits_too_long_in_the_queue_says_for_what(slurm):
    holder = slurm.run("head", "sbatch", "--parsable", "--nodes=4", "--exclusive", "--wrap", "exec sleep 600").stdout
    try:
        assert until(lambda: slurm.run("head", "squeue", "-h", "-t", "R", "-o", "%i").stdout == holder)
        said = refusal(slurm, "ipp.Cluster(engines=ipp.Slurm(nodes=1, queue_timeout_s=5))", **SHARED)
        assert re.search(r"job \d+ is pending: (Resources|Priority), after 5 s", said), said
    finally:
        slurm.run("head", "scancel", holder.strip())


@pytest.mark.parametrize(
    ("options", "reason", "words"),
    [
        ("sbatch=['--reservation=soon']", "Reservation", "its reservation has not started"),
        ("partition='off'", "PartitionDown", "its partition is down"),
    ],
    ids=["reservation", "partition"],
)
def test_a_job_that_only_waits_is_left_to_wait(slurm, options, reason, words):
    reserve = "scontrol create reservation=soon starttime=now+20seconds duration=5 nodes=n1 users=root"
    program = f"""
import os; os.environ.update({SHARED})
import broadleaf as ipp
with ipp.Cluster(engines=ipp.Slurm(nodes=1, engines_per_host=1, walltime="2m", {options})) as rc:
    print(rc.ids)
"""
    if reason == "Reservation":
        slurm.run("head", *reserve.split())
    client = slurm.start("head", sys.executable, "-c", program, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        warning = client.stderr.readline()
        if reason == "PartitionDown":
            slurm.run("head", "scontrol", "update", "partition=off", "state=up")
        said, errors = client.communicate(timeout=120)
    finally:
        client.kill()
        slurm.run("head", "scontrol", "update", "partition=off", "state=down")
        slurm.run("head", "scontrol", "delete", "reservation=soon", check=False)
    waits = rf"PendingBlockWarning: job \d+ is pending: {reason}: {words}; it may wait for 86400 s"
    assert re.search(waits, warning), warning + errors
    assert said == "[0]\n", errors


@pytest.mark.parametrize("how", ["scancel", "client", "controller", "relay"])
def test_nothing_is_left_when_it_is_ended(slurm, how):
    bed = slurm
    program = """
import broadleaf as ipp
cluster = ipp.Cluster(engines=ipp.Slurm(nodes=2, engines_per_host=1))
cluster.start_and_connect_sync()
print(cluster.blocks()[0].facts["job"], flush=True)
input()
cluster.stop_cluster_sync()
"""
    client = subprocess.Popen(
        bed.command("head", [sys.executable, "-c", program], SHARED),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        job = client.stdout.readline().strip()
        assert job.isdigit(), client.stderr.read()
        check_no_key(bed, job)
        if how == "scancel":
            bed.run("head", "scancel", job)
        elif how in ("client", "controller"):
            bed.signal("head", which=lambda line: ("ipp.Slurm(nodes=2" in line) == (how == "client"))
        else:
            # The first node also runs the job's script, which continues with the others.
            bed.signal("n2", which=lambda line: "join import main" in line)
            assert until(lambda: not bed.processes("n2"), 60), bed.processes("n2")
            assert bed.processes("n1")
        if how != "relay":
            assert until(lambda: not bed.processes("n1") and not bed.processes("n2"), 60), bed.processes()
    finally:
        client.communicate("\n", timeout=120)


ENDED = """
import time, broadleaf as ipp
slurm = ipp.Slurm(nodes=1, engines_per_host=1, partition="low", sbatch=["--nodelist=n2", {more}])
with ipp.Cluster(engines=slurm) as rc:
    running = rc[0].apply_async(time.sleep, 600)
    print(rc.cluster.blocks()[0].facts["job"], flush=True)
    try:
        running.get(240)
    except ipp.EngineError as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("command", "cause"),
    [
        ("scontrol requeue {job}", "it was put back into the queue (job {job} is pending: "),
        ("scancel {job}", "job {job}: it was cancelled (CANCELLED) while it ran this task"),
        (
            "scontrol update job={job} TimeLimit=0:01",
            "job {job}: its walltime has run out (TIMEOUT) while it ran this task",
        ),
        (
            "sbatch -p high -w n2 --exclusive --wrap true",
            "job {job}: it was preempted (PREEMPTED) while it ran this task",
        ),
        (
            "scontrol update node=n2 state=down reason=test",
            "job {job}: a node failed (NODE_FAIL) while it ran this task",
        ),
    ],
    ids=["requeued", "cancelled", "walltime", "preempted", "node"],
)
def test_a_death_certificate_names_what_ended_the_job(slurm, command, cause):
    more = "" if "requeue" in command else "'--no-requeue'"
    program = f"import os; os.environ.update({SHARED}){ENDED.format(more=more)}"
    client = slurm.start("head", sys.executable, "-c", program, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    job = client.stdout.readline().strip()
    assert job.isdigit(), client.communicate()
    slurm.run("head", *command.format(job=job).split())
    said, errors = client.communicate(timeout=240)
    if "state=down" in command:
        slurm.run("head", "scontrol", "update", "node=n2", "state=resume", check=False)  # if it has not come back yet
        assert until(lambda: "idle" in slurm.run("head", "sinfo", "-h", "-n", "n2", "-o", "%t").stdout, 60)
    assert f"was lost with its host: {cause.format(job=job)}" in said, (said, errors)


BROADLEAF = (sys.executable, "-m", "broadleaf")


def test_a_client_of_any_program_is_told_what_ended_the_job(slurm):
    """Also by a cluster that nobody scales, and whose program has ended long ago."""
    options = ("--set", "nodes=2", "--set", "engines_per_host=1", "--set", "sbatch=--no-requeue")
    slurm.run("head", *BROADLEAF, "start", "--engines", "slurm", *options, **SHARED)
    program = """
import time, broadleaf as ipp
with ipp.Client() as rc:
    results = [rc[i].apply_async(time.sleep, 600) for i in rc.ids for _ in range(3)]
    print(rc.status()["engines"][0]["host"].rpartition("-")[2], flush=True)
    for result in results:
        try:
            result.get(120)
        except ipp.EngineError as error:
            print(error)
"""
    try:
        command = slurm.command("head", [sys.executable, "-c", program], SHARED)
        client = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        job = client.stdout.readline().strip()
        assert job.isdigit(), client.communicate()
        asked = status_calls(slurm)
        slurm.run("head", "scancel", job)
        said, errors = client.communicate(timeout=120)
        assert said.count(f"was lost with its host: job {job}: it was cancelled (CANCELLED)") == 6, said + errors
        assert status_calls(slurm) - asked <= 2
    finally:
        slurm.run("head", *BROADLEAF, "stop", **SHARED)


def test_a_pending_job_is_told_to_whoever_waits(slurm):
    holder = slurm.run("head", "sbatch", "--parsable", "--nodes=4", "--exclusive", "--wrap", "exec sleep 600").stdout
    waits = "import broadleaf as ipp; rc = ipp.Client(); rc.wait_for_engines(1, timeout=100); print(rc.ids)"
    start = slurm.command("head", [*BROADLEAF, "start", "--engines", "slurm", "--set", "nodes=1"], SHARED)
    try:
        assert until(lambda: slurm.run("head", "squeue", "-h", "-t", "R", "-o", "%i").stdout == holder)
        starts = subprocess.Popen(start, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        pending = r"^broadleaf: job \d+ is pending: (Resources|Priority)$"
        assert re.match(pending, line := starts.stderr.readline()), line
        command = slurm.command("head", [sys.executable, "-c", waits], SHARED)
        client = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert re.match(pending, line := client.stderr.readline()), line
        found = slurm.run("head", *BROADLEAF, "doctor", "-o", "json", check=False, **SHARED).stdout
        engines = next(one for one in json.loads(found) if one["step"] == "engines")
        assert engines["result"] == "warning", engines
        assert re.match(r"none are up yet: job \d+ is pending: (Resources|Priority)", engines["found"]), engines
        slurm.run("head", "scancel", holder.strip())
        said, errors = starts.communicate(timeout=100)
        assert "is running with" in said, errors
        said, errors = client.communicate(timeout=100)
        assert re.match(r"\[\d", said), errors
    finally:
        slurm.run("head", "scancel", holder.strip())
        slurm.run("head", *BROADLEAF, "stop", check=False, **SHARED)


def check_no_key(bed: Bed, job: str) -> None:
    """The key is in files of mode 0600, and in no command line, script or log."""
    (file,) = bed.path("head", "/shared/broadleaf").glob("profiles/default/*/engine.json")
    key = json.loads(file.read_text())["private_key"]
    told = [
        bed.run("head", "scontrol", "write", "batch_script", job, "-").stdout,
        bed.run("head", "scontrol", "show", "job", job).stdout,
        *bed.processes().values(),
        *(log.read_text() for log in file.parent.glob("*.log")),
    ]
    assert all(key not in text for text in told)
    with_key = [path for path in file.parent.iterdir() if path.is_file() and key in path.read_text(errors="replace")]
    assert {path.name for path in with_key} == {"engine.json", "order-slurm.json"}
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in with_key)
