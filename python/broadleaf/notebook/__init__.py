"""Broadleaf in IPython and Jupyter.

`magics` has `%px` and its kin, and completion of engines' names; it is imported when a view is activated in a session.
`engine_kernel` is a program: a Jupyter kernel that runs code on an engine.
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broadleaf.client.views.direct import DirectView


def current_ipython() -> Any:
    """The running IPython session, or None; does not import IPython."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def activate(view: DirectView, suffix: str = "") -> None:
    """Makes `%px`, `%%px`, `%autopx`, `%pxresult` and `%pxconfig`, with `suffix` appended to their names, act on
    `view`. They replace existing magics of these names. Outside IPython it only warns.
    """
    ipython = current_ipython()
    if ipython is None:
        warnings.warn(
            "%px and the other magics work only in IPython and Jupyter; use view.execute() here", stacklevel=3
        )
        return
    from broadleaf.notebook.magics import ParallelMagics

    ParallelMagics.register(ipython, view, suffix)


def is_active(suffix: str = "") -> bool:
    """Whether there are magics with this suffix, and the client of their view is open."""
    ipython = current_ipython()
    if ipython is None:
        return False
    magic = ipython.magics_manager.magics["cell"].get("px" + suffix)
    view = getattr(getattr(magic, "__self__", None), "view", None)
    # A magic of this name may belong to another package, whose clients are not ours.
    return view is not None and not getattr(view.client, "closed", True)
