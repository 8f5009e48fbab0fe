"""Pages of the repository that are not on the site: their links are checked, and links to them become their paths.

`unpublished_pages` in `conf.py` has patterns of such pages, relative to the repository's root. Those below `docs/` are
left out of the site. A link that leads nowhere is a warning, as it is on a page of the site.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.util.logging import getLogger

log = getLogger(__name__)
ROOT = Path(__file__).resolve().parents[2]
# Inline links of Markdown; examples in code have none that count.
_CODE = re.compile(r"^(```+|~~~+).*?^\1|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^()\s]+)\)")


def pages(config: Config) -> Iterator[Path]:
    """The unpublished pages."""
    for pattern in config.unpublished_pages:
        yield from sorted(ROOT.glob(pattern))


def dead_links(page: Path) -> Iterator[str]:
    """Links of a page to files that do not exist."""
    for target in _LINK.findall(_CODE.sub("", page.read_text())):
        path, _, _ = target.partition("#")
        if path and "://" not in path and not path.startswith("mailto:") and not (page.parent / unquote(path)).exists():
            yield target


def leave_out(app: Sphinx, config: Config) -> None:
    """Keeps unpublished pages below `docs/` from the site."""
    source = Path(app.srcdir)
    config.exclude_patterns += [
        page.relative_to(source).as_posix() for page in pages(config) if page.is_relative_to(source)
    ]


def check(app: Sphinx) -> None:
    """Warns of links that lead nowhere."""
    for page in pages(app.config):
        for target in dead_links(page):
            log.warning("%s: a link to %s, which does not exist", page.relative_to(ROOT), target)


def show_paths(app: Sphinx, document: nodes.document) -> None:
    """Turns links to unpublished pages into their text, with the page's path in the repository."""
    unpublished = set(pages(app.config))
    folder = Path(app.env.doc2path(app.env.docname)).resolve().parent
    for link in list(document.findall(pending_xref)):
        target = link["reftarget"].partition("#")[0]
        source = Path(app.srcdir, f"{target}.md") if link.get("refdomain") == "doc" else folder / target
        page = Path(os.path.normpath(source))
        if page in unpublished:
            path = nodes.literal("", str(page.relative_to(ROOT)))
            link.replace_self([*link.children, nodes.Text(" ("), path, nodes.Text(")")])


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_config_value("unpublished_pages", [], "env", [list])
    app.connect("config-inited", leave_out)
    app.connect("builder-inited", check)
    app.connect("doctree-read", show_paths)
    return {"parallel_read_safe": True}
