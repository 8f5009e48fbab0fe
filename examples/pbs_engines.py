"""Engines in jobs of PBS, as an example of a set for a batch scheduler: `ipp.Cluster(n=8, engines=PBS(queue="short"))`.

What all batch schedulers have in common is in `BatchSet`: files for jobs, logs, login hosts, when to ask for news.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from broadleaf import ClusterStartError
from broadleaf.cluster.engine_sets import Block, BlockRequest
from broadleaf.cluster.engine_sets.batch import BatchSet, CommandError, check_value, clock_time
from broadleaf.state import files

STATES = {"Q": "pending", "H": "pending", "W": "pending", "R": "running", "E": "running"}


@dataclass
class PBS(BatchSet):
    """Engines in a PBS job on one host. Its fields are options of the set."""

    name: ClassVar[str] = "pbs"
    is_adoptable: ClassVar[bool] = True  # a block's job tells all that another process needs to know
    program: ClassVar[str] = "qsub"
    cancel_program: ClassVar[str] = "qdel"
    unknown_job: ClassVar[str] = "Unknown Job"

    queue: str = ""
    walltime: str = ""

    def submit(self, request: BlockRequest) -> list[Block]:
        n_engines = self.engines_per_host or request.n or 1
        try:
            job = self.submit_host.run(["qsub"], text=self.prepared_script(request)).strip()
        except CommandError as error:
            raise ClusterStartError(f"PBS refuses the job: {error}") from None
        self.news.expect_first()
        return self.job_blocks(request, [job], n_hosts=1, n_engines=n_engines)

    def batch_script(self, request: BlockRequest, directory: Path, package: str | None) -> str:
        options = {"-q ": check_value("queue", self.queue, "PBS"), "-l walltime=": clock_time(self.walltime)}
        join = self.join_command(request, str(self.order_file(directory)), package=package)
        return "\n".join([
            "#!/bin/sh",
            f"#PBS -N broadleaf-{request.cluster_id}",
            *(f"#PBS {option}{value}" for option, value in options.items() if value),
            f'exec >{shlex.quote(str(directory))}/"{files.BLOCK_LOG.format("pbs-$PBS_JOBID")}" 2>&1',
            f"export BROADLEAF_BLOCK=pbs-$PBS_JOBID BROADLEAF_CLUSTER_ID={request.cluster_id}",
            join,
        ]) + "\n"  # fmt: skip

    def note_news(self, jobs: Mapping[str, Block]) -> bool:
        try:
            said = self.submit_host.run(["qstat"])
        except CommandError:
            return False
        seen = {fields[0]: fields[4] for line in said.splitlines() if len(fields := line.split()) > 5}
        for job, block in jobs.items():
            block.state = STATES.get(seen.get(job, ""), "ended")
            block.reason = f"job {job} is {block.state}" if job in seen else f"job {job} is not known to PBS any more"
            block.facts["over"] = block.is_over
        return True
