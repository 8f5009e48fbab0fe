"""How engine processes end, and what can be learned about it afterwards."""

import os
from signal import SIGKILL
from typing import TypedDict

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


def describe_exit(engine: int, info: "os.waitid_result", last_output: str, watch: OutOfMemoryWatch) -> Exited:
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
