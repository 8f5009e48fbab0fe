"""Broadleaf's engines as MPI ranks on the hosts of a site, and the time that MPI alone takes to start as many."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

from broadleaf.bench.workload.measure import expect

from benchmarks.sites.on_site import OnSite
from benchmarks.sites.site import Site

os.environ["BROADLEAF_DIR"] = str(Path(Site.here().shared) / "broadleaf")
# Otherwise data travels from "host" to "host" through shared memory if they are one machine.
os.environ["UCX_TLS"] = "tcp,self"

import broadleaf as ipp

MPIEXEC = Path(sys.executable).parent / "mpiexec"
STEP_TIMEOUT_S = 120.0
# Every rank has met the others once the first one reports it.
_RANK = "from mpi4py import MPI; MPI.COMM_WORLD.Barrier(); MPI.COMM_WORLD.Get_rank() or print('up', flush=True)"


def hosts_of(site: Site, workers: int) -> list[str]:
    """Arguments of MPICH's mpiexec."""
    return ["-hosts", ",".join(site.hosts), "-ppn", str(workers // len(site.hosts))]


def mpiexec(peer: "Peer", workers: int) -> dict[str, float]:
    """Ranks that import mpi4py; returns once all have met."""
    command = [str(MPIEXEC), *hosts_of(Site.here(), workers), "-n", str(workers), sys.executable, "-c", _RANK]
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        said = running.stdout.readline()
        ready_s = time.perf_counter() - begin
    if said != "up\n" or running.returncode:
        raise RuntimeError(f"mpiexec ended with code {running.returncode}")
    return {"ready": ready_s}


def ends(peer: "Peer", ranks: int, rounds: int) -> dict[str, float]:
    """Worlds that ran a task and were stopped; a world is clean if its mpiexec ended by itself, without an error."""
    clean = 0
    for _ in range(rounds):
        cluster: Any = ipp.Cluster(engines=ipp.MPI(mpi_args=hosts_of(Site.here(), ranks)), n=ranks)
        with cluster as client:
            expect(client[:].apply_sync(abs, -1) == [1] * ranks, "a rank did not run its task")
        clean += [block.state for block in cluster.blocks()] == ["ended"]
    return {"worlds": rounds, "clean": clean}


def killed(peer: "Peer", ranks: int) -> dict[str, float]:
    """From the death of a rank until another rank's task reports it; then the world is started again."""
    cluster: Any = ipp.Cluster(engines=ipp.MPI(mpi_args=hosts_of(Site.here(), ranks)), n=ranks)
    with cluster as client:
        waiting = client[0].apply_async(time.sleep, 600)
        begin = time.perf_counter()
        client[ranks - 1].apply_async(os._exit, 3)
        try:
            waiting.get(STEP_TIMEOUT_S)
        except ipp.EngineError as error:
            certified_s = time.perf_counter() - begin
            cause = error.certificate and error.certificate.cause
            expect(cause == "rank_died", f"the certificate says {cause}")
        cluster.restart_engines_sync()
        cluster.wait_for_engines_sync()
        client.wait_for_engines(ranks, timeout=STEP_TIMEOUT_S)
        expect(client[:].apply_sync(abs, -1) == [1] * ranks, "a rank did not run its task")
        return {"certified_after": certified_s}


class Peer(OnSite):
    configs: ClassVar[dict[str, list[str]]] = {"": ["mpi"]}
    measures: ClassVar[dict[str, Callable[..., dict[str, Any]]]] = {
        "raw_mpiexec": mpiexec,
        "killed-rank": killed,
        "ends": ends,
    }
    cluster: Any = None

    def version(self) -> str:
        return f"broadleaf {ipp.__version__}"

    def bring_up(self, workers: int, config: str) -> Iterable[os.uname_result]:
        self.cluster = ipp.Cluster(engines=ipp.MPI(mpi_args=hosts_of(self.site, workers)), n=workers)
        client = self.cluster.start_and_connect_sync()
        found: list[os.uname_result] = client[:].apply_sync(os.uname)
        return found

    def take_down(self) -> None:
        if self.cluster is not None:
            self.cluster.stop_cluster_sync()
