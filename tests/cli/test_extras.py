"""Commands when the libraries of an extra are not installed."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from broadleaf.cli.commands import EXTRAS

ROOT = Path(__file__).resolve().parents[2]
# Modules whose package has another name.
PACKAGES = {"sklearn": "scikit-learn", "vl_convert": "vl-convert-python", "z3": "z3-solver"}
_WITHOUT = (
    "import sys\n"
    "for name in ('numpy', 'pandas', 'scipy', 'matplotlib', 'altair', 'optuna', 'ruptures', 'statsmodels'):\n"
    "    sys.modules[name] = None\n"
    "from broadleaf.cli import main\n"
    "main(sys.argv[1:])\n"
)  # fmt: skip


def finished(*arguments, cwd):
    """Runs a command in a Python that has none of the extras."""
    return subprocess.run(
        [sys.executable, "-c", _WITHOUT, *arguments], capture_output=True, text=True, timeout=50, cwd=cwd
    )


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    done = finished("lab", "init", ".", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["lab", "plan"], "lab"),
        (["lab", "run"], "lab"),
        (["lab", "deltas"], "lab"),
        (["lab", "analyse"], "lab"),
        (["lab", "path"], "lab"),
        (["lab", "report"], "lab"),
        (["lab", "tune", "--runs", "2"], "lab"),
        (["lab", "history", "a..b"], "lab"),
        (["lab", "synth", "eight", "eight"], "lab"),
        (["plan", "--engines", "5", "--plot", "figures"], "plan"),
        (["bench", "raw", "--quick", "--plot", "figures"], "bench"),
        (["bench", "echo", "--quick"], "bench"),
        (["bench", "hosts"], "bench"),
    ],
)
def test_one_line_says_what_to_install(study, arguments, extra):
    done = finished(*arguments, cwd=study)
    # If 1 is a verdict, a failure to decide is 3.
    assert done.returncode == (3 if "tune" in arguments else 1)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert f"pip install 'broadleaf[{extra}]'" in line
    assert not (study / "figures").exists()


@pytest.mark.parametrize(
    "arguments", [["lab", "status"], ["lab", "power"], ["plan", "--engines", "5"], ["lab", "analyse", "--help"]]
)
def test_what_needs_no_extra_goes_on_without(study, arguments):
    done = finished(*arguments, cwd=study)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_modules_are_those_of_the_packages():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, modules in EXTRAS.items():
        packages = {text.partition(">")[0] for text in declared[extra]}
        assert {PACKAGES.get(module, module) for module in modules} == packages
