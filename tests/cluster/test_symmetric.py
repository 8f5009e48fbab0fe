"""What `broadleaf run` learns about itself from its launcher."""

from __future__ import annotations

import pytest
from broadleaf.cluster.hosts.symmetric import RunMember

SLURM = {"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "3", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (SLURM, (1, 4, "run-12-3")),
        (SLURM | {"SLURM_RESTART_COUNT": "2"}, (1, 4, "run-12-3-2")),
        (
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "prterun-n1-7@1"},
            (0, 2, "run-prterun-n1-7-1"),
        ),
    ],
)
def test_places(environment, expected):
    member = RunMember.of(environment)
    assert (member.rank, member.size, member.run_id) == expected


def test_a_launcher_that_does_not_name_the_run_needs_an_id():
    mpich = {"PMI_RANK": "1", "PMI_SIZE": "2"}
    with pytest.raises(ValueError, match="give --id, the same to all ranks"):
        RunMember.of(mpich)
    assert RunMember.of(mpich, "mine") == RunMember(1, 2, "mine")


def test_without_a_launcher_it_is_alone():
    member = RunMember.of({})
    assert (member.rank, member.size) == (0, 1)
