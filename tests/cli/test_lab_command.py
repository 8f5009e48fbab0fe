"""`broadleaf lab`, the command of a package of its own: where both are installed, and where only one is."""

import subprocess
import sys

import pytest
from page_environments import python_of, python_with

# A study of a shell command.
STUDY = """
[study]
name = "shell"
command = ["sh", "-c", "for i in $(seq {n_tasks}); do $WORK; done"]
score = "wall/n"
[study.calibrate]
n_tasks = 1000
[study.env]
WORK = "true"
[factors.echo]
set.env = { WORK = "echo" }
[factors.placebo]
kind = "placebo"
"""


def said(python, *arguments, cwd, code=0):
    """The output of a command in an environment that no variable adds to."""
    done = subprocess.run([python, "-I", "-m", *arguments], capture_output=True, text=True, timeout=80, cwd=cwd)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.mark.parametrize("arguments", [[], ["--help"], ["plan", "--json", "x"]])
def test_without_the_laboratory_its_command_says_what_to_install(tmp_path, arguments):
    command = [python_with(()), "-I", "-m", "broadleaf", "lab", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "error: `broadleaf lab` needs broadleaf-lab, which is not installed. It comes with the extra `lab`: "
        "pip install 'broadleaf[lab]'\n"
    )


def test_no_other_command_loads_the_laboratory():
    program = (
        "import sys\nfrom click.testing import CliRunner\nfrom broadleaf.cli import group\n"
        "for words in (['--help'], ['list'], ['config', 'show']):\n"
        "    assert CliRunner().invoke(group, words).exit_code == 0\n"
        "print([name for name in ('broadleaf.cli.lab', 'broadleaf_lab') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.timeout(180)
def test_the_laboratory_alone_measures_any_program(tmp_path):
    python = python_of(("broadleaf-lab",))
    found = "from importlib.util import find_spec; print(find_spec('broadleaf'))"
    assert subprocess.run([python, "-I", "-c", found], capture_output=True, text=True, check=True).stdout == "None\n"
    assert "broadleaf-lab plan study" in said(python, "broadleaf_lab", "init", "study", cwd=tmp_path)
    (tmp_path / "study" / "study.toml").write_text(STUDY)
    run = said(python, "broadleaf_lab", "run", "study", "--runs", "8", "--max-wait", "0", cwd=tmp_path)
    assert "8 ok" in run
    assert "Report: study/report/report.html" in said(
        python, "broadleaf_lab", "report", "study", "--no-images", cwd=tmp_path
    )


def test_where_both_are_installed_it_is_a_command_of_both(tmp_path):
    python = python_with(("broadleaf[lab]",))
    ours = said(python, "broadleaf", "lab", "--help", cwd=tmp_path)
    assert ours.replace("Usage: broadleaf lab ", "Usage: broadleaf-lab ") == said(
        python, "broadleaf_lab", "--help", cwd=tmp_path
    )
    error = said(python, "broadleaf", "lab", "plan", str(tmp_path), cwd=tmp_path, code=1)
    assert error == f"error: {tmp_path}/study.toml: no such file. `broadleaf-lab init` writes one to start from.\n"
    assert error == said(python, "broadleaf_lab", "plan", str(tmp_path), cwd=tmp_path, code=1)
