"""The directive `example-card`: a picture from a page, the page's title, and what it shows, as one link to it.

The picture is an image on the page itself, so a notebook's is the one that the notebook drew while the pages were
built. `:picture:` counts the page's images from 1, and from the end with a negative number. `:crop:` shows the upper
part of a picture that would be too small as a whole, such as a screenshot.
"""

from __future__ import annotations

from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.logging import getLogger

log = getLogger(__name__)


class card(nodes.General, nodes.Element):
    """Stands for a card until all pages have been read."""


class ExampleCard(SphinxDirective):
    """Takes the name of a page as a path from this one, without its suffix; the content is a sentence or two."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {"picture": int, "crop": directives.flag}

    def run(self) -> list[nodes.Node]:
        """A placeholder, with the sentences in it."""
        _, path = self.env.relfn2path(f"{self.arguments[0]}.md")
        found = card(page=self.env.path2doc(path), picture=self.options.get("picture", -1), crop="crop" in self.options)
        self.set_source_info(found)
        found += self.parse_content_to_nodes()
        return [found]


def fill_cards(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Replaces each placeholder by the picture, the title and the sentences."""
    for placeholder in list(doctree.findall(card)):
        page = placeholder["page"]
        if page not in app.env.all_docs:
            log.warning("there is no page %r for a card", page, location=placeholder)
            continue
        title = app.env.titles[page].astext()
        target = app.builder.get_relative_uri(docname, page)
        box = nodes.container(classes=["example-card", "cropped"] if placeholder["crop"] else ["example-card"])
        images = list(app.env.get_doctree(page).findall(nodes.image))
        place = placeholder["picture"]
        try:
            picture = images[place - 1 if place > 0 else place].deepcopy()
        except IndexError:
            log.warning("page %r has no picture number %d", page, place, location=placeholder)
        else:
            picture["alt"] = title
            for size in ("width", "height", "scale"):
                picture.attributes.pop(size, None)
            box += nodes.reference("", "", picture, refuri=target, internal=True)
        link = nodes.reference("", title, refuri=target, internal=True)
        box += nodes.paragraph("", "", nodes.strong("", "", link))
        box += placeholder.children
        placeholder.replace_self(box)


def setup(app: Sphinx) -> dict[str, Any]:
    """The function that Sphinx calls."""
    app.add_node(card)
    app.add_directive("example-card", ExampleCard)
    app.connect("doctree-resolved", fill_cards)
    return {"parallel_read_safe": True, "version": "1"}
