"""Sphinx configuration. The table of options is written from the code before the pages are read."""

from importlib import metadata
from pathlib import Path

from broadleaf import config

project = "Broadleaf"
author = "the Broadleaf developers"
copyright = "2026, the Broadleaf developers"
release = metadata.version("broadleaf")

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "alabaster"
html_theme_options = {"description": "Interactive parallel computing for Python", "fixed_sidebar": True}
nitpicky = True

generated = Path(__file__).parent / "_build" / "generated"
generated.mkdir(parents=True, exist_ok=True)
(generated / "options.md").write_text(config.markdown_table())
