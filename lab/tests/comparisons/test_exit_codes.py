"""A script can tell verdicts from one another, from wrong options and from failures to decide."""

from __future__ import annotations

import click
import pytest
from broadleaf_lab.analysis.pairs.intervals import Interval
from broadleaf_lab.cli import command as lab
from broadleaf_lab.cli.judging import JudgingCommand
from broadleaf_lab.comparisons.compare import judge
from broadleaf_lab.comparisons.versus.duel import EXIT_CODES
from broadleaf_lab.errors import RunError
from click.testing import CliRunner

JUDGING = ("compare", "gate", "vs", "settle", "tune")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (RunError("no machine"), 3, "error: no machine"),
        (OSError(28, "No space left on device", "runs.csv"), 3, "error: runs.csv: No space left on device"),
        (ModuleNotFoundError("No module named 'numpy'", name="numpy"), 3, "this needs numpy"),
        (click.ClickException("is not installed"), 3, "error: is not installed"),
        (KeyboardInterrupt(), 3, "interrupted"),
        (ZeroDivisionError("a mistake of ours"), 3, "Traceback"),
        (click.UsageError("no such option"), 2, "no such option"),
    ],
)
def test_nothing_but_a_verdict_ends_with_its_code(error, code, said):
    @click.command(cls=JudgingCommand)
    def judging():
        raise error

    done = CliRunner().invoke(judging)
    assert done.exit_code == code
    assert said in done.output


def test_a_verdict_keeps_its_code():
    @click.command(cls=JudgingCommand)
    @click.argument("code", type=int)
    def judging(code):
        raise SystemExit(code)

    assert [CliRunner().invoke(judging, [str(code)]).exit_code for code in (0, 1, 4)] == [0, 1, 4]


def test_undecided_is_no_wrong_option():
    undecided = judge(Interval(0.0, -0.3, 0.3, 10), 1.0).exit_code
    assert undecided == EXIT_CODES["undecided"] == 4
    wrong = {CliRunner().invoke(lab, [name, "--no-such-option"]).exit_code for name in JUDGING}
    assert wrong == {2}


@pytest.mark.parametrize("name", JUDGING)
def test_the_help_tells_the_codes(name):
    words = " ".join(CliRunner().invoke(lab, [name, "--help"]).output.split())
    assert "Exit codes: 0 " in words
    assert "2 a wrong option" in words
    assert "3 could not run" in words


def test_a_study_that_is_not_there_is_no_verdict(tmp_path):
    for name in ("gate", "tune", "settle"):
        arguments = ["--study", str(tmp_path)] if name == "gate" else [str(tmp_path)]
        done = CliRunner().invoke(lab, [name, *arguments])
        assert done.exit_code == 3, done.output
        assert "no such file" in done.output
