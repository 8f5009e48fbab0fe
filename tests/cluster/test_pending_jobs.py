"""Which jobs are refused because they can never run, and which are left to wait."""

from __future__ import annotations

from pathlib import Path

import broadleaf as ipp
import pytest
from broadleaf.cluster.engine_sets import Block, BlockRequest
from broadleaf.cluster.engine_sets.batch import CommandError, ThisHost


def looked_at(engines: ipp.EngineSet, tmp_path: Path, monkeypatch, answers: dict[str, str]) -> Block:
    """The block of a job, after the scheduler's programs have given these answers."""
    monkeypatch.setattr(ThisHost, "run", lambda _self, command, *, text="": answers[" ".join(command[:2])])
    (block,) = engines.submit(BlockRequest("lab", tmp_path, 1, {"private_key": "SECRET"}))
    engines.look_now()
    engines.poll([block])
    return block


@pytest.mark.parametrize(
    ("reason", "state", "warning"),
    [
        ("Resources", "pending", ""),
        ("Priority", "pending", ""),
        ("Reservation", "pending", "its reservation has not started"),
        ("ReqNodeNotAvail, UnavailableNodes:n[1-2]", "pending", "nodes that it needs are down or reserved"),
        ("ReqNodeNotAvail, May be reserved for other job", "pending", "nodes that it needs are down or reserved"),
        ("PartitionDown", "pending", "its partition is down"),
        ("PartitionInactive", "pending", "its partition is inactive"),
        ("BeginTime", "pending", "its start time has not come yet"),
        ("PartitionNodeLimit", "failed", ""),
        ("PartitionTimeLimit", "failed", ""),
        ("JobHeldUser", "failed", ""),
        ("ReservationDeleted", "failed", ""),
    ],
)
def test_a_job_of_slurm_that_may_run_is_left_to_wait(reason, state, warning, tmp_path, monkeypatch):
    answers = {"sbatch --parsable": "30\n", "squeue -h": f"30|PENDING|{reason}\n"}
    block = looked_at(ipp.Slurm(nodes=1), tmp_path, monkeypatch, answers)
    assert (block.state, block.reason) == (state, f"job 30 is pending: {reason}")
    assert block.warning == (warning and f"{block.reason}: {warning}")


@pytest.mark.parametrize("line", ["--clusters=far", "--clusters far", "-M far", "-Mfar", "--clusters=far  # ours"])
def test_jobs_of_another_cluster_of_slurm_are_found_and_ended_there(line, tmp_path, monkeypatch):
    said = []

    def run(command: list[str]) -> str:
        said.append(command)
        if command[0] == "sbatch":
            return "30;far\n"
        if "--clusters=far" not in command:
            raise CommandError(f"{command[0]}: error: Invalid job id specified")
        return "30|RUNNING|None\n" if "-j" in command else "30\n"

    monkeypatch.setattr(ThisHost, "run", lambda _self, command, *, text="": run(command))
    engines = ipp.Slurm(nodes=1, sbatch=["--mem=1G", line])
    (block,) = engines.submit(BlockRequest("lab", tmp_path, 1, {"private_key": "SECRET"}))
    engines.look_now()
    engines.poll([block])
    assert block.state == "running"
    assert engines.jobs_named("broadleaf-lab") == ["30"]
    engines.cancel([block])
    assert said[-1] == ["scancel", "--clusters=far", "30"]


_QSTAT = """<job_info><queue_info></queue_info><job_info><job_list><JB_job_number>30</JB_job_number>
<state>{}</state></job_list></job_info></job_info>"""
_DETAILS = """==============================================================
job_number:                 30
{}scheduling info:            (Collecting of scheduler job information is turned off)
"""


@pytest.mark.parametrize(
    ("letters", "details", "state", "reason"),
    [
        ("qw", "", "pending", "job 30 is pending (qw): (Collecting of"),
        ("hqw", "jid_predecessor_list (req):  7\njid_predecessor_list:       7\n", "pending",
         "job 30 is pending (hqw): it runs after the jobs 7; "),
        ("hqw", "", "failed", "job 30 is held (hqw)"),
        ("Eqw", "error reason    1:          can't chdir to /nowhere\n", "failed",
         "job 30 cannot be started (Eqw): can't chdir to /nowhere"),
    ],
)  # fmt: skip
def test_a_job_of_grid_engine_that_may_run_is_left_to_wait(letters, details, state, reason, tmp_path, monkeypatch):
    answers = {
        "qsub -terse": "30\n",
        "qstat -xml": _QSTAT.format(letters),
        "qstat -j": _DETAILS.format(details),
    }
    block = looked_at(ipp.SGE(slots=1, pe="mp"), tmp_path, monkeypatch, answers)
    assert block.state == state
    assert block.reason.startswith(reason), block.reason
