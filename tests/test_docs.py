"""The pages' Python examples run as they stand, each page from top to bottom as one script."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = {str(page.relative_to(DOCS)): "".join(BLOCK.findall(page.read_text())) for page in sorted(DOCS.rglob("*.md"))}


def test_there_are_examples():
    assert {"index.md", "tour.md", "guides/views.md"} <= {name for name, code in PAGES.items() if code}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("page", [n for n, code in PAGES.items() if code and not n.startswith(("adr/", "internals/"))])
def test_examples_run(page, tmp_path):
    pytest.importorskip("broadleaf._native", reason="the native module is not built")
    script = tmp_path / "page.py"
    script.write_text(PAGES[page])
    environment = os.environ | {"BROADLEAF_DIR": str(tmp_path / "state")}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=100, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
