"""The process of an engine: its name, signals, cores and descriptors, what it writes, and how it ends."""

import ctypes
import fcntl
import json
import os
import resource
import signal
from collections.abc import Iterable
from signal import SIGKILL
from typing import Any, NamedTuple, Self, TypedDict

from broadleaf import _native
from broadleaf.engine import recent_output
from broadleaf.private_files import open_private

# How engine processes end, and what can be learned about it afterwards.


LAST_OUTPUT_BYTES = 4096


class Exited(TypedDict):
    """The body of the fork server's ``exited`` event."""

    engine: int
    pid: int
    code: int | None
    signal: int | None
    out_of_memory: bool
    last_output: str


def last_output(path: str, limit_bytes: int = LAST_OUTPUT_BYTES) -> str:
    """The last `limit_bytes` of the log at `path`; empty if there is none."""
    try:
        with open(path, "rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - limit_bytes))
            return log.read().decode("utf-8", "replace")
    except OSError:
        return ""


class OutOfMemoryWatch:
    """Distinguishes deaths by the out-of-memory killer from other SIGKILLs.

    The kernel counts its kills per memory control group. A SIGKILL is attributed to it if the count of the dead
    process's group has risen; each increment explains one death.
    """

    def __init__(self, cgroup_root: str = "/sys/fs/cgroup", proc_root: str = "/proc") -> None:
        self._cgroup_root = cgroup_root
        self._proc_root = proc_root
        self._seen: dict[str, int] = {}
        self._counter_of: dict[int, str] = {}

    def note(self, pid: int) -> None:
        """Remembers the group of `pid` and its count, which the kernel does not report for dead processes."""
        for path in self._counters(pid):
            count = _read_count(path)
            if count is not None:
                self._seen.setdefault(path, count)
                self._counter_of[pid] = path
                return

    def explains(self, pid: int) -> bool:
        """Whether the killer explains the death of `pid`; called once, when it has died."""
        path = self._counter_of.pop(pid, None)
        count = _read_count(path) if path is not None else None
        if path is None or count is None or count <= self._seen[path]:
            return False
        self._seen[path] += 1
        return True

    def forget(self, pid: int) -> None:
        """Forgets what was recorded about `pid`."""
        self._counter_of.pop(pid, None)

    def _counters(self, pid: int) -> list[str]:
        """Files that may hold the count for `pid`, best first."""
        root = self._cgroup_root
        v1: list[str] = []
        v2: list[str] = []
        try:
            with open(f"{self._proc_root}/{pid}/cgroup") as groups:
                lines = groups.read().splitlines()
        except OSError:
            return []
        for line in lines:
            _, controllers, group = line.split(":", 2)
            group = group.strip("/")
            if "memory" in controllers.split(","):
                # Inside a container the group's path may be the host's, and its root is mounted instead.
                v1 += [os.path.join(root, "memory", group, "memory.oom_control")]
                v1 += [os.path.join(root, "memory", "memory.oom_control")]
            elif not controllers:
                v2 += [os.path.join(root, group, "memory.events"), os.path.join(root, "memory.events")]
        return v1 + v2


def _read_count(path: str) -> int | None:
    try:
        with open(path) as lines:
            for line in lines:
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
    except OSError:
        pass
    return None


def describe_exit(engine: int, info: os.waitid_result, last_output: str, watch: OutOfMemoryWatch) -> Exited:
    """What is known about a process that has ended."""
    killed = info.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
    was_out_of_memory = watch.explains(info.si_pid) if killed and info.si_status == SIGKILL else False
    watch.forget(info.si_pid)
    return {
        "engine": engine,
        "pid": info.si_pid,
        "code": None if killed else info.si_status,
        "signal": info.si_status if killed else None,
        "out_of_memory": was_out_of_memory,
        "last_output": last_output,
    }


# What an engine and the fork server share to capture its output.
#
# Two pipes are the engine's descriptors 1 and 2; the engine empties them while it lives. A small piece of memory
# holds its latest output. The fork server made them and holds them too, so what an engine wrote as it died is not
# lost.


# The capacity of a pipe, unless somebody has changed it.
_PIPE_BYTES = 65536


class Capture:
    """Descriptors' numbers. Read ends never block; none survives `exec`."""

    def __init__(
        self,
        stdout_read: int,
        stdout_write: int,
        stderr_read: int,
        stderr_write: int,
        recent: int,
        log_path: str,
        recent_bytes: int = recent_output.MEMORY_BYTES,
    ) -> None:
        self.stdout_read = stdout_read
        self.stdout_write = stdout_write
        self.stderr_read = stderr_read
        self.stderr_write = stderr_write
        self.recent = recent
        """Memory of a fixed size."""
        self.log_path = log_path
        """The engine's log, which has what is written outside of tasks and what goes through the pipes."""
        self.recent_bytes = recent_bytes

    def to_dict(self) -> dict[str, Any]:
        """The arguments that make another one like it, ready for JSON."""
        return dict(vars(self))

    @classmethod
    def create(cls, log_path: str, first: int = 0) -> "Capture":
        """New pipes and memory; what the fork server keeps has numbers from `first` on.

        Raises `OSError` if there are no descriptors left.
        """
        made: list[int] = []
        try:
            stdout_read, stdout_write = os.pipe()
            made += stdout_read, stdout_write
            stderr_read, stderr_write = os.pipe()
            made += stderr_read, stderr_write
            recent = recent_output.create()
            made.append(recent)
            kept = [fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, first) for low in (stdout_read, stderr_read, recent)]
        except OSError:
            _close(*made)
            raise
        _close(stdout_read, stderr_read, recent)
        stdout_read, stderr_read, recent = kept
        for read_end in (stdout_read, stderr_read):
            os.set_blocking(read_end, False)
        return cls(stdout_read, stdout_write, stderr_read, stderr_write, recent, log_path)

    def numbers(self) -> tuple[int, int, int, int, int]:
        """All descriptors, in the order of the fields."""
        return self.stdout_read, self.stdout_write, self.stderr_read, self.stderr_write, self.recent

    def kept(self) -> tuple[int, int, int]:
        """The descriptors that the fork server keeps."""
        return self.stdout_read, self.stderr_read, self.recent

    def close_write_ends(self) -> None:
        """Closes what only the engine needs."""
        _close(self.stdout_write, self.stderr_write)

    def close(self) -> None:
        """Closes what the fork server keeps."""
        _close(*self.kept())

    def save_rest(self) -> bytes:
        """Appends unread output to the log, and returns it. Reads no more than fits in the pipes: children that the
        engine left behind may still write.
        """
        rest = _read_rest(self.stdout_read) + _read_rest(self.stderr_read)
        if rest:
            try:
                with open(self.log_path, "ab") as log:
                    log.write(rest)
            except OSError:
                pass  # a full disk
        return rest

    def last_output(self, rest: bytes = b"") -> str:
        """The latest output, from Python and others, followed by `rest`."""
        _, recent = recent_output.read(self.recent)
        return (recent + rest)[-LAST_OUTPUT_BYTES:].decode("utf-8", "replace")


def _read_rest(read_end: int) -> bytes:
    rest = b""
    try:
        while len(rest) < _PIPE_BYTES and (piece := os.read(read_end, _PIPE_BYTES)):
            rest += piece
    except BlockingIOError:
        pass
    return rest


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


# What an engine asks the operating system to do with its own process.


_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
# Descriptors of a fork server: module files, its node, its launcher.
_OTHER_DESCRIPTORS = 256
# At least those of an engine that is being started.
_MOMENTARY_DESCRIPTORS = 32

# Loaded once in the fork server, so that engines share its pages.
_libc = ctypes.CDLL(None, use_errno=True)


def set_process_name(name: str) -> None:
    """Names this process in `ps` and `top`; 15 bytes are kept."""
    _libc.prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]), 0, 0, 0)


def die_with_parent(parent_pid: int) -> None:
    """Makes the kernel kill this process when its parent ends, for whatever reason."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent_pid:  # it ended before the request was made
        os._exit(1)


def reset_signals(handled: Iterable[int]) -> None:
    """Restores the default handlers of these signals, and unblocks all signals."""
    signal.set_wakeup_fd(-1)
    for number in handled:
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):  # reserved by the C library
            continue
    # A lost peer, or a file that may not grow, is an error code and never kills the process, as in every Python
    # program.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def signals_with_handlers() -> list[int]:
    """The signals that this process ignores or has a handler for, in Python or in C: `proc_pid_status(5)`.

    There are few, and resetting all 62 takes an engine as long as half of its other start. Asked once by a fork server,
    because reading it would add a tenth to that.
    """
    mask = 0
    with open("/proc/self/status", "rb") as status:
        for line in status:
            if line.startswith((b"SigIgn:", b"SigCgt:")):
                mask |= int(line.split()[1], 16)
    return [number for number in range(1, signal.NSIG) if mask >> number - 1 & 1]


def open_log(log_path: str) -> int:
    """A descriptor of a new log; the previous process's output stays in a file whose name ends in `.previous`."""
    try:
        os.rename(log_path, f"{log_path}.previous")
    except FileNotFoundError:
        pass
    return open_private(log_path, os.O_WRONLY | os.O_TRUNC | os.O_APPEND)


def redirect_output(log: int, capture: Capture | None) -> None:
    """Connects descriptors 1 and 2 to the pipes of `capture`, or else to `log`, which is then closed, and 0 to
    `/dev/null`.

    The pipes' own descriptors stay open: they must not appear closed when a task replaces 1 and 2.
    """
    os.dup2(capture.stdout_write if capture else log, 1)
    os.dup2(capture.stderr_write if capture else log, 2)
    os.close(log)
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    os.close(nothing)


def above_descriptors() -> int:
    """A number above the descriptors that this process has open and those that it may open for a moment."""
    return max(map(int, os.listdir("/proc/self/fd"))) + _MOMENTARY_DESCRIPTORS


def close_descriptors(first: int, last: int, but: Iterable[int]) -> None:
    """Closes descriptors `first` to `last` but for some: in a few system calls, however many there are."""
    for kept in sorted(number for number in but if first <= number <= last):
        os.closerange(first, kept)
        first = kept + 1
    os.closerange(first, last + 1)


def make_room_for_descriptors(count: int) -> tuple[int, int]:
    """Lets this process open `count` descriptors in addition to some others, if it may; returns the previous limits."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHER_DESCRIPTORS
    if wanted > limits[0] != resource.RLIM_INFINITY:
        hard = limits[1]
        wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return limits


def limit_descriptors(pid: int, limits: tuple[int, int]) -> None:
    """Restores in a child the limits that `make_room_for_descriptors` returned. Raises `ProcessLookupError`."""
    if resource.getrlimit(resource.RLIMIT_NOFILE) != limits:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


def engine_cores(affinity: str, engine_id: int) -> list[int] | None:
    """The cores that engine `engine_id` should use under the `affinity` option, or None for no change.

    ``"none"`` leaves the mask alone, ``"spread"`` gives each engine one of the usable cores in turn,
    and a list such as ``"0-3,8"`` gives every engine these.
    """
    if affinity == "none":
        return None
    usable = sorted(os.sched_getaffinity(0))
    if affinity == "spread":
        return [usable[engine_id % len(usable)]]
    cores: list[int] = []
    for part in affinity.split(","):
        first, _, last = part.partition("-")
        cores.extend(range(int(first), int(last or first) + 1))
    return cores


# The host that it is on.


class HostConfig(NamedTuple):
    """Configuration of a fork server, as its launcher writes it."""

    connection: str
    """The engines' connection, JSON text without its key, which the native module holds."""
    run_dir: str
    cluster_dir: str
    options: dict[str, Any]
    n_engines: int
    n_cores: int
    sys_path: list[str]
    directory: str | None
    """Where engines work, if this host has it."""
    ends_with_guests: bool = False
    """Whether this host is there for engines that it does not start, and ends with the last of them."""

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Reads the line that the launcher wrote; the key in it goes to the native module."""
        content = json.loads(text)
        return cls(**content | {"connection": _native.hold_key(content["connection"])})

    def share_of_cores(self, n_engines: int) -> int:
        """Number of cores for each of `n_engines` here."""
        return max(1, self.n_cores // max(1, n_engines))

    def log_path(self, engine_id: int) -> str:
        """Where the engine's descriptors 1 and 2 go."""
        return os.path.join(self.run_dir, f"engine-{engine_id}.log")
