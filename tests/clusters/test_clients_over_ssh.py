"""Clients of clusters on other hosts, through the one port of an sshd; the head is the laptop."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import pytest
from bed.sshd import start_sshd
from programs import check_nothing_is_left
from waiting import until

pytestmark = pytest.mark.timeout(240)

BROADLEAF = (sys.executable, "-m", "broadleaf")
_REFUSED = """
import time, broadleaf as ipp
started = time.monotonic()
try:
    with ipp.Client({arguments}):
        print("connected")
except (ipp.error.ClusterConnectionError, ValueError, TypeError) as error:
    print(type(error).__name__, error)
assert time.monotonic() - started < 15
"""


def refusal(bed, arguments):
    """The error of a client that does not connect."""
    return bed.python(_REFUSED.format(arguments=arguments)).stdout


@pytest.fixture
def cluster_on(ssh_hosts):
    """Starts clusters on hosts; nothing of them is left afterwards."""
    started = []

    def start(name, *options, profile="default"):
        ssh_hosts.run(name, *BROADLEAF, "start", "--profile", profile, *options)
        started.append((name, profile))

    yield start
    for name, profile in started:
        ssh_hosts.run(name, *BROADLEAF, "stop", "--profile", profile, check=False)
    check_nothing_is_left(ssh_hosts)


@pytest.fixture
def login_host(cluster_on, ssh_hosts):
    """n1 has a cluster, which listens on its socket only."""
    cluster_on("n1", "-n", "2")
    return ssh_hosts


@pytest.fixture(params=["socket", "port"])
def both_ways(request, cluster_on, ssh_hosts):
    """n1 has a cluster, which listens on its socket only, or also on a port of the loopback interface."""
    cluster_on("n1", "-n", "2", *(["--tcp", "127.0.0.1"] if request.param == "port" else []))
    return ssh_hosts


def test_a_client_finds_the_cluster_of_its_login_host_and_ssh_ends_with_it(both_ways):
    program = """
import os, socket, subprocess, time, broadleaf as ipp

def logins():
    children = open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read().split()
    return [pid for pid in children if open(f"/proc/{pid}/comm").read() == "ssh\\n"]

with ipp.Client("ssh://root@n1/default") as rc:
    print(rc[:].apply_sync(socket.gethostname), rc.profile)
    assert len(logins()) == 1
deadline = time.monotonic() + 30
while logins():
    assert time.monotonic() < deadline
    time.sleep(0.05)
with ipp.Client(sshserver="n1", profile="default", cluster_id="default") as rc:
    print(rc.load_balanced_view().map_sync(abs, range(-3, 0)))
rc = ipp.Client("ssh://n1")
print(rc.ids)
"""
    said = both_ways.python(program).stdout.splitlines()
    assert said == ["['n1', 'n1'] default", "[3, 2, 1]", "[0, 1]"]
    assert until(lambda: not both_ways.processes("head")), "ssh outlives a client that was not closed"


def test_a_client_logs_in_again_when_its_ssh_ends(both_ways):
    program = """
import os, signal, threading, broadleaf as ipp

def login():
    children = open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read().split()
    return [int(pid) for pid in children if open(f"/proc/{pid}/comm").read() == "ssh\\n"]

def work(i):
    import time
    time.sleep(0.01)
    return i

with ipp.Client("ssh://root@n1/default") as rc:
    again = threading.Semaphore(0)
    rc.on_reconnect(again.release)
    rc[:].push({"kept": 41}, block=True)
    result = rc.load_balanced_view().map_async(work, range(600), chunksize=1)
    for _ in range(2):
        [ssh] = login()
        os.kill(ssh, signal.SIGKILL)
        print(rc[0].apply_async(lambda: kept + 1).get(timeout=60), again.acquire(timeout=30))
    print(result.get(timeout=60) == list(range(600)))
    print(rc[0].apply_sync(lambda: bytes(3 << 20)) == bytes(3 << 20))
"""
    said = both_ways.python(program).stdout.splitlines()
    assert said == ["42 True", "42 True", "True", "True"]
    assert until(lambda: not both_ways.processes("head")), "an ssh is left"


def test_a_client_logs_in_again_if_ssh_ends_after_its_connections(both_ways):
    """A process that is killed closes its sockets first: whoever asks at once finds it running."""
    program = """
import os, signal, broadleaf as ipp
from broadleaf.client import tunnel

has_ended, asked = tunnel.Tunnel.is_open, []

def is_open(self):
    asked.append(has_ended(self))
    return len(asked) < 3 or has_ended(self)

tunnel.Tunnel.is_open = is_open
with ipp.Client("ssh://root@n1/default") as rc:
    [ssh] = [int(pid) for pid in open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read().split()
             if open(f"/proc/{pid}/comm").read() == "ssh\\n"]
    os.kill(ssh, signal.SIGKILL)
    print(rc[0].apply_async(abs, -42).get(timeout=60), len(asked) >= 3)
"""
    assert both_ways.python(program).stdout == "42 True\n"


def test_a_client_goes_on_when_the_controller_was_started_again(cluster_on, ssh_hosts):
    cluster_on("n1", "-n", "2", "-o", "journal=on")
    file = ssh_hosts.path("n1", "/root/.local/state/broadleaf/profiles/default/default/client.json")
    program = """
import threading, broadleaf as ipp
with ipp.Client("ssh://root@n1/default") as rc:
    again, view = threading.Semaphore(0), rc.load_balanced_view()
    rc.on_reconnect(again.release)
    print(view.apply_sync(abs, -41), flush=True)
    input()
    print(again.acquire(timeout=40), view.apply_async(abs, -42).get(timeout=40))
"""
    command = ssh_hosts.command("head", (sys.executable, "-c", program), {})
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "41\n"
        ssh_hosts.run("n1", "kill", "-KILL", str(json.loads(file.read_text())["pid"]))
        assert client.communicate("\n", timeout=90)[0] == "True 42\n"


def test_large_values_travel_both_ways_and_a_task_is_aborted(both_ways):
    program = """
import time, numpy as np, broadleaf as ipp
data = np.random.default_rng(1).random(3_000_000)
with ipp.Client("ssh://n1") as rc:
    rc.broadcast(data, "data")
    assert all(rc[:].apply_sync(lambda total: data.sum() == total, data.sum()))
    copies = rc[:].pull("data", block=True)
    assert all(np.array_equal(copy, data) for copy in copies)
    assert np.array_equal(rc[0].apply_sync(lambda x: x + 1, data), data + 1)
    slept = rc[0].apply_async(time.sleep, 60)
    slept.abort()
    try:
        slept.get(timeout=20)
    except ipp.TaskAborted:
        print("aborted")
"""
    assert both_ways.python(program).stdout == "aborted\n"


def test_the_socket_takes_tls_whatever_the_option_says(cluster_on, ssh_hosts):
    cluster_on("n1", "-n", "1", "-o", "tls=false")
    program = "import broadleaf as ipp; print(len(ipp.Client('ssh://n1')[0].apply_sync(bytes, 5_000_000)))"
    assert ssh_hosts.python(program).stdout == "5000000\n"


def test_a_copy_of_the_connection_file_goes_through_the_login_host(both_ways):
    file = both_ways.path("n1", "/root/.local/state/broadleaf/profiles/default/default/client.json").read_text()
    both_ways.write("head", "/root/copy.json", file, 0o600)
    program = "import broadleaf as ipp; rc = ipp.Client('copy.json', sshserver='n1'); print(rc[:].apply_sync(abs, -42))"
    for _ in range(4):  # that the client is not closed is nobody's concern
        done = both_ways.python(program)
        assert (done.stdout, done.stderr) == ("[42, 42]\n", "")


def test_a_file_is_named_where_logins_do_not_know_the_directory(ssh_hosts):
    bed = ssh_hosts
    bed.run("n1", *BROADLEAF, "start", "-n", "1", BROADLEAF_DIR="/root/else:where")
    try:
        assert "looked in /root/.local/state/broadleaf/profiles/default" in refusal(bed, "'ssh://n1'")
        url = "ssh://n1/root/else:where/profiles/default/default/client.json"
        assert bed.python(f"import broadleaf as ipp; print(ipp.Client({url!r}).ids)").stdout == "[0]\n"
    finally:
        bed.run("n1", *BROADLEAF, "stop", BROADLEAF_DIR="/root/else:where")
    check_nothing_is_left(bed)


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        ("'ssh://nowhere'", "no such host"),
        ("'ssh://n2:2300', timeout=3", "the host does not answer"),
        ("'ssh://10.99.0.1'", "no route to the host"),
        ("'ssh://n1', ssh_args=['-J', 'n3,10.99.0.1']", "no route to the host"),
        ("'ssh://n2:2222'", "no SSH server is listening there"),
        ("'ssh://n2', sshkey='/etc/ssh/ssh_host_rsa_key', ssh_args=['-o', 'IdentitiesOnly=yes']", "none of your keys"),
        ("'ssh://n2', ssh_args=['-o', 'UserKnownHostsFile=/dev/null']", "not in known_hosts"),
        ("'ssh://n2'", "no cluster in profile 'default' on n2"),
        ("'ssh://root@n2/lab/mine'", "no cluster 'mine' in profile 'lab' on root@n2 .looked in /root/"),
        ("sshserver='n2', profile='lab'", "no cluster in profile 'lab' on n2"),
        ("'ssh://n2/a/b/c'", "ValueError .* optionally the id"),
        ("'ssh://n2', sshserver='n1'", "TypeError .* pass only one of them"),
        ("sshkey='x'", "TypeError sshkey and ssh_args can only be used with"),
    ],
)  # fmt: skip
def test_a_refusal_names_its_cause(ssh_hosts, silent, arguments, cause):
    ssh_hosts.run("head", "sh", "-c", "ip route replace unreachable 10.99.0.0/24")
    said = refusal(ssh_hosts, arguments)
    assert re.search(cause, said), said
    check_nothing_is_left(ssh_hosts)


def test_a_host_that_wants_a_password_says_so(ssh_hosts):
    start_sshd(
        ssh_hosts, "n3", "Port 2201\nMatch LocalPort 2201\n  PubkeyAuthentication no\n  PasswordAuthentication yes"
    )
    assert "asks for a password" in refusal(ssh_hosts, "'ssh://n3:2201'")


def test_a_login_that_a_busy_sshd_drops_is_tried_again(login_host):
    start_sshd(login_host, "n1", "Port 2202\nMaxStartups 1")
    hold = "import socket; s = socket.create_connection(('n1', 2202)); print(s.recv(9), flush=True); input()"
    holder = login_host.start("head", sys.executable, "-c", hold, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert "SSH" in holder.stdout.readline()
        said = refusal(login_host, "'ssh://n1:2202', timeout=8")
        assert re.search("kex_exchange_identification|Connection (closed|reset)", said), said
    finally:
        holder.communicate("\n")
    assert refusal(login_host, "'ssh://n1:2202'") == "connected\n"


def test_an_sshd_that_forwards_no_ports_says_so(cluster_on, ssh_hosts):
    cluster_on("n1", "-n", "1", "--tcp", "127.0.0.1")
    start_sshd(ssh_hosts, "n1", "Port 2203\nMatch LocalPort 2203\n  AllowTcpForwarding no")
    assert "does not allow port forwarding" in refusal(ssh_hosts, "'ssh://n1:2203'")


def test_an_sshd_that_forwards_to_no_sockets_is_suspected(login_host):
    start_sshd(login_host, "n1", "Port 2204\nMatch LocalPort 2204\n  AllowStreamLocalForwarding no")
    assert "sshd_config may forbid it (AllowStreamLocalForwarding)" in refusal(login_host, "'ssh://n1:2204'")


def test_a_socket_with_too_long_a_path_says_how_to_start_the_cluster(ssh_hosts):
    directory = "/root/" + "long/" * 20
    ssh_hosts.run("n1", *BROADLEAF, "start", "-n", "1", BROADLEAF_DIR=directory)
    try:
        said = refusal(ssh_hosts, f"'ssh://n1{directory}profiles/default/default/client.json'")
        assert "start it with `broadleaf start --tcp 127.0.0.1`" in said
    finally:
        ssh_hosts.run("n1", *BROADLEAF, "stop", BROADLEAF_DIR=directory)
    check_nothing_is_left(ssh_hosts)


def test_a_cluster_of_another_host_says_where_it_runs(login_host):
    """As with a home directory that login hosts share."""
    state = "/root/.local/state/broadleaf"
    profile = login_host.path("n1", f"{state}/profiles/default/default")
    for name in ("client.json", "owner.json"):
        login_host.write("n2", f"{state}/profiles/default/default/{name}", (profile / name).read_text(), 0o600)
    try:
        assert "runs on n1 and listens on that host's socket only: log in to n1" in refusal(login_host, "'ssh://n2'")
    finally:
        shutil.rmtree(login_host.path("n2", f"{state}/profiles"))


def test_a_cluster_that_was_killed_has_ended(cluster_on, ssh_hosts):
    cluster_on("n1", "-n", "1")
    ssh_hosts.signal("n1")
    assert until(lambda: not ssh_hosts.processes("n1"))
    assert "cluster 'default' on n1 has ended" in refusal(ssh_hosts, "'ssh://n1'")


def test_the_controller_may_run_where_the_login_host_does_not_get(both_ways):
    file = both_ways.path("n1", "/root/.local/state/broadleaf/profiles/default/default/client.json").read_text()
    connection = json.loads(file)
    both_ways.write("head", "/root/copy.json", file, 0o600)
    said = refusal(both_ways, "'copy.json', sshserver='n2'")
    there = f"127.0.0.1:{connection['tcp']['port']}" if connection["tcp"] else connection["unix_path"]
    assert f"the controller could not be reached at {there} over ssh to n2" in said


def test_ssh_ends_with_a_client_that_is_killed(login_host):
    program = "import broadleaf as ipp; rc = ipp.Client('ssh://n1'); print('up', flush=True); input()"
    client = login_host.start("head", sys.executable, "-c", program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert client.stdout.readline() == "up\n"
        lines = login_host.processes("head")
        (file,) = login_host.path("n1", "/root/.local/state/broadleaf").glob("profiles/*/*/client.json")
        key = json.loads(file.read_text())["private_key"]
        assert key not in " ".join([*lines.values(), *login_host.processes("n1").values()])
        login_host.signal("head", which=lambda line: "print('up'" in line)
        assert until(lambda: not login_host.processes("head")), login_host.processes("head")
    finally:
        client.communicate("\n")


def test_a_child_that_was_forked_does_not_keep_ssh_open(login_host):
    program = """
import os, signal, broadleaf as ipp
rc = ipp.Client("ssh://n1")
if os.fork() == 0:
    os.read(0, 1)  # until the test is over
    os._exit(0)
print("up", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    client = login_host.start("head", sys.executable, "-c", program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert client.stdout.readline() == "up\n"
        lines = lambda: list(login_host.processes("head").values())  # noqa: E731
        assert until(lambda: not any(line.startswith("ssh ") for line in lines())), lines()
        assert any("os.fork" in line for line in lines())
    finally:
        client.communicate("\n")


def test_a_connection_that_breaks_for_good_says_by_which_way_it_went(cluster_on, ssh_hosts):
    """Its ssh ends, and it cannot log in again within the limit."""
    cluster_on("n1", "-n", "1", "-o", "rejoin_timeout_s=2")
    program = f"""
import os, signal, subprocess, time, broadleaf as ipp
rc = ipp.Client("ssh://n1")
result = rc[0].apply_async(time.sleep, 60)
children = open(f"/proc/{{os.getpid()}}/task/{{os.getpid()}}/children").read().split()
subprocess.run("ip rule add pref 10 to {ssh_hosts.host("n1").address} unreachable".split(), check=True)
os.kill(int(children[0]), signal.SIGKILL)
try:
    result.get(timeout=20)
except ipp.error.LinkLost as error:
    print(error)
"""
    try:
        assert "over ssh to n1" in ssh_hosts.python(program).stdout
    finally:
        ssh_hosts.run("head", *f"ip rule del pref 10 to {ssh_hosts.host('n1').address} unreachable".split())


@pytest.fixture
def behind_a_jump_host(ssh_hosts):
    """The head and n4 cannot reach each other, but n3 reaches both; n4 may log in to n1 and n2."""
    bed, head, far = ssh_hosts, ssh_hosts.host("head").address, ssh_hosts.host("n4").address
    rules = [("head", f"to {far}"), ("n4", f"to {head}")]
    for name, rule in rules:
        bed.run(name, "sh", "-c", f"ip rule add pref 10 {rule} unreachable")
    for file in ("id_ed25519", "known_hosts"):
        bed.write("n4", f"/root/.ssh/{file}", bed.path("head", f"/root/.ssh/{file}").read_text(), 0o600)
    config = "Host cluster\n  HostName n4\n  ProxyJump n3\n  HostKeyAlias n4\n  RemoteCommand false\n"
    bed.write("head", "/root/.ssh/config", config, 0o600)
    yield bed
    bed.path("head", "/root/.ssh/config").unlink()
    bed.path("n4", "/root/.ssh/id_ed25519").unlink()
    for name, rule in rules:
        bed.run(name, "sh", "-c", f"ip rule del pref 10 {rule} unreachable")


def test_from_behind_a_jump_host_map_and_broadcast_reach_engines_of_several_hosts(behind_a_jump_host, cluster_on):
    bed = behind_a_jump_host
    cluster_on("n4", "--engines", "ssh", "--hosts", "n1:2,n2:2", profile="far")
    assert "no route" in refusal(bed, "'ssh://n4/far'")
    program = """
import socket, numpy as np, broadleaf as ipp
data = np.random.default_rng(1).random(2_000_000)
with ipp.Client("ssh://cluster/far") as rc:
    print(sorted(rc[:].apply_sync(socket.gethostname)))
    rc.broadcast(data, "data")
    assert all(rc[:].apply_sync(lambda total: data.sum() == total, data.sum()))
    assert np.array_equal(rc[3].pull("data", block=True), data)
    print(sum(rc.load_balanced_view().map_sync(lambda x: x * x, range(1000))))
with ipp.Client("ssh://n4/far", ssh_args=["-J", "n3"]) as rc:
    print(len(rc))
"""
    said = bed.python(program).stdout.splitlines()
    assert said == ["['n1', 'n1', 'n2', 'n2']", str(sum(x * x for x in range(1000))), "4"]


def test_the_command_line_shows_a_cluster_on_another_host(login_host):
    shown = login_host.run("head", *BROADLEAF, "status", "--cluster", "ssh://n1").stdout
    assert "cluster default" in shown
    assert len(re.findall(r"^ +[01] +\S+ +up ", shown, re.MULTILINE)) == 2, shown
    status = json.loads(login_host.run("head", *BROADLEAF, "status", "--cluster", "ssh://n1", "--json").stdout)
    assert len(status["engines"]) == 2
    assert login_host.run(
        "head", *BROADLEAF, "top", "--cluster", "ssh://n1", "--interval", "0.1", "--count", "1"
    ).stdout
    refused = login_host.run("head", *BROADLEAF, "status", "--cluster", "ssh://n2", check=False)
    assert refused.returncode == 1
    assert "no cluster in profile 'default' on n2" in refused.stderr
    assert login_host.run("head", *BROADLEAF, "status", "--cluster", "n1", check=False).returncode == 2
