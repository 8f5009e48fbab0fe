"""Docstrings explain parameters, values and errors, and the rule notices if one does not."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import docstrings  # noqa: E402


def test_this_checkout_says_it_all():
    assert docstrings.checked() == []


def test_everything_public_is_looked_at():
    names = {name for name, *_ in docstrings.public()}
    assert {"Client", "Client.wait", "DirectView.push", "Cluster.scale", "Slurm.submit", "plan.sends", "empty"} <= names
    assert not {"Client.on_event", "AsyncResult.on_output"} & names, "these are for the package's own use"


def good(n: int, *more: int, unit: str = "s") -> str:
    """Words for a number.

    Args:
        n: The number.
        *more: Others, which
            are added.
        unit: Its unit.

    Returns:
        The words.

    Raises:
        ValueError: It is negative.
    """
    if n < 0:
        raise ValueError(f"{n} is negative")
    return f"{n + sum(more)} {unit}"


def without() -> None: ...


def forgets(n: int, unit: str = "s") -> str:
    """Words for a number.

    Args:
        n: The number.
        units: Its unit.
    """
    if n < 0:
        raise ValueError(f"{n} is negative")
    return f"{n} {unit}"


def invents() -> None:
    """Does nothing.

    Returns:
        Nothing.

    Raises:
        PatienceError: It has none.
    """


def wanders(n: int) -> None:
    """Does nothing, in a sentence that is too long for the first line of a docstring, and so
    goes on.

    Raises:
        OSError: The disk is full.

    Args:
        n: The number.

    Note:
        This is none of the sections.
    """


def raises_a_kind_of(path: str) -> None:
    """Does nothing, or fails.

    Args:
        path: Where.

    Raises:
        OSError: There is no such file.
    """
    raise FileNotFoundError(f"{path} is not there")


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (good, []),
        (without, ["without: no docstring"]),
        (
            forgets,
            [
                "forgets: unit is not among the Args",
                "forgets: units is not a parameter",
                "forgets: no section Returns",
                "forgets: ValueError is raised, and not among the Raises",
            ],
        ),
        (
            invents,
            [
                "invents: it returns nothing, and has a section Returns",
                "invents: PatienceError, which is said to be raised, is no public exception",
            ],
        ),
        (
            wanders,
            [
                "wanders: the summary is not one sentence on the first line",
                "wanders: no section is called 'Note'; there are Args, Returns, Raises, Example",
                "wanders: sections are not in the order Args, Returns, Raises, Example",
            ],
        ),
        (raises_a_kind_of, []),
    ],
)
def test_what_a_docstring_lacks_is_noticed(function, expected):
    assert docstrings.faults(function.__name__, function) == expected


@dataclass
class Fields:
    """A class whose fields have their docstrings below them."""

    n: int
    """A number."""
    unit: str = "s"


class Twins:
    """A class with a constructor and a coroutine."""

    def __init__(self, n: int) -> None:
        self.n = n

    def count_sync(self, unit: str) -> None:
        """Counts.

        Args:
            unit: In what.
        """

    async def count(self, unit: str) -> None:
        """`count_sync` as a coroutine."""

    async def count_up(self, to: int) -> None:
        """`count_sync` as a coroutine."""


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Fields, ["Fields: unit is not among the Args"]),
        (Twins, ["Twins: n is not among the Args"]),
        (Twins.count, []),
        (Twins.count_up, ["count_up: count_sync has other parameters"]),
    ],
)
def test_what_a_class_lacks_is_noticed(monkeypatch, value, expected):
    monkeypatch.setattr(docstrings, "_is_own", lambda value: getattr(value, "__module__", "") == __name__)
    owner = None if isinstance(value, type) else Twins
    assert docstrings.faults(value.__name__, value, owner) == expected
