"""Empty tasks through Parsl's HighThroughputExecutor on this machine, under one setting: time per task.

Runs in an environment that has Parsl (see README.md). The clock runs from the first submission to the last result; the
start of the executor is not counted, and ten tasks per worker have run before.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
import tempfile
import time

import parsl
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.providers import LocalProvider

# Where the lines that every task causes in the submitting process are written.
HOT_LOGGERS = (
    "parsl.dataflow.dflow",
    "parsl.dataflow.memoization",
    "parsl.dataflow.states",
    "parsl.executors.high_throughput.executor",
    "parsl.executors.status_handling",
    "parsl.app.app",
    "parsl.app.python",
)


@parsl.python_app
def nothing():
    return None


def on(text: str) -> bool:
    return text == "on"


def settings() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument(
        "--logging", type=on, default=True, help="initialize_logging: parsl.log of the submitting process"
    )
    parser.add_argument("--hot-lines", type=on, default=True, help="the log lines of the path that every task takes")
    parser.add_argument("--worker-debug", type=on, default=False)
    parser.add_argument("--encrypted", type=on, default=True)
    parser.add_argument("--prefetch", type=int, default=0)
    parser.add_argument("--poll-ms", type=int, default=10)
    parser.add_argument("--affinity", default="none")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--strategy", default="simple")
    parser.add_argument("--run-dir", default="", help="a directory in memory, such as /dev/shm")
    return parser.parse_args()


def remove_hot_lines() -> None:
    """Does what a patch that deletes these lines does: the calls are still made, and return at once."""
    for name in HOT_LOGGERS:
        logger = logging.getLogger(name)
        logger.debug = logger.info = lambda *args, **kwargs: None  # type: ignore[method-assign]


def configuration(given: argparse.Namespace, folder: str) -> Config:
    executor = HighThroughputExecutor(
        label="htex",
        address="127.0.0.1",
        max_workers_per_node=given.workers,
        cores_per_worker=1e-3,
        worker_debug=given.worker_debug,
        encrypted=given.encrypted,
        prefetch_capacity=given.prefetch,
        poll_period=given.poll_ms,
        cpu_affinity=given.affinity,
        provider=LocalProvider(init_blocks=1, min_blocks=1, max_blocks=1),
    )
    strategy = None if given.strategy == "none" else given.strategy
    return Config(
        executors=[executor],
        run_dir=os.path.join(folder, "runinfo"),
        strategy=strategy,
        # The first workers are requested at the first period: the default of 5 s would be most of a run.
        strategy_period=1,
        initialize_logging=given.logging,
    )


def run(given: argparse.Namespace) -> tuple[float, float]:
    """Seconds until all tasks are submitted, and until all are done."""
    if not given.hot_lines:
        remove_hot_lines()
    for future in [nothing() for _ in range(10 * given.workers)]:
        future.result()
    begin = time.perf_counter()
    futures = [nothing() for _ in range(given.tasks)]
    submitted = time.perf_counter()
    for future in futures:
        future.result()
    return submitted - begin, time.perf_counter() - begin


def main() -> int:
    given = settings()
    # The executor starts its own programs by name.
    os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    folder = tempfile.mkdtemp(prefix="parsl-study-", dir=given.run_dir or None)
    try:
        kernel = parsl.load(configuration(given, folder))
        try:
            submit_s, total_s = run(given)
        finally:
            kernel.cleanup()
            parsl.clear()
        written = sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(folder) for name in names)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(
        json.dumps(
            {
                "time_per_task_us": total_s / given.tasks * 1e6,
                "submit_us": submit_s / given.tasks * 1e6,
                "total_s": total_s,
                "n_tasks": given.tasks,
                "log_bytes": written,
                "parsl": parsl.__version__,
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
