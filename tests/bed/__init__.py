"""Hosts of a site, on this machine: each has a network, a name, files and a home of its own, and real daemons.

A host is a network namespace (`network`) and an overlay over this system with Debian packages,
with a /dev/shm of its own. All hosts share one process table, which ends with the bed: nothing is left behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from debian_layer import CHECKOUT, LayerUnavailable, layer

from bed.network import Host, Network, why_not

PACKAGES = (
    "openssh-server", "munge", "slurm-wlm", "gridengine-master", "gridengine-exec", "gridengine-client", "bubblewrap",
    "libslurm-perl", "libslurmdb-perl", "libswitch-perl",  # of those below
)  # fmt: skip
# It has commands of Grid Engine's names.
UNPACKED = ("slurm-wlm-torque",)

# Folders of a host that are no part of its overlay.
_OWN_FOLDERS = ("run", "tmp", "dev/shm", "root/.ssh", "root/.local/state/broadleaf")
# Arguments: the layer, a folder for mount points, number of hosts, folders to show unchanged.
_MOUNT = r"""
set -eu
layer=$1 top=$2 n=$3; shift 3
mount -t tmpfs tmpfs "$top"
mkdir "$top/shared"
cp -a "$layer" "$top/layer"  # a lower half may not lie inside another one, "/"
layer=$top/layer
i=0
while [ "$i" -lt "$n" ]; do
  host=$top/$i root=$top/$i/root
  mkdir -p "$host/upper" "$host/work" "$root"
  mount -t overlay overlay -o "lowerdir=$layer:/,upperdir=$host/upper,workdir=$host/work" "$root"
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs tmpfs "$root/dev/shm"  # what killed programs leave there ends with the bed
  mount --rbind /sys "$root/sys"
  mount -t tmpfs tmpfs "$root/run"
  mount -t tmpfs tmpfs "$root/tmp"
  for folder in "$@"; do mkdir -p "$root$folder"; mount --bind "$folder" "$root$folder"; done
  mkdir -p "$root/run/sshd" "$root/run/munge" "$root/shared"
  chmod 755 "$root/run/munge"
  mount --bind "$top/shared" "$root/shared"
  for folder in .ssh .local/state/broadleaf; do  # not those of this user, who may be using them
    mkdir -p "$root/root/$folder"
    mount -t tmpfs -o mode=700 tmpfs "$root/root/$folder"
  done
  i=$((i + 1))
done
echo ready
exec cat  # until the tests are done
"""


class Bed:
    """A `head` host and `n` others, `n1`, `n2` and so on. Raises `LayerUnavailable` if it cannot be made."""

    def __init__(self, n: int) -> None:
        if (reason := why_not()) is not None:
            raise LayerUnavailable(reason)
        upper = layer(*PACKAGES, unpacked=UNPACKED)
        self.top = Path(tempfile.mkdtemp(prefix="bed-"))
        self.network = Network(n, rate_mbit=None)
        self.names = ["head", *(f"n{i}" for i in range(1, n + 1))]
        try:
            self._holder = self._mount(upper)
        except LayerUnavailable:
            self.network.close()
            os.rmdir(self.top)
            raise
        self._child = self._first_child()
        addresses = "".join(f"{host.address} {self.names[host.index]}\n" for host in self.network.hosts)
        for name in self.names:
            self.write(name, "/etc/hosts", f"127.0.0.1 localhost\n{addresses}")
            self.write(name, "/etc/resolv.conf", "")  # names are known immediately, or never

    def _mount(self, upper: Path) -> subprocess.Popen[str]:
        seen_through = [
            folder for folder in (CHECKOUT, Path(sys.base_prefix)) if os.stat(folder).st_dev != os.stat("/").st_dev
            or folder.is_relative_to("/tmp") or folder.is_relative_to("/run")
        ]  # fmt: skip
        holder = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private", "sh", "-c", _MOUNT,
             "sh", str(upper), str(self.top), str(len(self.names)), *map(str, seen_through)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert holder.stdout is not None
        assert holder.stderr is not None
        if holder.stdout.readline() != "ready\n":
            _, said = holder.communicate()
            raise LayerUnavailable(f"overlays cannot be mounted here: {said.strip()[-300:]}")
        return holder

    def _first_child(self) -> int:
        pid = self._holder.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def host(self, name: str) -> Host:
        """The network's host with this name."""
        return self.network.hosts[self.names.index(name)]

    def path(self, name: str, path: str) -> Path:
        """The path of a host's file, as this process sees it."""
        return Path(f"/proc/{self._child}/root{self.top}/{self.names.index(name)}/root{path}")

    def write(self, name: str, path: str, text: str, mode: int = 0o644) -> None:
        """Writes a file on a host."""
        there = self.path(name, path)
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_text(text)
        there.chmod(mode)

    def command(self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> list[str]:
        """A command line that runs `command` on a host."""
        root = f"{self.top}/{self.names.index(name)}/root"
        path = f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
        variables = {"HOME": "/root", "USER": "root", "PATH": path, "LANG": "C.UTF-8", **(env or {})}
        namespaces = [f"--target={self._child}", "--mount", "--pid", f"--net=/run/netns/{self.host(name).namespace}"]
        become = 'hostname "$1"; cd "$2/root"; shift; exec chroot "$@"'
        return ["nsenter", *namespaces, "--", "unshare", "--uts", "sh", "-c", become, "sh", name, root,
                "sh", "-c", 'cd /root; exec "$@"', "sh", "env", "-i",
                *(f"{key}={value}" for key, value in variables.items()), *command]  # fmt: skip

    def run(
        self, name: str, *command: str, text: str = "", timeout_s: float = 60, check: bool = True, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command on a host to its end."""
        done = subprocess.run(
            self.command(name, command, env), input=text, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        if check and done.returncode:
            raise AssertionError(
                f"{' '.join(command)[:500]} on {name}: {done.returncode}\n{done.stdout}\n{done.stderr}"
            )
        return done

    def start(self, name: str, *command: str, **options: Any) -> subprocess.Popen[str]:
        """Starts a command on a host."""
        return subprocess.Popen(self.command(name, command), text=True, **options)

    def python(
        self, program: str, *, timeout_s: float = 90, check: bool = True, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a Python program on the head."""
        return self.run("head", sys.executable, "-c", program, timeout_s=timeout_s, check=check, **env)

    def description(self) -> str:
        """The bed described as a site, as `python -m benchmarks clusters` reads it: TOML."""
        values = {
            "hosts": self.names[1:],
            "shared": "/shared/bench",
            "login": self.command("head", []),
            "address": self.host("head").address,
        }
        return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())

    def processes(self, name: str | None = None) -> dict[int, str]:
        """Processes of Broadleaf, of one host or all: pid to command line."""
        found = {}
        namespace = os.readlink(f"/proc/{self._child}/ns/pid")
        network = os.stat(f"/run/netns/{self.host(name).namespace}").st_ino if name else None
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(path / "ns/pid") != namespace:
                    continue
                if network is not None and os.stat(path / "ns/net").st_ino != network:
                    continue
                line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                environment = (path / "environ").read_bytes()
            except OSError:
                continue
            # The checkout may have that name, too.
            if "broadleaf" in line.replace(str(CHECKOUT), "") or b"BROADLEAF_CLUSTER_ID=" in environment:
                found[int(path.name)] = line[:2000]
        return found

    def signal(self, name: str, number: int = signal.SIGKILL, which: Callable[[str], bool] = bool) -> None:
        """Sends a signal to those processes of Broadleaf on a host whose command line `which` accepts."""
        for pid, line in self.processes(name).items():
            if which(line):
                with contextlib.suppress(ProcessLookupError):  # it ended with one before it
                    os.kill(pid, number)

    def told_by_processes(self) -> dict[int, str]:
        """What every process on every host shows: its command line and its environment."""
        found = {}
        namespace = os.readlink(f"/proc/{self._child}/ns/pid")
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(path / "ns/pid") == namespace:
                    told = (path / "cmdline").read_bytes() + b"\0" + (path / "environ").read_bytes()
                    found[int(path.name)] = told.decode(errors="replace")
            except OSError:
                continue
        return found

    def files_with(self, words: Sequence[str]) -> list[Path]:
        """Files that were written on any host and contain one of the words."""
        top = Path(f"/proc/{self._child}/root{self.top}")
        changed = [top / "shared"]
        for index in range(len(self.names)):
            changed += [top / f"{index}/upper", *(top / f"{index}/root/{name}" for name in _OWN_FOLDERS)]
        patterns = [argument for word in words for argument in ("-e", word)]
        # Not in other file systems: hosts see the checkout through their own /tmp if it lies there.
        done = subprocess.run(
            ["find", *map(str, changed), "-xdev", "-type", "f", "-exec", "grep", "-lFs", *patterns, "{}", "+"],
            capture_output=True,
            text=True,
            check=False,
        )
        return [Path(line) for line in done.stdout.splitlines()]

    def close(self) -> None:
        """Ends every process, and removes everything."""
        self._holder.kill()
        self._holder.communicate()
        self.network.close()
        os.rmdir(self.top)
