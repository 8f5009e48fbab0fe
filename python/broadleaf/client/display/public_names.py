"""Which attributes `dir` and tab completion offer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar


def _offered(cls: type, names: Iterable[str]) -> list[str]:
    internal: set[str] = set().union(*(vars(c).get("_internal_names", ()) for c in cls.__mro__))
    return sorted(set(names) - internal)


class _PublicNamesType(type):
    """IPython asks the class as well as the object."""

    def __dir__(cls) -> list[str]:
        return _offered(cls, super().__dir__())


if TYPE_CHECKING:
    # With the metaclass, type checkers would take a class's `__dict__` for that of its objects.
    _Base = object
else:

    class _Base(metaclass=_PublicNamesType):
        __slots__ = ()


class PublicNames(_Base):
    """Omits from `dir` what a class and its bases list in `_internal_names`.

    Those names are for the package's own use, but have no underscore because several modules share them.
    """

    __slots__ = ()

    _internal_names: ClassVar[frozenset[str]] = frozenset()

    def __dir__(self) -> list[str]:
        return _offered(type(self), super().__dir__())
