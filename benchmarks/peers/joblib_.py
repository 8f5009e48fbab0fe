"""joblib with its memory-mapped arguments."""

import os
import tempfile
from typing import Any

import joblib
from broadleaf.bench.workload import payloads, tasks
from broadleaf.bench.workload.adapter import Adapter, Way


class Peer(Adapter):
    def version(self) -> str:
        return f"joblib {joblib.__version__}"

    def start(self, workers: int, config: str) -> None:
        self.workers = workers
        self.parallel: Any = joblib.Parallel(
            n_jobs=workers, backend="loky", batch_size=1, temp_folder=tempfile.gettempdir()
        )
        self.parallel.__enter__()
        self.pids: list[Any] = sorted(set(self.run(os.getpid)))

    def run(self, function: Any, *args: Any) -> list[Any]:
        return list(self.parallel(joblib.delayed(function)(*args) for _ in range(self.workers)))

    def stop(self) -> None:
        self.parallel.__exit__(None, None, None)
        from joblib.externals.loky import get_reusable_executor

        get_reusable_executor().shutdown(wait=True, kill_workers=True)

    def worker_pids(self) -> list[int]:
        return self.pids

    def fan_out(self) -> Any:
        return {"a call for each worker": lambda: self.run(tasks.noop)}

    def parallel_contexts(self) -> dict[str, Any]:
        return {"loky": lambda: joblib.parallel_config(backend="loky", n_jobs=self.workers)}

    def parallel_program(self) -> str:
        return f"""
import joblib
from broadleaf.bench.workload.parallel import timed_search
joblib.parallel_config(backend="loky", n_jobs={self.workers})
"""

    def broadcast(self) -> dict[str, Way]:
        # A worker keeps nothing between calls: the next call with the same value computes the checksum.
        def give(value: Any) -> None:
            self.value = value
            self.run(has, value)

        return {"memory-mapped argument": Way(give, lambda: self.run(payloads.checksum, self.value))}


def has(value: Any) -> tuple[int, ...]:
    """Reads only the head of the value."""
    shape: tuple[int, ...] = value.shape
    return shape
