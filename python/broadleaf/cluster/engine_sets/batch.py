"""Engine sets of batch schedulers: their commands, scripts and news, and the hosts from which jobs are submitted."""

from __future__ import annotations

import contextlib
import math
import os
import pwd
import re
import shlex
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ClassVar

from broadleaf import openssh
from broadleaf.cluster import package
from broadleaf.cluster.engine_sets.base import Block, BlockRequest, BlockState, EngineSet
from broadleaf.errors import BroadleafError, ClusterStartError
from broadleaf.openssh import SSHHost, SSHMaster, via_host
from broadleaf.private_files import open_private
from broadleaf.state import files
from broadleaf.state.directories import base_dir, write_json

# How long a job may run: written in the same way for all schedulers.


_IN_UNITS = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
# [D-]H:MM:SS, as schedulers have it, and Slurm's D-H and D-H:MM.
_ON_A_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d+):(\d+)|(\d+)-(\d+)(?::(\d+))?")


def walltime_seconds(walltime: str | float) -> int:
    """The seconds of a walltime: ``"1h30m"``, ``"30m"``, ``"1:00:00"``, ``"1-12:00:00"`` or a number of seconds.

    0 for any other text, which may be a scheduler's own, such as ``"30:00"`` or ``"UNLIMITED"``.
    """
    text = str(walltime).strip()
    with contextlib.suppress(ValueError):
        return math.ceil(float(text)) if math.isfinite(float(text)) else 0
    if found := _IN_UNITS.fullmatch(text):
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    elif found := _ON_A_CLOCK.fullmatch(text):
        numbers = [int(part or 0) for part in found.groups()]
        days, hours, minutes, seconds = (
            numbers[0] + numbers[4],
            numbers[1] + numbers[5],
            numbers[2] + numbers[6],
            numbers[3],
        )
    else:
        return 0
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def clock_time(walltime: str | float) -> str:
    """A walltime as hours, minutes and seconds; a scheduler's own form unchanged."""
    total_s = walltime_seconds(walltime)
    if not total_s:
        return str(walltime)
    return f"{total_s // 3600}:{total_s // 60 % 60:02}:{total_s % 60:02}"


# Running a scheduler's commands.


# A busy scheduler answers late; one that is down does not answer.
_TIMEOUT_S = 60.0


class CommandError(BroadleafError):
    """A command failed; the text is what it wrote."""


def run_command(command: Sequence[str], *, text: str = "") -> str:
    """Runs a command with `text` as its input; returns its output. Raises `CommandError`."""
    import subprocess

    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, errors="replace"
        )
    except FileNotFoundError:
        raise CommandError(
            f"the program {command[0]!r} was not found on this host; start the cluster on a host from which jobs can "
            "be submitted"
        ) from None
    except subprocess.TimeoutExpired:
        raise CommandError(f"{command[0]} did not answer within {_TIMEOUT_S:g} s") from None
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip()  # Grid Engine complains on standard output
        raise CommandError(said or f"{command[0]} exited with code {done.returncode}")
    return done.stdout


# Values in the directives of batch scripts: what a scheduler would take for something else is refused by name.


_LINE_BREAKS = "\n\r\v\f\0"
_NAMES = {
    " ": "a space",
    "\t": "a tab",
    "\n": "a line break",
    "\r": "a line break",
    "\v": "a line break",
    "\f": "a line break",
    "\0": "a null character",
    '"': "a double quote",
    "'": "a single quote",
    "\\": "a backslash",
    "#": "a number sign",
    "$": "a dollar sign",
    ",": "a comma",
    ":": "a colon",
}


def check_value(option: str, value: str, scheduler: str, refused: str = "") -> str:
    """The value of an option, if it has no line break and none of the `refused` characters.

    Raises `ClusterStartError`.
    """
    if (found := _first(value, refused)) is not None:
        raise ClusterStartError(
            f"{option}={value!r}: {scheduler} directives cannot contain {found} here; use a value without it"
        )
    return value


def check_lines(option: str, lines: Iterable[str], scheduler: str) -> list[str]:
    """The lines of an option that takes directives as they are, if each is one line. Raises `ClusterStartError`."""
    checked = list(lines)
    for line in checked:
        if (found := _first(line, "")) is not None:
            raise ClusterStartError(
                f"the line {line!r} in {option}: {scheduler} directives cannot contain {found}; make each line a "
                "separate entry"
            )
    return checked


def check_directory(directory: Path, scheduler: str, refused: str, remedy: str) -> Path:
    """The directory in which jobs find their files, if its path has no line break and none of the `refused` characters.

    Raises `ClusterStartError`, which says how to choose another one: `remedy`.
    """
    if (found := _first(str(directory), refused)) is not None:
        raise ClusterStartError(
            f"jobs would find their files in {str(directory)!r}, but paths in {scheduler} directives cannot "
            f"contain {found}; {remedy}"
        )
    return directory


def _first(text: str, refused: str) -> str | None:
    """What the first character is that a directive cannot have."""
    found = next((character for character in text if character in _LINE_BREAKS or character in refused), None)
    return None if found is None else _NAMES.get(found, repr(found))


# When a scheduler is asked for news of jobs: each call costs it something.
#
# On average it is one call in 30 s: any other call postpones the regular ones.


# A first call comes early, to know why jobs are pending.
_FIRST_AFTER_S = 3.0
_EVERY_S = 30.0
# A scheduler tells of a job's end later than the job does. It is asked again after ever longer times.
_ENDING_S = 0.5
_ENDING_FACTOR = 1.5
# How long other calls may postpone the regular ones.
_AHEAD_S = 120.0


class News:
    """Says when the next call is due."""

    def __init__(self) -> None:
        self._regular_at = 0.0
        self._early_at = float("inf")
        self._repeat_at = float("inf")
        self._repeat_after_s = _ENDING_S
        self._ended: set[str] = set()

    def expect_first(self) -> None:
        """Jobs have just been submitted."""
        now = time.monotonic()
        if not self._regular_at:
            self._regular_at = now + _EVERY_S
            self._early_at = now + _FIRST_AFTER_S
        elif self._regular_at < now:  # there were no jobs to ask for
            self._regular_at = now + _FIRST_AFTER_S

    def want_now(self) -> None:
        """Whoever asks next gets news at once."""
        self._early_at = 0.0

    def want_ends(self) -> None:
        """The scheduler does not know yet that jobs have ended. The call is repeated."""
        self._repeat_at = time.monotonic() + self._repeat_after_s
        self._repeat_after_s = min(self._repeat_after_s * _ENDING_FACTOR, _EVERY_S)

    def are_due(self, ended: Iterable[str]) -> bool:
        """Whether to call now: on average every 30 s, and soon after a job's log says that it has ended.

        Args:
            ended: The jobs whose logs say so.

        Returns:
            Whether to call. If so, the call is counted as made.
        """
        now = time.monotonic()
        if not self._ended.issuperset(ended):
            self._ended.update(ended)
            self._repeat_after_s = _ENDING_S
            # Once early calls have postponed the regular ones for long, further ends wait.
            self._early_at = min(self._early_at, max(now, self._regular_at - _AHEAD_S))
        if now < min(self._regular_at, self._early_at, self._repeat_at):
            return False
        self._regular_at = min(max(self._regular_at, now) + _EVERY_S, now + _AHEAD_S + _EVERY_S)
        self._early_at = self._repeat_at = float("inf")
        return True


# Where a scheduler's commands run, and where jobs find their files: this host, or one reached by login.


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
  if [ -L "$1" ] || [ ! -d "$1" ] || [ ! -O "$1" ]; then echo "$1 is not a directory that you own" >&2; exit 1; fi
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
_WRITE = 'set -e; private "$1"; cat > "$1/.$2"; chmod "$3" "$1/.$2"; mv "$1/.$2" "$1/$2"'
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
    def write_script(self, path: Path, text: str) -> None:
        """Writes a program there that only this user can read, change and run."""

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
        return run_command(command, text=text)

    def require(self, program: str) -> None:
        """Looks in the search path."""
        import shutil

        if shutil.which(program) is None:
            raise ClusterStartError(
                f"the program {program!r} was not found on this host: start the cluster on a host from which jobs can "
                "be submitted, or name such a host to log in to: via='ssh:login'"
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

    def write_script(self, path: Path, text: str) -> None:
        """Writes it, and then makes it a program."""
        with os.fdopen(open_private(path, os.O_WRONLY | os.O_TRUNC), "w") as file:
            file.write(text)
        path.chmod(0o700)

    def logs(self, paths: Iterable[str]) -> dict[str, str]:
        """Reads them."""
        return {path: _read(path) for path in paths}

    def keep_package(self) -> str:
        """Below the directory of all clusters."""
        try:
            return str(package.keep(base_dir().absolute() / _PACKAGES))
        except OSError as error:
            raise ClusterStartError(f"Broadleaf cannot be copied to {base_dir() / _PACKAGES}: {error}") from None


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
            raise CommandError(words or f"{program} exited with code {code} on {where}")
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
                f"the program {program!r} was not found on {where}: use via= to name a host from which jobs can be "
                "submitted"
            ) from None

    def user(self) -> str:
        """The user of the login there."""
        if not self._user:
            self._user = self.run(["id", "-un"]).strip().splitlines()[-1]
        return self._user

    def directory(self, request: BlockRequest) -> Path:
        """One directory for this cluster, whichever host it belongs to."""
        return self._shared() / f"{request.cluster_id}-{_key(request)[:8]}"

    def _shared(self) -> Path:
        if self._top is None:
            try:
                said = self._sh(_PRIVATE + _SHARED, self._shared_dir).decode(errors="replace")
            except CommandError as error:
                raise ClusterStartError(
                    f"no directory for jobs on {self._master.host.destination}: {error}; use shared_dir= to name "
                    "one that jobs can access"
                ) from None
            self._top = Path(said.strip().splitlines()[-1])
        return self._top

    def write(self, path: Path, content: Mapping[str, Any]) -> None:
        """Sends it by standard input."""
        import json

        self._send(path, json.dumps(content), "600")

    def write_script(self, path: Path, text: str) -> None:
        """Sends it by standard input."""
        self._send(path, text, "700")

    def _send(self, path: Path, text: str, mode: str) -> None:
        try:
            self._sh(_PRIVATE + _WRITE, str(path.parent), path.name, mode, data=text.encode())
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
            raise ClusterStartError(f"Broadleaf cannot be copied to {packages} on {where}: {error}") from None
        return f"{packages}/{package.key()}"


def _key(request: BlockRequest) -> str:
    """What tells a cluster from others of its id: on other hosts, of other profiles, in other directories."""
    import hashlib  # loads libcrypto

    return hashlib.sha256(f"{socket.gethostname()}\0{request.cluster_dir}".encode()).hexdigest()


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


# What engine sets whose blocks are jobs have in common: where their scheduler is, and where jobs find their files.


JOB_ENDED = "broadleaf: the job has ended"
"""The last line that a job's script writes."""


# What starts a program elsewhere may leave the script's variables behind.
_CARRIED = """\
join="export BROADLEAF_CLUSTER_ID='$BROADLEAF_CLUSTER_ID' BROADLEAF_BLOCK='$BROADLEAF_BLOCK'
export BROADLEAF_ENDS_AT='$BROADLEAF_ENDS_AT'
$join\""""


@dataclass
class BatchSet(EngineSet):
    """Engines in jobs of a batch scheduler: the base class to use for a scheduler that Broadleaf does not support.

    A subclass is a dataclass. It specifies the scheduler's commands in class variables, and implements three methods:
    `directives`, `job_of` and `note_news`. See "Your scheduler in forty lines" in the guides.

    The class variables are:

    - `name`, `title`: the name of the engine set for ``engines=``, and the scheduler's name in messages;
    - `program`, `arguments`, `takes_file`: the command that submits a job, and whether it takes the script as a file
      instead of from standard input;
    - `marker`: the prefix of the scheduler's directives in a script, such as ``#PBS``;
    - `job_variable`: the variable in a job's environment that contains the job's id;
    - `on_hosts`: the command by which a script runs ``$join`` once on each host; without it, jobs have one host;
    - `cancel_program`, `cancel_arguments`: the command that cancels jobs;
    - `unknown_job`: a phrase by which that command reports that a job does not exist, or several such phrases;
    - `writes_log`: whether the script, and not the scheduler, writes the job's log.

    All other fields are options: of the class, of `broadleaf start --set` and in `config.toml`. Their types are bool,
    int, float, str, ``str | float``, ``list[str]``, ``list[int]`` or ``list[float]``; other types raise an error when
    the class is defined. If `engines_per_host` is 0, `host_engines` determines the number of engines on a host: all
    requested engines if jobs have one host, otherwise one for each core that the job may use there.
    """

    is_adoptable: ClassVar[bool] = True
    leaves_jobs: ClassVar[bool] = True
    title: ClassVar[str]
    """The scheduler's name in messages."""
    program: ClassVar[str]
    """The command that submits a job."""
    arguments: ClassVar[Sequence[str]] = ()
    """Arguments of that command."""
    takes_file: ClassVar[bool] = False
    """Whether that command takes the script as a file, its last argument. By default it reads the script from standard
    input."""
    marker: ClassVar[str]
    """The prefix of its directives in a script, such as ``#PBS``."""
    job_variable: ClassVar[str]
    """The variable in a job's environment that contains the job's id, as `job_of` returns it."""
    on_hosts: ClassVar[str] = 'sh -c "$join"'
    """The command by which a job's script runs ``$join`` once on each of the job's hosts. ``$join`` is shell code that
    needs none of the script's variables. By default, it runs where the script runs, and jobs have one host."""
    cancel_program: ClassVar[str]
    """The command that cancels jobs. Their ids are its last arguments."""
    cancel_arguments: ClassVar[Sequence[str]] = ()
    """Arguments of that command, before the jobs' ids."""
    unknown_job: ClassVar[str | Sequence[str]]
    """A phrase by which that command reports that a job does not exist, or several such phrases."""

    writes_log: ClassVar[bool] = False
    """Whether the script itself writes a job's output to `log_file`, whose path is then ``$log``. This is for
    schedulers that hold back a job's output until the job has ended."""

    _: KW_ONLY
    via: str = ""
    """Host where the scheduler's commands run, such as ``"ssh:login"``; by default this one."""
    shared_dir: str = ""
    """With `via`: a directory on that host that jobs can access; by default ``~/.broadleaf``."""
    ship: bool = False
    """Whether to copy the Broadleaf of this process into a directory that jobs can access, so that their hosts need
    only the same version of Python."""

    def __post_init__(self) -> None:
        login = via_host(self.via) if self.via else None
        self.submit_host: SubmitHost = ThisHost() if login is None else LoginHost(login, self.shared_dir)
        self.news: News = News()
        """Decides when to ask the scheduler for news of the jobs."""

    def require(self) -> None:
        """Raises `ClusterStartError` if the scheduler's programs are missing."""
        self.submit_host.require(self.program)

    @abstractmethod
    def directives(self, request: BlockRequest, directory: Path) -> list[str]:
        """The directives that tell the scheduler what a job needs, without the `marker`.

        Unless the script `writes_log`, one of them must send the job's output to `log_file`, with the scheduler's
        pattern for the job's id in the path.

        Args:
            request: The request: `request.n` engines, or None for a number that depends on the options or the hosts'
                cores. `job_name` makes a name for the job from it.
            directory: The directory in which the job finds its files.

        Returns:
            The directives, one per line of the script.
        """

    def job_name(self, request: BlockRequest) -> str:
        """The name of a cluster's jobs in the scheduler's queue. No other cluster's jobs have it.

        Args:
            request: The cluster.

        Returns:
            The name: letters, digits, '.', '_' and '-', a letter first.
        """
        return f"broadleaf-{request.cluster_id}-{_key(request)[:8]}"

    def jobs_named(self, name: str) -> list[str]:
        """This user's queued jobs that have a certain name, for engine sets whose `directives` set `job_name`.

        It is used to find a job whose submission was interrupted, so that its id was not recorded.

        Args:
            name: The name that `job_name` returned.

        Returns:
            The jobs' ids, as `job_of` returns them; for an array, the id of each job in it. By default none.

        Raises:
            CommandError: The scheduler does not answer.
        """
        return []

    def jobs_of(self, request: BlockRequest) -> list[Block]:
        """Those that have the cluster's name."""
        return self.job_blocks(request, self.jobs_named(self.job_name(request)), n_hosts=None, n_engines=None)

    @abstractmethod
    def job_of(self, said: str) -> str:
        """The id of a job that was submitted, as `cancel_program` accepts it and `job_variable` contains it.

        Args:
            said: The standard output of `program`.

        Returns:
            The id.
        """

    def submit(self, request: BlockRequest) -> list[Block]:
        """Writes the relays' order into a private file, and submits a job."""
        script = self.prepared_script(request)
        try:
            said = self._submit(request, script)
        except CommandError as error:
            why = self.why_refused(script, str(error))
            raise ClusterStartError(f"{self.title} refuses the job: {why}") from None
        self.news.expect_first()
        return self.submitted(request, self.job_of(said))

    def _submit(self, request: BlockRequest, script: str) -> str:
        command = [self.program, *self.arguments]
        if not self.takes_file:
            return self.submit_host.run(command, text=script)
        # Its own file: a scheduler may read it when the job starts.
        name = files.BLOCK_SCRIPT.format(f"{self.name}-{request.first_block}")
        path = self.submit_host.directory(request) / name
        self.submit_host.write_script(path, script)
        return self.submit_host.run([*command, str(path)])

    def host_engines(self, request: BlockRequest) -> int:
        """The number of engines on each host of a job.

        Args:
            request: The request.

        Returns:
            `engines_per_host`, or all requested engines if jobs have one host. 0 for one engine per core of the host.
        """
        return self.engines_per_host or (request.n if self._has_one_host and request.n else 0)

    @property
    def _has_one_host(self) -> bool:
        return self.on_hosts == BatchSet.on_hosts

    def submitted(self, request: BlockRequest, job: str) -> list[Block]:
        """The blocks of a job that was submitted: by default one.

        Args:
            request: The request.
            job: The job's id.

        Returns:
            The blocks.
        """
        n_hosts = 1 if self._has_one_host else None
        return self.job_blocks(request, [job], n_hosts=n_hosts, n_engines=self.block_engines(0) or request.n)

    def why_refused(self, script: str, said: str) -> str:
        """The reason for which a job was refused, for users.

        Args:
            script: The job's script.
            said: The output of `program`.

        Returns:
            The text; by default that output.
        """
        return said

    def script(self, request: BlockRequest) -> str:
        """The batch script. With `via`, its directory is as configured: the login host is not asked for the path."""
        return self.batch_script(request, self._shown_directory(request), "PACKAGE" if self.ship else None)

    def _shown_directory(self, request: BlockRequest) -> Path:
        return Path(self.shared_dir or "~/.broadleaf") / request.cluster_id if self.via else request.cluster_dir

    def other_directory(self) -> str:
        """Advice on how to choose another directory in which jobs find their files.

        Returns:
            The advice.
        """
        return "name another one with shared_dir=" if self.via else "set BROADLEAF_DIR to another one"

    def batch_script(self, request: BlockRequest, directory: Path, package: str | None) -> str:
        """The script of a job.

        Args:
            request: The request.
            directory: The directory in which the job finds its files.
            package: The directory from which it imports Broadleaf; None for the Broadleaf that is installed there.

        Returns:
            The text.
        """
        join = self.join_command(request, str(self.order_file(directory)), package=package)
        lines = [
            "#!/bin/sh",
            *(f"{self.marker} {directive}" for directive in self.directives(request, directory)),
            *self._writing_log(directory),
            f"export BROADLEAF_CLUSTER_ID={request.cluster_id} BROADLEAF_BLOCK={self.name}-{self.job_variable}",
            *self.preparations(request),
            f"join={shlex.quote(join)}",
            _CARRIED,
            self.on_hosts,
            f"code=$?; echo {shlex.quote(JOB_ENDED)}; exit $code",
        ]
        return "\n".join(lines) + "\n"

    def _writing_log(self, directory: Path) -> list[str]:
        if not self.writes_log:
            return []
        before, after = str(self.log_file(directory, "\n")).split("\n")
        return [f'log={shlex.quote(before)}"{self.job_variable}"{shlex.quote(after)}', 'exec >>"$log" 2>&1']

    def preparations(self, request: BlockRequest) -> list[str]:
        """Lines of the script that run before relays are started. They may set ``BROADLEAF_ENDS_AT``, the time at which
        the job ends, in seconds since 1970.

        Args:
            request: The request, as for `directives`.

        Returns:
            The lines. `BatchSet` has none; those of `NodeJobs` set ``BROADLEAF_ENDS_AT`` from `walltime`.
        """
        return []

    def log_file(self, directory: Path, job: str) -> Path:
        """The file for a job's output.

        Args:
            directory: The directory in which the job finds its files.
            job: The job's id, or the pattern that the scheduler replaces by the id in a directive.

        Returns:
            The path.
        """
        return directory / files.BLOCK_LOG.format(f"{self.name}-{job}")

    def prepared_script(self, request: BlockRequest) -> str:
        """Puts the files that a job needs where the job finds them.

        Args:
            request: The request.

        Returns:
            The job's script.
        """
        directory = self.submit_host.directory(request)
        package = self.submit_host.keep_package() if self.ship else None
        self.submit_host.write(self.order_file(directory), self.join_order(request, n=self.host_engines(request)))
        return self.batch_script(request, directory, package)

    def order_file(self, directory: Path) -> Path:
        """The file from which relays read their order. Only this user can read it.

        Args:
            directory: Where the job finds its files.

        Returns:
            The path.
        """
        return directory / files.ORDER_FILE.format(self.name)

    def job_blocks(
        self, request: BlockRequest, jobs: Sequence[str], *, n_hosts: int | None, n_engines: int | None
    ) -> list[Block]:
        """One block for each submitted job.

        Args:
            request: The request.
            jobs: The jobs' ids.
            n_hosts: Number of hosts of each; None if it is not known.
            n_engines: Number of engines of each; None if it is not known.

        Returns:
            The blocks, in the order of the jobs.
        """
        directory = self.submit_host.directory(request)
        logs = [str(self.log_file(directory, job)) for job in jobs]
        self.submit_host.expect(logs)
        return [
            Block(
                f"{self.name}-{job}",
                n_hosts=n_hosts,
                n_engines=n_engines,
                reason="submitted",
                facts={"job": job, "log": log},
            )
            for job, log in zip(jobs, logs, strict=True)
        ]

    def look_now(self) -> None:
        """Makes the next `poll` ask the scheduler."""
        self.news.want_now()

    def poll(self, blocks: Sequence[Block]) -> None:
        """Asks the scheduler once for all of them, on average every 30 s.

        It asks early when a job's log says that the job has ended, but not why.
        """
        jobs = {block.facts["job"]: block for block in blocks if not block.is_over}
        logs = self.logs(list(jobs.values()))
        for job, block in jobs.items():
            self.read_log(block, logs[job])
        jobs = {job: block for job, block in jobs.items() if not block.is_over}
        ended = {job for job in jobs if JOB_ENDED in logs[job]}
        if jobs and self.news.are_due(ended) and self.note_news(jobs) and any(not jobs[job].is_over for job in ended):
            self.news.want_ends()

    def read_log(self, block: Block, log: str) -> None:
        """Records what a job's log says about its block.

        Args:
            block: The block.
            log: The job's output.
        """

    @abstractmethod
    def note_news(self, jobs: Mapping[str, Block]) -> bool:
        """Asks the scheduler once for the state of all jobs, with `submit_host.run`, and calls `note` for each.

        Args:
            jobs: The blocks that have not ended, by the ids of their jobs.

        Returns:
            Whether the scheduler answered. If not, the blocks stay as they are, and it is asked again later.
        """

    def note(self, block: Block, state: BlockState, reason: str) -> None:
        """Records what the scheduler says about a block's job.

        Args:
            block: The block.
            state: 'pending', 'running', 'ended' or 'failed'. A job that is pending and can never run has failed.
            reason: Why the job is pending or has ended, in the scheduler's words.
        """
        block.state, block.reason = state, reason
        block.facts["over"] = block.is_over

    def cancel(self, blocks: Sequence[Block]) -> None:
        """Ends the jobs that are not over according to the scheduler, with one call.

        The job of a block that counts as failed may still be pending.

        Args:
            blocks: Their blocks.
        """
        jobs = {block.facts["job"]: block for block in blocks if not block.facts.get("over")}
        if jobs:
            try:
                self.submit_host.run([self.cancel_program, *self.cancel_arguments, *map(self.argument, jobs)])
            except CommandError as error:
                if not self.means_gone(str(error)) and not self._are_over(jobs):
                    raise
        self.remove_logs(blocks)

    def _are_over(self, jobs: Mapping[str, Block]) -> bool:
        """Whether the scheduler says so, whatever the command that ends jobs has said."""
        return self.note_news(jobs) and all(block.is_over for block in jobs.values())

    def means_gone(self, said: str) -> bool:
        """Whether the output of `cancel_program` means that a job has already ended.

        Args:
            said: Its output.

        Returns:
            True if it does: by default, if it contains a phrase of `unknown_job`.
        """
        phrases = (self.unknown_job,) if isinstance(self.unknown_job, str) else self.unknown_job
        return any(phrase in said for phrase in phrases)

    def argument(self, job: str) -> str:
        """The argument by which the command that cancels jobs identifies a job.

        Args:
            job: The job's id.

        Returns:
            The argument.
        """
        return job

    def logs(self, blocks: Sequence[Block]) -> dict[str, str]:
        """The output of jobs.

        Args:
            blocks: Their blocks.

        Returns:
            Each job's output, by the job's id.
        """
        texts = self.submit_host.logs([block.facts["log"] for block in blocks])
        return {block.facts["job"]: texts[block.facts["log"]] for block in blocks}

    def log(self, block: Block) -> str:
        """The job's output."""
        return self.logs([block])[block.facts["job"]]

    def why_silent(self, block: Block) -> str:
        """Its hosts may not see the directory in which they would write."""
        directory = Path(block.facts["log"]).parent
        return f"it has written nothing: if its hosts cannot access {directory}, {self.other_directory()} that they can"

    def remove_logs(self, blocks: Sequence[Block]) -> None:
        """Removes the logs of jobs from the host that submitted them, unless they go with the cluster's directory.

        Args:
            blocks: Their blocks.
        """
        self.submit_host.remove([block.facts["log"] for block in blocks])


@dataclass
class NodeJobs(BatchSet):
    """Engines in jobs of `nodes` hosts, with the same number of engines on each; `n` engines are divided among them.

    This is a base class for engine sets, like `BatchSet`. Its options are `nodes` (1), `walltime`, `queue` and
    `account` (all ""), which a subclass writes into its `directives`. The script `writes_log`. With `walltime`, it also
    says when the job will end.
    """

    writes_log: ClassVar[bool] = True

    nodes: int = 1
    """Number of hosts of a job."""
    walltime: str | float = ""
    """Time limit of the job: "30m", "1:00:00", or a number of seconds; other forms as the scheduler takes them."""
    queue: str = ""
    """Queue."""
    account: str = ""
    """Account or project that pays."""

    def block_engines(self, first: int) -> int | None:
        """The number of engines in a job, if its options determine it."""
        return self.engines_per_host * self.nodes or None

    def host_engines(self, request: BlockRequest) -> int:
        """`engines_per_host`, or the requested number of engines divided among the hosts."""
        return self.engines_per_host or -(-(request.n or 0) // self.nodes)

    def submitted(self, request: BlockRequest, job: str) -> list[Block]:
        """A block for the job."""
        n_engines = self.host_engines(request) * self.nodes or None
        return self.job_blocks(request, [job], n_hosts=self.nodes, n_engines=n_engines)

    def preparations(self, request: BlockRequest) -> list[str]:
        """The time at which the job ends, if `walltime` is set."""
        ends_in_s = walltime_seconds(self.walltime)
        return [f"export BROADLEAF_ENDS_AT=$(($(date +%s) + {ends_in_s}))"] if ends_in_s else []
