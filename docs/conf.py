"""Sphinx configuration. The pages on options and commands are generated from the code before the pages are read."""

import inspect
import os
import re
import sys
from importlib import metadata
from pathlib import Path

import broadleaf
from broadleaf import config
from broadleaf.cli import group
from broadleaf.client.display.reprs import PublicNames
from sphinx.application import Sphinx
from sphinx.project import Project
from sphinx.pycode import ModuleAnalyzer

# The laboratory is a package of its own; `lab` is a link to its pages, which are part of this site.
sys.path.extend(str(Path(__file__).parent / folder) for folder in ("extensions", "lab"))
import command_reference
import study_tables

LABORATORY = Path(__file__).resolve().parent.parent / "lab"

project = "Broadleaf"
author = "the Broadleaf developers"
copyright = "2026, the Broadleaf developers"
release = metadata.version("broadleaf")

# It reads Markdown through myst-parser, and runs the notebooks among the pages. Sphinx reads a page again if it has
# changed, so a notebook runs then.
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "attribute_docstrings",
    "example_cards",
    "member_tables",
    "notebook_downloads",
    "unpublished_pages",
]
# Docstrings have the sections that pydoclint checks; types are in the signatures.
napoleon_numpy_docstring = False
# Docstrings name code in single backticks.
default_role = "code"
# What a program prints is not there to be copied.
copybutton_selector = "div:not(.highlight-output) > div.highlight > pre"
autodoc_member_order = "groupwise"
autodoc_typehints_format = "short"
maximum_signature_line_length = 130
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_execution_in_temp = True
nb_merge_streams = True
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
# For those who work on Broadleaf. Their links are checked all the same.
unpublished_pages = [
    "*.md",
    "lab/README.md",
    "benchmarks/**/*.md",
    "docs/internals/STATUS.md",
    "docs/internals/notebook/*.md",
]
html_theme = "furo"
# The theme's own underlines the names of modules.
pygments_dark_style = "github-dark"
html_title = "Broadleaf"
html_static_path = ["static"]
html_css_files = ["broadleaf.css"]
html_search_scorer = str(Path(__file__).parent / "search_scorer.js")
nitpicky = True
# Types of other packages, and the few of our own that people encounter but never name.
nitpick_ignore_regex = [("py:class", r"(?!broadleaf\.[A-Z]).*"), ("py:exc", r"(?!broadleaf\.).*")]

generated = Path(__file__).parent / "_build" / "generated"
generated.mkdir(parents=True, exist_ok=True)
(generated / "options.md").write_text(config.markdown_list())
for name, text in (command_reference.pages(group) | study_tables.pages(LABORATORY / "studies")).items():
    (generated / name).write_text(text)

# The kernels of notebooks ignore the settings of whoever builds the pages, and leave nothing in their history.
ipython = generated.parent / "ipython"
(ipython / "profile_default").mkdir(parents=True, exist_ok=True)
# They listen on loopback, and report at each start that their traffic is not encrypted. Their progress bars are text:
# widgets would make the pages load scripts from other hosts.
(ipython / "profile_default" / "ipython_kernel_config.py").write_text(
    """app = get_config().IPKernelApp
app.log_level = "ERROR"
app.exec_lines = [
    "import sys, warnings",
    "sys.modules['ipywidgets'] = None",
    "warnings.filterwarnings('ignore', 'IProgress not found')",
    "del sys, warnings",
]
"""
)
os.environ["IPYTHONDIR"] = str(ipython)


def internal_members(cls: type) -> list[object]:
    """Members of a public class and of its subclasses that are not meant for users (see `public_names`)."""
    own = [inspect.getattr_static(cls, name, None) for name in vars(cls).get("_internal_names", ())]
    return own + [member for subclass in cls.__subclasses__() for member in internal_members(subclass)]


def internal_attributes(cls: type) -> set[str]:
    """Names of those that only instances have."""
    listed = vars(cls).get("_internal_names", ())
    own = {name for name in listed if inspect.getattr_static(cls, name, None) is None}
    return own.union(*map(internal_attributes, cls.__subclasses__()))


path2doc = Project.path2doc


def path_to_document(project: Project, filename: str | os.PathLike[str]) -> str | None:
    """Makes links find the laboratory's pages: Sphinx reads them below `lab`, and links lead to their real folder."""
    path = Path(filename)
    pages = LABORATORY / "docs"
    return path2doc(project, "lab" / path.relative_to(pages) if path.is_relative_to(pages) else path)


Project.path2doc = path_to_document
analyze = ModuleAnalyzer.analyze


def analyze_without_overloads(analyzer: ModuleAnalyzer) -> None:
    """Makes autodoc show each function's own signature: overloads tell type checkers the same several times."""
    analyze(analyzer)
    analyzer.overloads = {}


ModuleAnalyzer.analyze = analyze_without_overloads


def setup(app: Sphinx) -> None:
    internal: list[object] = []
    attributes: set[str] = set()

    def skip(app: Sphinx, what: str, name: str, member: object, skipped: bool, options: object) -> bool | None:
        if not internal:
            # Classes are loaded when a name is first asked for.
            for public in dir(broadleaf):
                getattr(broadleaf, public)
            internal.extend(internal_members(PublicNames))
            attributes.update(internal_attributes(PublicNames))
        of_instances = name in attributes and not callable(member) and not isinstance(member, property)
        return True if of_instances or any(member is other for other in internal if other is not None) else None

    def separate(app: Sphinx, what: str, name: str, member: object, options: object, lines: list[str]) -> None:
        # reStructuredText reads "`Name`s" as text.
        lines[:] = [re.sub(r"(``[^`]+``|`[^`]+`)(\w)?", before_letter, line) for line in lines]

    def before_letter(found: re.Match[str]) -> str:
        return found[1] + ("\\ " + found[2] if found[2] else "")

    app.connect("autodoc-skip-member", skip)
    app.connect("autodoc-process-docstring", separate)
