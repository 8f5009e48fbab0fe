"""Completion of engines' names after `%px` and in cells of `%%px`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from IPython.core.completer import SimpleCompletion, context_matcher

if TYPE_CHECKING:
    from broadleaf.client.views.direct import DirectView

# Engines that are busy are not waited for.
_TIMEOUT_S = 1.0
_CELL = re.compile(r"%%(px\w*)[^\n]*\n")
_LINE = re.compile(r"%(px\w*)[ \t]+")


class EngineCompleter:
    """A matcher of IPython's completer that asks the first engine of a magic's view."""

    matcher_identifier = "broadleaf.engine_names"

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    @classmethod
    def install(cls, shell: Any) -> None:
        """Adds it to a session, once."""
        completer = getattr(shell, "Completer", None)
        if completer is None or any(
            getattr(matcher, "matcher_identifier", "") == cls.matcher_identifier
            for matcher in completer.custom_matchers
        ):
            return
        made = cls(shell)

        @context_matcher(identifier=cls.matcher_identifier)  # type: ignore[untyped-decorator]
        def match_engine_names(context: Any) -> Any:
            return made.match(context)

        completer.custom_matchers.append(match_engine_names)

    def match(self, context: Any) -> dict[str, Any]:
        """Completions for an IPython context; none if it has no magic of ours."""
        nothing: dict[str, Any] = {"completions": [], "suppress": False}
        text = context.full_text
        position = _position(text, context.cursor_line, context.cursor_position)
        found = _CELL.match(text)
        if found is None:
            line_start = text.rfind("\n", 0, position) + 1
            found = _LINE.match(text, line_start)
        if found is None or found.end() > position:
            return nothing
        view = self._view(found[1])
        if view is None:
            return nothing
        try:
            matches, start = _ask(view, text[found.end() :], position - found.end())
        except Exception:
            # Completion must not fail because an engine is busy or dead.
            return nothing
        replaced = text[found.end() + start : position]
        token = context.token
        # IPython replaces the token it has found, which may begin before or after what the engine replaces.
        extra = token[: len(token) - len(replaced)] if token.endswith(replaced) else ""
        cut = len(replaced) - len(token) if replaced.endswith(token) else 0
        completions = [SimpleCompletion(extra + match[max(0, cut) :], type="engine") for match in matches]
        return {"completions": completions, "suppress": bool(completions)}

    def _view(self, magic: str) -> DirectView | None:
        function = self._shell.magics_manager.magics["cell"].get(magic)
        view: DirectView | None = getattr(getattr(function, "__self__", None), "view", None)
        return None if view is None or view.client.closed else view


def _position(text: str, line: int, column: int) -> int:
    lines = text.split("\n")
    return sum(len(one) + 1 for one in lines[:line]) + column


def _ask(view: DirectView, text: str, position: int) -> tuple[list[str], int]:
    found: tuple[list[str], int] = view.complete(text, position, timeout=_TIMEOUT_S)
    return found
