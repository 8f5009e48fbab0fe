"""What the next task must find as it was: Python's streams, the filters of warnings, and the levels of loggers.

A function's changes to these end with its task. What code that a user executes changes, stays: that code and what comes
after it are one session. So does what a preparation changes.
"""

import io
import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from broadleaf.after_import import imported


class StandingInput(io.TextIOWrapper):
    """Standard input that a task cannot close for the next one."""

    def close(self) -> None:
        """Does nothing."""


class _State(NamedTuple):
    streams: tuple[Any, Any, Any]
    filters: Any
    """The list itself, which code may replace."""
    filter_values: list[Any]
    levels: dict[Any, int]
    """Of each logger."""
    root_handlers: list[Any]
    disabled_level: int
    n_modules: int


class Surroundings:
    """What the tasks of this engine find."""

    def __init__(self) -> None:
        self._known = _state()
        self._note_level: Callable[[], None] | None = None
        self._watches_levels = False

    def install(self, note_level: Callable[[], None]) -> None:
        """Takes what is there now for what every task finds; `note_level` is called when a logger's level is set."""
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin = StandingInput(sys.stdin.detach(), "utf-8", "surrogateescape")
            sys.__stdin__ = sys.stdin  # type: ignore[misc]
        self._note_level = note_level
        self.accept()

    def accept(self) -> None:
        """Makes what is there now what every task finds."""
        self._watch_levels()
        self._known = _state()

    def restore(self) -> None:
        """Makes everything as tasks find it."""
        _apply(self._known, _state())
        # The modules that have been imported are there to stay, and what they have set.
        self.accept()

    def set_aside(self) -> _State:
        """Makes everything as tasks find it, in the middle of one, for another that runs on top of it; returns what
        `put_back` takes."""
        state = _state()
        _apply(self._known, state)
        return state

    def put_back(self, state: _State) -> None:
        """Undoes `set_aside`."""
        _apply(state, _state())

    def _watch_levels(self) -> None:
        if self._watches_levels or self._note_level is None or _logging() is None:
            return
        self._watches_levels = True
        manager, note_level = _logging().root.manager, self._note_level
        clear = manager._clear_cache

        def clear_and_note() -> None:
            clear()
            note_level()

        # Called whenever a level is set, and by `logging.disable`.
        manager._clear_cache = clear_and_note


def _logging() -> Any:
    """The module, if somebody has imported it; an engine that starts does not need it."""
    return imported("logging", "root")


def _state() -> _State:
    logging = _logging()
    return _State(
        streams=(sys.stdout, sys.stderr, sys.stdin),
        filters=warnings.filters,
        filter_values=list(warnings.filters),
        levels={} if logging is None else {logger: logger.level for logger in _loggers(logging)},
        root_handlers=[] if logging is None else list(logging.root.handlers),
        disabled_level=0 if logging is None else logging.root.manager.disable,
        n_modules=len(sys.modules),
    )


def _loggers(logging: Any) -> list[Any]:
    known = list(logging.root.manager.loggerDict.values())
    return [logging.root, *(logger for logger in known if isinstance(logger, logging.Logger))]


def _apply(wanted: _State, now: _State) -> None:
    sys.stdout, sys.stderr, sys.stdin = wanted.streams
    # A module may set filters and levels when it is imported, which happens once.
    has_imported = now.n_modules != wanted.n_modules
    if now.filters is not wanted.filters or now.filter_values != wanted.filter_values:
        own = [
            rule
            for rule in now.filter_values
            if has_imported and _is_special(rule) and rule not in wanted.filter_values
        ]
        warnings.filters = wanted.filters
        # Has Python forget which warnings it has shown.
        warnings.resetwarnings()
        wanted.filters[:] = [*own, *wanted.filter_values]
    logging = _logging()
    if logging is not None:
        _apply_levels(logging, wanted, now, has_imported)


def _apply_levels(logging: Any, wanted: _State, now: _State, has_imported: bool) -> None:
    for logger, level in now.levels.items():
        kept = level if has_imported else logging.NOTSET
        before = wanted.levels.get(logger, logging.WARNING if logger is logging.root else kept)
        if level != before:
            logger.setLevel(before)
    if now.disabled_level != wanted.disabled_level:
        logging.disable(wanted.disabled_level)
    # Without its handler, `basicConfig` sets the level again in the next task.
    if now.root_handlers != wanted.root_handlers:
        logging.root.handlers[:] = wanted.root_handlers


def _is_special(rule: Any) -> bool:
    """Whether a filter is about certain warnings, as those of modules are."""
    _, message, category, module, line = rule
    return bool(message or module or line) or category.__module__ != "builtins"
