"""Commands when the libraries of an extra are not installed."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from broadleaf.cli.commands import EXTRAS

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
        (["bench", "echo", "--quick"], "bench"),
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


def test_the_modules_are_those_of_the_packages():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, modules in EXTRAS.items():
        packages = {text.partition(">")[0] for text in declared[extra]}
        assert set(modules) == packages
