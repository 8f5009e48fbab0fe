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
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from . import environments
from .environments import System
from .peers.site import VARIABLE as SITE_VARIABLE
from .peers.site import Site

STEP_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0
# Some systems take minutes to start a hundred.
START_TIMEOUT_S_PER_WORKER = 5.0
# And longer on several hosts, where jobs are queued as well.
START_TIMEOUT_S_ON_SITE = 900.0
# IPython Parallel stops engines by one login after the other.
STOP_TIMEOUT_S_ON_SITE = 300.0
PR_SET_PDEATHSIG = 1
libc: ctypes.CDLL = ctypes.CDLL(None)


class TurnFailed(Exception):
    """The child refused a request, did not answer in time, or died; shows its last output."""


@cache
def isolation() -> tuple[str, ...]:
    """The command that gives a child its own network (only loopback) and its own process ids, or nothing if that is not
    permitted.

    Some systems turn 127.0.0.1 into the address of another interface and listen there; and with a process
    namespace nothing outlives a turn, however it ends.
    """
    tool = shutil.which("unshare")
    if not tool:
        return ()
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    command = (tool, *user, "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
    tried = subprocess.run([*command, sys.executable, "-c", ""], capture_output=True, check=False)
    return command if tried.returncode == 0 else ()


def end_with_parent() -> None:
    """Makes the kernel kill the calling process once its parent is gone, for whatever reason."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Turn:
    """A child that serves `system`. Use it as a context manager: leaving it ends every process of the turn."""

    def __init__(self, system: System, root: Path, workers: int, site: Site | None = None) -> None:
        self.system = system
        self.site = site
        self.tag: str = uuid.uuid4().hex
        self.owing: bool = False
        self.started: bool = False
        command = environments.command(system, root, workers)
        prefix = isolation() if site is None else ()
        variables = environments.variables(system, self.tag, bool(prefix))
        self.errors: IO[str] = tempfile.TemporaryFile("w+", prefix="bench-")  # noqa: SIM115
        self.folder: str = tempfile.mkdtemp(prefix="bench-")
        self.began: float = time.perf_counter()
        variables["TMPDIR"] = self.folder
        if site is not None:
            variables[SITE_VARIABLE] = site.text()
            if site.login:
                # Variables of this host are not meant for another one.
                passed = ("PYTHONPATH", environments.TAG_VARIABLE, SITE_VARIABLE)
                prefix = (*site.login, "env", *(f"{name}={variables[name]}" for name in passed))
        self.process: subprocess.Popen[bytes] = subprocess.Popen(
            [*prefix, *command],
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
                self.ask({"do": "stop"}, STOP_TIMEOUT_S if self.site is None else STOP_TIMEOUT_S_ON_SITE)
        finally:
            self.end()

    def start(self, workers: int, config: str) -> float:
        """Starts the system's workers; seconds until each had run a task."""
        launched = self.ask({"do": "describe"})["launched"]
        timeout_s = STEP_TIMEOUT_S + START_TIMEOUT_S_PER_WORKER * workers
        if self.site is not None:
            timeout_s = max(timeout_s, START_TIMEOUT_S_ON_SITE)
        reply = self.ask({"do": "start", "workers": workers, "config": config}, timeout_s)
        self.started = True
        return time.perf_counter() - self.began if launched else float(reply["ready_s"])

    def run(
        self, case: str, arguments: dict[str, Any], timeout_s: float | None = None
    ) -> dict[str, float | list[float]]:
        """One measurement, by default with time for 200 tasks a second: the slowest peers do more."""
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
        mark = f"{environments.TAG_VARIABLE}={self.tag}".encode()
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
