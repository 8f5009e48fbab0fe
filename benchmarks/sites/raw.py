"""The time that a site's programs take by themselves: logins, and a job that does nothing."""

import subprocess
import time
from collections.abc import Callable
from typing import Any, ClassVar

from broadleaf.bench.workload.adapter import Adapter

from benchmarks.sites.jobs import Jobs
from benchmarks.sites.site import Site

JOB_TIMEOUT_S = 120.0


def logins(peer: "Peer") -> dict[str, float]:
    """`ssh true` on every host at once, until the last has ended."""
    begin = time.perf_counter()
    running = [subprocess.Popen(["ssh", "-o", "BatchMode=yes", host, "true"]) for host in Site.here().hosts]
    codes = [one.wait() for one in running]
    if any(codes):
        raise RuntimeError(f"ssh ended with the codes {codes}")
    return {"ready": time.perf_counter() - begin}


def job(peer: "Peer", workers: int, hosts: int) -> dict[str, float]:
    """A job on this many hosts that starts idle processes, and reports when they have started."""
    jobs = Jobs(Site.here())
    done = jobs.folder / "done"
    step = f"srun --ntasks-per-node={workers // hosts} --mpi=none true"
    script = f"#!/bin/sh\n#SBATCH --nodes={hosts} --ntasks-per-node={workers // hosts} --output=/dev/null\n{step}\n"
    begin, began_s = time.perf_counter(), time.time()
    try:
        subprocess.run(["sbatch"], input=f"{script}date +%s.%N > {done}\n", text=True, check=True, capture_output=True)
        while not (done.exists() and done.read_text().endswith("\n")):
            if time.perf_counter() - begin > JOB_TIMEOUT_S:
                raise TimeoutError("the job does not run")
            time.sleep(0.005)
        return {"ready": time.perf_counter() - begin, "first_line": jobs.first_line_s() - began_s}
    finally:
        jobs.finish()


class Peer(Adapter):
    configs: ClassVar[dict[str, list[str]]] = {"": [""]}
    measures: ClassVar[dict[str, Callable[..., dict[str, Any]]]] = {"raw_logins": logins, "raw_job": job}

    def version(self) -> str:
        said = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=True).stderr.strip()
        return said.partition(",")[0]

    def start(self, workers: int, config: str) -> None:
        pass

    def stop(self) -> None:
        pass
