"""An engine's life: its namespace, its streams, its signals, and the native loop that runs tasks."""

from __future__ import annotations

import atexit
import faulthandler
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pickle import PickleBuffer
from typing import Any, NoReturn

from broadleaf import _native
from broadleaf.engine import interrupts, namespace, nested, operations, surroundings
from broadleaf.engine.interactive import breakpoints, shell_access
from broadleaf.engine.output import display, publish, rich_display
from broadleaf.engine.output import streams as output
from broadleaf.engine.processes import child, process
from broadleaf.engine.processes.capture import Capture
from broadleaf.errors import UnmetDependency
from broadleaf.serialize import chunks, coroutines, errors, functions, modules, values
from broadleaf.serialize.spawned import send_to_spawned
from broadleaf.state.connection import set_connection
from broadleaf.state.directories import MODULES_DIR


class Hooks:
    """What the native engine needs from Python."""

    unmet_type: type[BaseException] = UnmetDependency

    def __init__(self, module_folder: str) -> None:
        # Stored as attributes of the object, so that a call costs no method lookup and no extra frame.
        self.load_function: Callable[..., Any] = functions.load_function
        self.load_args: Callable[..., tuple[tuple[Any, ...], dict[str, Any]]] = values.load_args
        self.run_coroutine: Callable[..., Any] = coroutines.run_coroutine
        self.dump_value: Callable[..., tuple[bytes, list[PickleBuffer]]] = values.dump_value
        self.module_folder = module_folder
        self.surroundings: surroundings.Surroundings = surroundings.Surroundings()
        self._nested = nested.NestedRuns(self.surroundings)
        self.run_nested: Callable[..., None] = self._nested.run
        self.end_child: Callable[..., NoReturn] = child.end_child
        self.engine_id = -1
        self.engine_uuid = ""

    def explain_too_large(self, value: Any, sizes: tuple[int, int, str]) -> BaseException:
        """The exception for a result that does not fit into a message.

        `sizes` are its size and the limit, in bytes, and why it must fit.
        """
        from broadleaf.serialize.functions import too_large

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
            kept_frames=breakpoints.keep(report.error),
            outcomes=report.outcomes,
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
    interrupts.install(engine)
    names = namespace.create(engine.engine_id, os.environ.get("BROADLEAF_CLUSTER_ID", ""))
    operations.install(names, engine.replace, engine.retire_buffers)
    streams.install(engine)
    publish.install(engine)
    send_to_spawned()
    rich_display.install()
    shell_access.install()
    breakpoints.install(options["keep_failed_frames"])
    sys.displayhook = display.DisplayHook()
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
