"""Broadleaf on the hosts of a Dask cluster."""

import socket
import subprocess
from typing import Any

import broadleaf as ipp
import distributed
from broadleaf.bench.workload.measure import expect

from benchmarks.sites.hosted import N_HOSTS, Hosted, on
from benchmarks.sites.site import Site

START_TIMEOUT_S = 120


class Peer(Hosted):
    def start(self, workers: int, config: str) -> None:
        site = Site.here()
        scheduler = [self.python, "-m", "distributed.cli.dask_scheduler", "--no-dashboard", "--port", "0"]
        address = site.address or socket.gethostname()
        self.running: list[subprocess.Popen[str]] = [
            subprocess.Popen([*scheduler, "--host", address], stderr=subprocess.PIPE, text=True)
        ]
        stderr = self.running[0].stderr
        assert stderr is not None
        url = next(word for line in stderr for word in line.split() if word.startswith("tcp://"))
        for host in site.hosts[:N_HOSTS]:
            worker = (self.python, "-m", "distributed.cli.dask_worker", url, "--no-dashboard", "--nthreads", "4")
            self.running.append(on(host, *worker, stderr=subprocess.DEVNULL))
        self.client: Any = distributed.Client(url)
        self.client.wait_for_workers(N_HOSTS, timeout=START_TIMEOUT_S)

    def engine_set(self, per_host: int) -> Any:
        return ipp.OnDask(self.client, engines_per_host=per_host)

    def check(self) -> None:
        values = self.client.gather(self.client.map(abs, range(-4, 0), pure=False))
        expect(values == [4, 3, 2, 1], "Dask does not do its own work")

    def stop(self) -> None:
        self.client.close()
        for one in self.running:
            one.terminate()
        for one in self.running:
            one.wait()
