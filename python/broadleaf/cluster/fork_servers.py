"""The fork server that owns the processes of a host: what it is told, and how it is started and ended."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Protocol

from broadleaf import standard_descriptors
from broadleaf.cluster.cores import usable_cores
from broadleaf.cluster.credentials import python_version
from broadleaf.engine.environment import is_set
from broadleaf.errors import ClusterStartError
from broadleaf.errors.os_limits import explained
from broadleaf.serialize.search_path import search_path
from broadleaf.state import files
from broadleaf.text import os_text_from_json

# The process that becomes a fork server: a new interpreter, or a child of a program that is there for nothing else.


# Imported only after sys.path is the client's, so that Broadleaf is found where the client found it.
_BOOT = "import sys; sys.path[:] = sys.argv.pop().split('\\n'); from broadleaf.engine.fork_server import main; main()"


class ChildProcess(Protocol):
    """What `subprocess.Popen` and `_ForkedProcess` have in common."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...


class _ForkedProcess:
    """A child of this process, with the methods of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            process = os.pidfd_open(self.pid)
            try:
                if not select.select([process], [], [], timeout)[0]:
                    import subprocess

                    raise subprocess.TimeoutExpired("the fork server", timeout or 0.0)
            finally:
                os.close(process)
            _, status = os.waitpid(self.pid, 0)
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class Pipes:
    """The pipes between a fork server and the process that starts it."""

    ready_read: int
    ready_write: int
    node_ready_read: int
    node_ready_write: int

    def __init__(self, *, with_lifeline: bool) -> None:
        self.ready_read, self.ready_write = os.pipe()
        self.node_ready_read, self.node_ready_write = os.pipe()
        self.lifeline: int | None = None
        self.lifeline_read: int = -1  # without a lifeline
        if with_lifeline:
            self.lifeline_read, self.lifeline = os.pipe()

    def inherited(self) -> list[int]:
        """The descriptors of the fork server, as its arguments."""
        return [self.ready_write, self.node_ready_read, self.node_ready_write, self.lifeline_read]

    def passed(self) -> list[int]:
        """Those of them that exist."""
        return [descriptor for descriptor in self.inherited() if descriptor >= 0]

    def close_inherited(self) -> None:
        """Closes this process's copies of the fork server's descriptors."""
        for descriptor in self.passed():
            os.close(descriptor)

    def close_own(self) -> None:
        """Closes the ends of the process that starts it."""
        os.close(self.ready_read)
        if self.lifeline is not None:
            os.close(self.lifeline)
            self.lifeline = None


class WaitingProcess(NamedTuple):
    """One that waits for a fork server's configuration, and has no secret yet."""

    child: ChildProcess
    pipes: Pipes
    configuration: socket.socket

    @classmethod
    def start(cls, cluster_id: str, environment: Mapping[str, str], log: int, *, with_lifeline: bool) -> WaitingProcess:
        """A new interpreter with `environment`, in addition to that of this process. Its output goes to `log`."""
        import subprocess

        pipes = Pipes(with_lifeline=with_lifeline)
        ours, its = socket.socketpair()
        try:
            child = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, *map(str, pipes.inherited()), "\n".join(search_path())],
                stdin=its.fileno(),
                stdout=log,
                stderr=log,
                env=os.environ | environment | {"BROADLEAF_CLUSTER_ID": cluster_id},
                pass_fds=pipes.passed(),
                start_new_session=True,  # Ctrl-C in the client's terminal is not for the cluster
            )
        except BaseException as error:
            pipes.close_own()
            ours.close()
            if isinstance(error, OSError):
                raise ClusterStartError(f"the fork server could not be started: {explained(error)}") from None
            raise
        finally:
            pipes.close_inherited()
            its.close()
        return cls(child, pipes, ours)

    @classmethod
    def fork(cls, *, with_lifeline: bool) -> WaitingProcess:
        """A child of this process, which saves the start of an interpreter and the imports of one.

        Only for a program that has no other threads and, if it forks engines, holds no secret yet: what it holds is in
        its engines too.
        """
        pipes = Pipes(with_lifeline=with_lifeline)
        ours, its = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            _become_fork_server(pipes, its)
        pipes.close_inherited()
        its.close()
        return cls(_ForkedProcess(pid), pipes, ours)

    def send_log(self, log: int) -> None:
        """Makes a forked process write to `log`; comes before its configuration."""
        with contextlib.suppress(ConnectionError):  # it died; the ready pipe shows that
            socket.send_fds(self.configuration, [b"l"], [log])

    def configure(self, text: str) -> None:
        """Sends the configuration."""
        with self.configuration, contextlib.suppress(ConnectionError):  # as above
            self.configuration.sendall(text.encode())


def _become_fork_server(pipes: Pipes, configuration: socket.socket) -> NoReturn:
    """In a forked process: waits for the configuration, and serves. Ends with the parent if that sends none."""
    code = 70  # EX_SOFTWARE, if something is raised
    try:
        os.setsid()
        _close_all_but([*pipes.passed(), configuration.fileno()])
        _, logs, _, _ = socket.recv_fds(configuration, 1, 1)
        if not logs:
            os._exit(0)
        os.dup2(configuration.fileno(), 0)
        configuration.close()
        for descriptor in (1, 2):
            os.dup2(logs[0], descriptor)
        os.close(logs[0])
        # What the parent has read ahead of its standard input is not for engines.
        sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)  # type: ignore[misc]
        sys.argv = ["-c", *map(str, pipes.inherited())]
        from broadleaf.engine.fork_server import main

        main()
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        os._exit(code)


def _close_all_but(kept: list[int]) -> None:
    """Closes every descriptor above 2 that is not in `kept`."""
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number not in kept:
            with contextlib.suppress(OSError):  # that of the listing
                os.close(number)


# The process that owns a host: it forks the node and then the engines.


_LOG_TAIL_BYTES = 4096


class ForkServer:
    """A started fork server."""

    def __init__(self, child: ChildProcess, lifeline: int | None, ready_read: int) -> None:
        self.child = child
        self.lifeline = lifeline
        """Closed by whoever the host must not outlive."""
        self._ready_read = ready_read

    def wait_ready(self, timeout_s: float, log_tail: Callable[[], str]) -> dict[str, Any]:
        """Reads the line that says that the node listens, or why not: `ClusterStartError`, with the end of the log."""
        deadline = time.monotonic() + timeout_s
        text = b""
        try:
            while not text.endswith(b"\n"):
                readable, _, _ = select.select([self._ready_read], [], [], max(0.0, deadline - time.monotonic()))
                if not readable:
                    raise ClusterStartError(f"the fork server was not ready within {timeout_s:g} s", log_tail())
                part = os.read(self._ready_read, 4096)
                if not part:
                    raise ClusterStartError("the cluster's fork server died while starting", log_tail())
                text += part
        finally:
            os.close(self._ready_read)
        readiness: dict[str, Any] = json.loads(text)
        if "error" in readiness:
            code = readiness.get("exit_code")
            raise ClusterStartError(f"the cluster did not start: {readiness['error']} (exit code {code})", log_tail())
        return readiness


class HostPlan(NamedTuple):
    """A host to start: the role of its node, its engines, and where its files go."""

    connection: Mapping[str, Any]
    """What its engines connect by: the content of a connection file, with this host's socket in it."""
    part: Mapping[str, Any]
    """What makes the node a controller, `tcp`, or a relay, `relay`."""
    keys: Mapping[str, Mapping[str, str]]
    n_engines: int
    run_dir: Path
    cluster_dir: Path
    sys_path: Sequence[str]
    engine_env: Mapping[str, str]
    """What engines have in their environment in addition to that of this process."""
    ends_with_guests: bool = False
    """Whether it is there for engines that it does not start, and ends with the last of them."""

    def start(self, log_path: Path, *, with_lifeline: bool, log_goes_on: bool = False) -> ForkServer:
        """Starts the fork server. Its output goes to `log_path`, which is emptied unless it `log_goes_on`."""
        cluster_id, options = self.connection["cluster_id"], self.connection["options"]
        directory = self.connection.get("directory")
        node = {
            "cluster_id": cluster_id,
            "unix_path": self.connection["unix_path"],
            "python": python_version(),
            "keys": self.keys,
            "n_engines": self.n_engines,
            "options": options,
            **self.part,
        }
        host = {
            "connection": json.dumps(self.connection),
            "run_dir": str(self.run_dir),
            "cluster_dir": str(self.cluster_dir),
            "options": options,
            "n_engines": self.n_engines,
            "n_cores": usable_cores(),
            "sys_path": list(self.sys_path),
            "directory": None if directory is None else os_text_from_json(directory),
            "ends_with_guests": self.ends_with_guests,
        }
        log = files.open_log(log_path, goes_on=log_goes_on)
        try:
            process = _forked_process(cluster_id, self.engine_env, ends_with_guests=self.ends_with_guests)
            return _start(process, cluster_id, self.engine_env, node, host, log, with_lifeline)
        finally:
            os.close(log)


def log_tail(path: Path) -> str:
    """The end of a log; '' if there is none."""
    try:
        return path.read_bytes()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace")
    except OSError:
        return ""


def fork_early() -> None:
    """Forks the process that becomes the fork server of the next host that this process starts.

    For a program that starts one host and was itself started for its cluster; see `WaitingProcess.fork`. Otherwise each
    host takes an interpreter of its own.
    """
    global _forked
    standard_descriptors.occupy()
    _forked = WaitingProcess.fork(with_lifeline=True)


# What `fork_early` left, until a host takes it.
_forked: WaitingProcess | None = None


def _forked_process(
    cluster_id: str, environment: Mapping[str, str], *, ends_with_guests: bool
) -> WaitingProcess | None:
    """A forked process, if its environment, by which processes of a cluster are known, names this one.

    It is what `fork_early` left, if its interpreter was started with the engines' `environment`. A host for guests has
    no lifeline and forks no engines, so its fork server may be forked from a process that holds a key.
    """
    global _forked
    early, _forked = _forked, None  # it ends if it is not used
    if os.environ.get("BROADLEAF_CLUSTER_ID") != cluster_id:
        return None
    if ends_with_guests:
        return WaitingProcess.fork(with_lifeline=False)
    return early if is_set(environment) else None


def _start(
    process: WaitingProcess | None,
    cluster_id: str,
    environment: Mapping[str, str],
    node_config: dict[str, Any],
    host_config: dict[str, Any],
    log: int,
    with_lifeline: bool,
) -> ForkServer:
    """Starts a fork server, in `process` if there is one, whose output goes to `log`. The descriptors that it inherits
    are added to `node_config`."""
    if process is not None:
        process.send_log(log)
    else:
        process = WaitingProcess.start(cluster_id, environment, log, with_lifeline=with_lifeline)
    pipes = process.pipes
    node_config = node_config | {
        "ready_fd": pipes.node_ready_write,
        "lifeline_fd": pipes.lifeline_read if with_lifeline else None,
    }
    process.configure(f"{json.dumps(node_config)}\n{json.dumps(host_config)}")
    return ForkServer(process.child, pipes.lifeline, pipes.ready_read)
