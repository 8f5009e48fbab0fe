"""Cells whose results nobody keeps: neither the client nor the controller grows with their number.

`BROADLEAF_CELLS=10000` runs as many cells.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import re
from pathlib import Path

import pytest

CELLS = int(os.environ.get("BROADLEAF_CELLS", "400"))
# A tenth of the cells run before the first measurement: whatever is made once and kept exists by then.
FIRST_CELLS = max(20, CELLS // 10)
ENGINES = 4
# So much that the cells of a short run print several times what may remain of them.
PRINTED_BYTES = 64_000
GROWTH_BYTES = 20 << 20


def own_bytes(pid: int) -> int:
    """Memory of a process that no other process shares, and that belongs to no file."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.search(r"^Private_Dirty:\s+(\d+) kB", text, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.timeout(60 + CELLS // 20)
def test_cells_leave_nothing_behind(px, rc):
    processes = {"client": os.getpid(), "controller": rc.status()["pid"], "engine": rc[0].apply_sync(os.getpid)}

    def run(cells: range) -> None:
        for number in cells:
            with contextlib.redirect_stdout(io.StringIO()) as shown:
                px.run_cell_magic("px", "", f"value = {number}\nprint('x' * {PRINTED_BYTES})\nvalue * 2")
            assert shown.getvalue().count("x" * PRINTED_BYTES) == ENGINES
            assert shown.getvalue().count(f": {number * 2}\n") == ENGINES

    def look() -> dict[str, int]:
        gc.collect()
        return {name: own_bytes(pid) for name, pid in processes.items()}

    run(range(FIRST_CELLS))
    before = look()
    run(range(FIRST_CELLS, CELLS))
    grown = {name: after - before[name] for name, after in look().items()}
    print(f"grown by {grown} bytes in {CELLS - FIRST_CELLS} cells")
    assert all(growth <= GROWTH_BYTES for growth in grown.values()), grown
    assert len(rc.results) == 0
    assert rc.outstanding == set()
