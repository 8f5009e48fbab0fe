"""References: names that stand for an engine's own objects among the arguments of a call."""

from __future__ import annotations

from typing import Any

from broadleaf.serialize.functions.namespace import evaluate


class Reference:
    """Stands for the value of an expression in the namespace of whichever engine receives it.

    `view.apply(f, Reference("a"))` calls `f(a)` with each engine's own `a`; the value itself is not sent. If the
    expression raises, so does the task.

    Args:
        name: The expression, such as a variable's name.

    Raises:
        TypeError: `name` is not a str.

    Example:
        >>> _ = rc[:].scatter("part", range(8), block=True)
        >>> rc[:].apply_sync(sum, ipp.Reference("part"))
        [1, 5, 9, 13]
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"a Reference takes an expression as a str, not {type(name).__name__}")
        self.name: str = name

    def __repr__(self) -> str:
        return f"<Reference: {self.name!r}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reference) and other.name == self.name

    def __hash__(self) -> int:
        return hash((Reference, self.name))

    def __reduce__(self) -> tuple[Any, ...]:
        return evaluate, (self.name,)
