"""Cells as Python: which ones need IPython, and how it transforms them."""

from __future__ import annotations

import builtins
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from broadleaf.engine.interactive.shell_access import engine_shell, existing_shell

if TYPE_CHECKING:
    import ast

# What only IPython understands: magics, shell commands, help, autocalls, pasted prompts, an indented cell.
_IPYTHON_SYNTAX = re.compile(r"^\s*[%!?,;/]|=[ \t]*[%!]|\?[ \t]*$|^(?:>>> |In \[)|\A[ \t]+\S", re.MULTILINE)
# Code that mentions these may look for the shell in its own way, or expects figures to be shown.
_WANTS_SHELL = re.compile(r"\b(?:IPython|get_ipython|matplotlib|pyplot|pylab)\b")


def parse(code: str, names: Mapping[str, Any], file_name: str) -> tuple[ast.Module, str]:
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
