"""One turn of one system: a child process that serves its adapter, ended with everything it started."""

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from .record import OURS, RAW

SOURCES = Path(__file__).resolve().parents[2]
#: Every process of a turn carries it, so that it can be found.
TAG_VARIABLE = "BROADLEAF_BENCH_TAG"
STEP_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0
# Some systems take minutes to start a hundred.
START_TIMEOUT_S_PER_WORKER = 5.0
PR_SET_PDEATHSIG = 1
libc: ctypes.CDLL = ctypes.CDLL(None)


class TurnFailed(Exception):
    """The child refused a request, did not answer in time, or died; shows its last output."""


@dataclass(frozen=True)
class System:
    """A system under test, by the module of its adapter."""

    name: str
    adapter: str

    def command(self, workers: int) -> list[str]:
        """The command that serves the system for this many workers. Raises `TurnFailed` if it cannot be made."""
        return [sys.executable, *self.serving()]

    def serving(self) -> list[str]:
        """The interpreter's arguments that make it serve the adapter."""
        return ["-m", "broadleaf.bench.workload", self.adapter]

    def path(self) -> list[str]:
        """Where the child finds Broadleaf: the one that this process uses."""
        return [str(SOURCES)]


#: What takes part without any other library.
SYSTEMS = {
    system.name: system
    for system in (System(OURS, "broadleaf.bench.workload.own"), System(RAW, "broadleaf.bench.workload.raw"))
}


class Place:
    """Where turns run: beside this process."""

    #: How turns are kept apart, as records say it.
    isolation: str = "none"
    #: The least time that a system gets to start its workers, and the time that it gets to stop them.
    start_timeout_s: float = 0.0
    stop_timeout_s: float = STOP_TIMEOUT_S

    def process(self, command: list[str], variables: dict[str, str]) -> tuple[list[str], dict[str, str]]:
        """The command line and the environment of the process that runs a system's command with these variables."""
        return command, variables


def end_with_parent() -> None:
    """Makes the kernel kill the calling process once its parent is gone, for whatever reason."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Turn:
    """A child that serves `system`. Use it as a context manager: leaving it ends every process of the turn."""

    def __init__(self, system: System, workers: int, place: Place | None = None) -> None:
        self.system = system
        self.place: Place = place or Place()
        self.tag: str = uuid.uuid4().hex
        self.owing: bool = False
        self.started: bool = False
        served = system.command(workers)
        self.errors: IO[str] = tempfile.TemporaryFile("w+", prefix="bench-")  # noqa: SIM115
        self.folder: str = tempfile.mkdtemp(prefix="bench-")
        self.began: float = time.perf_counter()
        variables = clean_environment() | {
            "PYTHONPATH": os.pathsep.join(system.path()), TAG_VARIABLE: self.tag, "TMPDIR": self.folder
        }  # fmt: skip
        command, variables = self.place.process(served, variables)
        self.process: subprocess.Popen[bytes] = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            cwd=self.folder,
            env=variables,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if self.started and self.usable:
                self.ask({"do": "stop"}, self.place.stop_timeout_s)
        finally:
            self.end()

    def start(self, workers: int, config: str) -> float:
        """Starts the system's workers; seconds until each had run a task."""
        launched = self.ask({"do": "describe"})["launched"]
        timeout_s = STEP_TIMEOUT_S + START_TIMEOUT_S_PER_WORKER * workers
        timeout_s = max(timeout_s, self.place.start_timeout_s)
        reply = self.ask({"do": "start", "workers": workers, "config": config}, timeout_s)
        self.started = True
        return time.perf_counter() - self.began if launched else float(reply["ready_s"])

    def run(
        self, case: str, arguments: dict[str, Any], timeout_s: float | None = None
    ) -> dict[str, float | list[float]]:
        """One measurement, by default with time for 200 tasks a second: the slowest systems do more."""
        limit_s: float = timeout_s or STEP_TIMEOUT_S + arguments.get("n", 0) / 200
        request = {"do": "run", "case": case, "arguments": arguments}
        values: dict[str, float | list[float]] = self.ask(request, limit_s)["values"]
        return values

    def ask(self, request: dict[str, Any], timeout_s: float = STEP_TIMEOUT_S) -> dict[str, Any]:
        """Sends a request and waits for its reply."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        # Set before anything is written: a child that just died may still look alive, and is not usable.
        self.owing = True
        try:
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            raise TurnFailed(self._account("the child is gone")) from None
        ready, _, _ = select.select([stdout], [], [], timeout_s)
        line = stdout.readline() if ready else b""
        if not line:
            raise TurnFailed(self._account("the child died" if ready else f"no answer within {timeout_s:.0f} s"))
        self.owing = False
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise TurnFailed(reply["error"])
        return reply

    @property
    def usable(self) -> bool:
        """Whether the child is still serving: it is alive and owes no answer."""
        return not self.owing and self.process.poll() is None

    def end(self) -> None:
        """Ends the child and all processes that carry its tag, by process id, and waits until they are gone."""
        if self.process.stdin:
            with suppress(BrokenPipeError):
                self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        deadline = time.monotonic() + 10
        while left := list(self._left()):
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if time.monotonic() > deadline:
                raise TurnFailed(f"{self.system.name}: processes {left} cannot be killed")
            time.sleep(0.02)
        if self.process.stdout:
            self.process.stdout.close()
        self.errors.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _left(self) -> Iterator[int]:
        mark = f"{TAG_VARIABLE}={self.tag}".encode()
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != os.getpid():
                try:
                    if mark in Path("/proc", name, "environ").read_bytes():
                        yield int(name)
                except OSError:
                    continue

    def _account(self, what: str) -> str:
        self.errors.seek(0)
        tail = self.errors.read().strip()[-600:]
        return f"{self.system.name}: {what}" + (f"; it wrote: {tail}" if tail else "")


def clean_environment() -> dict[str, str]:
    """This process's environment without what would change another Python. Children may write bytecode."""
    dropped = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in dropped}
