"""Commands when the libraries of an extra are not installed."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from broadleaf.cli.terminal.extras import EXTRAS
from page_environments import python_with

ROOT = Path(__file__).resolve().parents[2]
_WITHOUT = (
    "import sys\n"
    "for name in ('numpy', 'matplotlib'):\n"
    "    sys.modules[name] = None\n"
    "from broadleaf.cli import main\n"
    "main(sys.argv[1:])\n"
)  # fmt: skip


def finished(*arguments, cwd):
    """Runs a command in a Python that has none of the extras."""
    return subprocess.run(
        [sys.executable, "-c", _WITHOUT, *arguments], capture_output=True, text=True, timeout=50, cwd=cwd
    )


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["plan", "--engines", "5", "--plot", "figures"], "plan"),
        (["bench", "raw", "--quick", "--plot", "figures"], "bench"),
        (["bench", "echo", "--quick"], "bench"),
        (["bench", "hosts"], "bench"),
    ],
)
def test_one_line_says_what_to_install(tmp_path, arguments, extra):
    done = finished(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert f"pip install 'broadleaf[{extra}]'" in line
    assert not (tmp_path / "figures").exists()


def test_what_needs_no_extra_goes_on_without(tmp_path):
    done = finished("plan", "--engines", "5", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


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


def test_the_modules_are_those_of_the_packages():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, modules in EXTRAS.items():
        packages = {text.partition(">")[0] for text in declared[extra]}
        assert set(modules) == packages
