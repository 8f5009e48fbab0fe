"""The notebooks of the documentation run from top to bottom, and raise where they say so and nowhere else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from page_environments import declared, kernel_with

jupytext = pytest.importorskip("jupytext")
pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = [*(path for folder in ("notebooks", "gallery") for path in sorted((DOCS / folder).glob("*.md")))]
PAGES.append(DOCS / "lab" / "notebook.md")
NAMES = [f"{page.parent.name}/{page.stem}" for page in PAGES if page.stem != "index"]

# In a process of its own, which takes its sockets along. The kernel has just the packages that the page names.
EXECUTE = """
import sys, nbclient, nbformat
notebook = nbformat.read("notebook.ipynb", as_version=4)
nbclient.NotebookClient(notebook, timeout=100, kernel_name="page", allow_errors=True).execute()
nbformat.write(notebook, "notebook.ipynb")
"""


def read(name):
    return jupytext.read(DOCS / f"{name}.md", fmt="md:myst")


def test_there_are_notebooks():
    assert len(NAMES) >= 16
    assert all(any(cell.cell_type == "code" for cell in read(name).cells) for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_says_what_you_will_learn_and_what_to_read_next(name):
    cells = read(name).cells
    assert re.match(r"# .+\n\nYou will learn ", cells[0].source)
    assert cells[-1].source.startswith("Next: ")
    assert any(word.startswith("broadleaf[") and "notebook" in word for word in declared(cells[0].source))


@pytest.mark.timeout(150)
@pytest.mark.parametrize("name", NAMES)
def test_notebook_runs(name, tmp_path):
    notebook = read(name)
    jupytext.write(notebook, tmp_path / "notebook.ipynb")
    kernel_with(declared(notebook.cells[0].source), tmp_path)
    environment = os.environ | {"IPYTHONDIR": str(tmp_path / "ipython"), "JUPYTER_PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE], cwd=tmp_path, env=environment, timeout=140, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    cells = json.loads((tmp_path / "notebook.ipynb").read_text())["cells"]
    raised = {
        "".join(cell["source"]): output["traceback"]
        for cell in cells
        for output in cell.get("outputs", ())
        if output["output_type"] == "error"
    }
    expected = [cell.source for cell in notebook.cells if "raises-exception" in cell.metadata.get("tags", ())]
    assert list(raised) == expected, raised
    # What a library lacks or is to be used otherwise it says there, in red.
    red = [output["text"] for cell in cells for output in cell.get("outputs", ()) if output.get("name") == "stderr"]
    assert not re.search("Warning|not found|it/s", "".join(map("".join, red))), red
