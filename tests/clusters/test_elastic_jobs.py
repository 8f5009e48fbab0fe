"""Clusters that grow and shrink with Slurm jobs, with its daemons."""

from __future__ import annotations

import pytest
from bed import Bed
from debian_layer import CHECKOUT
from programs import SHARED, check_nothing_is_left
from waiting import until

pytestmark = pytest.mark.timeout(300)

# What both kinds of program have in common. Tasks of a `Gate` are sent by value, and all hosts see its directory.
_COMMON = f"""
import os, signal, subprocess, sys, time
from pathlib import Path
import broadleaf as ipp
sys.path.append({str(CHECKOUT / "tests")!r})
import waiting
from gates import Gate

def until(condition):
    assert waiting.until(condition, 60), "too late"

def jobs(*states):
    command = ["squeue", "-h", "-o", "%i", *(["-t", ",".join(states)] if states else [])]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
"""

_HEAD = f"""{_COMMON}
from broadleaf.errors import ClusterStartError

def write_line(path, line, seconds):
    time.sleep(seconds)
    with open(path, "a") as file:
        print(line, file=file)
    return line

cluster = ipp.Cluster(engines=ipp.Slurm(nodes=1, engines_per_host=2, walltime=WALLTIME))
cluster.start_controller_sync()
rc = cluster.connect_client_sync()
lview = rc.load_balanced_view()
"""


@pytest.fixture(autouse=True)
def nothing_is_left(slurm):
    """A test leaves no job and no process behind."""
    yield
    check_nothing_is_left(slurm)
    assert until(lambda: not slurm.run("head", "squeue", "-h").stdout, 60), slurm.run("head", "squeue").stdout


def run(slurm: Bed, program: str, walltime: str = "5m", timeout_s: float = 200) -> str:
    """The output of a program with a cluster without engines."""
    whole = f"{_HEAD.replace('WALLTIME', repr(walltime))}\ntry:\n"
    whole += "".join(f"    {line}\n" for line in program.strip().splitlines())
    whole += "finally:\n    rc.close()\n    cluster.stop_cluster_sync()\n"
    said: str = slurm.python(whole, timeout_s=timeout_s, **SHARED).stdout
    return said


def test_jobs_come_with_tasks_and_go_when_idle(slurm):
    program = """
cluster.adapt_sync(0, 4, idle_s=3)
assert not jobs()
assert lview.apply_sync(lambda: 42) == 42
gate = Gate(Path(cluster.cluster_dir, "gate"))
held = lview.apply_async(gate.task())
(block,) = cluster.blocks()
assert block.state == "running" and block.n_engines == 2 and len(block.hosts) == 1, block
assert 240 < block.deadline - time.time() <= 300, block
began = time.monotonic()
gate.open()
held.get(60)
until(lambda: not rc.ids)
assert time.monotonic() - began >= 3
until(lambda: not jobs())
(block,) = cluster.blocks()
print(block.state)
# Work for more than one job, and no more jobs than there may be.
lview.map_sync(time.sleep, [0.5] * 80, chunksize=1)
print(len(cluster.blocks()))
"""
    assert run(slurm, program).splitlines() == ["ended", "3"]


def test_scaling_up_and_down_and_jobs_that_are_lost(slurm):
    program = """
cluster.scale_sync(4)
until(lambda: len(rc) == 4)
assert len(jobs()) == 2
kept, lost = cluster.blocks()
gone = set(lost.engines)
subprocess.run(["scancel", lost.facts["job"]], check=True)
until(lambda: len(rc) == 4 and not gone & set(rc.ids))
assert kept.facts["job"] in jobs("R") and lost.facts["job"] not in jobs("R")
cluster.scale_sync(2)
until(lambda: len(jobs()) == 1)
until(lambda: len(rc) == 2)
cluster.drain_sync(cluster.blocks()[0])
until(lambda: not rc.ids or kept.facts["job"] not in jobs())
cluster.scale_sync(0)
until(lambda: not jobs())
cluster.engines_from.partition = "nowhere"
try:
    cluster.scale_sync(2)
except ClusterStartError as error:
    print(repr(str(error)))
cluster.adapt_sync(2, 2)
until(lambda: cluster.scaling_paused)
print(repr(cluster.scaling_paused))
"""
    refusal, paused = run(slurm, program).splitlines()
    assert "invalid partition specified: nowhere" in refusal
    assert paused[1:].startswith("3 blocks in a row did not start; the last one: Slurm refuses the job")


def test_a_pending_job_that_is_not_needed_any_more_is_cancelled(slurm):
    holder = slurm.run("head", "sbatch", "--parsable", "--nodes=4", "--exclusive", "--wrap", "exec sleep 600").stdout
    try:
        assert until(lambda: slurm.run("head", "squeue", "-h", "-t", "R", "-o", "%i").stdout == holder)
        program = """
cluster.adapt_sync(0, 4)
result = lview.apply_async(abs, -1)
until(lambda: jobs("PD"))
result.abort()
until(lambda: not jobs("PD"))
(block,) = cluster.blocks()
print(block.state, block.reason)
"""
        assert run(slurm, program) == "ended it was not needed any more\n"
    finally:
        slurm.run("head", "scancel", holder.strip())


def test_nothing_is_left_when_the_process_that_scales_is_killed(slurm):
    holder = slurm.run("head", "sbatch", "--parsable", "--nodes=3", "--exclusive", "--wrap", "exec sleep 600").stdout
    try:
        assert until(lambda: slurm.run("head", "squeue", "-h", "-t", "R", "-o", "%i").stdout == holder)
        program = """
cluster.scale_sync(4)
rc.wait_for_engines(2, timeout=60)
until(lambda: jobs("PD"))
print(*jobs("PD"), flush=True)
os.kill(os.getpid(), 9)
"""
        whole = _HEAD.replace("WALLTIME", "'5m'").replace("engines_per_host=2,", "engines_per_host=2, "
                                                          "sbatch=['--exclusive'],") + program  # fmt: skip
        killed = slurm.python(whole, timeout_s=200, check=False, **SHARED)
        pending = killed.stdout.strip()
        assert pending.isdigit(), killed.stderr
        check_nothing_is_left(slurm)
        # Nobody waits until it starts and finds no controller.
        assert until(lambda: pending not in slurm.run("head", "squeue", "-h", "-o", "%i").stdout.split(), 60)
    finally:
        slurm.run("head", "scancel", holder.strip())


def test_tasks_outlive_the_walltime_of_their_jobs(slurm):
    program = """
path = os.path.join(cluster.cluster_dir, "lines")
cluster.scale_sync(2)
results = [lview.apply_async(write_line, path, i, 0.5) for i in range(300)]
assert [one.get(150) for one in results] == list(range(300))
with open(path) as file:
    lines = sorted(map(int, file))
assert lines == list(range(300)), "each once"
print(len(cluster.blocks()) >= 2)
"""
    assert run(slurm, program, walltime="1m", timeout_s=250) == "True\n"


def test_a_host_that_is_lost_from_a_job_is_replaced(slurm):
    program = f"""{_COMMON}
def kill_relay():
    with open(f"/proc/{{os.getppid()}}/stat") as stat:
        os.kill(int(stat.read().rpartition(")")[2].split()[1]), signal.SIGKILL)

with ipp.Cluster(engines=ipp.Slurm(nodes=2, engines_per_host=1)) as rc:
    cluster = rc.cluster
    rc[1].apply_async(kill_relay)
    until(lambda: rc.ids == [0])
    cluster.scale_sync(2)
    until(lambda: len(rc) >= 2)
    first, second = cluster.blocks()
    # The host that was left holds no data, and is released when both others are up.
    until(lambda: first.facts["job"] not in jobs())
    until(lambda: len(rc) == 2)
    # A crash of an engine alone takes no new job: its host starts it again.
    os.kill(rc.status()["engines"][rc.ids[0]]["pid"], signal.SIGKILL)
    until(lambda: cluster.status_sync()["engines"][rc.ids[0]]["restarts"])
    until(lambda: len(rc) == 2)
    print(len(cluster.blocks()), second.facts["job"] in jobs("R"))
"""
    assert slurm.python(program, timeout_s=200, **SHARED).stdout == "2 True\n"


def test_a_relay_that_is_told_to_end_lets_its_engines_finish(slurm):
    program = """
def tell_relay(number, wait_at_gate):
    # As Slurm does before it preempts a job. The relay's process is the parent of the parent of its engines.
    with open(f"/proc/{os.getppid()}/stat") as stat:
        os.kill(int(stat.read().rpartition(")")[2].split()[1]), number)
    wait_at_gate()
    return os.environ["SLURM_JOB_ID"]

def leaving():
    return [block for block in cluster.blocks() if block.draining and block.state != "ended"]

path = os.path.join(cluster.cluster_dir, "lines")
cluster.adapt_sync(0, 2)
for number in (signal.SIGTERM, signal.SIGUSR1):
    gate = Gate(Path(cluster.cluster_dir, f"gate-{number}"))
    results = [lview.apply_async(write_line, path, i, 1) for i in range(4)]
    told = lview.apply_async(tell_relay, number, gate.task())
    results += [lview.apply_async(write_line, path, i, 1) for i in range(4, 10)]
    until(leaving)
    (left,) = leaving()
    assert left.deadline is None or left.deadline - time.time() <= cluster.settings["drain_s"], left
    gate.open()
    assert told.get(60) == left.facts["job"]
    assert [one.get(60) for one in results] == list(range(10))
    assert rc.status()["controller"]["resolved"]["lost"] == 0
    until(lambda: cluster.blocks() and left.state == "ended")
    with open(path) as file:
        assert sorted(map(int, file)) == list(range(10)), "each once"
    os.unlink(path)
print(len(cluster.blocks()) >= 2, repr(cluster.scaling_paused))
"""
    assert run(slurm, program) == "True ''\n"


DETACHED = """
import broadleaf as ipp
cluster = ipp.Cluster(engines=ipp.Slurm(nodes=1, engines_per_host=2, walltime="5m"), detached=True)
cluster.start_controller_sync()
cluster.adapt_sync(0, 2, idle_s=2)
print(cluster.cluster_file)
"""

LATER = f"""{_COMMON}
cluster = ipp.Cluster.from_file(FILE)
try:
    with cluster.connect_client_sync() as rc:
        lview = rc.load_balanced_view()
        gate = Gate(Path(cluster.cluster_dir, "gate"))
        held = lview.apply_async(gate.task())
        assert lview.apply_sync(abs, -42) == 42
        (block,) = cluster.blocks()
        assert block.state == "running", block
        gate.open()
        held.get(60)
        until(lambda: not jobs("R,CG"))
        assert [block.state for block in cluster.blocks()] == ["ended"]
        print("released")
        hold = ["sbatch", "--nodes=4", "--exclusive", "--wrap", "exec sleep 600"]
        subprocess.run(hold, check=True, capture_output=True)
        (holder,) = jobs("R,PD")
        until(lambda: jobs("R") == [holder])
        pending = lview.apply_async(abs, -1)
        until(lambda: jobs("PD"))
        os.kill(rc.status()["pid"], signal.SIGKILL)
        until(lambda: not jobs("PD"))
        print("cancelled")
        until(lambda: not cluster.keeps_its_size)
finally:
    subprocess.run(["scancel", "--user=root"])
    cluster.stop_cluster_sync()
    cluster.remove_files()
"""


def test_jobs_of_a_detached_cluster_come_and_go_when_nobody_is_left(slurm):
    file = slurm.python(DETACHED, timeout_s=60, **SHARED).stdout.strip()
    said = slurm.python(LATER.replace("FILE", repr(file)), timeout_s=200, **SHARED).stdout
    assert said.splitlines() == ["released", "cancelled"]


WITH_JOURNAL = """
import broadleaf as ipp
cluster = ipp.Cluster(engines=ipp.Slurm(nodes=2, engines_per_host=1, walltime="5m"), detached=True, journal="on")
cluster.start_cluster_sync()
cluster.wait_for_engines_sync()
print(cluster.cluster_file)
"""

KILLED = f"""{_COMMON}
cluster = ipp.Cluster.from_file(FILE)

def controller():
    try:
        return cluster.status_sync()["pid"]
    except ipp.ClusterConnectionError:
        return None

try:
    with cluster.connect_client_sync() as rc:
        rc[:].push({{"kept": 41}}, block=True)
        engines = rc[:].apply_sync(os.getpid)
    former, before = controller(), jobs("R")
    os.kill(former, signal.SIGKILL)
    until(lambda: controller() not in (None, former))
    with cluster.connect_client_sync() as rc:
        rc.wait_for_engines(2, timeout=60)
        assert rc[:].apply(os.getpid).get(60) == engines
        assert rc[:].apply(lambda: kept).get(60) == [41, 41]
    assert jobs("R,PD") == before, jobs()
    cluster.scale_sync(2)
    former = controller()
    os.kill(former, signal.SIGKILL)
    until(lambda: controller() not in (None, former))
    with cluster.connect_client_sync() as rc:
        rc.wait_for_engines(2, timeout=60)
        assert rc[:].apply(os.getpid).get(60) == engines
    assert jobs("R,PD") == before, jobs()
    assert cluster.keeps_its_size
    os.unlink(cluster.cluster_dir / "journal")
    os.kill(controller(), signal.SIGKILL)
    until(lambda: not jobs())
    until(lambda: cluster.scaling_paused)
    print(cluster.scaling_paused)
finally:
    subprocess.run(["scancel", "--user=root"])
    cluster.stop_cluster_sync()
"""


def test_jobs_outlive_a_controller_with_a_journal_and_are_cancelled_if_it_cannot_start_again(slurm):
    file = slurm.python(WITH_JOURNAL, timeout_s=100, **SHARED).stdout.strip()
    said = slurm.python(KILLED.replace("FILE", repr(file)), timeout_s=200, **SHARED).stdout
    assert "has no journal, so its controller cannot be started again" in said
