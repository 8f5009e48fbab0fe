"""The cells of the page on magics run unchanged."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "magics.md"
CELLS = re.findall(r"^```(?:python|text)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_cells_of_the_page(ip):
    assert len(CELLS) >= 9
    failed = [(cell, done.error_in_exec) for cell in CELLS if not (done := ip.run_cell(cell)).success]
    if failed:
        ip.run_cell("cluster.stop_cluster_sync()")
    assert failed == []
