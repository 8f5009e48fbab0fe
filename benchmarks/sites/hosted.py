"""Broadleaf on hosts of another system that is already running: what its adapters have in common."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from broadleaf.bench.workload.adapter import Adapter

from benchmarks.sites.site import Site

os.environ["BROADLEAF_DIR"] = str(Path(Site.here().shared) / "broadleaf")

import broadleaf as ipp

N_HOSTS = 2


def up(peer: "Hosted", workers: int) -> dict[str, float]:
    """A cluster on hosts of the system, once each engine has run a task; then the system does its own work."""
    begin = time.perf_counter()
    cluster: Any = ipp.Cluster(engines=peer.engine_set(workers // N_HOSTS))
    try:
        client = cluster.start_and_connect_sync()
        hosts = {host.nodename for host in client[:].apply_sync(os.uname)}
        ready_s = time.perf_counter() - begin
        if len(client) != workers or len(hosts) != N_HOSTS:
            raise RuntimeError(f"{len(client)} engines are up, on {', '.join(sorted(hosts))}")
        peer.check()
        return {"ready": ready_s}
    finally:
        cluster.stop_cluster_sync()


def on(host: str, *command: str, **options: Any) -> "subprocess.Popen[str]":
    """A command on a host, which finds the same modules there."""
    path = f"PYTHONPATH={os.environ['PYTHONPATH']}"
    words = ["ssh", "-o", "BatchMode=yes", "-tt", host, shlex.join(["env", path, *command])]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, **options)


class Hosted(Adapter):
    """A subclass makes its system run on `N_HOSTS` hosts in `start`."""

    configs: ClassVar[dict[str, list[str]]] = {"": [""]}
    measures: ClassVar[dict[str, Callable[..., dict[str, Any]]]] = {"up": up}
    python: str = sys.executable

    def version(self) -> str:
        return f"broadleaf {ipp.__version__}"

    def engine_set(self, per_host: int) -> Any:
        raise NotImplementedError

    def check(self) -> None:
        """Raises an error unless the system does its own work."""
        raise NotImplementedError
