"""Names and levels in brackets are text: the terminal's markup must not take them for its own."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("scipy")
pytest.importorskip("altair")
import converter  # noqa: F401
from broadleaf_lab.cli import command as lab
from broadleaf_lab.spec.runs import RunsFile
from broadleaf_lab.study import Study
from click.testing import CliRunner

pytestmark = pytest.mark.timeout(180)
STUDY = """
[study]
name = "[bold]"
command = ["true"]
[factors.kind]
set.argument = "--kind"
levels = ["[plain]", "[design]"]
loses = "[red]"
[factors.other]
set.flag = "--other"
"""


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "[blue]"
    folder.mkdir()
    (folder / "study.toml").write_text(STUDY)
    study, rng = Study.load(folder), random.Random(1)
    with RunsFile(study.runs_path, study.factors) as runs:
        for number in range(40):
            config = {"kind": rng.choice(["[plain]", "[design]"]), "other": rng.random() < 0.5}
            us = 100 * (0.5 if config["kind"] == "[design]" else 1) * rng.lognormvariate(0, 0.01)
            runs.append({"status": "ok", "time_per_task_us": us, "block": 0, "started_unix": 1.0 + number}, config)
    return folder


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["analyse"], "kind=[design]  -"),
        (["deltas"], "kind=[design]"),
        (["path", "greedy", "--study"], "[red]"),
        (["plan", "--dry-run"], "[bold]"),
        (["status"], "study [bold]"),
        (["report", "--no-images"], "[blue]/report/report.html"),
    ],
)
def test_brackets_are_shown(folder, words, shown):
    done = CliRunner().invoke(lab, [*words, str(folder)])
    assert done.exit_code == 0, done.output
    assert shown in done.output
