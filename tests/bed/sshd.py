"""sshd on every host of a bed, and a key of the head that they accept."""

from __future__ import annotations

import re
from functools import partial

from waiting import until

from bed import Bed

_SSHD = """Port 22
HostKey /etc/ssh/ssh_host_ed25519_key
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
Subsystem sftp internal-sftp
{more}
"""


def start_sshd(bed: Bed, name: str, more: str = "") -> None:
    """Starts sshd on a host; it is listening afterwards."""
    bed.write(name, "/etc/ssh/sshd_config", _SSHD.format(more=more))
    bed.run(name, "/usr/sbin/sshd", "-E", "/run/sshd.log")
    assert until(lambda: bed.run("head", "ssh-keyscan", "-T", "2", name, check=False).stdout), f"no sshd on {name}"
    for port in re.findall(r"^Port (\d+)", more, re.MULTILINE):
        # It forks before it listens. With `MaxStartups 1`, who connects to find out would take the only place.
        listens = f":{int(port):04X} 00000000:0000 0A "
        assert until(partial(_is_listed, bed, name, listens)), f"port {port}"


def _is_listed(bed: Bed, name: str, socket: str) -> bool:
    """Whether a host has this socket."""
    return socket in bed.run(name, "cat", "/proc/net/tcp").stdout


def open_with_key(bed: Bed) -> None:
    """Gives the head a key, which every other host accepts, and tells the head their host keys."""
    bed.run("head", "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/root/.ssh/id_ed25519")
    key = bed.path("head", "/root/.ssh/id_ed25519.pub").read_text()
    known = []
    for name in bed.names:
        bed.write(name, "/root/.ssh/authorized_keys", key, 0o600)
        host_key = bed.path(name, "/etc/ssh/ssh_host_ed25519_key.pub").read_text()
        known.append(f"{name},{bed.host(name).address} {' '.join(host_key.split()[:2])}\n")
    bed.write("head", "/root/.ssh/known_hosts", "".join(known), 0o600)
