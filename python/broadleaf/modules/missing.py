"""The error for a module that is missing, or older than the one that a pickle was made with."""

from __future__ import annotations

import importlib.util
import os
import re
import sys

# Maximum number of search path entries in a message.
_SHOWN_ENTRIES = 8
_NO_ATTRIBUTE = r"Can't get attribute '(?P<name>[^']+)' on <module '(?P<module>[^']+)'"
_engine = ""


def name_engine(engine_id: int) -> None:
    """Makes messages say that they come from this engine."""
    global _engine
    import socket

    _engine = f"engine {engine_id} on {socket.gethostname()}"


def explain(error: BaseException) -> None:
    """Completes the message of an error caused by a missing or outdated module; leaves any other unchanged."""
    if isinstance(error, ModuleNotFoundError):
        if error.name and str(error) == f"No module named {error.name!r}":
            error.msg = _not_found(error.name)
            error.args = (error.msg,)
    elif isinstance(error, AttributeError) and (match := re.match(_NO_ATTRIBUTE, str(error))):
        error.args = (_outdated(match["module"], match["name"]),)


def _not_found(name: str) -> str:
    from broadleaf.modules.shipped import fault

    top = name.partition(".")[0]
    where = _engine or "this process"
    text = f"No module named {name!r} on {where}."
    if (found := _place_of(top)) is not None:
        return f"{text} The {top!r} it has is {found}.{_advice(top)}"
    if (why := fault(top)) is not None:
        return f"{text} It was sent, but could not be written there: {why}."
    return f"{text} It looked in these folders: {_searched()}.{_advice(top)}"


def _outdated(module: str, name: str) -> str:
    where = _engine or "this process"
    found = _place_of(module.partition(".")[0])
    text = f"Module {module!r} on {where} has no {name!r}; it was imported from {found or 'a file that is gone'}."
    if not _engine:
        return f"{text} If you have changed it since, reload it."
    return (
        f"{text} If you have changed it since, send it anew with client.ship_module({module.partition('.')[0]!r}), "
        "or restart the engines with cluster.restart_engines_sync()."
    )


def _advice(name: str) -> str:
    if not _engine:
        return " Install it here, or add its folder to sys.path, and run the task again."
    return (
        f" If it is yours, client.ship_module({name!r}) sends it to the engines; if it is a package you installed, "
        "install it on the engines' host too."
    )


def _place_of(top: str) -> str | None:
    """The location of the top-level module that this process has or would import."""
    module = sys.modules.get(top)
    try:
        spec = importlib.util.find_spec(top) if module is None else getattr(module, "__spec__", None)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None if module is None else getattr(module, "__file__", None)
    return spec.origin or ", ".join(spec.submodule_search_locations or ()) or None


def _searched() -> str:
    """The search path in words: the user's folders, and the number of Python's own."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    installed = {version, f"{version.replace('.', '')}.zip", "site-packages", "dist-packages"}
    own = [entry for entry in map(str, sys.path) if installed.isdisjoint(entry.split(os.sep))]
    shown = own[:_SHOWN_ENTRIES]
    if len(own) > len(shown):
        shown.append(f"{len(own) - len(shown)} more folders")
    return ", ".join([*shown, f"Python's own {len(sys.path) - len(own)}"])
