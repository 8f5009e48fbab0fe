"""The rules of docstrings: what everything public says about its parameters, its value and its errors.

Run as a script it checks this checkout. It reads the package by importing it, so that what `import broadleaf` offers is
what is checked: the names of `__all__`, and the members of the classes among them that `dir` shows.
"""

from __future__ import annotations

import ast
import builtins
import concurrent.futures
import dataclasses
import inspect
import itertools
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import broadleaf

SECTIONS = ("Args", "Returns", "Raises", "Example")
_HEADING = re.compile(r"^(\w+):$", re.MULTILINE)
_ENTRY = re.compile(r"^    (\*{0,2}\w+): +\S", re.MULTILINE)
# A coroutine that does the same as a plain method: the text is in that method.
_COROUTINE_OF = re.compile(r"`(\w+)` as a coroutine\.")


def public() -> Iterator[tuple[str, Any, type | None]]:
    """(dotted name, function or class, the class that it is a member of) of everything public and callable, once."""
    seen: set[int] = set()
    for name in broadleaf.__all__:
        value = getattr(broadleaf, name)
        inner = [(f"{name}.{other}", getattr(value, other)) for other in getattr(value, "__all__", ())]
        for dotted, one in inner if isinstance(value, ModuleType) else [(name, value)]:
            for found, member, owner in _callables(dotted, one):
                if id(member) not in seen:
                    seen.add(id(member))
                    yield found, member, owner


def _callables(name: str, value: Any) -> Iterator[tuple[str, Any, type | None]]:
    if not _is_own(value):
        return
    yield name, value, None
    if inspect.isclass(value):
        for member_name in dir(value):
            member = inspect.getattr_static(value, member_name, None)
            member = getattr(member, "__func__", member)
            if not member_name.startswith("_") and inspect.isfunction(member) and _is_own(member):
                defined_by = member.__qualname__.split(".")[0]
                yield f"{defined_by if defined_by in broadleaf.__all__ else name}.{member_name}", member, value


def _is_own(value: Any) -> bool:
    return callable(value) and str(getattr(value, "__module__", "")).startswith("broadleaf")


def faults(name: str, value: Any, owner: type | None = None) -> list[str]:
    """What the docstring of a function or a class lacks, or states falsely."""
    text = inspect.getdoc(value) or (inspect.getdoc(getattr(owner, value.__name__)) if owner is not None else None)
    if not text:
        return [f"{name}: no docstring"]
    found = list(_form(text))
    coroutine_of = _COROUTINE_OF.search(text)
    if coroutine_of and owner is not None:
        twin = inspect.getattr_static(owner, coroutine_of[1], None)
        if twin is None or _parameters(twin) != _parameters(value):
            found.append(f"{coroutine_of[1]} has other parameters")
    elif not _is_covered(value, owner):
        found += _contents(value, text)
    return [f"{name}: {fault}" for fault in found]


def _form(text: str) -> Iterator[str]:
    summary, _, rest = text.partition("\n")
    if not re.search(r"[.:]$", summary) or rest.startswith(tuple("abcdefghijklmnopqrstuvwxyz")):
        yield "the summary is not one sentence on the first line"
    headings = _HEADING.findall(text)
    for heading in headings:
        if heading not in SECTIONS:
            yield f"no section is called {heading!r}; there are {', '.join(SECTIONS)}"
    if headings != sorted(headings, key=lambda heading: SECTIONS.index(heading) if heading in SECTIONS else -1):
        yield f"sections are not in the order {', '.join(SECTIONS)}"
    if re.search(r":\s", _section(text, "Returns").partition("\n")[0]):
        yield "Sphinx takes what stands before the colon in the first line of Returns for a type"


def _contents(value: Any, text: str) -> Iterator[str]:
    is_class = inspect.isclass(value)
    documented = set(_ENTRY.findall(_section(text, "Args")))
    parameters = _constructor(value) if is_class else _parameters(value)
    given = {*documented, *(_documented_fields(value) if is_class else ())}
    # A class whose constructor is its base's may leave the parameters to the base.
    for parameter in parameters if not is_class or _has_constructor(value) else ():
        if parameter not in given:
            yield f"{parameter} is not among the Args"
    for stranger in sorted(documented - set(parameters)):
        yield f"{stranger} is not a parameter"
    if not is_class:
        returns = inspect.signature(value).return_annotation
        is_nothing = returns in ("None", "NoReturn", None)
        if is_nothing and _section(text, "Returns"):
            yield "it returns nothing, and has a section Returns"
        elif not is_nothing and not _section(text, "Returns"):
            yield "no section Returns"
    raised = set(_ENTRY.findall(_section(text, "Raises")))
    for error in sorted(raised):
        if _error(error) is None:
            yield f"{error}, which is said to be raised, is no public exception"
    made_by = "__post_init__" if dataclasses.is_dataclass(value) else "__init__"
    function = vars(value).get(made_by) if is_class else inspect.unwrap(value)
    types = tuple(filter(None, map(_error, raised)))
    for error in sorted(errors_raised(function)) if function is not None else ():
        if error not in raised and not issubclass(_error(error) or object, types):
            yield f"{error} is raised, and not among the Raises"


def _section(text: str, name: str) -> str:
    """The text below a heading, up to the next."""
    found = re.search(rf"^{name}:\n((?:(?: .*)?\n?)*?)(?=^\S|\Z)", text, re.MULTILINE)
    return found[1] if found else ""


def _parameters(function: Callable[..., Any]) -> list[str]:
    """Names of a function's parameters, starred where they take any number of arguments."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    parameters = inspect.signature(getattr(function, "__func__", function)).parameters.values()
    return [stars.get(p.kind, "") + p.name for p in parameters if p.name not in ("self", "cls")]


def _constructor(cls: type) -> list[str]:
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls) if field.init]
    return _parameters(cls.__init__) if _is_own(cls.__init__) else []  # type: ignore[misc]


def _has_constructor(cls: type) -> bool:
    return dataclasses.is_dataclass(cls) or "__init__" in vars(cls)


def _documented_fields(cls: type) -> set[str]:
    """Fields of a dataclass that have a docstring below them."""
    found: set[str] = set()
    for base in cls.__mro__ if dataclasses.is_dataclass(cls) else ():
        if _is_own(base):
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body  # type: ignore[attr-defined]
            for field, text in itertools.pairwise(body):
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and _is_text(text):
                    found.add(field.target.id)
    return found


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_covered(value: Any, owner: type | None) -> bool:
    """Whether a method overrides one with the same parameters, whose docstring says the rest."""
    for base in owner.__mro__ if owner is not None else ():
        overridden = vars(base).get(value.__name__)
        is_base = overridden is not value and value.__qualname__.split(".")[0] != base.__name__
        if is_base and inspect.isfunction(overridden) and _is_own(overridden) and overridden.__doc__:
            return _parameters(overridden) == _parameters(value) and not faults(value.__name__, overridden)
    return False


def errors_raised(function: Callable[..., Any]) -> set[str]:
    """Exceptions that a function raises in its own body, by name.

    One without a message is for the function itself, which catches it.
    """
    waiting: list[ast.AST] = list(ast.parse(textwrap.dedent(inspect.getsource(function))).body[0].body)  # type: ignore[attr-defined]
    found = set()
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            error = node.exc.func
            name = error.attr if isinstance(error, ast.Attribute) else getattr(error, "id", "")
            if name[:1].isupper():
                found.add(name)
        waiting.extend(ast.iter_child_nodes(node))
    return found


def _error(name: str) -> type[BaseException] | None:
    """An exception that users can name: one of Python, or of `broadleaf.__all__`."""
    found = [getattr(module, name, None) for module in (builtins, concurrent.futures)]
    found += [getattr(broadleaf, name)] if name in broadleaf.__all__ else []
    return next((error for error in found if inspect.isclass(error) and issubclass(error, BaseException)), None)


def checked() -> list[str]:
    """All faults of the public interface."""
    return [fault for name, value, owner in public() for fault in faults(name, value, owner)]


if __name__ == "__main__":
    broken = checked()
    print("\n".join(broken))
    sys.exit(bool(broken))
