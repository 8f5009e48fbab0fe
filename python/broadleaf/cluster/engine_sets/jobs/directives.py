"""Values in the directives of batch scripts: what a scheduler would take for something else is refused by name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from broadleaf.errors import ClusterStartError

_LINE_BREAKS = "\n\r\v\f\0"
_NAMES = {
    " ": "a space",
    "\t": "a tab",
    "\n": "a line break",
    "\r": "a line break",
    "\v": "a line break",
    "\f": "a line break",
    "\0": "a null character",
    '"': "a double quote",
    "'": "a single quote",
    "\\": "a backslash",
    "#": "a number sign",
    "$": "a dollar sign",
    ",": "a comma",
    ":": "a colon",
}


def check_value(option: str, value: str, scheduler: str, refused: str = "") -> str:
    """The value of an option, if it has no line break and none of the `refused` characters.

    Raises `ClusterStartError`.
    """
    if (found := _first(value, refused)) is not None:
        raise ClusterStartError(
            f"{option}={value!r}: a directive of {scheduler} cannot have {found} there; give a value without it"
        )
    return value


def check_lines(option: str, lines: Iterable[str], scheduler: str) -> list[str]:
    """The lines of an option that takes directives as they are, if each is one line. Raises `ClusterStartError`."""
    checked = list(lines)
    for line in checked:
        if (found := _first(line, "")) is not None:
            raise ClusterStartError(
                f"the line {line!r} in {option}: a directive of {scheduler} cannot have {found}; give each line as an "
                "entry of its own"
            )
    return checked


def check_directory(directory: Path, scheduler: str, refused: str, remedy: str) -> Path:
    """The directory in which jobs find their files, if its path has no line break and none of the `refused` characters.

    Raises `ClusterStartError`, which says how to choose another one: `remedy`.
    """
    if (found := _first(str(directory), refused)) is not None:
        raise ClusterStartError(
            f"jobs would find their files in {str(directory)!r}, and a directive of {scheduler} cannot have {found} in "
            f"a path; {remedy}"
        )
    return directory


def _first(text: str, refused: str) -> str | None:
    """What the first character is that a directive cannot have."""
    found = next((character for character in text if character in _LINE_BREAKS or character in refused), None)
    return None if found is None else _NAMES.get(found, repr(found))
