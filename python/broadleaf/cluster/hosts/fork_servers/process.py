"""The process that becomes a fork server: a new interpreter, or a child of a program that is there for nothing else."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping
from typing import NamedTuple, NoReturn, Protocol

from broadleaf.errors import ClusterStartError
from broadleaf.errors.os_limits import explained
from broadleaf.serialize.search_path import search_path

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
