"""The module search path of this process, and how another process's path is added to it."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable


def working_directory() -> str | None:
    """This process's working directory, or None if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def search_path() -> list[str]:
    """This process's module search path, with its working directory instead of the empty string."""
    entries = (entry or working_directory() for entry in sys.path if isinstance(entry, str))
    return [entry for entry in entries if entry]


def missing_entries(entries: Iterable[str], known: Iterable[str]) -> list[str]:
    """Those `entries` that are not in `known`, each once, in order."""
    absent = dict.fromkeys(entries)
    for entry in known:
        absent.pop(entry, None)
    return list(absent)


def extend_search_path(entries: Iterable[str]) -> None:
    """Appends the entries that this process does not look in yet and that exist on this host."""
    sys.path += [entry for entry in missing_entries(entries, sys.path) if os.path.exists(entry)]
    importlib.invalidate_caches()
