"""Cells as Python: which ones need IPython, and how it transforms them."""

from __future__ import annotations

import builtins
import os
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ast

    from broadleaf.engine.interactive.ipython_shell import EngineShell

# What only IPython understands: magics, shell commands, help, autocalls, pasted prompts, an indented cell.
_IPYTHON_SYNTAX = re.compile(r"^\s*[%!?,;/]|=[ \t]*[%!]|\?[ \t]*$|^(?:>>> |In \[)|\A[ \t]+\S", re.MULTILINE)
# Code that mentions these may look for the shell in its own way, or expects figures to be shown.
_WANTS_SHELL = re.compile(r"\b(?:IPython|get_ipython|matplotlib|pyplot|pylab)\b")
_INLINE_BACKEND = "module://matplotlib_inline.backend_inline"


def install() -> None:
    """Makes `get_ipython` a builtin, which makes the shell when it is first called."""
    builtins.get_ipython = get_ipython  # type: ignore[attr-defined]


def existing_shell() -> EngineShell | None:
    """This engine's IPython shell, if it has been made."""
    module = sys.modules.get("broadleaf.engine.interactive.ipython_shell")
    return None if module is None else module.EngineShell.existing()


def get_ipython() -> EngineShell:
    """This engine's IPython shell. Raises `ImportError` where there is no IPython."""
    try:
        from broadleaf.engine.interactive.ipython_shell import EngineShell
    except ImportError as error:
        raise ImportError("magics, !commands and get_ipython() need IPython, which is not installed here") from error
    shell = EngineShell.existing()
    if shell is None:
        os.environ.setdefault("MPLBACKEND", _INLINE_BACKEND)
        shell = EngineShell.make(sys.modules["__main__"])
    return shell


def parse(code: str, names: Mapping[str, Any], file_name: str) -> tuple[ast.Module, str]:
    """The syntax tree of a cell, and its Python source.

    Plain Python is left alone, and IPython is not even imported for it. Raises `SyntaxError`.
    """
    import ast

    shell = existing_shell()
    if shell is None and _WANTS_SHELL.search(code) and _has_ipython():
        shell = get_ipython()
    transforms = shell is not None and bool(shell.ast_transformers or shell.input_transformers_post)
    try:
        tree = ast.parse(code, file_name)
    except SyntaxError:
        if not _IPYTHON_SYNTAX.search(code):
            raise
    else:
        if not transforms and not _may_be_automagic(tree, names):
            return tree, code
    shell = get_ipython()
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
