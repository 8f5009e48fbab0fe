"""The commands where the package was installed without what it requires, and its entry points."""

import subprocess
import sys
import tomllib
import zipfile
from importlib import import_module
from pathlib import Path

import pytest
from broadleaf_lab.cli import terminal

LAB = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((LAB / "pyproject.toml").read_text())["project"]
# Modules whose package has another name.
PACKAGES = {"sklearn": "scikit-learn", "vl_convert": "vl-convert-python"}
WITHOUT = (
    "import sys\n"
    "for name in ('numpy', 'pandas', 'scipy', 'altair', 'optuna', 'ruptures'):\n"
    "    sys.modules[name] = None\n"
    "from broadleaf_lab.cli import main\n"
    "main(sys.argv[1:])\n"
)  # fmt: skip


def finished(*arguments, cwd):
    """Runs a command in a Python that has none of these libraries."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, *arguments], capture_output=True, text=True, timeout=50, cwd=cwd
    )


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    done = finished("init", ".", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize(
    "arguments",
    [["plan"], ["run"], ["deltas"], ["analyse"], ["path"], ["report"], ["tune", "--runs", "2"], ["history", "a..b"]],
)  # fmt: skip
def test_one_line_says_what_to_install(study, arguments):
    done = finished(*arguments, cwd=study)
    # If 1 is a verdict, a failure to decide is 3.
    assert done.returncode == (3 if "tune" in arguments else 1)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "pip install broadleaf-lab" in line


@pytest.mark.parametrize("arguments", [["status"], ["power"], ["analyse", "--help"]])
def test_what_computes_little_goes_on_without(study, arguments):
    done = finished(*arguments, cwd=study)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_modules_are_those_of_the_requirements():
    packages = {text.partition(">")[0] for text in PROJECT["dependencies"]}
    assert {PACKAGES.get(module, module) for module in terminal._REQUIRED} == packages - {"click", "rich"}


def test_the_entry_points_name_what_there_is():
    points = {**PROJECT["scripts"], **PROJECT["entry-points"]["broadleaf.commands"]}
    for module, name in (point.split(":") for point in points.values()):
        assert callable(getattr(import_module(module), name))


def test_the_wheel_holds_the_package_and_nothing_else(tmp_path):
    pytest.importorskip("flit_core")
    build = f"from flit_core.buildapi import build_wheel; build_wheel({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=LAB, timeout=50, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = (path for path in (LAB / "src").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert packed == {str(path.relative_to(LAB / "src")) for path in sources}
