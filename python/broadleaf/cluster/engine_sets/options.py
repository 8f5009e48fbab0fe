"""Options of engine sets: the types that they can have, and values of them that come as text or from `config.toml`."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, NamedTuple

from broadleaf import config


class _Type(NamedTuple):
    kind: config.Kind
    items: type[str] | type[int] | type[float] = str
    or_number: bool = False


# As they are written in a class, without the names of modules.
_TYPES = {
    "bool": _Type("bool"),
    "int": _Type("int"),
    "float": _Type("float"),
    "str": _Type("str"),
    **dict.fromkeys(["str | float", "str | int", "float | str", "int | str"], _Type("str", or_number=True)),
    **dict.fromkeys(["list", "list[str]", "Sequence[str]"], _Type("list")),
    **dict.fromkeys(["list[int]", "Sequence[int]"], _Type("list", int)),
    **dict.fromkeys(["list[float]", "Sequence[float]"], _Type("list", float)),
}
_NO_OPTION = ("ClassVar", "KW_ONLY")
_OR_NONE = " | None"


def check_types(cls: type[Any]) -> None:
    """Refuses options of a class that no text and no table can give, and that another process could not be told.

    Raises TypeError, which names the option.
    """
    for name, annotation in cls.__annotations__.items():
        text = _text(annotation)
        is_option = not text.startswith(_NO_OPTION) and getattr(vars(cls).get(name), "init", True)
        if is_option and _type_of(text) is None:
            raise TypeError(
                f"option {name!r} of {cls.__name__} cannot have the type {text}, because options can also be set on "
                "the command line and in config.toml; use bool, int, float, str, str | float, list[str], list[int] "
                "or list[float], or ClassVar if it is not an option"
            )


def checked(cls: type[Any], set_name: str, option: str, value: Any, origin: str) -> Any:
    """A value as the option's type. Raises `ConfigError` for one that does not fit, and for an unknown option."""
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    if option not in fields:
        raise config.ConfigError(
            f"engine set {set_name!r} has no option {option!r} ({origin}); it has {', '.join(sorted(fields))}"
        )
    field = fields[option]
    found = _type_of(_text(field.type)) or _type_of_default(field)
    if found.or_number and isinstance(value, int | float) and not isinstance(value, bool):
        return value
    of = config.Option(option, found.kind, "", "cluster", "", maximum=2**53, items=found.items)
    return of.check(value, origin)


def _text(annotation: Any) -> str:
    """A type as it is written, without the names of modules."""
    if not isinstance(annotation, str):
        annotation = annotation.__name__ if type(annotation) is type else str(annotation)
    return re.sub(r"\b[\w.]+\.(?=\w)", "", annotation).strip()


def _type_of(text: str) -> _Type | None:
    return _TYPES.get(text.removesuffix(_OR_NONE))


def _type_of_default(field: dataclasses.Field[Any]) -> _Type:
    """The type of an option that only programs give, such as an object."""
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return _TYPES.get(type(default).__name__, _TYPES["list"])
