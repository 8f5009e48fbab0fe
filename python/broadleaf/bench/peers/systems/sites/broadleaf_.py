"""Broadleaf on a site."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

from ...site import Site
from .on_site import OnSite

# Read when Broadleaf is imported. Jobs find their cluster's files there.
os.environ["BROADLEAF_DIR"] = str(Path(Site.here().shared) / "broadleaf")

import broadleaf as ipp

from . import elastic, runs


class Peer(OnSite):
    configs: ClassVar[dict[str, list[str]]] = {"": ["slurm"], "ssh": ["ssh"], "bastion": ["bastion"]}
    measures: ClassVar[dict[str, Callable[..., dict[str, Any]]]] = {
        **OnSite.measures,
        "turnover": elastic.turnover,
        "on-demand": elastic.on_demand,
        "runs": runs.runs,
    }
    cluster: Any = None

    def version(self) -> str:
        return f"broadleaf {ipp.__version__}"

    def bring_up(self, workers: int, config: str) -> Iterable[os.uname_result]:
        hosts, per_host = self.hosts(config), workers // len(self.hosts(config))
        engines: Any
        if config == "slurm":
            engines = ipp.Slurm(nodes=len(hosts), engines_per_host=per_host)
        else:
            jump = self.site.hosts[0] if config == "bastion" else ""
            engines = ipp.SSH([f"{host}:{per_host}" for host in hosts], jump=jump)
        self.cluster = ipp.Cluster(engines=engines)
        client = self.cluster.start_and_connect_sync()
        found: list[os.uname_result] = client[:].apply_sync(os.uname)
        return found

    def hosts(self, config: str) -> tuple[str, ...]:
        return self.site.hosts[1:] if config == "bastion" else super().hosts(config)

    def take_down(self) -> None:
        if self.cluster is not None:
            self.cluster.stop_cluster_sync()
