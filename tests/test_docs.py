"""The Python examples of the README and the pages run as they stand, each page from top to bottom as one script."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import broadleaf
import pytest

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = {
    str(page.relative_to(ROOT)): "".join(BLOCK.findall(page.read_text()))
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "_build" not in page.parts
}
# Their examples need hosts, or an MPI: tests in `tests/clusters` run them.
ELSEWHERE = {f"docs/guides/{page}.md" for page in ("ssh", "slurm", "sge", "mpi", "dask", "ray")}


def test_there_are_examples():
    assert {"README.md", "docs/index.md", "docs/tour.md"} <= {name for name, code in PAGES.items() if code}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("page", [name for name, code in PAGES.items() if code and name not in ELSEWHERE])
def test_examples_run(page, tmp_path):
    pytest.importorskip("broadleaf._native", reason="the native module is not built")
    script = tmp_path / "page.py"
    script.write_text(PAGES[page])
    environment = os.environ | {"BROADLEAF_DIR": str(tmp_path / "state")}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=100, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_reference_has_every_public_name():
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    documented = set(re.findall(r"^(?:\.\. \w+::|         ) +(\w+)$", pages, re.MULTILINE))
    modules = set(re.findall(r"^\.\. (?:auto)?module:: broadleaf\.(\w+)$", pages, re.MULTILINE))
    public = {name for name in dir(broadleaf) if not name.startswith("_")}
    assert documented | modules >= public, sorted(public - documented - modules)
    assert documented <= public | {"broadleaf"}, sorted(documented - public)


@pytest.mark.parametrize("page", PAGES)
def test_links_to_files_lead_somewhere(page):
    text = (ROOT / page).read_text()
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert [target for target in targets if not ((ROOT / page).parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_no_heading_skips_a_level(page):
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    levels = [len(marks) for marks in re.findall(r"^(#+) ", text, re.MULTILINE)]
    assert levels[0] == 1
    assert [f"{a} -> {b}" for a, b in itertools.pairwise(levels) if b > a + 1] == []
