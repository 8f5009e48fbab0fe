"""What `SGE` requests from Grid Engine, and what it reads from the answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import broadleaf as ipp
import pytest
from broadleaf.cluster.engine_sets import BlockRequest
from broadleaf.cluster.engine_sets.sge import _how_it_ended, _states
from broadleaf.errors import ClusterStartError


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


def in_directory(directory: str, **options: Any) -> list[str]:
    """The directives of a job that finds its files in this directory."""
    script = ipp.SGE(**options).script(BlockRequest("lab", Path(directory), 1, {}))
    return [line.removeprefix("#$ ") for line in script.splitlines() if line.startswith("#$ ")]


@pytest.mark.parametrize(
    ("directory", "expected"),
    [
        ("/home/me", "-o /home/me/block-sge-$JOB_ID_$TASK_ID.log"),
        ("/home/my files", '-o "/home/my files/block-sge-$JOB_ID_$TASK_ID.log"'),
        ("/home/100%", "-o /home/100%/block-sge-$JOB_ID_$TASK_ID.log"),
    ],
)
def test_a_path_is_one_word(directory, expected):
    assert in_directory(directory)[3] == expected


def test_a_value_is_one_word():
    options = {"pe": "my pe", "walltime": "1 2", "queue": "a b", "project": "p q"}
    assert in_directory("/", **options)[5:] == ['-pe "my pe" 1', '-l "h_rt=1 2"', '-q "a b"', '-P "p q"']


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"queue": "a\nb"}, r"queue='a\\nb': Grid Engine directives cannot contain a line break here"),
        ({"project": 'a"b'}, "project='a\"b': .* a double quote here"),
        ({"pe": "a'b"}, 'pe="a\'b": .* a single quote here'),
        ({"walltime": "1#2"}, "walltime='1#2': .* a number sign here"),
        ({"sge": ["-R y\nrm -rf ~"]}, r"the line '-R y\\nrm -rf ~' in sge: .* a separate entry"),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(options, said):
    with pytest.raises(ClusterStartError, match=said):
        in_directory("/home/me", **options)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [({}, "set BROADLEAF_DIR to another one"), ({"via": "ssh:login", "shared_dir": "{}"}, "name .* with shared_dir=")],
)
@pytest.mark.parametrize(
    ("directory", "found"),
    [("/a\nb", "a line break"), ("/it's", "a single quote"), ("/#1", "a number sign"), ("/a$b", "a dollar sign"),
     ("/a,b", "a comma"), ("/a:b", "a colon")],
)  # fmt: skip
def test_a_directory_that_would_not_be_found_is_refused(directory, found, options, remedy):
    options = {name: value.format(directory) for name, value in options.items()}
    with pytest.raises(
        ClusterStartError, match=f"but paths in Grid Engine directives cannot contain {found}; {remedy}"
    ):
        in_directory(directory, **options)


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
            "its walltime has run out, or another limit (qmaster",
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
