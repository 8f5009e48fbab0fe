"""Broadleaf on a site."""

import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.sites.on_site import OnSite
from benchmarks.sites.site import Site

# Read when Broadleaf is imported. Jobs find their cluster's files there.
os.environ["BROADLEAF_DIR"] = str(Path(Site.here().shared) / "broadleaf")

import broadleaf as ipp

from benchmarks.sites import elastic, runs


def starts(peer: Any, hosts: int, rounds: int) -> dict[str, float | list[float]]:
    """Clusters with an engine on each host but the first, by way of the first; complete ones have them all."""
    jump, *behind = Site.here().hosts
    complete, times = 0, list[float]()
    for _ in range(rounds):
        cluster: Any = ipp.Cluster(engines=ipp.SSH([f"{host}:1" for host in behind], jump=jump))
        begin = time.perf_counter()
        try:
            with cluster as client:
                there = [host.nodename for host in client[:].apply_sync(os.uname)]
                times.append(time.perf_counter() - begin)
                complete += sorted(there) == sorted(behind)
        except ipp.BroadleafError as error:
            print(error, file=sys.stderr)
    return {"starts": rounds, "complete_starts": complete, "ready": times}


class Peer(OnSite):
    configs: ClassVar[dict[str, list[str]]] = {"": ["slurm"], "ssh": ["ssh"]}
    measures: ClassVar[dict[str, Callable[..., dict[str, Any]]]] = {
        **OnSite.measures,
        "turnover": elastic.turnover,
        "on-demand": elastic.on_demand,
        "runs": runs.runs,
        "starts": starts,
    }
    cluster: Any = None

    def version(self) -> str:
        return f"broadleaf {ipp.__version__}"

    def bring_up(self, workers: int, config: str) -> Iterable[os.uname_result]:
        hosts, per_host = self.site.hosts, workers // len(self.site.hosts)
        engines: Any
        if config == "slurm":
            engines = ipp.Slurm(nodes=len(hosts), engines_per_host=per_host)
        else:
            engines = ipp.SSH([f"{host}:{per_host}" for host in hosts])
        self.cluster = ipp.Cluster(engines=engines)
        client = self.cluster.start_and_connect_sync()
        found: list[os.uname_result] = client[:].apply_sync(os.uname)
        return found

    def take_down(self) -> None:
        if self.cluster is not None:
            self.cluster.stop_cluster_sync()
