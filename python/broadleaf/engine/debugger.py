"""Python's debugger in a task, with the terminal of the task's client. Imported at the first `breakpoint()`.

Its text goes to the client as messages of the task. While it waits for a line, its task waits as if for the results of
others, so the engine takes the client's answer, and can be interrupted as usual.
"""

from __future__ import annotations

import io
import json
import linecache
import os
import pdb
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from traceback import walk_stack, walk_tb
from types import FrameType, TracebackType
from typing import Any

from broadleaf.engine import output
from broadleaf.errors import ClusterConnectionError
from broadleaf.extensions import extension
from broadleaf.serialize.preparation import awaited_answers

# A task whose client does not answer for this long continues: the client may be gone, and nothing waits forever.
ANSWER_S = 1800.0
# A client that can ask its user says so at once.
SEEN_S = 10.0


# The module that calls tasks.
_ENGINE = "broadleaf.engine.main"
# Frames at the start of a task that are not the user's.
_BEGINNINGS = ("broadleaf", "IPython")


def debug(frame: FrameType, header: str | None = None) -> None:
    """Stops at the next line of `frame`, which belongs to the running task."""
    debugger = _new(frame, _files_of(walk_stack(frame)))
    if debugger is None:
        return
    if header is not None:
        debugger.message(header)
    debugger.set_trace(frame)


def post_mortem(error: BaseException) -> None:
    """Shows where `error` was raised; the frames are as they were then. Returns when the client is done."""
    debugger = _new(sys._getframe(), _files_of(walk_tb(error.__traceback__)))
    if debugger is not None:
        debugger.reset()
        debugger.message(f"{type(error).__name__}: {error}")
        debugger.interaction(None, error.__traceback__)
        debugger.end()


def _files_of(frames: Iterable[tuple[FrameType, int]]) -> list[str]:
    """Files of frames whose source is not available here, such as cells of the client's session."""
    files = {frame.f_code.co_filename: frame.f_globals for frame, _ in frames}
    return [name for name, known in files.items() if not linecache.getlines(name, known)]


def _new(frame: FrameType, files: list[str]) -> TaskDebugger | None:
    """A debugger for a task. Returns None if there is no way to ask its client, and says why on standard error."""
    try:
        link = extension("client of a task")().link
        if link.frees_engine():
            debugger = TaskDebugger(_outermost(frame), link)
            return debugger if debugger.begin(files) else None
        why = "it is not the task's own thread"
    except ClusterConnectionError as error:
        why = str(error)
    print(f"breakpoint() in {frame.f_code.co_filename}:{frame.f_lineno} was skipped: {why}", file=sys.stderr)
    return None


def _outermost(frame: FrameType) -> FrameType:
    """The frame in which the task that runs `frame` began."""
    while frame.f_back is not None and frame.f_back.f_globals.get("__name__") != _ENGINE:
        frame = frame.f_back
    return frame


class TaskDebugger(pdb.Pdb):
    """`pdb` whose input and output are the client's. It ends with its task."""

    def __init__(self, outermost: FrameType, link: Any) -> None:
        self._said = io.StringIO()
        # It reads from itself. The debugger does not step into the code that runs the task.
        super().__init__(stdin=self, stdout=self._said, nosigint=True, readrc=False, skip=["broadleaf", "broadleaf.*"])  # type: ignore[arg-type]
        self.prompt = ""
        self.lines: deque[str | None] = deque()
        self._outermost = outermost
        self._link = link
        self._name = os.urandom(16).hex()

    def _send(self, state: str, files: Sequence[str] = ()) -> None:
        text = self._said.getvalue()
        self._said.seek(0)
        self._said.truncate()
        engine_id = int(os.environ["BROADLEAF_ENGINE_ID"])
        data = {"session": self._name, "state": state, "files": files, "text": text, "engine_id": engine_id}
        output.send_message({"type": "debugger", "data": data})

    def begin(self, files: list[str]) -> bool:
        """Whether the client can ask somebody. It returns the sources of these files, as far as it has them."""
        self._send("begins", files)
        if not self._await_line(SEEN_S):
            print(f"breakpoint() was skipped: no terminal has seen it in {SEEN_S:g} s", file=sys.stderr)
            return False
        sources: dict[str, str] | None = json.loads(self.lines.popleft() or "null")
        for name, text in (sources or {}).items():
            # Kept like source without a file: nobody checks whether a file has changed.
            linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
        return sources is not None

    def _await_line(self, longest_s: float) -> bool:
        awaited_answers[self._name] = self.lines.append
        try:
            # The method itself: an interrupt in the middle of a Python function would be lost.
            return bool(self._link.wait_for(self.lines.__len__, longest_s))
        finally:
            del awaited_answers[self._name]

    def readline(self) -> str:
        """The client's next line; an empty text, the end of input, makes `pdb` quit."""
        self._send("asks")
        if not self._await_line(ANSWER_S):
            print(f"the debugger got no answer for {ANSWER_S:g} s, so the task continues", file=sys.stderr)
            return "continue\n"
        line = self.lines.popleft()
        return "" if line is None else f"{line}\n"

    def get_stack(self, f: FrameType | None, t: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
        """The frames of the task, and the selected one. Frames of the code that runs the task are left out."""
        stack, current = super().get_stack(f, t)
        modules = [str(frame.f_globals.get("__name__")) for frame, _ in stack[:current]]
        first = max((number + 1 for number, module in enumerate(modules) if module == _ENGINE), default=0)
        while first < current and modules[first].partition(".")[0] in _BEGINNINGS:
            first += 1
        return stack[first:], current - first

    def _cmdloop(self) -> None:
        # Unlike pdb's own, this lets an interrupt out, because it is meant for the task.
        self.cmdloop()
        is_stepping = not self.quitting and self.stoplineno != -1
        self._send("runs" if is_stepping else "ended")

    def dispatch_return(self, frame: FrameType, arg: Any) -> Any:
        """Ends the session with the task."""
        try:
            return super().dispatch_return(frame, arg)
        finally:
            if frame is self._outermost:
                self.end()

    def end(self) -> None:
        """Stops tracing, and tells the client."""
        sys.settrace(None)
        self.clear_all_breaks()
        frame: FrameType | None = self._outermost
        while frame is not None:
            frame.f_trace = None
            frame = frame.f_back
        self._send("ended")
