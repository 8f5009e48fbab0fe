"""This engine's IPython shell, which is made when something first asks for it."""

from __future__ import annotations

import builtins
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broadleaf.engine.interactive.ipython_shell import EngineShell

_INLINE_BACKEND = "module://matplotlib_inline.backend_inline"


def install() -> None:
    """Makes `get_ipython` a builtin, which makes the shell when it is first called."""
    builtins.get_ipython = get_ipython  # type: ignore[attr-defined]


def existing_shell() -> EngineShell | None:
    """This engine's IPython shell, if it has been made."""
    module = sys.modules.get("broadleaf.engine.interactive.ipython_shell")
    return None if module is None else module.EngineShell.existing()


def get_ipython() -> EngineShell:
    """This engine's IPython shell. Raises `NameError` without IPython, because libraries look for that."""
    try:
        return engine_shell()
    except ImportError as error:
        raise NameError(f"name 'get_ipython' is not defined: {error}", name="get_ipython") from error


def engine_shell() -> EngineShell:
    """This engine's IPython shell, which is made if there is none. Raises `ImportError` without IPython."""
    try:
        from broadleaf.engine.interactive.ipython_shell import EngineShell
    except ImportError as error:
        raise ImportError(
            "magics, !commands and get_ipython() need IPython, which is not installed here: pip install "
            "'broadleaf[notebook]'"
        ) from error
    shell = EngineShell.existing()
    if shell is None:
        os.environ.setdefault("MPLBACKEND", _INLINE_BACKEND)
        shell = EngineShell.make(sys.modules["__main__"])
    return shell
