"""Functions and classes of `__main__` in processes that a task starts with `multiprocessing`.

A process started by `fork` has them. One that is started in another way looks for them in the file of `__main__`, and
an engine has none: its `__main__` is made of what clients send. So they are sent to such processes by value, and
received under the names that they have.
"""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any

from broadleaf.after_import import after_import
from broadleaf.serialize.namespace import current_namespace, set_namespace
from broadleaf.serialize.wrapped import CachedFunction

_DEFINED = (FunctionType, type, CachedFunction)
# What `multiprocessing` imports when it starts a process in another way than by fork.
_STARTERS = ("multiprocessing.popen_spawn_posix", "multiprocessing.popen_forkserver")
_MISSING = object()
# In a process that was not forked, nothing is known of those that it talks to.
_is_spawned = False


def send_to_spawned() -> None:
    """Has `multiprocessing` of this process send what `__main__` defines by value, where that is needed."""
    after_import("multiprocessing.reduction", _send_by_value)
    after_import("multiprocessing.spawn", _name_no_file)


def _send_by_value(reduction: Any) -> None:
    reduction.ForkingPickler.reducer_override = _reduce


def _name_no_file(spawn: Any) -> None:
    """The file of a client's program must not be run again, even if this host has one of that name."""
    prepare = spawn.get_preparation_data

    def get_preparation_data(name: str) -> dict[str, Any]:
        data: dict[str, Any] = prepare(name)
        data.pop("init_main_from_path", None)
        return data

    spawn.get_preparation_data = get_preparation_data


def _reduce(pickler: Any, obj: Any) -> Any:
    if not isinstance(obj, _DEFINED) or getattr(obj, "__module__", None) != "__main__":
        return NotImplemented
    name: str = obj.__qualname__
    only_forks = not _is_spawned and not any(starter in sys.modules for starter in _STARTERS)
    if only_forks and _of_main(name) is obj:
        return NotImplemented
    from broadleaf.serialize.by_value import dumps_by_value

    return _receive, (name, dumps_by_value(obj))


def _of_main(name: str) -> Any:
    found: Any = sys.modules["__main__"]
    for part in name.split("."):
        found = getattr(found, part, _MISSING)
    return found


def _receive(name: str, data: bytes) -> Any:
    """What `__main__` of this process has under that name, or else what was sent."""
    found, main = _of_main(name), sys.modules["__main__"]
    if found is not _MISSING:
        return found
    if current_namespace() is None:
        global _is_spawned
        _is_spawned = True
        set_namespace(main.__dict__)
        send_to_spawned()
    from broadleaf.serialize.values import loads

    received = loads(data)
    if _is_spawned and name.isidentifier():
        setattr(main, name, received)
    return received
