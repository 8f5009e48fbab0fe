"""The namespace that functions sent by value see as their globals, and the values filled into it.

An engine sets its namespace once. If none is set (as in a client), a function that was sent by value gets globals of
its own, so that what it brings never touches the user's variables.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

Namespace = dict[str, Any]

_MISSING = object()
_namespace: Namespace | None = None
# name -> the value that a fill has put there, so that a fill never replaces what the user has set
_filled: dict[str, Any] = {}
# name -> why the client that has a value for it could not send it
_left_out: dict[str, str] = {}
_MAX_LEFT_OUT = 1000
# what the functions being loaded bring along; a call of a cached function fills again from it
_collecting: dict[str, Any] | None = None


def set_namespace(namespace: Namespace | None) -> None:
    """Makes `namespace` the globals of functions loaded from now on (an engine: its user's variables)."""
    global _namespace
    _namespace = namespace
    _filled.clear()
    _left_out.clear()
    if namespace is not None and namespace.get("__doc__", _MISSING) is None:
        # As every module has it. A program's own replaces it.
        _filled["__doc__"] = None


def current_namespace() -> Namespace | None:
    """The namespace set for this process, or None."""
    return _namespace


def function_globals() -> Namespace:
    """The globals for a function that is being loaded."""
    if _namespace is not None:
        return _namespace
    return {"__builtins__": builtins, "__name__": "__main__"}


def fill(namespace: Namespace, fills: Mapping[str, Any]) -> None:
    """Sets the names that `namespace` lacks, or has only from an earlier fill and unchanged since."""
    if _collecting is not None:
        _collecting.update(fills)
    if namespace is not _namespace:
        namespace.update(fills)
        return
    for name, value in fills.items():
        present = namespace.get(name, _MISSING)
        if present is value:
            continue
        if present is _MISSING or present is _filled.get(name, _MISSING):
            namespace[name] = value
            _filled[name] = value


@contextmanager
def collecting_fills() -> Iterator[dict[str, Any]]:
    """Collects the fills of the functions loaded inside the block."""
    global _collecting
    outer, _collecting = _collecting, {}
    try:
        yield _collecting
    finally:
        _collecting = outer


def note_left_out(reasons: Mapping[str, str]) -> None:
    """Records globals that a function could not bring along, and why; only the latest ones."""
    for name, reason in reasons.items():
        _left_out.pop(name, None)
        _left_out[name] = reason
    for name in list(_left_out)[: max(0, len(_left_out) - _MAX_LEFT_OUT)]:
        del _left_out[name]


def explain(error: NameError) -> None:
    """Completes the message of an error about a name that a function could not bring along."""
    reason = _left_out.get(error.name) if isinstance(error.name, str) else None
    if reason is not None and len(error.args) == 1 and not isinstance(error, UnboundLocalError):
        error.args = (f"{error}: your session's could not be sent ({reason})",)


def evaluate(expression: str) -> Any:
    """The value of `expression` in the namespace; raises NameError if there is no namespace."""
    if _namespace is None:
        raise NameError(f"name {expression!r} is a Reference, which only an engine can resolve")
    return eval(expression, _namespace)
