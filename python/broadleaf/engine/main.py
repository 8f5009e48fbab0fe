"""An engine's life: its namespace, its streams, its signals, and the native loop that runs tasks."""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from broadleaf import _native
from broadleaf.engine import display, namespace, operations, output, process, publish, rich_display
from broadleaf.errors import UnmetDependency
from broadleaf.serialize import errors, functions, pickle


@dataclass(frozen=True)
class EngineSetup:
    """All that an engine is told at its start."""

    connection: str
    """JSON text of the engines' connection file."""
    engine_id: int | None
    """Its place, or None for one started by hand: the controller then gives it one."""
    options: dict[str, Any]


class Hooks:
    """What the native engine needs of Python."""

    unmet_type: type[BaseException] = UnmetDependency

    def __init__(self, streams: output.EngineStreams) -> None:
        # Held as attributes of the object, so that a call costs no method lookup and no extra frame.
        self.load_function = functions.load_function
        self.load_args = pickle.load_args
        self.dump_value = pickle.dump_value
        self.flush_output = streams.flush
        self.engine_id = -1
        self.engine_uuid = ""

    def dump_error(self, error: BaseException) -> bytes:
        """The error record of a task that raised."""
        return errors.dump_error(error, self.engine_id, self.engine_uuid)


def run_engine(setup: EngineSetup) -> int:
    """Runs an engine on this thread until it is told to stop; returns the process's exit code.

    Standard output and error must already go to the engine's log.
    """
    faulthandler.enable(2)
    if setup.engine_id is not None:
        cores = process.engine_cores(setup.options["affinity"], setup.engine_id)
        if cores is not None:
            os.sched_setaffinity(0, cores)
    reseed_random_numbers()
    streams = output.EngineStreams()
    hooks = Hooks(streams)
    engine = _native.Engine(setup.connection, setup.engine_id, hooks)
    hooks.engine_id, hooks.engine_uuid = engine.engine_id, engine.uuid
    process.set_process_name(f"broadleaf-{engine.engine_id}")
    os.environ["BROADLEAF_ENGINE_ID"] = str(engine.engine_id)
    signal.signal(signal.SIGINT, interrupt_handler(engine))
    names = namespace.create(engine.engine_id, os.environ.get("BROADLEAF_CLUSTER_ID", ""))
    operations.install(names, engine.replace, engine.retire_buffers)
    streams.install(engine)
    publish.install(engine)
    rich_display.install()
    sys.displayhook = display.DisplayHook()
    try:
        engine.run()
    finally:
        operations.close()
        streams.remove()
        # The interpreter does not shut down in a forked child, so what was registered is run here.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def interrupt_handler(engine: _native.Engine) -> Callable[[int, object], None]:
    """A SIGINT handler that interrupts a task only when it was that task that was meant."""

    def on_interrupt(_signal_number: int, _frame: object) -> None:
        if engine.interrupt_pending():
            raise KeyboardInterrupt

    return on_interrupt


def reseed_random_numbers() -> None:
    """Gives this engine random numbers of its own.

    Python's own generator is reseeded by fork. NumPy's is not: engines forked after it was imported
    would all draw the same numbers.
    """
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()
