"""What the targets of the Makefile would do in a fresh clone, in a folder of any name."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INSTALLS = re.compile(r"--requirement requirements/(\w+)\.txt")

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture(params=["broadleaf", "a b", "größer"])
def clone(request, tmp_path: Path) -> Path:
    """As much of a clone as make looks at before it runs anything."""
    root = tmp_path / request.param
    (root / "crates").mkdir(parents=True)
    for name in ("Makefile", "Cargo.toml", "Cargo.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, root / name)
    shutil.copytree(ROOT / "requirements", root / "requirements")
    return root


def plan(root: Path, *targets: str) -> str:
    """The commands that make would run."""
    # These tests may run under make themselves.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["make", "--dry-run", *targets],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_demo_installs_what_it_runs_with_and_no_more(clone):
    assert INSTALLS.findall(plan(clone, "demo")) == ["run"]


ADDED = {
    "test": ["test", "ray", "peers"],
    "peer-tests": ["peers"],
    "docs": ["docs"],
    "lint": ["lint"],
    "bench": ["bench"],
}


@pytest.mark.parametrize(("target", "adds"), ADDED.items())
def test_a_target_installs_what_it_needs_by_itself(clone, target, adds):
    assert INSTALLS.findall(plan(clone, target)) == ["run", *adds]


def test_what_the_machine_must_have_comes_first(clone):
    commands = plan(clone, "demo").splitlines()
    rust, environment = (
        next(i for i, line in enumerate(commands) if words in line) for words in ("rust.py", "-m venv")
    )
    assert rust < environment


def test_the_path_of_the_checkout_stays_one_word(clone):
    commands = plan(clone, "demo", "test", "docs", "lint").replace("\\\n", " ").splitlines()
    words = [word for line in commands for word in shlex.split(line, comments=True)]
    assert f"VIRTUAL_ENV={clone}/.venv" in words
    assert [word for word in words if str(clone.parent) in word and str(clone) not in word] == []
