"""concurrent.futures.ProcessPoolExecutor of the standard library."""

import platform
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from broadleaf.bench.workload.adapter import PoolAdapter


class Peer(PoolAdapter):
    def version(self) -> str:
        return f"CPython {platform.python_version()}"

    def make(self, workers: int, config: str) -> Any:
        return ProcessPoolExecutor(workers)
