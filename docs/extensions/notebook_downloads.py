"""Offers each page that is a notebook as a file for JupyterLab, without outputs, below the page's title."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
from docutils import nodes
from myst_nb.core.read import read_myst_markdown_notebook
from sphinx.application import Sphinx


def notebook_of(source: Path) -> nbformat.NotebookNode | None:
    """The notebook that a page is, or None."""
    text = source.read_text()
    return read_myst_markdown_notebook(text, path=source) if text.startswith("---\njupytext:") else None


def offer(app: Sphinx, doctree: nodes.document) -> None:
    """Adds the link to a page that has just been read."""
    page = app.env.docname
    if notebook_of(app.env.doc2path(page)) is None:
        return
    title = next(iter(doctree.findall(nodes.title)))
    name = f"{Path(page).name}.ipynb"
    link = nodes.reference("", "", nodes.literal("", name), refuri=name, internal=True)
    title.parent.insert(1, nodes.paragraph("", "", nodes.Text("This page as a notebook: "), link))


def write(app: Sphinx, error: Exception | None) -> None:
    """Writes the notebooks beside the pages."""
    if error is None and app.builder.name == "html":
        for page in app.env.found_docs:
            notebook = notebook_of(app.env.doc2path(page))
            if notebook is not None:
                nbformat.write(notebook, app.outdir / f"{page}.ipynb")


def setup(app: Sphinx) -> dict[str, Any]:
    """The function that Sphinx calls."""
    app.connect("doctree-read", offer)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "version": "1"}
