"""Debian packages for tests, installed into a folder of this checkout: the system outside stays unchanged.

A layer is the upper half of an overlay over this system. It is made once by `apt-get`, in a mount namespace, and stored
in ``.bed``. Copies of it are mounted as lower halves, so that many may use it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
_CACHE = CHECKOUT / ".bed"
_INSTALL_TIMEOUT_S = 900
_TOOLS = ("apt-get", "chroot", "mount", "nsenter", "unshare")

_INSTALL = r"""
set -eu
layer=$1 unpacked=$2; shift 2
mount -t overlay overlay -o "lowerdir=/,upperdir=$layer/upper,workdir=$layer/work" "$layer/root"
root=$layer/root
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
printf '#!/bin/sh\nexit 101\n' > "$root/usr/sbin/policy-rc.d"  # no service is started
chmod 755 "$root/usr/sbin/policy-rc.d"
export DEBIAN_FRONTEND=noninteractive
chroot "$root" apt-get -q update
chroot "$root" apt-get -q install -y --no-install-recommends "$@"
for package in $unpacked; do
  chroot "$root" sh -c 'cd /tmp; apt-get -q download "$1"; dpkg -x "$1"_*.deb "/opt/$1"' sh "$package"
done
chroot "$root" apt-get clean
"""


class LayerUnavailable(Exception):
    """Packages are not available here; the text says why."""


def why_no_layers() -> str | None:
    """Why layers cannot be made or mounted here, or None."""
    if not sys.platform.startswith("linux") or not Path("/etc/debian_version").exists():
        return "Debian's packages need Debian"
    if os.geteuid() != 0:
        return "overlays and namespaces need root"
    for tool in _TOOLS:
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    probe = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--propagation", "private", "true"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return f"namespaces cannot be made here: {probe.stderr.strip()}" if probe.returncode else None


def layer(*packages: str, unpacked: Sequence[str] = ()) -> Path:
    """The directory of a layer with these packages, made now if it does not exist.

    Those in `unpacked`, which conflict with others, are not installed: their files are in ``/opt/<package>``.

    Raises `LayerUnavailable`.
    """
    if (reason := why_no_layers()) is not None:
        raise LayerUnavailable(reason)
    version = Path("/etc/debian_version").read_text()
    key = hashlib.sha256(" ".join([version, _INSTALL, *packages, *unpacked]).encode()).hexdigest()[:12]
    _CACHE.mkdir(exist_ok=True)
    with open(_CACHE / f"{key}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other test runs wait for the one that installs
        ready = _CACHE / key
        if not ready.exists():
            making = _CACHE / f"{key}.making"
            shutil.rmtree(making, ignore_errors=True)
            for part in ("upper", "work", "root"):
                (making / part).mkdir(parents=True)
            _install(making, packages, unpacked)
            shutil.rmtree(making / "work", ignore_errors=True)
            making.rename(ready)
    return ready / "upper"


def _install(directory: Path, packages: Sequence[str], unpacked: Sequence[str]) -> None:
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private",
               "sh", "-c", _INSTALL, "sh", str(directory), " ".join(unpacked), *packages]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired:
        raise LayerUnavailable(f"apt-get took over {_INSTALL_TIMEOUT_S} s for {' '.join(packages)}") from None
    if done.returncode:
        raise LayerUnavailable(f"apt-get cannot install {' '.join(packages)}: {done.stderr.strip()[-300:]}")


def in_layer(upper: Path, command: Sequence[str], *, shared: Path) -> list[str]:
    """A command line that runs `command` on this system with a layer over it; the folder `shared` is the real one."""
    top = _CACHE / "mount"  # each command mounts there what only it sees
    top.mkdir(exist_ok=True)
    script = (
        'set -eu; top=$1 upper=$2 shared=$3; shift 3; mount -t tmpfs tmpfs "$top"; '
        'mkdir "$top/work" "$top/root" "$top/upper"; cp -a "$upper" "$top/layer"; upper=$top/layer; '
        'mount -t overlay overlay -o "lowerdir=$upper:/,upperdir=$top/upper,workdir=$top/work" "$top/root"; '
        'mount --rbind /dev "$top/root/dev"; mount -t proc proc "$top/root/proc"; '
        'mkdir -p "$top/root$shared"; mount --bind "$shared" "$top/root$shared"; '
        'exec chroot "$top/root" sh -c \'cd "$1"; shift; exec "$@"\' sh "$shared" "$@"'
    )
    return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private",
            "sh", "-c", script, "sh", str(top), str(upper), str(shared), *command]  # fmt: skip
