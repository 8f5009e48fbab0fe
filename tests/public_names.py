"""Everything public: what `broadleaf.__all__` names, and the members of its classes that `dir` shows."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import broadleaf


def public() -> Iterator[tuple[str, Any, type | None]]:
    """(dotted name, function or class, its class) of all that `__all__` and `dir` show, once."""
    seen: set[int] = set()
    for name in broadleaf.__all__:
        value = getattr(broadleaf, name)
        inner = [(f"{name}.{other}", getattr(value, other)) for other in getattr(value, "__all__", ())]
        for dotted, one in inner if isinstance(value, ModuleType) else [(name, value)]:
            for found, member, owner in members(dotted, one):
                if id(member) not in seen:
                    seen.add(id(member))
                    yield found, member, owner


def members(name: str, value: Any) -> Iterator[tuple[str, Any, type | None]]:
    if not is_own(value):
        return
    yield name, value, None
    for member_name in dir(value) if inspect.isclass(value) else ():
        member = inspect.getattr_static(value, member_name, None)
        member = getattr(member, "__func__", member)
        if not member_name.startswith("_") and inspect.isfunction(member) and is_own(member):
            defined_by = member.__qualname__.partition(".")[0]
            yield f"{defined_by if defined_by in broadleaf.__all__ else name}.{member_name}", member, value


def is_own(value: Any) -> bool:
    return callable(value) and str(getattr(value, "__module__", "")).startswith("broadleaf")
