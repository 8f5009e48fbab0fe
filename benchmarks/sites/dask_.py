"""Dask on a site: dask-jobqueue's Slurm jobs, one per host, or distributed's own SSHCluster.

Each has its own environment, so the installed packages show which one is meant.
"""

import importlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any, ClassVar

import dask
import distributed

from benchmarks.sites.on_site import START_TIMEOUT_S, OnSite

END_TIMEOUT_S = 60.0
HAS_JOBS = find_spec("dask_jobqueue") is not None


def wait_until_ended(processes: dict[str, set[int]]) -> None:
    """Waits for processes of the site's hosts. One that only waits for its parent has ended."""
    ended = "for pid; do while [ -e /proc/$pid/exe ]; do sleep 0.1; done; done"
    for host, pids in processes.items():
        command = shlex.join(["sh", "-c", ended, "sh", *map(str, pids)])
        subprocess.run(["ssh", "-o", "BatchMode=yes", host, command], timeout=END_TIMEOUT_S, check=True)


class Peer(OnSite):
    configs: ClassVar[dict[str, list[str]]] = {"": [], **({"slurm": ["slurm"]} if HAS_JOBS else {"ssh": ["ssh"]})}

    def version(self) -> str:
        jobqueue = f"dask-jobqueue {importlib.import_module('dask_jobqueue').__version__}, " if HAS_JOBS else ""
        return f"{jobqueue}distributed {distributed.__version__}"

    def __init__(self) -> None:
        #: Dask's processes by host, unless they belong to a job.
        self.processes: dict[str, set[int]] = {}

    def bring_up(self, workers: int, config: str) -> Iterable[os.uname_result]:
        dask.config.set({"distributed.comm.timeouts.connect": "170s"})
        per_host = workers // len(self.site.hosts)
        self.cluster: Any = self.by_slurm(per_host) if config == "slurm" else self.by_ssh(per_host)
        self.client: Any = distributed.Client(self.cluster)
        self.client.wait_for_workers(workers, timeout=START_TIMEOUT_S)
        found: dict[str, os.uname_result] = self.client.run(os.uname)
        if config == "ssh":
            self.note_processes(found)
        return found.values()

    def note_processes(self, hosts: dict[str, os.uname_result]) -> None:
        """Notes each worker with its parent, and the scheduler, which is on the first host."""
        self.processes = {host: set() for host in self.site.hosts}
        self.processes[self.site.hosts[0]].add(self.client.run_on_scheduler(os.getpid))
        for one in (os.getpid, os.getppid):
            for worker, pid in self.client.run(one).items():
                self.processes[hosts[worker].nodename].add(pid)

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
        wait_until_ended(self.processes)  # SSHCluster does not wait, and they would disturb the next system
