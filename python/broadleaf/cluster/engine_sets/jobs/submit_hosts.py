"""Where a scheduler's commands run, and where jobs find their files: this host, or one reached by login."""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from broadleaf import openssh
from broadleaf.cluster.engine_sets.base import BlockRequest
from broadleaf.cluster.engine_sets.jobs.commands import CommandError, run
from broadleaf.cluster.hosts import package
from broadleaf.errors import ClusterStartError
from broadleaf.openssh import SSHHost, SSHMaster
from broadleaf.state import files
from broadleaf.state.directories import base_dir, write_json

_PACKAGES = "packages"
# For files on another host: how much of a log is read, and how long a copy is considered fresh.
_LOG_BYTES = 65_536
_LOG_IS_FRESH_S = 1.0
_NO_FILE = "broadleaf: no file"
_SSH_FAILED = 255
# Somebody else may have made the directories that jobs read their orders and Broadleaf from. Like `make_private`.
_PRIVATE = """\
private() {
  mkdir -m 700 -- "$1" 2>/dev/null || :
  if [ -L "$1" ] || [ ! -d "$1" ] || [ ! -O "$1" ]; then echo "$1 is not a directory of yours" >&2; exit 1; fi
  chmod 700 -- "$1"
}
umask 077
"""
# Directories in it are private; it must be one in which nobody else can replace them.
_SHARED = """\
d=${1:-$HOME/.broadleaf}
mkdir -p -- "$d" && cd -- "$d" && d=$(pwd -P) || exit 1
if [ -z "$1" ]; then private "$d"; fi
if [ -O . ]; then safe=$(find . -prune ! -perm -0002 -o -prune -perm -1000)
else safe=$(find . -prune -user 0 -perm -1000 -o -prune -user 0 ! -perm -0002); fi
if [ -z "$safe" ]; then echo "another user may replace what is in $d" >&2; exit 1; fi
echo "$d"
"""
_WRITE = 'set -e; private "$1"; cat > "$1/.$2"; mv "$1/.$2" "$1/$2"'
_HAS_PACKAGE = 'private "$1"; [ ! -e "$1/$2" ] || { private "$1/$2"; echo there; }'
_UNPACK = "import io, sys, zipfile; zipfile.ZipFile(io.BytesIO(sys.stdin.buffer.read())).extractall(sys.argv[1])"
_KEEP_PACKAGE = f"""\
set -e
making=$(mktemp -d "$1/.$2.XXXXXX")
python3 -c {shlex.quote(_UNPACK)} "$making"
mv -T "$making" "$1/$2" || {{ rm -rf "$making"; [ -d "$1/$2" ]; }}
"""


class SubmitHost(ABC):
    """A host whose commands submit jobs."""

    @abstractmethod
    def run(self, command: Sequence[str], *, text: str = "") -> str:
        """Runs a command with `text` as its input; returns its output. Raises `CommandError`."""

    @abstractmethod
    def require(self, program: str) -> None:
        """Raises `ClusterStartError` if there is no such program."""

    @abstractmethod
    def user(self) -> str:
        """The user who submits jobs."""

    @abstractmethod
    def directory(self, request: BlockRequest) -> Path:
        """Where jobs of a cluster find their files, which only this user can read."""

    @abstractmethod
    def write(self, path: Path, content: Mapping[str, Any]) -> None:
        """Writes a file with mode 0600 there, as JSON."""

    @abstractmethod
    def logs(self, paths: Iterable[str]) -> dict[str, str]:
        """The content of these files, '' for a missing one."""

    @abstractmethod
    def keep_package(self) -> str:
        """Puts Broadleaf where jobs find it, if it is not there; returns the directory."""

    def expect(self, paths: Sequence[str]) -> None:  # noqa: B027 (nothing, where files are removed with the cluster)
        """Records that jobs will write these logs."""

    def remove(self, paths: Sequence[str]) -> None:  # noqa: B027
        """Removes the logs of jobs that are over and, after the cluster's last job, everything that its jobs needed."""


class ThisHost(SubmitHost):
    """The host of this process, whose cluster directory jobs see."""

    def run(self, command: Sequence[str], *, text: str = "") -> str:
        """Runs it as a child."""
        return run(command, text=text)

    def require(self, program: str) -> None:
        """Looks in the search path."""
        import shutil

        if shutil.which(program) is None:
            raise ClusterStartError(
                f"there is no program {program!r} here: start the cluster on a host that submits jobs, or name one "
                "that you log in to: via='ssh:login'"
            )

    def user(self) -> str:
        """Whoever runs this process."""
        return pwd.getpwuid(os.getuid()).pw_name

    def directory(self, request: BlockRequest) -> Path:
        """The cluster's own."""
        return request.cluster_dir

    def write(self, path: Path, content: Mapping[str, Any]) -> None:
        """Writes it atomically."""
        write_json(path, content)

    def logs(self, paths: Iterable[str]) -> dict[str, str]:
        """Reads them."""
        return {path: _read(path) for path in paths}

    def keep_package(self) -> str:
        """Below the directory of all clusters."""
        try:
            return str(package.keep(base_dir().absolute() / _PACKAGES))
        except OSError as error:
            raise ClusterStartError(f"Broadleaf cannot be stored in {base_dir() / _PACKAGES}: {error}") from None


class LoginHost(SubmitHost):
    """A host reached by one login that serves all commands. Jobs find their files in `shared_dir` there."""

    def __init__(self, host: SSHHost, shared_dir: str) -> None:
        self._master = SSHMaster(host)
        self._shared_dir = shared_dir
        self._top: Path | None = None
        self._user = ""
        self._logs: dict[str, tuple[float, str]] = {}

    def run(self, command: Sequence[str], *, text: str = "") -> str:
        """Runs it there."""
        return self._sh(shlex.join(command), data=text.encode(), program=command[0]).decode(errors="replace")

    def _sh(self, script: str, *arguments: str, data: bytes = b"", program: str = "sh") -> bytes:
        line = shlex.join(["sh", "-c", script, "sh", *arguments]) if arguments else script
        where = self._master.host.destination
        try:
            code, said, complaint = self._master.run(line, data)
        except ClusterStartError as error:
            raise CommandError(str(error)) from None
        if code == _SSH_FAILED and not said:
            raise CommandError(openssh.why(where, complaint))
        if code:
            words = complaint.strip() or said.decode(errors="replace").strip()
            raise CommandError(words or f"{program} ended with code {code} on {where}")
        return said

    def require(self, program: str) -> None:
        """Looks in the search path of a login there."""
        try:
            self._sh(f"command -v {shlex.quote(program)}")
        except CommandError as error:
            where = self._master.host.destination
            if str(error).startswith("ssh to "):
                raise ClusterStartError(str(error)) from None
            raise ClusterStartError(
                f"there is no program {program!r} on {where}: name a host that submits jobs with via="
            ) from None

    def user(self) -> str:
        """The user of the login there."""
        if not self._user:
            self._user = self.run(["id", "-un"]).strip().splitlines()[-1]
        return self._user

    def directory(self, request: BlockRequest) -> Path:
        """One directory for this cluster, whichever host it belongs to."""
        import hashlib  # loads libcrypto

        ours = hashlib.sha256(f"{socket.gethostname()}\0{request.cluster_dir}".encode()).hexdigest()[:8]
        return self._shared() / f"{request.cluster_id}-{ours}"

    def _shared(self) -> Path:
        if self._top is None:
            try:
                said = self._sh(_PRIVATE + _SHARED, self._shared_dir).decode(errors="replace")
            except CommandError as error:
                raise ClusterStartError(
                    f"no directory for jobs on {self._master.host.destination}: {error}; name one that jobs see with "
                    "shared_dir="
                ) from None
            self._top = Path(said.strip().splitlines()[-1])
        return self._top

    def write(self, path: Path, content: Mapping[str, Any]) -> None:
        """Sends it by standard input."""
        import json

        try:
            self._sh(_PRIVATE + _WRITE, str(path.parent), path.name, data=json.dumps(content).encode())
        except CommandError as error:
            raise ClusterStartError(f"{path} cannot be written on {self._master.host.destination}: {error}") from None

    def expect(self, paths: Sequence[str]) -> None:
        """Creates them, so that `remove` knows which jobs there are."""
        with contextlib.suppress(CommandError):  # then they stay there
            self.run(["touch", *paths])

    def remove(self, paths: Sequence[str]) -> None:
        """Removes them, and the whole directory with the last one."""
        script = (
            'd=$(dirname "$1"); rm -f -- "$@"; set -- "$d"/'
            + files.BLOCK_LOG.format("*")
            + '; [ -e "$1" ] || rm -rf -- "$d"'
        )
        if paths:
            self._sh(script, *paths)

    def logs(self, paths: Iterable[str]) -> dict[str, str]:
        """Their ends, read a moment ago or now: all in one call."""
        wanted = list(paths)
        oldest = time.monotonic() - _LOG_IS_FRESH_S
        stale = [path for path in wanted if path not in self._logs or self._logs[path][0] < oldest]
        if stale:
            script = f'for f; do tail -c {_LOG_BYTES} -- "$f" 2>/dev/null || echo "{_NO_FILE}"; printf "\\0"; done'
            try:
                parts = self._sh(script, *stale).split(b"\0")
            except CommandError:
                parts = []  # no news
            now = time.monotonic()
            for path, part in zip(stale, parts, strict=False):
                text = part.decode(errors="replace")
                self._logs[path] = now, "" if text.strip() == _NO_FILE else text
        return {path: self._logs.get(path, (0.0, ""))[1] for path in wanted}

    def keep_package(self) -> str:
        """Sends it once per content."""
        packages = str(self._shared() / _PACKAGES)
        where = self._master.host.destination
        try:
            if self._sh(_PRIVATE + _HAS_PACKAGE, packages, package.key()).strip() != b"there":
                self._sh(_PRIVATE + _KEEP_PACKAGE, packages, package.key(), data=package.archive())
        except CommandError as error:
            raise ClusterStartError(f"Broadleaf cannot be stored in {packages} on {where}: {error}") from None
        return f"{packages}/{package.key()}"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
