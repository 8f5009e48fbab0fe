"""concurrent.futures.ThreadPoolExecutor of the standard library, whose workers share a process."""

import os
import platform
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from broadleaf.bench.workload.adapter import PoolAdapter


class Peer(PoolAdapter):
    def version(self) -> str:
        return f"CPython {platform.python_version()}"

    def make(self, workers: int, config: str) -> Any:
        return ThreadPoolExecutor(workers)

    def meet(self) -> list[int]:
        return [os.getpid()]
