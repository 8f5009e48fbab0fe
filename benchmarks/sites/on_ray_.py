"""Broadleaf on the hosts of a Ray cluster."""

import contextlib
import os
import subprocess
from pathlib import Path
from typing import Any

import broadleaf as ipp
import ray
from broadleaf.bench.workload.measure import expect

from benchmarks.sites.hosted import N_HOSTS, Hosted, on
from benchmarks.sites.site import Site

PORT = 6399
RAY = str(Path(Hosted.python).with_name("ray"))


class Peer(Hosted):
    def start(self, workers: int, config: str) -> None:
        site = Site.here()
        common = ("--disable-usage-stats", "--block")
        own = ("--head", f"--port={PORT}", "--num-cpus=0", "--include-dashboard=false")
        where = [f"--node-ip-address={site.address}"] if site.address else []
        self.running: list[subprocess.Popen[str]] = [
            subprocess.Popen([RAY, "start", *own, *where, *common], stdout=subprocess.DEVNULL, text=True)
        ]
        address = f"{site.address or os.uname().nodename}:{PORT}"
        for host in site.hosts[:N_HOSTS]:
            self.running.append(on(host, RAY, "start", f"--address={address}", "--num-cpus=4", *common))
        while not self.connect(address) or sum(node["Alive"] for node in ray.nodes()) < N_HOSTS + 1:
            if any(one.poll() is not None for one in self.running):
                raise RuntimeError("a node of Ray has ended")

    def connect(self, address: str) -> bool:
        """Connects this process to Ray, which refuses that until its head is up; returns whether it is connected."""
        if not ray.is_initialized():
            with contextlib.suppress(ConnectionError, RuntimeError):
                ray.init(address=address, log_to_driver=False)
        return bool(ray.is_initialized())

    def engine_set(self, per_host: int) -> Any:
        return ipp.OnRay(hosts=N_HOSTS, cpus=per_host)

    def check(self) -> None:
        successor = ray.remote(lambda x: x + 1)
        expect(ray.get([successor.remote(i) for i in range(4)]) == [1, 2, 3, 4], "Ray does not do its own work")

    def stop(self) -> None:
        ray.shutdown()
        for one in reversed(self.running):
            one.terminate()
        for one in self.running:
            one.wait()
