"""What the systems that start workers on a site have in common: the check that all are up, and how long it took."""

import os
import time
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from broadleaf.bench.workload.adapter import Adapter

from benchmarks.sites.jobs import Jobs
from benchmarks.sites.site import Site

#: Engines of some systems take minutes.
START_TIMEOUT_S = 600


class OnSite(Adapter):
    """A system that starts workers with Slurm or SSH; `config` says which."""

    measures: ClassVar[dict[str, Callable[..., dict[str, Any]]]] = {"jobs": lambda peer: peer.of_jobs}
    jobs: Jobs | None = None

    def start(self, workers: int, config: str) -> None:
        self.site: Site = Site.here()
        if not workers:
            return
        if config == "slurm":
            self.jobs = Jobs(self.site)
        hosts = [host.nodename for host in self.bring_up(workers, config)]
        ended_s = time.time()
        if len(hosts) != workers or set(hosts) != set(self.site.hosts):
            raise RuntimeError(f"{len(hosts)} workers are up, on {', '.join(sorted(set(hosts)))}")
        if self.jobs is not None:
            self.of_jobs: dict[str, Any] = {
                "after_first_line": ended_s - self.jobs.first_line_s(),
                "scheduler_calls": len(self.jobs.calls()),
            }

    def bring_up(self, workers: int, config: str) -> Iterable[os.uname_result]:
        """Starts all workers; returns what `os.uname` returned on each of them."""
        raise NotImplementedError

    def take_down(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        try:
            self.take_down()
        finally:
            if self.jobs is not None:
                self.jobs.finish()
