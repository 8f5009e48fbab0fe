"""Sphinx configuration. The table of options is written from the code before the pages are read."""

import os
from importlib import metadata
from pathlib import Path

from broadleaf import config

project = "Broadleaf"
author = "the Broadleaf developers"
copyright = "2026, the Broadleaf developers"
release = metadata.version("broadleaf")

# It reads Markdown by way of myst-parser, and runs the notebooks among the pages. Sphinx reads a page again when it has
# changed, so a notebook runs then.
extensions = ["myst_nb"]
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_execution_in_temp = True
nb_merge_streams = True
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "alabaster"
html_theme_options = {
    "description": "Interactive parallel computing for Python",
    "fixed_sidebar": True,
    "page_width": "1120px",
}
nitpicky = True

generated = Path(__file__).parent / "_build" / "generated"
generated.mkdir(parents=True, exist_ok=True)
(generated / "options.md").write_text(config.markdown_table())

# The kernels of notebooks take no settings of whoever builds the pages, and leave nothing in their history.
ipython = generated.parent / "ipython"
(ipython / "profile_default").mkdir(parents=True, exist_ok=True)
# They listen on loopback, and say at each start that what they send is not encrypted.
(ipython / "profile_default" / "ipython_kernel_config.py").write_text("get_config().IPKernelApp.log_level = 'ERROR'\n")
os.environ["IPYTHONDIR"] = str(ipython)
