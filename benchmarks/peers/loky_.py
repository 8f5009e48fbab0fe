"""loky, the executor under joblib."""

from typing import Any

import loky
from broadleaf.bench.workload.adapter import PoolAdapter


class Peer(PoolAdapter):
    def version(self) -> str:
        return f"loky {loky.__version__}"

    def make(self, workers: int, config: str) -> Any:
        return loky.get_reusable_executor(workers, timeout=None, kill_workers=True)

    def stop(self) -> None:
        self.pool.shutdown(kill_workers=True)
