"""What the documentation adds to Sphinx."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"

sys.path.insert(0, str(DOCS / "extensions"))

# Sphinx and MyST-NB are there where the documentation can be built.
attribute_docstrings = pytest.importorskip("attribute_docstrings", exc_type=ImportError)
member_tables = pytest.importorskip("member_tables", exc_type=ImportError)
notebook_downloads = pytest.importorskip("notebook_downloads", exc_type=ImportError)
nodes = pytest.importorskip("docutils.nodes")
addnodes = pytest.importorskip("sphinx.addnodes")
napoleon = pytest.importorskip("sphinx.ext.napoleon")
nbformat = pytest.importorskip("nbformat")
jupytext = pytest.importorskip("jupytext")


def described(objtype, name, *content):
    """What autodoc makes of a class or of one of its members."""
    signature = addnodes.desc_signature("", "", addnodes.desc_name("", name), ids=[f"x.{name}"])
    return addnodes.desc("", signature, addnodes.desc_content("", *content), objtype=objtype)


def page_with(described_class):
    document = nodes.document("", "")
    document += described_class
    member_tables.add_tables(None, document)
    return document


def test_a_class_has_a_table_of_its_members_above_them():
    members = [
        described("method", f"m{i}", nodes.paragraph("", f"Does {i}."), nodes.paragraph("", "More.")) for i in range(5)
    ]
    document = page_with(described("class", "C", nodes.paragraph("", "A class."), *members))
    (content,) = (node[-1] for node in document.findall(addnodes.desc) if node["objtype"] == "class")
    assert [type(child).__name__ for child in content][:3] == ["paragraph", "table", "desc"]
    rows = [[entry.astext() for entry in row] for row in content.findall(nodes.row)]
    assert rows == [[f"m{i}", f"Does {i}."] for i in range(5)]
    assert [link["refid"] for link in content[1].findall(nodes.reference)] == [f"x.m{i}" for i in range(5)]


def test_a_class_with_few_members_needs_none():
    document = page_with(described("class", "C", described("method", "m")))
    assert list(document.findall(nodes.table)) == []


PAGES = [
    page for folder in ("notebooks", "gallery") for page in sorted((DOCS / folder).glob("*.md")) if page.stem != "index"
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_notebook_that_a_page_offers_has_the_page_s_cells(page):
    notebook = notebook_downloads.notebook_of(page)
    nbformat.validate(notebook)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert code == [cell.source for cell in jupytext.read(page, fmt="md:myst").cells if cell.cell_type == "code"]


def test_other_pages_offer_none():
    assert notebook_downloads.notebook_of(DOCS / "gallery" / "index.md") is None
    assert notebook_downloads.notebook_of(DOCS / "guides" / "map.md") is None


@pytest.mark.parametrize("what", ["attribute", "property"])
def test_a_colon_in_the_docstring_of_an_attribute_is_no_type(what):
    text = "The engine sets that are running, by id: engines that were started together."
    assert ":type:" in "\n".join(napoleon.GoogleDocstring([text], what=what, name="C.engines").lines())
    lines = [text]
    attribute_docstrings.hide_first_line(None, what, "C.engines", None, None, lines)
    assert list(napoleon.GoogleDocstring(lines, what=what, name="C.engines").lines()) == ["..", "", text]
