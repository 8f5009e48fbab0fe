"""The life of an engine: its tasks, their interrupts, runs within runs, and children that a task forks."""

from __future__ import annotations

import atexit
import faulthandler
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pickle import PickleBuffer
from types import FrameType
from typing import Any, NoReturn

from broadleaf import _native
from broadleaf.engine import interactive, namespace, operations, output, process, surroundings
from broadleaf.engine.process import Capture
from broadleaf.engine.surroundings import Surroundings
from broadleaf.errors import UnmetDependency
from broadleaf.serialize import chunks, coroutines, errors, functions, modules, values
from broadleaf.serialize.errors import traceback_text, without_context
from broadleaf.serialize.functions import too_large
from broadleaf.serialize.spawned import send_to_spawned
from broadleaf.state.connection import set_connection
from broadleaf.state.directories import MODULES_DIR

# Interrupting the running task: its client does so through the node (SIGURG), and anyone can send SIGINT.


# An interrupted import leaves a package whose next import fails: its submodules exist, but their names are missing. So
# a request waits for imports, which take less time than a task has before its engine is replaced.
IMPORT_PATIENCE_S = 1.0
# A task may ignore SIGINT for as long as something must not be interrupted. An earlier one may have left it so.
IGNORED_PATIENCE_S = 1.0
# A task with a handler of its own for SIGINT has this long to end by itself before a request is repeated.
HANDLER_PATIENCE_S = 1.0


def install_interrupts(engine: _native.Engine) -> None:
    """Sets the handlers of both signals; neither affects an idle engine."""

    def on_interrupt(_number: int, _frame: object) -> None:
        engine.on_interrupted()
        if engine.current_task() is not None:
            # The running task is interrupted now, so a request for it is settled.
            engine.interrupt_pending()
            raise KeyboardInterrupt

    importing_since_s: float | None = None

    def waits_for_import(frame: FrameType | None) -> bool:
        nonlocal importing_since_s
        if not is_importing(frame):
            importing_since_s = None
            return False
        if importing_since_s is None:
            importing_since_s = time.monotonic()
        if time.monotonic() - importing_since_s < IMPORT_PATIENCE_S:
            return True
        importing_since_s = None
        return False

    handled_by: int | None = None
    handled_at_s = 0.0

    def is_being_handled() -> bool:
        return handled_by == engine.current_task() and time.monotonic() - handled_at_s < HANDLER_PATIENCE_S

    ignored_by: int | None = None
    ignored_at_s = 0.0

    def waits_while_ignored() -> bool:
        nonlocal ignored_by, ignored_at_s
        if ignored_by != engine.current_task():
            ignored_by, ignored_at_s = engine.current_task(), time.monotonic()
        return time.monotonic() - ignored_at_s < IGNORED_PATIENCE_S

    def on_request(_number: int, frame: FrameType | None) -> None:
        if not engine.is_interrupt_requested():
            # Sent for a task that has ended, or to wake this thread for another signal.
            return
        if is_being_handled() or waits_for_import(frame):
            # The request stays open, so it is repeated.
            return
        handler: Any = signal.getsignal(signal.SIGINT)
        if handler == signal.SIG_IGN and waits_while_ignored():
            return
        if handler is on_interrupt or handler in (signal.SIG_DFL, signal.SIG_IGN):
            if engine.interrupt_pending():
                raise KeyboardInterrupt
        elif handler is None:
            # Set by C code, which knows how to handle it.
            signal.raise_signal(signal.SIGINT)
        elif callable(handler):
            # The task's own. The request stays open until the task ends.
            nonlocal handled_by, handled_at_s
            handled_by, handled_at_s = engine.current_task(), time.monotonic()
            handler(signal.SIGINT, frame)

    signal.signal(signal.SIGINT, on_interrupt)
    signal.signal(signal.SIGURG, on_request)
    signal.set_wakeup_fd(engine.wakeup_fd(), warn_on_full_buffer=False)


def is_importing(frame: FrameType | None) -> bool:
    """Whether `frame` is in the middle of an import."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "_find_and_load" and code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


# The end of a child that a task forked and that returns from the task.


def end_child(error: BaseException | None) -> NoReturn:
    """Ends this process, which a task forked, as a program of its own would end; `error` is what the task raised here.

    As in a process of `multiprocessing`, threads are waited for, and functions registered with `atexit` are not called:
    they belong to the parent.
    """
    code = 1
    try:
        code = _exit_code(error)
        # Nobody has started a thread if it was not imported.
        shutdown: Any = getattr(sys.modules.get("threading"), "_shutdown", None)
        if shutdown is not None:
            shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _exit_code(error: BaseException | None) -> int:
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        sys.stderr.write(f"{error.code}\n")
        return 1
    sys.stderr.write(f"{traceback_text(error)[0]}\n")
    return 1


# Running a task while another one waits: the new task must not see the state of the waiting one.


# Calls between a task and the one on top of it that Python counts as recursion but that have no frame.
_NATIVE_CALLS = 16


class NestedRuns:
    """Runs tasks on top of others of the same thread."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings
        self._frames_below = 0
        self._levels = 0
        self.handled: BaseException | None = None
        """What the task below handles while it waits: the context of every exception that the one on top raises."""

    def run(self, run: Callable[[], None]) -> None:
        """Calls `run` without a running event loop, with what every task finds, and with as many frames as a task that
        is not nested has."""
        asyncio = sys.modules.get("asyncio")
        loop = asyncio._get_running_loop() if asyncio is not None else None
        before = self._frames_below, self.handled
        self._levels += 1
        self._frames_below = _n_frames() + self._levels * _NATIVE_CALLS
        self.handled = sys.exception()
        limit = sys.getrecursionlimit() - before[0]
        sys.setrecursionlimit(limit + self._frames_below)
        if asyncio is not None and loop is not None:
            asyncio._set_running_loop(None)
        aside = self._surroundings.set_aside()
        try:
            run()
        finally:
            self._surroundings.put_back(aside)
            if asyncio is not None and loop is not None:
                asyncio._set_running_loop(loop)
            # The task may have set another limit on purpose.
            limit = sys.getrecursionlimit() - self._frames_below
            self._frames_below, self.handled = before
            self._levels -= 1
            sys.setrecursionlimit(limit + self._frames_below)

    def forget_handled(self, error: BaseException) -> None:
        """Removes the exceptions that the task below is handling from the context of an exception of the task on
        top."""
        without_context(error, self.handled)


def _n_frames() -> int:
    frame = sys._getframe()
    n = 1
    while frame.f_back is not None:
        frame = frame.f_back
        n += 1
    return n


# An engine's life: its namespace, its streams, its signals, and the native loop that runs tasks.


class Hooks:
    """What the native engine needs from Python."""

    unmet_type: type[BaseException] = UnmetDependency

    def __init__(self, module_folder: str) -> None:
        # Stored as attributes of the object, so that a call costs no method lookup and no extra frame.
        self.load_function: Callable[..., Any] = functions.load_function
        self.load_args: Callable[..., tuple[tuple[Any, ...], dict[str, Any]]] = values.load_args
        self.run_coroutine: Callable[..., Any] = coroutines.run_coroutine
        self.dump_value: Callable[..., tuple[bytes, list[PickleBuffer]]] = chunks.dump_result
        self.module_folder = module_folder
        self.surroundings: surroundings.Surroundings = surroundings.Surroundings()
        self._nested = NestedRuns(self.surroundings)
        self.run_nested: Callable[..., None] = self._nested.run
        self.end_child: Callable[..., NoReturn] = end_child
        self.engine_id = -1
        self.engine_uuid = ""

    def explain_too_large(self, value: Any, sizes: tuple[int, int, str]) -> BaseException:
        """The exception for a result that does not fit into a message.

        `sizes` are its size and the limit, in bytes, and why it must fit.
        """
        return too_large(f"the result ({type(value).__name__})", *sizes)

    def prepare(self, content: bytes) -> None:
        """Runs a client's preparation."""
        from pathlib import Path

        from broadleaf.serialize import preparation

        try:
            preparation.make(content, Path(self.module_folder))
        finally:
            self.surroundings.accept()

    def restore(self, function: Callable[..., Any] | None) -> None:
        """Undoes what a task has changed that called `function`, unless that executes a user's code."""
        if function is operations.execute:
            self.surroundings.accept()
        else:
            self.surroundings.restore()

    def dump_error(self, error: BaseException, arguments: tuple[Any, ...]) -> tuple[bytes, Sequence[PickleBuffer]]:
        """The error record for a task that raised when it was called with `arguments`, and its buffers."""
        report = chunks.report(error, arguments)
        self._nested.forget_handled(report.error)
        record = errors.dump_error(
            report.error,
            self.engine_id,
            self.engine_uuid,
            item=report.item,
            output=operations.take_output_of_failed(),
            kept_frames=interactive.keep_failed(report.error),
            outcomes=report.outcomes,
            failed=report.failed,
        )
        return record, report.buffers


def run_engine(connection: str, engine_id: int | None, options: Mapping[str, Any], capture: Capture | None) -> int:
    """Runs an engine on this thread until it is told to stop; returns the process's exit code.

    `connection` is the JSON text of the engines' connection file, without its key, which the native module holds.
    `engine_id` is the engine's slot, or None for one started by hand: the controller then gives it one. Descriptors 1
    and 2 must already lead to `capture`, or to the log without it.
    """
    faulthandler.enable(2)
    if engine_id is not None:
        cores = process.engine_cores(options["affinity"], engine_id)
        if cores is not None:
            os.sched_setaffinity(0, cores)
    reseed_random_numbers()
    streams = output.EngineStreams()
    run_dir = os.path.dirname(json.loads(connection)["unix_path"])
    hooks = Hooks(os.path.join(run_dir, MODULES_DIR))
    engine = _native.Engine(connection, engine_id, hooks, capture)
    hooks.engine_id, hooks.engine_uuid = engine.engine_id, engine.uuid
    modules.name_engine(engine.engine_id)
    set_connection(connection)
    process.set_process_name(f"broadleaf-{engine.engine_id}")
    os.environ["BROADLEAF_ENGINE_ID"] = str(engine.engine_id)
    install_interrupts(engine)
    names = namespace.create(engine.engine_id, os.environ.get("BROADLEAF_CLUSTER_ID", ""))
    operations.install(names, engine.replace, engine.retire_buffers)
    streams.install(engine)
    output.install_publishing(engine)
    send_to_spawned()
    output.install_display()
    interactive.install_get_ipython()
    interactive.install_breakpoints(options["keep_failed_frames"])
    sys.displayhook = output.DisplayHook()
    hooks.surroundings.install(engine.note_level)
    try:
        engine.run()
    finally:
        operations.close()
        streams.remove()
        # The interpreter does not shut down in a forked child, so exit handlers are run here.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def reseed_random_numbers() -> None:
    """Gives this engine random numbers of its own.

    Python's own generator is reseeded by fork. NumPy's is not: engines forked after it was imported
    would all draw the same numbers.
    """
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()
