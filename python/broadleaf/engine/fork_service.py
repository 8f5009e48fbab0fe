"""The fork server's service: starts engines when the node asks, and reports how they end."""

from __future__ import annotations

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from broadleaf import _native
from broadleaf.engine import environment, process, written
from broadleaf.engine.guests import Guests
from broadleaf.engine.process import Capture, HostConfig
from broadleaf.errors.os_limits import explained

_NODE_EXIT_GRACE_S = 10.0
# For engines, their first function by value and first cell, and for what most tasks import.
_FOR_ENGINES = (
    "broadleaf.engine.main",
    "broadleaf.engine.interactive",
    "broadleaf.errors.aborted",
    "broadleaf.serialize.preparation",
    "broadleaf.serialize.by_value",
    "ast",
    "dataclasses",
    "faulthandler",
)
_FAILED_CODE = 70  # EX_SOFTWARE
_BOOT = "import sys; sys.path[:] = sys.argv.pop().split('\\n'); from broadleaf.engine.__main__ import run; run()"


def serve(config: HostConfig, node_pid: int, ready_write: int, node_ready_read: int) -> int:
    """Runs until the node is gone or says stop; returns the process's exit code."""
    gc.disable()  # the heap built here is shared with every engine; a collection would unshare it
    process.set_process_name("broadleaf-host")
    given = dict(os.environ)
    prepare(config, given)
    if config.n_engines:  # otherwise the start does not wait for what may never be needed
        import_for_engines(config.options)
    readiness = _read_line(node_ready_read)
    if not readiness:
        return _leave_unstarted(config, node_pid, ready_write, "the node did not start")
    try:
        server = ForkServer(config, node_pid, given)
    except Exception as error:
        return _leave_unstarted(config, node_pid, ready_write, f"the fork server found no node: {error}")
    os.write(ready_write, json.dumps(json.loads(readiness) | {"pid": node_pid}).encode() + b"\n")
    os.close(ready_write)
    gc.freeze()
    try:
        server.run()
        return server.leave()
    except _Forked as forked:
        child = forked
    # This runs outside `except`: tracebacks and exceptions of an engine then show nothing of the server.
    return _become_engine(config, child)


def prepare(config: HostConfig, given: Mapping[str, str]) -> None:
    """Sets what engines find: thread counts, before any numerical library reads them; modules, and a directory."""
    environment.prepare(config.options["threads_per_engine"], config.share_of_cores(config.n_engines), given)
    sys.path[:] = config.sys_path
    environment.work_in(config.directory)


def import_for_engines(options: Mapping[str, Any]) -> None:
    """Imports what engines and most tasks need, so that each engine has it from its start."""
    for module in _FOR_ENGINES:
        importlib.import_module(module)
    if options["engine_start"] == "fork":
        environment.preload(options["preload"])


class _Forked(BaseException):
    """Raised to leave the server's code in a new engine's process."""

    def __init__(self, engine_id: int, capture: Capture | None) -> None:
        self.engine_id = engine_id
        self.capture = capture


def _become_engine(config: HostConfig, child: _Forked) -> int:
    from broadleaf.engine.main import run_engine

    process.redirect_output(process.open_log(config.log_path(child.engine_id)), child.capture)
    try:
        return run_engine(config.connection, child.engine_id, config.options, child.capture)
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
        if isinstance(error, OSError):
            sys.stderr.write(f"broadleaf: engine {child.engine_id} has ended: {explained(error)}\n")
        return _FAILED_CODE


class _Engine(NamedTuple):
    """A running engine."""

    engine_id: int
    capture: Capture | None


class ForkServer:
    """The parent of this host's engines. Single-threaded, so that forking is sound."""

    def __init__(self, config: HostConfig, node_pid: int, given: Mapping[str, str]) -> None:
        self._config = config
        self._given = given
        """The environment before anything was set here."""
        self._node_pid = node_pid
        self.node_status: int | None = None
        self._engines: dict[int, _Engine] = {}  # by pid
        self._out_of_memory = process.OutOfMemoryWatch()
        self._descriptor_limit = process.make_room_for_descriptors(3 * config.n_engines)
        self._fork_server = _native.ForkServer(config.connection)
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        signal.signal(signal.SIGCHLD, _ignore)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._fork_server.fileno(), selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._guests = Guests(config, self._selector, self._tell)
        self._handled_signals = process.signals_with_handlers()
        self._first_kept = self._last_kept = process.above_descriptors()
        """What is kept for engines lies in this range, so that each child can close what belongs to others at once."""
        self._has_imported = config.n_engines > 0
        self._n_engines = config.n_engines
        """The most engines among which the cores were shared."""

    def run(self) -> None:
        """Serves commands and deaths until the node is gone or says stop."""
        try:
            self.on_deaths()
            while self.node_status is None and self.on_commands() and self._guests.is_wanted():
                for key, _ in self._selector.select(self._guests.patience_s()):
                    if key.data is not None:
                        key.data()
                self._guests.on_time()
                self._drain_wakeups()
                self.on_deaths()
        except _native.LinkClosed:
            return

    def _tell(self, event: dict[str, Any]) -> None:
        self._fork_server.send_event(json.dumps(event))

    def on_commands(self) -> bool:
        """Executes every command that has arrived; returns False after a command to stop."""
        commands: list[dict[str, Any]] = []
        while (text := self._fork_server.next_command()) is not None:
            commands.append(json.loads(text))
        n_engines = len(self._engines) + sum("spawn" in command for command in commands)
        if n_engines > self._n_engines:
            self._n_engines = n_engines
            threads, share = self._config.options["threads_per_engine"], self._config.share_of_cores(n_engines)
            environment.prepare(threads, share, self._given)
        for command in commands:
            if "stop" in command:
                return False
            if "seat" in command:
                seat = command["seat"]
                self._guests.seat(seat["engine"], seat["world"], seat["rank"])
            elif "read_written" in command:
                self.tell_written(**command["read_written"])
            else:
                self.spawn(command["spawn"]["engine"])
        return True

    def spawn(self, engine_id: int) -> None:
        """Starts an engine's process and reports it, or why there is none; the controller then retries."""
        try:
            pid, capture = self._start(engine_id)
        except OSError as error:
            reason = explained(error)
            sys.stderr.write(f"broadleaf: engine {engine_id} could not be started: {reason}\n")
            self._tell({"not_started": {"engine": engine_id, "reason": reason}})
            return
        try:
            process.limit_descriptors(pid, self._descriptor_limit)
            os.setpgid(pid, pid)  # done on both sides: whichever is first, the group exists from here on
        except (PermissionError, ProcessLookupError):
            pass  # it has done so itself, or is gone already
        self._engines[pid] = _Engine(engine_id, capture)
        self._out_of_memory.note(pid)
        self._tell({"spawned": {"engine": engine_id, "pid": pid}})

    def tell_written(self, engine: int, pid: int, reading: int, seen: dict[str, int] | None) -> None:
        """Reports what an engine has written since an observer saw it."""
        known = None if seen is None else written.Seen(**seen)
        news = written.news(pid, self._config.log_path(engine), known)
        self._tell({"written": {"reading": reading, "text": json.dumps(news)}})

    def _start(self, engine_id: int) -> tuple[int, Capture | None]:
        capture = self._create_capture(engine_id) if self._config.options["capture_descriptors"] else None
        try:
            if self._config.options["engine_start"] == "spawn":
                pid = self._start_interpreter(engine_id, capture)
            else:
                pid = self._fork(engine_id, capture)
        except OSError:
            if capture:
                capture.close_write_ends()
                capture.close()
            raise
        if capture:
            capture.close_write_ends()
        return pid, capture

    def _create_capture(self, engine_id: int) -> Capture | None:
        log_path = self._config.log_path(engine_id)
        try:
            capture = Capture.create(log_path, self._first_kept)
        except OSError as error:
            sys.stderr.write(
                f"broadleaf: engine {engine_id}: what is not printed by Python goes to {log_path}: {error}\n"
            )
            return None
        self._last_kept = max(self._last_kept, *capture.kept())
        return capture

    def _fork(self, engine_id: int, capture: Capture | None) -> int:
        if not self._has_imported:
            self._has_imported = True
            import_for_engines(self._config.options)
            self._handled_signals = process.signals_with_handlers()
            gc.freeze()
        parent_pid = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            os.setpgid(0, 0)
            process.die_with_parent(parent_pid)
            self._forget_server(capture)
        except BaseException as error:  # the child must not use the server's code, which handles errors as the parent
            sys.excepthook(type(error), error, error.__traceback__)
            os._exit(_FAILED_CODE)
        raise _Forked(engine_id, capture)

    def _forget_server(self, capture: Capture | None) -> None:
        """In a child: releases what belongs to the server and to other engines."""
        process.reset_signals(self._handled_signals)
        self._wake_read.close()
        self._wake_write.close()
        self._guests.close()
        self._selector.close()
        process.close_descriptors(self._first_kept, self._last_kept, capture.numbers() if capture else ())
        gc.enable()

    def _start_interpreter(self, engine_id: int, capture: Capture | None) -> int:
        import subprocess

        setup = {
            "connection": json.dumps(json.loads(self._config.connection) | {"private_key": _native.give_key()}),
            "engine_id": engine_id,
            "options": self._config.options,
            "parent_pid": os.getpid(),
            "capture": capture.to_dict() if capture else None,
        }
        # Output of an interpreter that fails before its engine starts is in the log too.
        log = process.open_log(self._config.log_path(engine_id))
        try:
            child = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, "--setup-from-stdin", "\n".join(self._config.sys_path)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                process_group=0,
                pass_fds=capture.numbers() if capture else (),
            )
        finally:
            os.close(log)
        child.returncode = 0  # reaped here, by on_deaths
        if child.stdin is None:
            raise AssertionError("invariant: stdin is a pipe")
        try:
            with child.stdin as pipe:
                pipe.write(json.dumps(setup).encode())
        except BrokenPipeError:
            pass  # it is gone, and its death is reported like any other
        return child.pid

    def _drain_wakeups(self) -> None:
        try:
            while self._wake_read.recv(4096):
                pass
        except BlockingIOError:
            pass

    def on_deaths(self) -> None:
        """Reports and reaps every process that has ended."""
        while (info := _next_death()) is not None:
            pid = info.si_pid
            if pid == self._node_pid:
                self.node_status = _reap(pid)
                continue
            engine = self._engines.pop(pid, None)
            if engine is None:
                _reap(pid)
                continue
            last_output = ""
            if engine.capture:
                last_output = engine.capture.last_output(engine.capture.save_rest())
                engine.capture.close()
            last_output = last_output or process.last_output(self._config.log_path(engine.engine_id))
            event = process.describe_exit(engine.engine_id, info, last_output, self._out_of_memory)
            # Processes that the engine started and left behind end with it. It is reaped after that, because only then
            # can another process get its id.
            _kill_group(pid)
            _reap(pid)
            if self.node_status is None:
                self._tell({"exited": dict(event)})

    def leave(self) -> int:
        """Ends every engine, waits for the node, removes the cluster's files; returns the node's code."""
        self._guests.kill()
        for pid in self._engines:
            _kill_group(pid)
        for pid in self._engines:
            _reap(pid)
        del self._fork_server  # the node waits for this connection to close before it leaves
        if self.node_status is None:
            self.node_status = _reap_within(self._node_pid, _NODE_EXIT_GRACE_S)
        _remove_files(self._config, self.node_status)
        return self.node_status


def _ignore(_signal_number: int, _frame: object) -> None:
    """SIGCHLD needs a handler to write to the wake-up descriptor."""


def _next_death() -> os.waitid_result | None:
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _reap(pid: int) -> int:
    """Waits for `pid`; returns its exit code, 128 + n for signal n."""
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _reap_within(pid: int, grace_s: float) -> int:
    descriptor = os.pidfd_open(pid)
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        deadline = time.monotonic() + grace_s
        gone = False
        while not gone and (left := deadline - time.monotonic()) > 0:
            gone = bool(selector.select(left))
        if not gone:
            os.kill(pid, signal.SIGKILL)
    os.close(descriptor)
    return _reap(pid)


def _read_line(descriptor: int) -> bytes:
    """Reads up to a newline; empty when the other side closed before one."""
    text = b""
    while not text.endswith(b"\n"):
        part = os.read(descriptor, 4096)
        if not part:
            return b""
        text += part
    os.close(descriptor)
    return text


def _leave_unstarted(config: HostConfig, node_pid: int, ready_write: int, reason: str) -> int:
    try:
        os.kill(node_pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    status = _reap(node_pid)
    os.write(ready_write, json.dumps({"error": reason, "exit_code": status}).encode() + b"\n")
    _remove_files(config, status or 1)
    return status or 1


def _remove_files(config: HostConfig, node_status: int) -> None:
    """Removes the cluster's files; after a node's failure its logs stay, so that you can find out why."""
    from broadleaf.state import files

    files.remove_cluster_files(config.cluster_dir, config.run_dir, keep_logs=node_status != 0)
