"""Cells and breakpoints, and IPython's shell, which is made when something first needs it."""

from __future__ import annotations

import builtins
import os
import re
import sys
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from broadleaf.engine import output

if TYPE_CHECKING:
    import ast

    from broadleaf.engine.ipython_shell import EngineShell


# This engine's IPython shell, which is made when something first asks for it.


_INLINE_BACKEND = "module://matplotlib_inline.backend_inline"


def install_get_ipython() -> None:
    """Makes `get_ipython` a builtin, which makes the shell when it is first called."""
    builtins.get_ipython = get_ipython  # type: ignore[attr-defined]


def existing_shell() -> EngineShell | None:
    """This engine's IPython shell, if it has been made."""
    module = sys.modules.get("broadleaf.engine.ipython_shell")
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
        from broadleaf.engine.ipython_shell import EngineShell
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


# Cells as Python: which ones need IPython, and how it transforms them.


# What only IPython understands: magics, shell commands, help, autocalls, pasted prompts, an indented cell.
_IPYTHON_SYNTAX = re.compile(r"^\s*[%!?,;/]|=[ \t]*[%!]|\?[ \t]*$|^(?:>>> |In \[)|\A[ \t]+\S", re.MULTILINE)
# Code that mentions these may look for the shell in its own way, or expects figures to be shown.
_WANTS_SHELL = re.compile(r"\b(?:IPython|get_ipython|matplotlib|pyplot|pylab)\b")


def parse_cell(code: str, names: Mapping[str, Any], file_name: str) -> tuple[ast.Module, str]:
    """The syntax tree of a cell, and its Python source.

    Plain Python is left alone, and IPython is not even imported for it. Raises `SyntaxError`.
    """
    import ast

    shell = existing_shell()
    if shell is None and _WANTS_SHELL.search(code) and _has_ipython():
        shell = engine_shell()
    transforms = shell is not None and bool(shell.ast_transformers or shell.input_transformers_post)
    try:
        tree = ast.parse(code, file_name)
    except SyntaxError:
        if not _IPYTHON_SYNTAX.search(code):
            raise
    else:
        if not transforms and not _may_be_automagic(tree, names):
            return tree, code
    shell = engine_shell()
    source: str = shell.transform_cell(code)
    return shell.transform_ast(ast.parse(source, file_name)), source


def _has_ipython() -> bool:
    try:
        import IPython  # noqa: F401
    except ImportError:
        return False
    return True


def _may_be_automagic(tree: ast.Module, names: Mapping[str, Any]) -> bool:
    """Whether the cell is one expression that begins with a name nobody has set: `pwd`, `ls -l`."""
    import ast

    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.Expr):
        return False
    first: ast.expr = tree.body[0].value
    while isinstance(first, ast.BinOp):
        first = first.left
    if not isinstance(first, ast.Name) or first.id in names or hasattr(builtins, first.id):
        return False
    return _has_ipython()


# What an engine does at a `breakpoint()`, and the exceptions of failed tasks that it keeps for a debugger.


# By number, latest last.
_kept: OrderedDict[int, BaseException] = OrderedDict()
_max_kept = 0
_n_failed = 0


def install_breakpoints(keep_failed_frames: int) -> None:
    """Makes `breakpoint()` debug the task that calls it, and keeps this many exceptions."""
    global _max_kept
    _max_kept = keep_failed_frames
    sys.breakpointhook = on_breakpoint


def on_breakpoint(*args: Any, **options: Any) -> None:
    """The `sys.breakpointhook` of an engine. Like Python's own, it follows PYTHONBREAKPOINT if that is set."""
    if "PYTHONBREAKPOINT" in os.environ or not output.in_task():
        sys.__breakpointhook__(*args, **options)
        return
    from broadleaf.engine import debugger

    debugger.debug(sys._getframe(1), options.get("header"))


def keep_failed(error: BaseException) -> int | None:
    """Keeps what a task raised, with its frames; returns the number that `kept` takes, or None if nothing is kept."""
    global _n_failed
    if not _max_kept:
        return None
    _n_failed += 1
    _kept[_n_failed] = error
    while len(_kept) > _max_kept:
        _kept.popitem(last=False)
    return _n_failed


def kept_failed(number: int) -> BaseException:
    """The exception with this number. Raises `LookupError` if it is no longer kept."""
    if number not in _kept:
        raise LookupError(
            f"the frames of this failure are gone: its engine keeps those of the last {_max_kept} failed tasks"
        )
    return _kept[number]
