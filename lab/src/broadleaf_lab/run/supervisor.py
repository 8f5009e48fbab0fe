"""Runs one command and lets nothing of it survive: started as a script, `python -I -S supervisor.py`, once per run.

It reads one line of JSON from standard input: the command, its working directory, environment, output files, time limit
and processors (null: all). Standard input stays open for as long as the runner lives; when it closes, however the
runner died, the command is killed. Every descendant is killed at the end, even one that left its process group or
session: the supervisor is their subreaper, so a process that loses its parent becomes its child. It prints one line of
JSON: how the run ended and what it used. It uses only the standard library, and no module of the package, because it
has to start fast.
"""

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
TERM_GRACE_S = 2.0
"""Time that a command out of time has to leave by itself."""
STRAGGLER_GRACE_S = 0.5
"""Time that processes left behind have to leave by themselves."""

PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
HARDWARE_COUNTERS = {"cycles": 0, "instructions": 1, "cache_misses": 3, "branch_misses": 5}
"""Numbers of the processor's events, from linux/perf_event.h."""
_INHERIT_AND_START_AT_EXEC = 1 << 0 | 1 << 1 | 1 << 5 | 1 << 6 | 1 << 12
"""Off until exec, also in children, without the kernel's own work, which a user may not count by default."""


class Counters:
    """Hardware counters of what this process starts from now on, if the kernel and the processor have them. This
    process itself never calls exec, so it is not counted."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}
        number = PERF_EVENT_OPEN.get(os.uname().machine)
        if number is None:
            return
        libc = ctypes.CDLL(None, use_errno=True)
        for name, event in HARDWARE_COUNTERS.items():
            # type, size, config, period, sample type, read format (with both times), flags, 3 unused fields.
            attributes = struct.pack("IIQQQQQIIQ", 0, 64, event, 0, 0, 3, _INHERIT_AND_START_AT_EXEC, 0, 0, 0)
            fd = libc.syscall(number, ctypes.c_char_p(attributes), 0, -1, -1, 8)
            if fd >= 0:
                self._open[name] = fd

    def read(self) -> dict[str, int]:
        """The counts. A counter that others used part of the time is scaled up to the whole time."""
        found = {}
        for name, fd in self._open.items():
            value, enabled, running = struct.unpack("QQQ", os.read(fd, 24))
            if running:
                found[name] = round(value * enabled / running)
        return found


def children(of: set[int]) -> set[int]:
    """All descendants of the processes, including zombies."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as f:
                    # The name, in parentheses, may itself contain any character.
                    parents[int(entry)] = int(f.read().rpartition(b")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
    found: set[int] = set()
    while more := {pid for pid, parent in parents.items() if parent in of | found} - found:
        found |= more
    return found


def signal_all(number: int) -> None:
    for pid in children({os.getpid()}):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def written_bytes() -> int:
    """Bytes that this process and all it has waited for sent to storage."""
    try:
        with open("/proc/self/io") as f:
            return next((int(line.split()[1]) for line in f if line.startswith("write_bytes")), 0)
    except OSError:
        return 0


def queued_s(process: int | str) -> float:
    """How long the first thread of a process was ready to run, but waited for a processor."""
    try:
        with open(f"/proc/{process}/schedstat") as f:
            return int(f.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


class Supervisor:
    def __init__(self, task: dict[str, Any]) -> None:
        self.task = task
        self.cpu_s: float = 0.0
        self.main_cpu_s: float = 0.0
        self.queued_s: float = 0.0
        self.late_s: float = 0.0
        self.queued_before_s: float = 0.0
        self.max_rss_kb: int = 0
        self.switches: int = 0
        self.page_faults: int = 0
        self.counters: Counters = Counters()
        self.status: int | None = None
        self.ended: float = 0.0
        self.orphaned: bool = False
        # SIGCHLD only has to wake the select.
        self.wake_r: int
        self.wake_w: int
        self.wake_r, self.wake_w = os.pipe()
        os.set_blocking(self.wake_w, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_w, warn_on_full_buffer=False)

    def start(self) -> None:
        task = self.task
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        me = os.getpid()

        def die_with_me() -> None:
            # If the supervisor itself is killed, its command still ends with it.
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != me:
                os._exit(127)

        if (cpus := task["cpus"]) is not None:
            os.sched_setaffinity(0, cpus)
        with open(task["stdout"], "wb") as out, open(task["stderr"], "wb") as err:
            self.queued_before_s = queued_s("self")
            self.began: float = time.monotonic()
            self.child: subprocess.Popen[bytes] = subprocess.Popen(
                task["command"],
                cwd=task["cwd"],
                env=task["env"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                process_group=0,
                preexec_fn=die_with_me,
            )

    def note_schedule(self) -> None:
        """What the kernel says about the command's first thread, once that has ended and before it is waited for."""
        with contextlib.suppress(OSError, ValueError):
            if os.waitid(os.P_PID, self.child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
                with open(f"/proc/{self.child.pid}/schedstat") as f:
                    self.main_cpu_s = int(f.read().split()[0]) / 1e9
                self.queued_s = queued_s(self.child.pid)

    def reap(self) -> bool:
        """Waits for processes that have ended; returns whether any descendant is left."""
        while True:
            if self.status is None:
                self.note_schedule()
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self.cpu_s += usage.ru_utime + usage.ru_stime
            self.max_rss_kb = max(self.max_rss_kb, usage.ru_maxrss)
            self.switches += usage.ru_nvcsw + usage.ru_nivcsw
            self.page_faults += usage.ru_minflt + usage.ru_majflt
            if pid == self.child.pid:
                self.status = status
                self.ended = time.monotonic()
                # The end is noticed when this process gets a processor: that delay does not belong to the command.
                self.late_s = queued_s("self") - self.queued_before_s
                # subprocess must not wait for it, or signal a pid that may belong to another process by now.
                self.child.returncode = os.waitstatus_to_exitcode(status)

    def wait(self, until: float, all_of_them: bool) -> bool:
        """Until the command (or all of its processes) ended, the time is up or the runner is gone; returns whether it
        ended.
        """
        while True:
            left = self.reap()
            if not left or (self.status is not None and not all_of_them):
                return True
            remaining = until - time.monotonic()
            if remaining <= 0 or self.orphaned:
                return False
            watched = [self.wake_r, 0]
            for fd in select.select(watched, [], [], min(remaining, 1.0))[0]:
                if fd == 0:
                    self.orphaned = not os.read(0, 4096)
                else:
                    os.read(self.wake_r, 4096)

    def sweep(self) -> int:
        """Kills whatever is left of the command; returns how many processes that were."""
        found: set[int] = set()
        while self.reap():
            found |= children({os.getpid()})
            signal_all(signal.SIGKILL)
            select.select([self.wake_r], [], [], 0.02)
            with contextlib.suppress(BlockingIOError):
                os.set_blocking(self.wake_r, False)
                os.read(self.wake_r, 4096)
        return len(found)

    def run(self) -> dict[str, Any]:
        before = written_bytes()
        try:
            self.start()
        except OSError as error:
            return {"error": f"cannot start {self.task['command'][0]!r}: {error.strerror or error}"}
        finished = self.wait(self.began + self.task["timeout_s"], all_of_them=False)
        timed_out = not finished and not self.orphaned
        if timed_out:
            signal_all(signal.SIGTERM)
            self.wait(time.monotonic() + TERM_GRACE_S, all_of_them=True)
        elif finished:
            self.wait(time.monotonic() + STRAGGLER_GRACE_S, all_of_them=True)
        stragglers = self.sweep()
        if self.orphaned:
            # No other process is left to do it.
            shutil.rmtree(os.path.dirname(self.task["stdout"]), ignore_errors=True)
        return {
            "exit_code": os.waitstatus_to_exitcode(self.status) if self.status is not None else None,
            "duration_s": (self.ended or time.monotonic()) - self.began,
            "timed_out": timed_out,
            "stragglers": 0 if timed_out else stragglers,
            "cpu_s": self.cpu_s,
            "main_cpu_s": self.main_cpu_s,
            "queued_s": self.queued_s,
            "late_s": self.late_s,
            "max_rss_kb": self.max_rss_kb,
            "ctx_switches": self.switches,
            "page_faults": self.page_faults,
            "counters": self.counters.read(),
            "bytes_written": max(0, written_bytes() - before),
        }


def read_line() -> bytes:
    """The task. No more than that is read: only the end of standard input follows."""
    parts = []
    while True:
        part = os.read(0, 1 << 16)
        parts.append(part)
        if not part or part.endswith(b"\n"):
            return b"".join(parts)


def main() -> None:
    for heard in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Not SIG_IGN, which the command would inherit.
        signal.signal(heard, lambda *_: None)
    line = read_line()
    if line:
        print(json.dumps(Supervisor(json.loads(line)).run()), flush=True)


if __name__ == "__main__":
    # A runner that is gone reads no answer.
    with contextlib.suppress(BrokenPipeError):
        main()
    sys.stderr.close()
