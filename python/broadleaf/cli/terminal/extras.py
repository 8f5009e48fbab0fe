"""What commands need beyond the core of Broadleaf, and how to get it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec

import click

EXTRAS: dict[str, tuple[str, ...]] = {
    "dashboard": ("tornado",),
    "bench": ("matplotlib", "numpy"),
    "plan": ("matplotlib",),
}
"""The modules that each extra of the package installs."""


def require(extra: str, modules: Sequence[str], purpose: str) -> None:
    """Ends the command with one line, before it begins its work, if a module of an extra is missing."""
    if missing := missing_modules(modules):
        verb = "is" if len(missing) == 1 else "are"
        raise click.ClickException(
            f"{purpose} needs {_words(missing)}, which {verb} not installed. {how_to_get(extra)}"
        )


def missing_modules(modules: Sequence[str]) -> list[str]:
    """The modules that are not installed."""
    return [name for name in modules if not _installed(name)]


def explained(error: ModuleNotFoundError) -> str | None:
    """What to do about a failed import; None if the module belongs to no extra."""
    name = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if name in modules), None)
    if extra is None:
        return None
    return f"this needs {name}, which is not installed. {how_to_get(extra)}"


def _installed(name: str) -> bool:
    try:
        return sys.modules.get(name) is not None or find_spec(name) is not None
    except ValueError:
        return False


def how_to_get(extra: str) -> str:
    """The sentence that says which extra to install."""
    return f"It comes with the extra `{extra}`: pip install 'broadleaf[{extra}]'"


def _words(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
