"""Engines over SSH: OpenSSH's client and server, on hosts with networks of their own."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys

import pytest
from bed.sshd import start_sshd
from debian_layer import CHECKOUT
from programs import check_nothing_is_left, refusal, started
from waiting import until

pytestmark = pytest.mark.timeout(240)


def test_two_engines_on_one_host(ssh_hosts):
    assert started(ssh_hosts, "ipp.Cluster(engines=ipp.SSH(['n1:2']))") == ([0, 1], ["n1", "n1"])
    check_nothing_is_left(ssh_hosts)


def test_engines_are_shared_out_and_the_name_of_ipython_parallel_works(ssh_hosts):
    ids, hosts = started(ssh_hosts, "ipp.Cluster(engines='SSH', n=7, hosts=['n1:1', 'root@n2', 'n3'])")
    assert (len(ids), hosts) == (7, ["n1"] + 3 * ["n2"] + 3 * ["n3"])


def test_the_table_of_a_profile(ssh_hosts):
    profile = "/root/.local/state/broadleaf/profiles/site/config.toml"
    ssh_hosts.write("head", profile, 'engines = "ssh"\n[ssh]\nhosts = ["n4"]\nengines_per_host = 3\n')
    assert started(ssh_hosts, "ipp.Cluster(profile='site')") == ([0, 1, 2], ["n4"] * 3)


def test_the_command_line_starts_it_another_process_uses_and_stops_it(ssh_hosts):
    bed = ssh_hosts
    broadleaf = (sys.executable, "-m", "broadleaf")
    check_nothing_is_left(bed)  # of the test before
    shown = bed.run("head", *broadleaf, "start", "--hosts", "n1:1,n2:1", "--dry-run").stdout
    assert [line.split(" -- ")[1].split()[0] for line in shown.splitlines() if line.startswith("ssh ")] == ["n1", "n2"]
    assert bed.processes() == {}
    assert "2 engines" in bed.run("head", *broadleaf, "start", "--engines", "ssh", "--hosts", "n1:1,n2:1").stdout
    asked = "import broadleaf as ipp; rc = ipp.Client(); print(rc[:].apply_sync(lambda: 6 * 7))"
    assert bed.python(asked).stdout.strip() == "[42, 42]"
    bed.run("head", *broadleaf, "stop")
    check_nothing_is_left(bed)


def test_connections_outlive_a_controller_with_a_journal(ssh_hosts):
    bed = ssh_hosts
    broadleaf = (sys.executable, "-m", "broadleaf")
    check_nothing_is_left(bed)  # of the test before
    options = ("--engines", "ssh", "--hosts", "n1:1,n2:1", "--option", "journal=on")
    assert "2 engines" in bed.run("head", *broadleaf, "start", *options).stdout
    program = f"""
import os, signal, sys
import broadleaf as ipp
sys.path.append({str(CHECKOUT / "tests")!r})
import waiting

cluster = ipp.Cluster.from_file()

def controller():
    try:
        return cluster.status_sync()["pid"]
    except ipp.ClusterConnectionError:
        return None

with cluster.connect_client_sync() as rc:
    rc[:].push({{"kept": 41}}, block=True)
    engines = rc[:].apply_sync(os.getpid)
former = controller()
os.kill(former, signal.SIGKILL)
assert waiting.until(lambda: controller() not in (None, former), 60)
with cluster.connect_client_sync() as rc:
    rc.wait_for_engines(2, timeout=60)
    print(rc[:].apply(lambda: (os.getpid(), kept)).get(60) == [(engine, 41) for engine in engines])
"""
    assert bed.python(program).stdout == "True\n"
    bed.run("head", *broadleaf, "stop")
    check_nothing_is_left(bed)


@pytest.mark.parametrize("may_nest", [True, False])
def test_tasks_submit_tasks_where_they_may(ssh_hosts, may_nest):
    program = f"""
import socket, broadleaf as ipp
with ipp.Cluster(engines=ipp.SSH(["n1:1", "n2:1"], nested_tasks={may_nest})) as rc:
    try:
        print(sorted(rc[0].apply_sync(lambda: ipp.get_client()[:].apply_sync(socket.gethostname))))
    except ipp.RemoteError as error:
        print(error)
"""
    said = ssh_hosts.python(program).stdout
    assert said == "['n1', 'n2']\n" if may_nest else "give its engine set nested_tasks=True" in said
    check_nothing_is_left(ssh_hosts)


def test_arrays_go_from_host_to_host(ssh_hosts):
    program = """
import numpy as np, broadleaf as ipp
data = np.random.default_rng(1).random(500_000)
with ipp.Cluster(engines=ipp.SSH(["n1:2", "n2:2", "n3:1"])) as rc:
    view = rc.broadcast_view()
    view.push({"a": data}, block=True)
    assert [float(a.sum()) for a in rc[:].pull("a", block=True)] == [float(data.sum())] * 5
    print(sorted(host["fetched"]["objects"] for host in rc.cluster.status_sync()["hosts"]))
"""
    assert ssh_hosts.python(program).stdout.strip() == "[1, 1, 1]"


def test_set_up_commands_and_a_wrapper_run_first(ssh_hosts):
    cluster = "ipp.Cluster(engines=ipp.SSH(['n1:1'], setup=['export GREETING=hello'], wrap='env WRAPPED=yes'))"
    program = f"""
import os, broadleaf as ipp
with {cluster} as rc:
    print(rc[0].apply_sync(lambda: (os.environ["GREETING"], os.environ["WRAPPED"])))
"""
    assert ssh_hosts.python(program).stdout.strip() == "('hello', 'yes')"


@pytest.mark.parametrize(
    ("hosts", "options", "cause"),
    [
        ("'nowhere'", "", "no such host .*Could not resolve hostname"),
        ("'n2:2300:1'", "connect_timeout_s=2", "the host does not answer"),
        ("'10.99.0.1'", "", "no route to the host"),
        ("'n2:2222:1'", "", "no SSH server is listening there"),
        ("'n2'", "ssh_args=['-i', '/etc/ssh/ssh_host_rsa_key', '-o', 'IdentitiesOnly=yes']", "none of your keys"),
        ("'n2'", "ssh_args=['-o', 'UserKnownHostsFile=/dev/null']", "not in known_hosts"),
        ("'n2'", "python='/usr/bin/python9'", "python9"),
        ("'n2'", "python='/root/old-python'", r"wrong Python: .* is 2\.7, and the cluster has 3\.11"),
        ("'n2'", "python='/root/bare-python'", "Broadleaf cannot be imported by"),
        (
            "'n2'",
            "python='/root/old-broadleaf'",
            r"wrong version of Broadleaf: .* on n2 has 0\.0\.1, but the cluster has ",
        ),
    ],
    ids=[
        "name",
        "silent",
        "route",
        "port",
        "key",
        "host key",
        "no python",
        "old python",
        "no broadleaf",
        "old broadleaf",
    ],
)
def test_a_refusal_names_its_cause(ssh_hosts, silent, hosts, options, cause):
    ssh_hosts.run("head", "sh", "-c", "ip route replace unreachable 10.99.0.0/24")
    ssh_hosts.write("n2", "/root/old-python", f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -c 'import sys; "
                    "sys.version_info = (2, 7, 18); exec(sys.argv[2])' \"$@\"\n", 0o755)  # fmt: skip
    ssh_hosts.write("n2", "/root/bare-python", f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S "$@"\n', 0o755)
    ssh_hosts.write("n2", "/root/old-broadleaf", f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -c 'import sys; "
                    "from broadleaf import _native; _native.__version__ = \"0.0.1\"; "
                    "code = sys.argv[2]; del sys.argv[1:]; exec(code)' \"$@\"\n",
                    0o755)  # fmt: skip
    said = refusal(ssh_hosts, f"ipp.Cluster(engines=ipp.SSH([{hosts}], {options}))")
    assert re.search(cause, said), said


def test_memory_that_is_full_at_the_start_is_named(ssh_hosts):
    deny = (
        f"import os, sys; sys.path.insert(0, {str(CHECKOUT / 'tests')!r}); from denied_calls import forbid_memfd; "
        "forbid_memfd(); os.execvp(sys.argv[1], sys.argv[1:])"
    )
    container = "bwrap --die-with-parent --dev-bind / / --size 4096 --tmpfs /dev/shm --"
    wrap = f"{container} {shlex.join([sys.executable, '-c', deny])}"
    said = refusal(ssh_hosts, f"ipp.Cluster(engines=ipp.SSH(['n1:1'], wrap={wrap!r}))")
    assert re.search(r"n1.* do not fit into /dev/shm, .*: make /dev/shm larger", said, re.DOTALL), said


def test_a_host_that_wants_a_password_says_so(ssh_hosts):
    start_sshd(
        ssh_hosts, "n3", "Port 2200\nMatch LocalPort 2200\n  PubkeyAuthentication no\n  PasswordAuthentication yes"
    )
    assert "asks for a password" in refusal(ssh_hosts, "ipp.Cluster(engines=ipp.SSH(['n3:2200:1']))")


def test_others_go_on_without_a_host_if_there_are_engines_enough(ssh_hosts):
    said = refusal(ssh_hosts, "ipp.Cluster(engines=ipp.SSH(['n1:1', 'nowhere:1', 'n2:1']))")
    assert "1 of 3 blocks" in said
    cluster = "ipp.Cluster(engines=ipp.SSH(['n1:1', 'nowhere:1', 'n2:1'], min_engines=2))"
    assert started(ssh_hosts, cluster)[1] == ["n1", "n2"]


def test_logins_that_a_busy_sshd_drops_are_tried_again(ssh_hosts):
    start_sshd(ssh_hosts, "n2", "Port 2200\nMaxStartups 2")
    ids, hosts = started(ssh_hosts, "ipp.Cluster(engines=ipp.SSH(['n2:2200:1'] * 6))")
    assert (len(ids), hosts) == (6, ["n2"] * 6)


@pytest.fixture
def behind_a_jump_host(ssh_hosts):
    """n4 cannot connect to the head, nor the head to n4: n3 can."""
    bed, head, far = ssh_hosts, ssh_hosts.host("head").address, ssh_hosts.host("n4").address
    rules = [("head", f"to {far}"), ("n4", f"to {head}")]
    for name, rule in rules:
        bed.run(name, "sh", "-c", f"ip rule add pref 10 {rule} unreachable")
    bed.write("n3", "/root/.ssh/known_hosts", bed.path("head", "/root/.ssh/known_hosts").read_text(), 0o600)
    yield bed
    for name, rule in rules:
        bed.run(name, "sh", "-c", f"ip rule del pref 10 {rule} unreachable")


def test_a_host_that_cannot_connect_to_us_comes_through_its_ssh_connection(behind_a_jump_host):
    bed = behind_a_jump_host
    assert "no route" in refusal(bed, "ipp.Cluster(engines=ipp.SSH(['n4:2']))")
    said = refusal(bed, "ipp.Cluster(engines=ipp.SSH(['n4:2'], jump='n3', tunnel='never'))")
    assert "the controller cannot be reached from n4" in said
    program = """
import numpy as np, broadleaf as ipp
data = np.random.default_rng(1).random(500_000)
with ipp.Cluster(engines=ipp.SSH(["n4:2"], jump="n3")) as rc:
    rc[:].push({"a": data}, block=True)
    assert all(np.array_equal(a, data) for a in rc[:].pull("a", block=True))
    print(sum(rc.load_balanced_view().map_sync(lambda x: x, range(1000))))
"""
    assert bed.python(program).stdout.strip() == str(sum(range(1000)))
    check_nothing_is_left(bed)


def test_engines_in_a_container_with_a_tmp_of_its_own_and_little_dev_shm(ssh_hosts):
    # The checkout may be below the /tmp that is hidden.
    bind = f"--bind {shlex.quote(str(CHECKOUT))} {shlex.quote(str(CHECKOUT))}"
    program = """
import os, numpy as np, broadleaf as ipp

def look():
    size = os.statvfs("/dev/shm")
    open("/tmp/inside", "w").close()
    return size.f_blocks * size.f_frsize

data = np.random.default_rng(1).random(12_500_000)
wrap = "bwrap --die-with-parent --dev-bind / / --tmpfs /tmp BIND --size 67108864 --tmpfs /dev/shm --"
with ipp.Cluster(engines=ipp.SSH(["n1:2", "n2:2"], wrap=wrap)) as rc:
    assert rc[:].apply_sync(look) == [64 << 20] * 4
    rc.broadcast_view().push({"data": data}, block=True)
    assert rc[:].apply_sync(np.sum, ipp.Reference("data")) == [data.sum()] * 4, "100 MB, more than /dev/shm holds"
"""
    ssh_hosts.python(program.replace("BIND", bind))
    assert not ssh_hosts.path("n1", "/tmp/inside").exists()
    check_nothing_is_left(ssh_hosts)


@pytest.mark.parametrize("killed", ["ssh", "client", "controller"])
def test_nothing_is_left_when_it_is_killed(ssh_hosts, killed):
    bed = ssh_hosts
    program = (
        "import broadleaf as ipp; cluster = ipp.Cluster(engines=ipp.SSH(['n1:1', 'n2:1'])); "
        "cluster.start_and_connect_sync(); print('up', flush=True); input()"
    )
    client = bed.start("head", sys.executable, "-c", program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert client.stdout.readline() == "up\n"
        (file,) = bed.path("head", "/root/.local/state/broadleaf").glob("profiles/*/*/engine.json")
        key = json.loads(file.read_text())["private_key"]
        assert key not in " ".join(bed.processes().values())
        assert key not in "".join(log.read_text() for log in file.parent.glob("*.log"))
        if killed == "ssh":
            bed.signal("head", which=lambda line: line.startswith("ssh "))
            assert until(lambda: not bed.processes("n1") and not bed.processes("n2")), bed.processes()
        elif killed == "controller":
            others = ("start_and_connect_sync", "ssh ")
            bed.signal("head", which=lambda line: not any(word in line for word in others))
            assert until(lambda: not bed.processes("n1") and not bed.processes("n2")), bed.processes()
        else:
            bed.signal("head", which=lambda line: "start_and_connect_sync" in line)
            check_nothing_is_left(bed)
    finally:
        client.communicate("\n", timeout=60)
    check_nothing_is_left(bed)


def test_hosts_are_released_and_none_are_added(ssh_hosts):
    program = """
import time
import broadleaf as ipp
from broadleaf.errors import ClusterStartError
with ipp.Cluster(engines=ipp.SSH(["n1:2", "n2:2"])) as rc:
    try:
        rc.cluster.scale_sync(5)
    except ClusterStartError as error:
        print(error)
    rc.cluster.drain_sync("n1")
    while len(rc) > 2:
        time.sleep(0.01)
    print([(block.hosts[0] if block.hosts else "", len(block.engines)) for block in rc.cluster.blocks()])
    rc.cluster.scale_sync(1)
    print(rc.load_balanced_view().map_sync(abs, [-1, -2]), len(rc))
"""
    refusal_said, blocks, values = ssh_hosts.python(program).stdout.splitlines()
    assert "hosts can be released, but not added" in refusal_said
    assert blocks == "[('', 0), ('n2:ssh-1', 2)]"
    assert values == "[1, 2] 2"
    check_nothing_is_left(ssh_hosts)


def test_hosts_that_are_lost_come_back(ssh_hosts):
    program = f"""
import os, signal, sys
import broadleaf as ipp
sys.path.append({str(CHECKOUT / "tests")!r})
import waiting

def until(condition):
    assert waiting.until(condition, 60), "too late"

def kill_relay():
    with open(f"/proc/{{os.getppid()}}/stat") as stat:
        os.kill(int(stat.read().rpartition(")")[2].split()[1]), signal.SIGKILL)

with ipp.Cluster(engines=ipp.SSH(["n1:2", "n2:1", "n3:1"])) as rc:
    cluster = rc.cluster
    hosts = lambda: sorted(host["name"] for host in cluster.status_sync()["hosts"])
    before = hosts()
    victim = next(e["engine"] for e in rc.status()["engines"] if e["host"] == "n1:ssh-0")
    rc[victim].apply_async(kill_relay)
    until(lambda: len(rc) == 2)
    cluster.scale_sync(4)
    until(lambda: len(rc) == 4)
    print(hosts() == before, rc.ids)
    # While it is kept at this size, nobody has to ask.
    os.kill(cluster.blocks()[1].facts["pid"], signal.SIGKILL)
    until(lambda: len(rc) == 3)
    until(lambda: len(rc) == 4)
    print(hosts() == before, rc.ids)
    # Hosts that were released come back as well.
    cluster.scale_sync(2, stateless=True)
    until(lambda: len(rc) == 2)
    cluster.scale_sync(4)
    until(lambda: len(rc) == 4)
    print(hosts() == before, len(cluster.blocks()))
    print(repr(cluster.scaling_paused))
"""
    said = ssh_hosts.python(program, timeout_s=200).stdout.splitlines()
    assert said == ["True [0, 1, 2, 3]", "True [0, 1, 2, 3]", "True 3", "''"]
    check_nothing_is_left(ssh_hosts)
