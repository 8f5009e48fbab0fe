"""What `SGE` requests from Grid Engine, and what it reads from the answers."""

from __future__ import annotations

from pathlib import Path

import broadleaf as ipp
import pytest
from broadleaf.cluster.engine_sets import BlockRequest
from broadleaf.cluster.engine_sets.jobs.sge import _how_it_ended, _states


def directives(sge: ipp.SGE, n: int | None = None) -> list[str]:
    """What the script requests, besides its name, shell and output."""
    script = sge.script(BlockRequest("lab", Path("/home/me/lab"), n, {"private_key": "SECRET"}))
    assert "SECRET" not in script
    return [line.removeprefix("#$ ") for line in script.splitlines() if line.startswith("#$ ")][5:]


@pytest.mark.parametrize(
    ("sge", "n", "expected"),
    [
        (ipp.SGE(), None, ["-t 1-1"]),
        (ipp.SGE(), 6, ["-t 1-6"]),
        (ipp.SGE(pe="mp"), 6, ["-pe mp 6"]),
        (ipp.SGE(slots=8, pe="mp", engines_per_host=1), None, ["-pe mp 8"]),
        (ipp.SGE(slots=7, pe="mp", array=True, engines_per_host=2), None, ["-t 1-4", "-pe mp 2"]),
        (
            ipp.SGE(slots=1, walltime="2h", queue="q", project="p", sge=["-R y"]),
            None,
            ["-t 1-1", "-l h_rt=2:00:00", "-q q", "-P p", "-R y"],
        ),
    ],
)
def test_a_script_has_only_what_was_asked_for(sge, n, expected):
    assert directives(sge, n) == expected


def test_states_of_jobs_and_of_tasks_of_arrays():
    entry = "<job_list><JB_job_number>{}</JB_job_number><state>{}</state>{}</job_list>"
    entries = [("7", "r", ""), ("8", "r", "<tasks>1</tasks>"), ("8", "qw", "<tasks>3-7:2,9</tasks>"), ("10", "Eqw", "")]
    xml = f"<job_info>{''.join(entry.format(*one) for one in entries)}</job_info>"
    waiting = {f"8_{task}": "qw" for task in (3, 5, 7, 9)}
    assert _states(xml) == {"7": "r", "8_1": "r", "10": "Eqw"} | waiting


RECORD = "{line}\ntaskid       {task}\nfailed       {failed}\nexit_status  {exit_status}\n"


@pytest.mark.parametrize(
    ("failed", "exit_status", "state", "words"),
    [
        ("0", "0", "ended", "job 7_2 ended with exit status 0"),
        ("0", "3", "failed", "job 7_2 ended with exit status 3"),
        (
            "37  : qmaster enforced h_rt limit",
            "137 (Killed)",
            "failed",
            "its walltime is over, or another limit (qmaster",
        ),
        ("100 : assumedly after job", "137 (Killed)", "failed", "job 7_2 was deleted or killed"),
        ("26  : opening input/output file", "0", "failed", "job 7_2 failed: opening input/output file"),
    ],
)
def test_how_a_task_of_an_array_ended(failed, exit_status, state, words):
    other = RECORD.format(line="=" * 62, task=1, failed=0, exit_status=9)
    accounting = other + RECORD.format(line="=" * 62, task=2, failed=failed, exit_status=exit_status)
    found, reason = _how_it_ended("7_2", accounting)
    assert found == state
    assert words in reason


def test_a_job_that_accounting_does_not_know_yet():
    with pytest.raises(KeyError):
        _how_it_ended("7_3", RECORD.format(line="=" * 62, task=1, failed=0, exit_status=0))
