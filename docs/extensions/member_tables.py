"""Gives each class of the reference a table of its members, above them: each name as a link, and what it does."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

# A class with fewer members is seen at a glance.
MIN_MEMBERS = 4


def add_tables(app: Sphinx, doctree: nodes.document) -> None:
    """Inserts the tables into a page that has just been read."""
    for described in list(doctree.findall(addnodes.desc)):
        if described["objtype"] != "class":
            continue
        content = described[-1]
        members = [child for child in content.children if isinstance(child, addnodes.desc)]
        if len(members) >= MIN_MEMBERS:
            content.insert(content.index(members[0]), _table(members))


def _table(members: list[addnodes.desc]) -> nodes.table:
    body = nodes.tbody("", *(_row(member) for member in members))
    columns = [nodes.colspec(colwidth=width) for width in (30, 70)]
    return nodes.table("", nodes.tgroup("", *columns, body, cols=2), classes=["members"])


def _row(member: addnodes.desc) -> nodes.row:
    signature = next(iter(member.findall(addnodes.desc_signature)))
    name = next(iter(signature.findall(addnodes.desc_name))).astext()
    link = nodes.reference("", "", nodes.literal("", name), refid=signature["ids"][0], internal=True)
    summary = next((node for node in member[-1].children if isinstance(node, nodes.paragraph)), None)
    said = [] if summary is None else [summary.deepcopy()]
    return nodes.row("", nodes.entry("", nodes.paragraph("", "", link)), nodes.entry("", *said))


def setup(app: Sphinx) -> dict[str, Any]:
    """The function that Sphinx calls."""
    app.connect("doctree-read", add_tables)
    return {"parallel_read_safe": True, "version": "1"}
