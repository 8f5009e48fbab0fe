"""The magics in a kernel of Jupyter, through nbclient."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

# In a process of its own, which takes its sockets along.
EXECUTE = """
import json, nbclient, nbformat
cells = [nbformat.v4.new_code_cell(source) for source in json.load(open("cells.json"))]
notebook = nbformat.v4.new_notebook(cells=cells)
nbclient.NotebookClient(notebook, timeout=100, kernel_name="python3", allow_errors=True).execute()
json.dump([[cell["outputs"] for cell in notebook.cells], notebook.metadata], open("outputs.json", "w"))
"""

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """Outputs of the cells of a notebook, by a name for each."""
    sources = {
        "start": "import broadleaf as ipp\nrc = ipp.Cluster(n=2).start_and_connect_sync(activate=True)",
        "prints": "%%px\nimport time\nfor i in range(3):\n    print('line', i)\n    time.sleep(0.05)\nengine_id",
        "after": "print('mine')",
        "rich": "%%px\nclass Rich:\n    def _repr_html_(self): return '<b>rich</b>'\ndisplay(Rich())\nRich()",
        "fails": "%%px\n1 / 0",
        "figure": "%%px -t 0\nimport matplotlib.pyplot as plt\nplt.plot([1, 2]);",
        "progress": "ar = rc.load_balanced_view().map_async(__import__('time').sleep, [0.01] * 20)\n"
        "ar.wait_interactive(interval=0.01)",
        "client": "rc",
        "long": "%%px --progress-after 0\nimport time; time.sleep(3)",
        "auto": "%autopx",
        "on engines": "engine_id",
        "no auto": "%autopx",
        "stop": "rc.cluster.stop_cluster_sync()",
    }
    directory = tmp_path_factory.mktemp("notebook")
    (directory / "cells.json").write_text(json.dumps(list(sources.values())))
    environment = os.environ | {"IPYTHONDIR": str(directory / "ipython")}
    done = subprocess.run([sys.executable, "-c", EXECUTE], cwd=directory, env=environment, timeout=110)
    assert done.returncode == 0
    outputs, metadata = json.loads((directory / "outputs.json").read_text())
    return dict(zip(sources, outputs, strict=True)) | {"widgets": json.dumps(metadata, ensure_ascii=False)}


def text(outputs, name="stdout"):
    return "".join(output["text"] for output in outputs if output["output_type"] == "stream" and output["name"] == name)


def test_output_is_in_its_own_cell(cells):
    assert text(cells["prints"]).count("line") == 6
    assert "line" not in text(cells["start"])
    assert text(cells["after"]) == "mine\n"
    values = [output["data"]["text/plain"] for output in cells["prints"] if "data" in output]
    assert [value.split(": ")[1] for value in values] == ["0", "1"]


def test_rich_values_and_displays(cells):
    html = [output["data"].get("text/html") for output in cells["rich"] if "data" in output]
    assert html == ["<b>rich</b>"] * 4
    # Neither the displays nor the values show which engine they belong to.
    assert sorted(re.findall(r"\[[01]\b|\[output:[01]\]", text(cells["rich"]))) == [
        "[0",
        "[1",
        "[output:0]",
        "[output:1]",
    ]


def test_errors(cells):
    (error,) = (output for output in cells["fails"] if output["output_type"] == "error")
    assert error["traceback"] == ["2 errors"]
    shown = text(cells["fails"], "stderr")
    assert re.sub(r"\x1b\[[\d;]*m", "", shown).count("ZeroDivisionError: division by zero") == 1
    assert "\x1b[" in shown, "as IPython shows its own tracebacks"


def test_figures(cells):
    assert any("image/png" in output.get("data", {}) for output in cells["figure"])


@pytest.mark.parametrize(("name", "count"), [("progress", "20/20"), ("long", "2/2")])
def test_progress(cells, name, count):
    """A bar of ipywidgets, where these are installed, and of text elsewhere."""
    shown = text(cells[name], "stderr")
    if any("application/vnd.jupyter.widget-view+json" in output.get("data", {}) for output in cells[name]):
        shown = cells["widgets"]
    assert re.search(rf"(?<!\d){count}(?!\d)", shown)


def test_a_look_at_the_client(cells):
    (output,) = cells["client"]
    assert "<table>" in output["data"]["text/html"]
    assert "idle" in output["data"]["text/html"]


def test_autopx(cells):
    assert text(cells["auto"]) == "%autopx enabled\n"
    values = [output["data"]["text/plain"] for output in cells["on engines"] if "data" in output]
    assert [value.split(": ")[1] for value in values] == ["0", "1"]
    assert text(cells["no auto"]) == "%autopx disabled\n"
