"""Dask on a site: dask-jobqueue's Slurm jobs, one per host, or distributed's own SSHCluster.

Each has its own environment, so the installed packages show which one is meant.
"""

import importlib
import os
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any, ClassVar

import dask
import distributed

from .on_site import START_TIMEOUT_S, OnSite

HAS_JOBS = find_spec("dask_jobqueue") is not None


class Peer(OnSite):
    configs: ClassVar[dict[str, list[str]]] = {"": [], **({"slurm": ["slurm"]} if HAS_JOBS else {"ssh": ["ssh"]})}

    def version(self) -> str:
        jobqueue = f"dask-jobqueue {importlib.import_module('dask_jobqueue').__version__}, " if HAS_JOBS else ""
        return f"{jobqueue}distributed {distributed.__version__}"

    def bring_up(self, workers: int, config: str) -> Iterable[os.uname_result]:
        dask.config.set({"distributed.comm.timeouts.connect": "170s"})
        per_host = workers // len(self.site.hosts)
        self.cluster: Any = self.by_slurm(per_host) if config == "slurm" else self.by_ssh(per_host)
        self.client: Any = distributed.Client(self.cluster)
        self.client.wait_for_workers(workers, timeout=START_TIMEOUT_S)
        found: dict[str, os.uname_result] = self.client.run(os.uname)
        return found.values()

    def by_slurm(self, per_host: int) -> Any:
        from dask_jobqueue import SLURMCluster

        cluster = SLURMCluster(
            cores=per_host,
            processes=per_host,
            memory=f"{per_host} GB",
            # A site may know nothing about its nodes' memory, and refuse such a job.
            job_directives_skip=["--mem"],
            # One job per host: Slurm would put several on a host that has enough cores.
            job_extra_directives=["--exclusive"],
            local_directory="/tmp",
            log_directory=self.site.shared,
            scheduler_options={"host": self.site.address or None, "dashboard_address": None},
        )
        cluster.scale(jobs=len(self.site.hosts))
        return cluster

    def by_ssh(self, per_host: int) -> Any:
        # The scheduler is on the first of these.
        hosts = [self.site.hosts[0], *self.site.hosts]
        options = {"n_workers": per_host, "nthreads": 1}
        return distributed.SSHCluster(hosts, worker_options=options, remote_python=sys.executable)

    def take_down(self) -> None:
        self.client.close()
        self.cluster.close(timeout=60)
