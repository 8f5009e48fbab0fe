"""Engines in jobs of PBS, as an example of a set for a batch scheduler: `ipp.Cluster(n=8, engines=PBS(queue="short"))`.

What all batch schedulers have in common is in `BatchSet`: scripts, files and logs of jobs, login hosts, when to ask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from broadleaf import BatchSet
from broadleaf.cluster.engine_sets import Block, BlockRequest
from broadleaf.cluster.engine_sets.base import BlockState
from broadleaf.cluster.engine_sets.batch import CommandError, check_value, clock_time

STATES: dict[str, BlockState] = {"Q": "pending", "H": "pending", "W": "pending", "R": "running", "E": "running"}


@dataclass
class PBS(BatchSet):
    """Engines in a PBS job on one host. Its fields are options of the set."""

    name: ClassVar[str] = "pbs"
    title: ClassVar[str] = "PBS"
    program: ClassVar[str] = "qsub"
    marker: ClassVar[str] = "#PBS"
    job_variable: ClassVar[str] = "$PBS_JOBID"
    cancel_program: ClassVar[str] = "qdel"
    unknown_job: ClassVar[str] = "Unknown Job"

    queue: str = ""
    walltime: str | float = ""

    def directives(self, request: BlockRequest, directory: Path) -> list[str]:
        lines = [f"-j oe -o {self.log_file(directory, '$PBS_JOBID')}"]
        lines += [f"-q {check_value('queue', self.queue, 'PBS')}"] if self.queue else []
        lines += [f"-l walltime={clock_time(self.walltime)}"] if self.walltime else []
        return lines

    def job_of(self, said: str) -> str:
        return said.strip()

    def note_news(self, jobs: Mapping[str, Block]) -> bool:
        try:
            said = self.submit_host.run(["qstat"])
        except CommandError:
            return False
        seen = {fields[0]: fields[4] for line in said.splitlines() if len(fields := line.split()) > 5}
        for job, block in jobs.items():
            state = STATES.get(seen.get(job, ""), "ended")
            known = f"job {job} is {state}" if job in seen else f"job {job} is not known to PBS any more"
            self.note(block, state, known)
        return True
