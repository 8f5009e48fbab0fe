"""Programs for other libraries run with one import changed. The page that lists them shows the same table."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(120)
PROGRAMS = sorted(Path(__file__).with_name("programs").glob("*.py"))
CHECKOUT = Path(__file__).resolve().parents[3]
PAGE = CHECKOUT / "docs/guides/programs-of-others.md"
# Where `make` has installed IPython Parallel.
PEERS = CHECKOUT / ".peers-venv/bin/python"
# What a program imports -> what it imports instead.
CHANGES = {
    "from multiprocessing import Pool": "from broadleaf import Pool",
    "from concurrent.futures import ProcessPoolExecutor": "from broadleaf import ProcessPoolExecutor",
    "import ipyparallel as ipp": "import broadleaf as ipp",
}


def change_of(program):
    """The import of a program that is changed."""
    (old,) = [line for line in program.read_text().splitlines() if line in CHANGES]
    return old


def is_for_peer(program):
    return "ipyparallel" in change_of(program)


def output_of(program, tmp_path, python=sys.executable):
    done = subprocess.run(
        [python, str(program)],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
        # IPython Parallel writes its files there.
        env={**os.environ, "IPYTHONDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def expected_of(program):
    return program.with_suffix(".txt").read_text()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_it_prints_the_same_with_one_import_changed(program, tmp_path):
    old = change_of(program)
    lines = program.read_text().splitlines(keepends=True)
    changed = tmp_path / program.name
    changed.write_text("".join(CHANGES[old] + "\n" if line == old + "\n" else line for line in lines))
    assert output_of(changed, tmp_path) == expected_of(program)


@pytest.mark.parametrize("program", [p for p in PROGRAMS if not is_for_peer(p)], ids=lambda program: program.stem)
def test_it_prints_that_as_it_was(program, tmp_path):
    assert output_of(program, tmp_path) == expected_of(program)


@pytest.mark.sites
@pytest.mark.parametrize("program", [p for p in PROGRAMS if is_for_peer(p)], ids=lambda program: program.stem)
def test_it_prints_that_with_ipython_parallel(program, tmp_path):
    assert output_of(program, tmp_path, PEERS) == expected_of(program)


def test_the_page_lists_them_all():
    titles = {program: ast.get_docstring(ast.parse(program.read_text())) for program in PROGRAMS}
    rows = [
        f"| {title.removesuffix('.')} | `{change_of(program)}` | `{CHANGES[change_of(program)]}` |"
        for program, title in titles.items()
    ]
    assert len(rows) >= 20
    assert [line for line in PAGE.read_text().splitlines() if "` | `" in line] == rows
