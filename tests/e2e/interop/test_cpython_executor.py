"""CPython's own test cases for executors, run on ours: those of `test.test_concurrent_futures` that apply to process
pools.

Few installations have that module. If it is missing, Debian's package for the same minor version of Python has it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import unittest
from typing import Any

import broadleaf as ipp
import pytest
from broadleaf.errors import SerializationError
from debian_layer import LayerUnavailable, layer

NAME = "test.test_concurrent_futures"
# Where Debian's package has the modules that the installed `test` lacks, or "".
DEBIAN_FOLDER = ""


def search_too(folder: str) -> None:
    """Lets this process's package `test` find modules in `folder`, too."""
    if folder:
        importlib.import_module("test").__path__.append(folder)


if importlib.util.find_spec(NAME) is None:
    python = "python{}.{}".format(*sys.version_info)
    try:
        DEBIAN_FOLDER = str(layer(f"lib{python}-testsuite") / "usr/lib" / python / "test")
    except LayerUnavailable as error:
        pytest.skip(f"CPython's own tests are not installed, and {error}", allow_module_level=True)
    search_too(DEBIAN_FOLDER)
CASES = importlib.import_module(NAME)

ENGINES = 5
# Mixin, the module it is in since it is a package, and its cases that do not apply, each with the reason.
SIZE = "our executors have the engines that there are: they make no processes"
POOLS = "it looks into the pool of processes"
SCRIPT = "it starts a script that makes the executor by its name in concurrent.futures"
MIXINS: dict[tuple[str, str], dict[str, str]] = {
    ("WaitTests", "test_wait"): {},
    ("AsCompletedTests", "test_as_completed"): {},
    ("ExecutorTest", "executor"): {"test_max_workers_negative": SIZE},
    ("ProcessPoolExecutorTest", "test_process_pool"): {
        "test_max_workers_negative": SIZE,
        "test_max_workers_too_large": SIZE,
        "test_killed_child": "one engine that dies does not end the others; see test_crash_during_func_exec_on_worker",
        "test_ressources_gced_in_workers": "its object holds a manager's proxy, which only children may open",
        "test_saturation": POOLS,
        "test_idle_process_reuse_one": POOLS,
        "test_idle_process_reuse_multiple": POOLS,
        "test_max_tasks_per_child": SIZE,
        "test_max_tasks_per_child_defaults_to_spawn_context": SIZE,
        "test_max_tasks_early_shutdown": SIZE,
        "test_traceback": "it compares with the private class of a process pool's remote traceback",
    },
    ("ExecutorShutdownTest", "test_shutdown"): {
        # A pool calls a future running once it is queued for a process. Ours may all be withdrawn before an engine
        # begins one, as happens on a busy machine.
        "test_cancel_futures": "it does not wait for a start; see test_executor_cancels_on_shutdown, which does",
        "test_interpreter_shutdown": SCRIPT,
        "test_submit_after_interpreter_shutdown": SCRIPT,
        "test_hang_gh83386": SCRIPT,
    },
    ("ExecutorDeadlockTest", "test_deadlock"): {
        "test_shutdown_deadlock_pickle": POOLS,
        "test_shutdown_deadlock": "the engine's death is an EngineError; see test_crash_during_func_exec_on_worker",
    },
}
# The cases expect that a pool breaks as a whole. Here one engine dies, or one task ends in an error.
BROKEN = (ipp.EngineError, ipp.RemoteError, SerializationError)
ERRORS = {
    "BrokenProcessPool": BROKEN,
    # Raised here it would end the program that waits.
    "SystemExit": (ipp.RemoteError, SerializationError),
}


@pytest.fixture(scope="module")
def pool():
    """A client whose engines are restarted when they die."""
    with ipp.Cluster(
        n=ENGINES, restart_engines=True, max_restarts=1_000_000, restart_backoff_max_s=0.1, preload=["numpy"]
    ) as client:
        client.on_join(functools.partial(search_too, DEBIAN_FOLDER))
        yield client


class OurExecutor:
    """Replaces CPython's mixin for an executor type."""

    worker_count = ENGINES
    executor: Any
    client: ipp.Client

    @pytest.fixture(autouse=True)
    def own_executor(self, pool):
        """Gives each case an executor, and waits until everything it left is over."""
        self.client = pool
        pool.wait_for_engines(ENGINES, timeout=60)
        self.executor = pool.executor()
        yield
        self.executor.shutdown(wait=True)

    def executor_type(self, max_workers: int, mp_context: Any = None) -> Any:
        """An executor with this many engines."""
        self.client.wait_for_engines(ENGINES, timeout=60)
        return self.client.executor(range(max_workers))

    def get_context(self) -> None:
        """No context: engines are processes already."""

    def _check_crash(self, error: type[BaseException], function: Any, *args: Any, ignore_stderr: bool = False) -> None:
        """Makes `function` fail in an executor: nothing hangs, the error is as expected, and the next call is right."""
        executor = self.executor_type(max_workers=2)
        with pytest.raises(ERRORS.get(error.__name__, error)):
            executor.submit(function, *args).result(timeout=60)
        assert executor.submit(pow, 2, 8).result(timeout=60) == 256
        executor.shutdown(wait=True)


for (mixin, where), without in MIXINS.items():
    module = importlib.import_module(f"{CASES.__name__}.{where}") if hasattr(CASES, "__path__") else CASES
    body = dict.fromkeys(without)
    made = type(mixin, (OurExecutor, getattr(module, mixin), unittest.TestCase), {**body, "__module__": __name__})
    globals()[mixin] = pytest.mark.timeout(120)(made)
del made
