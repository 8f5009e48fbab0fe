"""What a client makes engines do before its tasks: the content that is sent, and how an engine runs it."""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broadleaf.serialize import PROTOCOL
from broadleaf.serialize.modules import PackedModule, install_module, is_installed
from broadleaf.serialize.search_path import extend_search_path
from broadleaf.serialize.values import dumps_in_band, loads

_PATH, _MODULE, _MODULE_AGAIN, _ANSWER, _CALL = "search path", "module", "module again", "answer", "call"
# Maximum number of calls that an engine remembers.
_MAX_CALLS = 65_536

awaited_answers: dict[str, Callable[[Any], object]] = {}
"""Callbacks for the answers that tasks here wait for, by the name of the question."""

_called: OrderedDict[str, None] = OrderedDict()


def of_search_path(entries: list[str]) -> bytes:
    """Makes an engine look for modules in these folders, after its own."""
    return pickle.dumps((_PATH, entries), PROTOCOL)


def of_module(module: PackedModule, again: bool = False) -> bytes:
    """Gives an engine a module, which replaces any module of that name. With `again` an engine that got the same before
    does nothing."""
    return pickle.dumps((_MODULE_AGAIN if again else _MODULE, module), PROTOCOL)


def of_answer(question: str, number: int, answer: Any) -> bytes:
    """Answers the question of this name, if it was asked. `number` distinguishes identical answers."""
    return pickle.dumps((_ANSWER, (question, number, answer)), PROTOCOL)


def of_call(function: Callable[[], object]) -> bytes:
    """Makes an engine call a function, once, however often it gets this. Raises whatever pickling it raises."""
    return pickle.dumps((_CALL, (os.urandom(16).hex(), dumps_in_band(function))), PROTOCOL)


def make(content: bytes, folder: Path) -> None:
    """Runs a preparation on this engine; modules are stored below `folder`."""
    kind: str
    argument: Any
    kind, argument = pickle.loads(content)
    if kind == _PATH:
        extend_search_path(argument)
    elif kind == _MODULE or (kind == _MODULE_AGAIN and not is_installed(argument)):
        install_module(argument, folder)
    elif kind == _MODULE_AGAIN:
        return
    elif kind == _ANSWER:
        question, _, answer = argument
        if question in awaited_answers:
            awaited_answers[question](answer)
    elif kind == _CALL:
        name, function = argument
        if name not in _called:
            _called[name] = None
            while len(_called) > _MAX_CALLS:
                _called.popitem(last=False)
            loads(function)()
    else:
        raise ValueError(f"no preparation is called {kind!r}")
