"""Python's debugger in a task, with the terminal of the task's client. Imported at the first `breakpoint()`.

What it says goes to the client as messages of the task. While it waits for a line, its task waits as one does for the
results of others, so the engine takes the client's answer, and is interrupted as ever.
"""

from __future__ import annotations

import io
import os
import pdb
import sys
import uuid
from collections import deque
from types import FrameType
from typing import Any

import broadleaf
from broadleaf.engine import publish
from broadleaf.errors import ClusterConnectionError
from broadleaf.modules.preparation import awaited_answers

# A task whose client has no answer for so long goes on: it may be gone, and nothing waits for ever.
ANSWER_S = 1800.0
# A client that can ask somebody says so at once.
SEEN_S = 10.0


def debug(frame: FrameType, header: str | None = None) -> None:
    """Stops at the next line of `frame`, of the task that runs."""
    debugger = _new(frame)
    if debugger is None:
        return
    if header is not None:
        debugger.message(header)
    debugger.set_trace(frame)


def post_mortem(error: BaseException) -> None:
    """Shows where `error` was raised; the frames are as they were then. Returns when the client is done."""
    debugger = _new(sys._getframe())
    if debugger is not None:
        debugger.reset()
        debugger.message(f"{type(error).__name__}: {error}")
        debugger.interaction(None, error.__traceback__)
        debugger.end()


def _new(frame: FrameType) -> TaskDebugger | None:
    """A debugger for a task, or None, which standard error says why, where it has no way to ask its client."""
    try:
        link = broadleaf.get_client().link
        if link.frees_engine():
            return TaskDebugger(_outermost(frame), link)
        why = "it is not the task's own thread"
    except ClusterConnectionError as error:
        why = str(error)
    print(f"breakpoint() in {frame.f_code.co_filename}:{frame.f_lineno} passed over: {why}", file=sys.stderr)
    return None


def _outermost(frame: FrameType) -> FrameType:
    """The frame in which the task began that runs `frame`."""
    engine = ("broadleaf.engine.main", "broadleaf.engine.nested")
    while frame.f_back is not None and frame.f_back.f_globals.get("__name__") not in engine:
        frame = frame.f_back
    return frame


class TaskDebugger(pdb.Pdb):
    """`pdb` whose input and output are the client's. It ends with its task."""

    def __init__(self, outermost: FrameType, link: Any) -> None:
        self._said = io.StringIO()
        # It reads from itself. What runs the task is not stepped into.
        super().__init__(stdin=self, stdout=self._said, nosigint=True, readrc=False, skip=["broadleaf", "broadleaf.*"])  # type: ignore[arg-type]
        self.prompt = ""
        self.lines: deque[str | None] = deque()
        self._outermost = outermost
        self._link = link
        self._is_seen = False
        self._name = uuid.uuid4().hex

    def _send(self, state: str, is_first: bool = False) -> None:
        text = self._said.getvalue()
        self._said.seek(0)
        self._said.truncate()
        engine_id = int(os.environ["BROADLEAF_ENGINE_ID"])
        data = {"session": self._name, "state": state, "is_first": is_first, "text": text, "engine_id": engine_id}
        publish.send({"type": "debugger", "data": data})

    def readline(self) -> str:
        """The client's next line; an empty text, the end of input, makes `pdb` quit."""
        is_first, self._is_seen = not self._is_seen, True
        self._send("asks", is_first)
        awaited_answers[self._name] = self.lines.append
        try:
            # The method itself: an interrupt that came in the middle of a function of Python's would be lost.
            if is_first and self._link.wait_for(self.lines.__len__, SEEN_S):
                self.lines.popleft()
            elif is_first:
                print(f"breakpoint() passed over: no terminal has seen it in {SEEN_S:g} s", file=sys.stderr)
                return "continue\n"
            self._link.wait_for(self.lines.__len__, ANSWER_S)
        finally:
            del awaited_answers[self._name]
        if not self.lines:
            print(f"the debugger had no answer for {ANSWER_S:g} s, so the task goes on", file=sys.stderr)
            return "continue\n"
        line = self.lines.popleft()
        return "" if line is None else f"{line}\n"

    def _cmdloop(self) -> None:
        # Unlike pdb's own this lets an interrupt out: it is the task's.
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
        """Traces nothing any more, and says so to the client."""
        sys.settrace(None)
        self.clear_all_breaks()
        frame: FrameType | None = self._outermost
        while frame is not None:
            frame.f_trace = None
            frame = frame.f_back
        self._send("ended")
