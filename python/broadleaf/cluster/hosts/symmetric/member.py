"""What a process that runs `broadleaf run` learns from the launcher that started it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

# Rank, number of ranks, and an id that only the ranks of one start share. Open MPI comes first: inside a Slurm job its
# daemons are steps of their own, whose variables its ranks inherit.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("PMIX_NAMESPACE",)),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")),
    ("PMI_RANK", "PMI_SIZE", ()),
)
# The first name of a list such as `n[08-11,14],login`.
_FIRST_NAME = re.compile(r"(?:[^\[,]|\[[^\]]*\])+")
_FIRST_OF_RANGE = re.compile(r"\[([^\]\-,]*)[^\]]*\]")


@dataclass(frozen=True)
class RunMember:
    """One of the processes that run `broadleaf run`."""

    rank: int
    size: int
    run_id: str
    """The same for all of them, and for no others: the id of their cluster."""
    first_host: str = ""
    """The host of rank 0; empty where the launcher does not say."""

    @classmethod
    def of(cls, environment: Mapping[str, str], run_id: str = "") -> RunMember:
        """What the launcher, `srun` or an `mpiexec`, has told this process. Raises ValueError if there is no way to
        tell one run from another."""
        for rank, size, names in _LAUNCHERS:
            if rank in environment and size in environment:
                known = "-".join(filter(None, (environment.get(name, "") for name in names)))
                if not (run_id or known):
                    raise ValueError("the launcher does not say which run this is: give --id, the same to all ranks")
                unsafe = run_id or f"run-{known}"
                told = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in unsafe)
                hosts = environment.get("SLURM_STEP_NODELIST", "") if rank == "SLURM_PROCID" else ""
                return cls(int(environment[rank]), int(environment[size]), told, first_of(hosts))
        return cls(0, 1, run_id or f"run-{os.getpid()}")


def first_of(hosts: str) -> str:
    """The first host of a list in Slurm's notation, such as `n[08-11,14],login`."""
    first = _FIRST_NAME.match(hosts)
    return _FIRST_OF_RANGE.sub(r"\1", first[0]) if first else ""
