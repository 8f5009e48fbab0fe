"""What the targets of the Makefile would do in a fresh clone, in a folder of any name."""

import ast
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name
from page_environments import declared, requirements_of

ROOT = Path(__file__).resolve().parents[2]
INSTALLS = re.compile(r"--requirement .ci/requirements/(\w+)\.txt")

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture(params=["broadleaf", "a b", "größer"])
def clone(request, tmp_path: Path) -> Path:
    """As much of a clone as make looks at before it runs anything."""
    root = tmp_path / request.param
    (root / "crates").mkdir(parents=True)
    for name in ("Makefile", "Cargo.toml", "Cargo.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, root / name)
    shutil.copytree(ROOT / ".ci", root / ".ci")
    (root / "lab").mkdir()
    shutil.copy(ROOT / "lab" / "pyproject.toml", root / "lab")
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
    "test": ["test"],
    "test-all": ["test", "ray", "jupyter", "peers", "release"],
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


# What each target runs by itself, besides Broadleaf's own commands.
RUNS = {
    "demo": ["examples/demo.py"],
    "fuzz": ["crates/fuzz/run.py"],
    "soak": ["tests/attack/*.py"],
    "figures": ["benchmarks/figures.py"],
    "bench": ["benchmarks/*.py"],
    "docs": ["docs/conf.py", "docs/extensions/*.py"],
    "wheels": [".ci/wheels.py"],
    "test-python": ["tests/*.py", "tests/[!p]*/**/*.py", "tests/property/*.py", "tests/plan/*.py"],
    "test-sites": ["tests/clusters/*.py", "tests/hosts/*.py"],
    "test-lab": ["lab/tests/**/*.py"],
    "test-statistics": ["lab/tests/**/*.py"],
    "peer-tests": ["tests/peers/run.py", "tests/peers/layout.py"],
}
# The requirements of the commands of this checkout that a target runs.
COMMANDS = {"bench": "broadleaf[bench]", "gate": "broadleaf-lab"}


def installed_by(target: str) -> set[str]:
    """The packages that make would have installed before it runs the target."""
    files = re.findall(r"--requirement (\.ci/requirements/\w+\.txt)", plan(ROOT, "--always-make", target))
    lines = [line for file in files for line in (ROOT / file).read_text().splitlines()]
    return {canonicalize_name(line.partition("==")[0]) for line in lines if "==" in line}


def imported(tree: ast.Module) -> Iterator[str]:
    """The top-level names of what a module imports when it is imported, unless it can do without."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def packages_of(names: set[str]) -> set[str]:
    """The packages that bring modules, without Python's own and those of this checkout."""
    known = packages_distributions()
    own = {"broadleaf", "broadleaf-lab", "pip"}
    return {canonicalize_name(known[name][0]) for name in names if name in known} - own


@pytest.mark.parametrize("target", RUNS)
def test_a_target_alone_installs_what_its_programs_import(target):
    paths = [path for pattern in RUNS[target] for path in ROOT.glob(pattern)]
    assert paths
    names = {name for path in paths for name in imported(ast.parse(path.read_text()))} - set(sys.stdlib_module_names)
    assert packages_of(names) - installed_by(target) == set()


@pytest.mark.parametrize("target", COMMANDS)
def test_a_target_alone_installs_what_its_command_needs(target):
    assert requirements_of([COMMANDS[target]]) - installed_by(target) == set()


def test_the_documentation_alone_installs_what_its_notebooks_name():
    pages = [path for folder in ("docs/notebooks", "docs/gallery", "lab/docs") for path in (ROOT / folder).glob("*.md")]
    needed = requirements_of({word for page in pages for word in declared(page.read_text())})
    assert {"scikit-learn", "pandas", "ipywidgets", "distributed", "joblib"} <= needed
    assert needed - installed_by("docs") == set()


def test_the_tests_alone_install_what_pages_and_notebooks_name():
    pages = [
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "lab").glob("*.md"),
        *(ROOT / "lab" / "docs").glob("*.md"),
    ]
    needed = requirements_of({word for page in pages for word in declared(page.read_text())})
    assert needed - installed_by("test-python") == set()


def test_the_check_of_clean_clones_knows_every_target():
    spec = importlib.util.spec_from_file_location("clean_targets", ROOT / ".ci" / "clean_targets.py")
    assert spec
    assert spec.loader
    clean_targets = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(clean_targets)
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    made_of_others = {"test", "test-all", "test-peers", "installed"}
    assert set(targets) - made_of_others - {"lock"} == set(clean_targets.TARGETS)
