"""Which cell of a notebook or session runs."""

from __future__ import annotations

from typing import Any, NamedTuple

from IPython import get_ipython

from broadleaf.state import connection


class Cell(NamedTuple):
    """A cell, and which of its runs this is."""

    key: str
    """The cell's id in its notebook. Where there is none, as at a prompt, its text."""
    run: int


def running_cell() -> Cell | None:
    """The cell that runs; None where there are no cells, and in an engine's shell."""
    shell: Any = get_ipython()  # type: ignore[no-untyped-call]
    if shell is None or connection.is_engine():
        return None
    parent = shell.get_parent() if hasattr(shell, "get_parent") else {}
    key = parent.get("metadata", {}).get("cellId", "")
    if not key:
        texts = shell.history_manager.input_hist_raw if shell.history_manager is not None else []
        key = texts[-1] if texts else ""
    return Cell(key, shell.execution_count) if key else None
