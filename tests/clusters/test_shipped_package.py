"""Hosts without Broadleaf: it is sent there, once, over SSH or into a directory that jobs see."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from bed import Bed
from debian_layer import CHECKOUT
from programs import SHARED, check_nothing_is_left, refusal, started
from waiting import until

pytestmark = pytest.mark.timeout(240)

CACHE = "/root/.cache/broadleaf/packages"


def hide(bed: Bed, *names: str) -> None:
    """Hides the checkout and its environment from hosts: they have a Python, but no Broadleaf."""
    for name in names:
        bed.run(name, "/bin/mount", "-t", "tmpfs", "tmpfs", str(CHECKOUT))
        bed.run(name, "/bin/rm", "-rf", CACHE)
        assert bed.run(name, "/usr/bin/python3", "-c", "import broadleaf", check=False).returncode


def show(bed: Bed, *names: str) -> None:
    """Shows it again."""
    for name in names:
        assert until(lambda name=name: not bed.run(name, "/bin/umount", str(CHECKOUT), check=False).returncode)


@pytest.fixture
def bare_hosts(ssh_hosts):
    """The bed, where n1 and n2 have no Broadleaf."""
    hide(ssh_hosts, "n1", "n2")
    yield ssh_hosts
    show(ssh_hosts, "n1", "n2")


def packages(bed: Bed, name: str) -> dict[str, int]:
    """The packages that a host stores, with the inodes that show whether they are the same."""
    folder = bed.path(name, CACHE)
    return {path.name: path.stat().st_ino for path in folder.iterdir()} if folder.exists() else {}


PROGRAM = """
import sys, broadleaf as ipp

def where():
    import broadleaf, cloudpickle
    return sys.executable, broadleaf.__file__, cloudpickle.__file__

with ipp.Cluster(engines=ipp.SSH(["n1:2", "n2:1"], ship=True)) as rc:
    for python, *modules in rc[:].apply_sync(where):
        assert "/.cache/broadleaf/packages/" in modules[0], modules
        assert "/.cache/broadleaf/packages/" in modules[1], modules
    data = b"x" * 10_000_000
    rc.broadcast_view().push({"data": data}, block=True)
    assert rc[:].apply_sync(lambda: len(data)) == [10_000_000] * 3
    print(rc.load_balanced_view().map_sync(lambda x: x * x, range(5)))
"""


def test_without_it_a_host_without_broadleaf_refuses_and_names_the_option(bare_hosts):
    said = refusal(bare_hosts, "ipp.Cluster(engines=ipp.SSH(['n1:1']))")
    assert re.search("Broadleaf cannot be imported by .*No module named 'broadleaf'", said), said
    assert "have it sent with ship=True" in said


def test_engines_run_where_nothing_is_installed(bare_hosts):
    assert bare_hosts.python(PROGRAM).stdout == "[0, 1, 4, 9, 16]\n"
    check_nothing_is_left(bare_hosts)


def test_it_is_sent_once_for_each_content(bare_hosts):
    assert started(bare_hosts, "ipp.Cluster(engines=ipp.SSH(['n1:1'], ship=True))")[1] == ["n1"]
    before = packages(bare_hosts, "n1")
    assert len(before) == 1
    assert bare_hosts.path("n1", CACHE).stat().st_mode & 0o777 == 0o700
    assert started(bare_hosts, "ipp.Cluster(engines=ipp.SSH(['n1:1'], ship=True))")[1] == ["n1"]
    assert packages(bare_hosts, "n1") == before
    changed = "import broadleaf.cluster.package as p; p.key = lambda: 'another'; "
    bare_hosts.python(changed + "import broadleaf as ipp\nwith ipp.Cluster(engines=ipp.SSH(['n1:1'], ship=True)): pass")
    assert set(packages(bare_hosts, "n1")) == {*before, "another"}


def test_packages_that_nobody_uses_are_removed(bare_hosts):
    old = f"{CACHE}/old"
    bare_hosts.run("n1", "/bin/mkdir", "-p", old)
    bare_hosts.run("n1", "/usr/bin/touch", "-d", "2 months ago", old)
    started(bare_hosts, "ipp.Cluster(engines=ipp.SSH(['n1:1'], ship=True))")
    assert len(packages(bare_hosts, "n1")) == 1
    assert "old" not in packages(bare_hosts, "n1")


def test_two_logins_to_one_host_at_once(bare_hosts):
    ids, hosts = started(bare_hosts, "ipp.Cluster(engines=ipp.SSH(['n1:1'] * 3, ship=True))")
    assert (len(ids), hosts) == (3, ["n1"] * 3)
    assert len(packages(bare_hosts, "n1")) == 1


def test_another_python_is_refused_before_anything_is_sent(bare_hosts):
    old = "#!/bin/sh\nexec /usr/bin/python3 -c 'import sys; sys.version_info = (3, 9, 18); exec(sys.argv[2])' \"$@\"\n"
    bare_hosts.write("n1", "/root/old-python", old, 0o755)
    said = refusal(bare_hosts, "ipp.Cluster(engines=ipp.SSH(['n1:1'], ship=True, python='/root/old-python'))")
    assert re.search(r"wrong Python: .* is 3\.9, and the cluster has 3\.11", said), said
    assert packages(bare_hosts, "n1") == {}


def test_no_room_for_it(bare_hosts):
    full = "mkdir -p /run/full; mountpoint -q /run/full || mount -t tmpfs -o size=1m tmpfs /run/full"
    setup = f"setup=[{full!r}, 'export XDG_CACHE_HOME=/run/full']"
    said = refusal(bare_hosts, f"ipp.Cluster(engines=ipp.SSH(['n1:1'], ship=True, {setup}))")
    bare_hosts.run("n1", "/bin/umount", "/run/full")
    assert re.search("Broadleaf cannot be copied to /run/full/broadleaf/packages: .*No space left", said), said
    assert "XDG_CACHE_HOME" in said


def test_behind_a_jump_host(bare_hosts):
    bed, head, far = bare_hosts, bare_hosts.host("head").address, bare_hosts.host("n1").address
    rules = [("head", f"to {far}"), ("n1", f"to {head}")]
    for name, rule in rules:
        bed.run(name, "/bin/sh", "-c", f"ip rule add pref 10 {rule} unreachable")
    bed.write("n3", "/root/.ssh/known_hosts", bed.path("head", "/root/.ssh/known_hosts").read_text(), 0o600)
    try:
        program = PROGRAM.replace('["n1:2", "n2:1"]', '["n1:3"]').replace("ship=True", "ship=True, jump='n3'")
        assert bed.python(program).stdout == "[0, 1, 4, 9, 16]\n"
    finally:
        for name, rule in rules:
            bed.run(name, "/bin/sh", "-c", f"ip rule del pref 10 {rule} unreachable")
    check_nothing_is_left(bed)


def test_jobs_of_slurm(slurm):
    hide(slurm, "n1", "n2")
    try:
        nodes = "sbatch=['--nodelist=n1,n2'], engines_per_host=1, nodes=2"
        said = refusal(slurm, f"ipp.Cluster(engines=ipp.Slurm({nodes}))", **SHARED)
        assert "Broadleaf cannot be imported by" in said, said
        ids, hosts = started(slurm, f"ipp.Cluster(engines=ipp.Slurm({nodes}, ship=True))", **SHARED)
        assert (ids, hosts) == ([0, 1], ["n1", "n2"])
        (package,) = slurm.path("head", "/shared/broadleaf/packages").iterdir()
        assert (package / "broadleaf" / "_native.abi3.so").exists()
    finally:
        show(slurm, "n1", "n2")
    check_nothing_is_left(slurm)


def test_the_command_line_and_a_profile(bare_hosts):
    profile = "/root/.local/state/broadleaf/profiles/bare/config.toml"
    bare_hosts.write("head", profile, 'engines = "ssh"\n[ssh]\nhosts = ["n1:1"]\nship = true\n')
    assert started(bare_hosts, "ipp.Cluster(profile='bare')")[1] == ["n1"]
    broadleaf = (sys.executable, "-m", "broadleaf", "start", "--hosts", "n1:1", "--set", "ship=on")
    shown = bare_hosts.run("head", *broadleaf, "--dry-run").stdout
    assert "broadleaf: wants the package" in shown
    assert shlex.split(shown)[0] == "ssh"
    assert len(Path("/proc/self/cmdline").read_bytes()) < len(shown) < 10_000, "the package is not in the command"
    bare_hosts.run("head", *broadleaf)
    bare_hosts.run("head", sys.executable, "-m", "broadleaf", "stop")
    check_nothing_is_left(bare_hosts)
