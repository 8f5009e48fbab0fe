"""What an engine asks the operating system to do with its own process."""

import ctypes
import os
import resource
import signal

from broadleaf.engine.processes.capture import Capture
from broadleaf.private_files import open_private

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
# Descriptors of a fork server: module files, its node, its launcher.
_OTHER_DESCRIPTORS = 256

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


def reset_signals() -> None:
    """Restores the default handler of every signal and unblocks all signals."""
    signal.set_wakeup_fd(-1)
    for number in _signals_with_handlers():
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):  # reserved by the C library
            continue
    # A lost peer, or a file that may not grow, is an error code and never kills the process, as in every Python
    # program.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _signals_with_handlers() -> list[int]:
    """The signals that this process ignores or has a handler for, in Python or in C: `proc_pid_status(5)`.

    There are few, and resetting all 62 takes an engine as long as half of its other start.
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
