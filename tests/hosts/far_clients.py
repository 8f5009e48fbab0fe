"""Programs that are clients of a cluster on another host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from bed.network import Network
from broadleaf import Cluster

_PRELUDE = """
import gc, hashlib, json, os, sys, time
import numpy as np
import broadleaf as ipp

rc = ipp.Client(json.loads(sys.argv[1]))

def make(n_bytes, seed=1):
    import numpy as np
    return np.random.default_rng(seed).integers(0, 256, n_bytes, dtype=np.uint8)

def until(is_so):
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, rc.status()["node"]
        time.sleep(0.01)
"""


class FarClients:
    """A controller with engines on one host, and programs that are its clients on another."""

    def __init__(self, rate_mbit: float | None, latency_ms: float, **options: object) -> None:
        self.network = Network(1, rate_mbit=rate_mbit, latency_ms=latency_ms)
        self.controller, self.host = self.network.hosts
        self.programs: list[subprocess.Popen[str]] = []
        self.cluster_id = f"far-{os.getpid()}"
        given = [f"--option={name}={value}" for name, value in options.items()]
        address = f"{self.controller.address}:0"
        command = ("start", "-n", "2", "--cluster-id", self.cluster_id, "--tcp", address, *given)
        start = self.network.start(self.controller, *command, stdout=subprocess.DEVNULL)
        assert start.wait(60) == 0
        self.cluster = Cluster.from_file(cluster_id=self.cluster_id)
        connection = json.loads(Path(self.cluster.connection_file).read_text())
        self.connection = connection | {"unix_path": None, "transport": "tcp"}

    def start(self, program: str) -> subprocess.Popen[str]:
        """Starts a program with a client `rc`; `close` ends it."""
        command = [sys.executable, "-c", _PRELUDE + program, json.dumps(self.connection)]
        child = subprocess.Popen(
            ["ip", "netns", "exec", self.host.namespace, *command],
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
        )
        self.programs.append(child)
        return child

    def run(self, program: str) -> str:
        """Runs one to its end; returns its output."""
        child = self.start(program)
        out, _ = child.communicate(timeout=150)
        assert child.returncode == 0
        return out

    def close(self) -> None:
        for program in self.programs:
            with program:
                program.kill()
        self.cluster.stop_cluster_sync()
        self.network.close()
