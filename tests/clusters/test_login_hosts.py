"""`via="ssh:login"`: a scheduler's commands run on a host reached by one login, from a host that has none of them."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from bed import Bed
from bed.sshd import start_sshd
from programs import check_nothing_is_left, refusal
from waiting import until

pytestmark = pytest.mark.timeout(300)

AWAY = "n4"
# On the remote host, no scheduler's program is in the search path.
ONLY_SSH = {"PATH": "/root/only"}
SETS = {
    "slurm": "ipp.Slurm(nodes=2, engines_per_host=1, via='ssh:head', shared_dir='/shared/jobs'{more})",
    "sge": "ipp.SGE(slots=2, pe='one', engines_per_host=1, via='ssh:head', shared_dir='/shared/jobs'{more})",
}


@pytest.fixture(scope="module")
def logins(ssh_hosts) -> Bed:
    """The bed, whose head lets n4 log in; n4 itself has no scheduler in its search path."""
    bed = ssh_hosts
    start_sshd(bed, "head")
    bed.write("head", "/root/.ssh/authorized_keys", bed.path("head", "/root/.ssh/id_ed25519.pub").read_text(), 0o600)
    for file in ("id_ed25519", "known_hosts"):
        bed.write(AWAY, f"/root/.ssh/{file}", bed.path("head", f"/root/.ssh/{file}").read_text(), 0o600)
    bed.run(AWAY, "sh", "-c", "mkdir -p /root/only; for p in ssh sh rm; do ln -sf $(command -v $p) /root/only; done")
    return bed


@pytest.fixture(params=SETS)
def engines(request, logins) -> str:
    """A running engine set of each scheduler."""
    request.getfixturevalue(request.param)
    return SETS[request.param]


def python(bed: Bed, program: str, **options) -> subprocess.CompletedProcess[str]:
    """Runs a program on the remote host."""
    return bed.run(AWAY, sys.executable, "-c", program, timeout_s=200, **ONLY_SSH, **options)


def refused(bed: Bed, engines: str) -> str:
    """The error of a cluster that does not start."""
    return refusal(bed, f"ipp.Cluster(engines={engines})", AWAY, **ONLY_SSH)


def left_over(bed: Bed) -> list[str]:
    """What clusters have left on the login host, besides packages."""
    folder = bed.path("head", "/shared/jobs")
    return [path.name for path in folder.iterdir() if path.name != "packages"] if folder.exists() else []


def test_a_script_may_be_a_file_on_the_login_host(logins, slurm):
    program = """
from dataclasses import dataclass
import broadleaf as ipp
@dataclass
class Filed(ipp.Slurm):
    takes_file = True
with ipp.Cluster(engines=Filed(nodes=1, engines_per_host=1, via='ssh:head', shared_dir='/shared/jobs')) as rc:
    print(rc[:].apply_sync(lambda: 6 * 7))
    rc.cluster.scale_sync(2)
    rc.wait_for_engines(2, timeout=60)
    print(rc.cluster.engines_from.submit_host.run(["sh", "-c", "stat -c '%a %n' /shared/jobs/*/*.sh"]))
"""
    value, *scripts = python(logins, program).stdout.split("\n")
    assert value == "[42]"
    assert len([script for script in scripts if script.startswith("700 ")]) == 2
    check_nothing_is_left(logins)
    assert not left_over(logins)


def test_engines_start_with_one_login(logins, engines):
    program = f"""
import socket, subprocess, time, broadleaf as ipp
with ipp.Cluster(engines={engines.format(more="")}) as rc:
    print(len(set(rc[:].apply_sync(socket.gethostname))), len(rc))
    (block,) = rc.cluster.blocks()
    print(block.state, block.n_hosts)
    give_up_at = time.monotonic() + 30
    while "broadleaf: host" not in rc.cluster.engines_from.log(block):  # it may have been read a moment ago
        assert time.monotonic() < give_up_at
        time.sleep(0.05)
"""
    before = logins_so_far(logins)
    assert python(logins, program).stdout.splitlines() == ["2 2", "running 2"]
    assert logins_so_far(logins) - before == 1
    assert left_over(logins) == []
    check_nothing_is_left(logins)


def logins_so_far(bed: Bed) -> int:
    """Logins that the head's sshd has accepted."""
    return bed.path("head", "/run/sshd.log").read_text().count("Accepted publickey")


def test_the_key_is_in_one_file_of_ours(logins, engines):
    program = f"""
import broadleaf as ipp
cluster = ipp.Cluster(engines={engines.format(more="")})
cluster.start_and_connect_sync()
print(open(cluster.relay_file).read().replace("\\n", ""), flush=True)
input()
cluster.stop_cluster_sync()
"""
    client = subprocess.Popen(
        logins.command(AWAY, [sys.executable, "-c", program], ONLY_SSH),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        line = client.stdout.readline()
        assert line, client.stderr.read()
        key = json.loads(line)["private_key"]
        (folder,) = (path for path in logins.path("head", "/shared/jobs").iterdir() if path.name != "packages")
        assert folder.stat().st_mode & 0o777 == 0o700
        with_key = [path for path in folder.rglob("*") if path.is_file() and key in path.read_text(errors="replace")]
        assert [re.sub("slurm|sge", "SET", path.name) for path in with_key] == ["order-SET.json"]
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in with_key)
        assert all(key not in text for text in logins.processes().values())
        # The master ends with the process that made it, however that ends, and so does the cluster.
        logins.signal(AWAY, which=lambda line: "start_and_connect_sync" in line)
        check_nothing_is_left(logins)
        assert not list(logins.path(AWAY, "/tmp").glob("broadleaf-ssh-*"))
    finally:
        client.communicate("\n", timeout=60)
    logins.run("head", "sh", "-c", "rm -rf /shared/jobs")


@pytest.mark.parametrize(
    ("engines", "cause"),
    [
        ("ipp.Slurm(nodes=1, via='ssh:nowhere')", "ssh to nowhere: no such host"),
        ("ipp.Slurm(nodes=1, via='ssh://head:2222')", "ssh to head: no SSH server is listening there"),
        ("ipp.SGE(slots=1, via='ssh:n3')", "the program 'qsub' was not found on n3: use via= to name a host"),
        ("ipp.Slurm(nodes=1)", "the program 'sbatch' was not found on this host: .*via='ssh:login'"),
        (
            "ipp.Slurm(nodes=1, partition='nowhere', via='ssh:head', shared_dir='/shared/jobs')",
            r"Slurm refuses the job: .*invalid partition specified: nowhere.*\(from partition='nowhere'\)",
        ),
        (
            "ipp.Slurm(nodes=1, via='ssh:head', shared_dir='/proc/jobs')",
            "no directory for jobs on head: .*use shared_dir= to name one that jobs can access",
        ),
        ("ipp.Slurm(nodes=1, sbatch=['--hold'], via='ssh:head', shared_dir='/shared/jobs')", "JobHeldUser"),
    ],
    ids=["name", "port", "no scheduler", "not here", "partition", "directory", "held"],
)
def test_a_refusal_names_its_cause(logins, slurm, engines, cause):
    hidden = "/usr/bin/qsub"
    logins.run("n3", "sh", "-c", f"[ ! -e {hidden} ] || mv {hidden} {hidden}.hidden")
    try:
        said = refused(logins, engines)
    finally:
        logins.run("n3", "mv", f"{hidden}.hidden", hidden)
    assert re.search(cause, said, re.DOTALL), said
    logins.run("head", "sh", "-c", "rm -rf /shared/jobs")


def test_a_connection_that_breaks_is_made_again(logins, engines):
    program = f"""
import os, signal, time, broadleaf as ipp
with ipp.Cluster(engines={engines.format(more="")}) as rc:
    master = rc.cluster.engines_from.submit_host._master
    os.killpg(master._child.pid, signal.SIGKILL)
    master._child.wait()
    rc.cluster.engines_from.look_now()
    print([block.state for block in rc.cluster.blocks()], rc[:].apply_sync(lambda: 1))
"""
    assert python(logins, program).stdout == "['running'] [1, 1]\n"
    check_nothing_is_left(logins)
    assert until(lambda: left_over(logins) == [])


def test_the_command_line_starts_it_and_another_process_stops_it(logins, slurm):
    profile = "/root/.local/state/broadleaf/profiles/away/config.toml"
    table = 'via = "ssh:head"\nshared_dir = "/shared/jobs"\nengines_per_host = 1\n'
    logins.write(AWAY, profile, f'engines = "slurm"\n[slurm]\n{table}')
    broadleaf = (sys.executable, "-m", "broadleaf")
    shown = logins.run(AWAY, *broadleaf, "start", "--profile", "away", "--set", "nodes=1", "--dry-run", **ONLY_SSH)
    assert "#SBATCH --output=/shared/jobs/default/block-slurm-%j.log" in shown.stdout
    logins.run(AWAY, *broadleaf, "start", "--profile", "away", "--set", "nodes=1", **ONLY_SSH)
    assert "n1:slurm" in str(logins.run(AWAY, *broadleaf, "status", "--profile", "away", "--json", **ONLY_SSH).stdout)
    logins.run(AWAY, *broadleaf, "stop", "--profile", "away", **ONLY_SSH)
    check_nothing_is_left(logins)
    assert left_over(logins) == []
    assert until(lambda: not slurm.run("head", "squeue", "-h").stdout, 60)


def test_jobs_use_the_broadleaf_that_was_sent(logins, engines):
    program = f"""
import broadleaf as ipp
with ipp.Cluster(engines={engines.format(more=", ship=True")}) as rc:
    print(rc[:].apply_sync(lambda: __import__("broadleaf").__file__))
"""
    for _ in range(2):
        said = python(logins, program).stdout
        assert said.count("/shared/jobs/packages/") == 2, said
    assert len(list(logins.path("head", "/shared/jobs/packages").iterdir())) == 1
