"""Everything public explains its parameters, its value and its errors. `ruff` and `pydoclint` check what it says."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any

import broadleaf
import pytest
from public_names import public

_COROUTINE_OF = re.compile(r"`(\w+)` as a coroutine\.")
_ENTRY = re.compile(r"^    (\w+): +\S", re.MULTILINE)
_PARAMETER = re.compile(r"^    \*{0,2}(\w+):", re.MULTILINE)
_SECTION = re.compile(r"^(Args|Returns|Yields|Raises|Examples?):\n((?:(?: .*)?\n?)*)", re.MULTILINE)
_ORDER = ["Args", "Returns", "Yields", "Raises", "Example", "Examples"]


def faults(name: str, value: Any, owner: type | None = None) -> list[str]:
    """What a docstring says nothing of."""
    inherited = getattr(owner, value.__name__, None) if owner is not None else None
    text = inspect.getdoc(value) or (inspect.getdoc(inherited) if inherited is not None else None)
    if not text:
        return [f"{name}: no docstring"]
    sections = dict(_SECTION.findall(text))
    order = sorted(sections, key=_ORDER.index)
    found = [f"its sections are not in the order {', '.join(order)}"] if order != list(sections) else []
    said = set(_ENTRY.findall(sections.get("Raises", "")))
    found += [
        f"{error} is said to be raised, and does not exist" for error in sorted(said) if not error_named(error, value)
    ]
    if inspect.isclass(value):
        found += unexplained(value, sections.get("Args", ""))
        return [f"{name}: {fault}" for fault in found]
    if owner is not None and (_COROUTINE_OF.search(text) or overrides(value, owner)):
        return [f"{name}: {fault}" for fault in found]
    signature = inspect.signature(value)
    if set(signature.parameters) - {"self", "cls"} and "Args" not in sections:
        found.append("no section Args")
    if signature.return_annotation not in ("None", "NoReturn", None) and not {"Returns", "Yields"} & sections.keys():
        found.append("no section Returns")
    found += [f"{error} is raised, and not said to be" for error in sorted(raised(value)) if not covered(error, said)]
    return [f"{name}: {fault}" for fault in found]


def error_named(error: str, where: Any) -> bool:
    """Whether an exception of that name exists for whoever reads the docstring."""
    module = inspect.getmodule(inspect.unwrap(where))
    kind = next(
        (vars(one)[error] for one in (broadleaf, broadleaf.error, builtins, module) if error in vars(one)), None
    )
    return inspect.isclass(kind) and issubclass(kind, BaseException)


def unexplained(kind: type, args: str) -> list[str]:
    """Parameters of a class that its docstring does not explain, nor that of `__init__` or of a field."""
    own = vars(kind).get("__init__")
    if not inspect.isfunction(own):
        return []
    more = inspect.getdoc(own) or ""
    names = {*inspect.signature(own).parameters} - {"self"}
    missing = names - set(_PARAMETER.findall(args + more))
    return [f"{name} is a parameter, and not explained" for name in sorted(missing) if not is_field(kind, name)]


def is_field(kind: type, name: str) -> bool:
    """Whether a dataclass has a field of that name, which its reference shows with the comment below it."""
    return name in getattr(kind, "__dataclass_fields__", {})


def overrides(value: Any, owner: type) -> bool:
    """Whether a method has the parameters of one that it overrides, whose docstring says the rest."""
    bases = (vars(base).get(value.__name__) for base in owner.__mro__)
    others = (base for base in bases if inspect.isfunction(base) and base is not value and base.__doc__)
    names = inspect.signature(value).parameters.keys()
    return any(inspect.signature(base).parameters.keys() == names for base in others)


def raised(function: Callable[..., Any]) -> set[str]:
    """Exceptions with a message that a function raises in its own body, by name."""
    body = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body[0].body
    waiting, found = list(body), set()
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            error = node.exc.func
            found.add(error.attr if isinstance(error, ast.Attribute) else getattr(error, "id", ""))
        waiting += ast.iter_child_nodes(node)
    return {name for name in found if name[:1].isupper()}


def covered(error: str, said: set[str]) -> bool:
    """Whether an error is said to be raised, or one that it is a kind of."""
    if error in said:
        return True
    kind, *others = (getattr(broadleaf, name, None) or getattr(builtins, name, None) for name in (error, *said))
    return any(kind and other and issubclass(kind, other) for other in others)


def test_everything_public_says_it_all():
    found = list(public())
    names = {name for name, *_ in found}
    assert {
        "Client",
        "Client.wait",
        "DirectView.push",
        "Cluster.scale",
        "BatchSet.submit",
        "plan.sends",
        "empty",
    } <= names
    assert not {"Client.on_event", "AsyncResult.on_output"} & names, "these are for the package's own use"
    assert [fault for name, value, owner in found for fault in faults(name, value, owner)] == []


def without() -> None: ...


def forgets(n: int) -> str:
    """Words for a number."""
    if n < 0:
        raise ValueError(f"{n} is negative")
    return str(n)


def raises_a_kind_of(path: str) -> None:
    """Does nothing, or fails.

    Args:
        path: Where.

    Raises:
        OSError: There is no such file.
    """
    raise FileNotFoundError(f"{path} is not there")


def names_none(path: str) -> str:
    """Reads a file.

    Raises:
        NoSuchError: Never.

    Args:
        path: Where.

    Returns:
        What it holds.
    """
    return path


class Halves:
    """Two of them.

    Args:
        left: The one.
    """

    def __init__(self, left: int, right: int) -> None:
        self.left, self.right = left, right


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (without, ["no docstring"]),
        (forgets, ["no section Args", "no section Returns", "ValueError is raised, and not said to be"]),
        (raises_a_kind_of, []),
        (
            names_none,
            [
                "its sections are not in the order Args, Returns, Raises",
                "NoSuchError is said to be raised, and does not exist",
            ],
        ),
        (Halves, ["right is a parameter, and not explained"]),
    ],
)
def test_what_a_docstring_lacks_is_noticed(value, expected):
    assert faults("it", value) == [f"it: {fault}" for fault in expected]
