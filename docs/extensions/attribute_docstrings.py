"""Docstrings of attributes and properties may have a colon in their first line.

Napoleon takes what is before such a colon for a type. Types are in the signatures.
"""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx


def hide_first_line(app: Sphinx, what: str, name: str, member: object, options: object, lines: list[str]) -> None:
    """Puts an empty comment first, because that is where Napoleon looks for a type."""
    if what in ("attribute", "data", "property"):
        lines[:0] = ["..", ""]


def setup(app: Sphinx) -> dict[str, Any]:
    """The function that Sphinx calls."""
    # Before Napoleon, whose priority is 500.
    app.connect("autodoc-process-docstring", hide_first_line, priority=400)
    return {"parallel_read_safe": True, "version": "1"}
