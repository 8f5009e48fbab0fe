"""Debuggers in tasks, used from this process's terminal or notebook cell."""

from __future__ import annotations

import _thread
import contextlib
import importlib
import json
import linecache
import signal
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterable
from types import FrameType
from typing import TYPE_CHECKING, Any

from broadleaf.client.display.progress import inside_kernel
from broadleaf.errors import RemoteError
from broadleaf.requests import preparation
from broadleaf.serialize.preparation import of_answer
from broadleaf.serialize.values import loads

if TYPE_CHECKING:
    from broadleaf.client.protocols import Client, ResultSide

# Time between two checks that a stepping engine is still alive.
_LOOK_S = 0.5
# Maximum length of source that an engine is sent.
_SOURCE_CHARACTERS = 1_000_000


class Debugging:
    """The debuggers that tasks of one client have opened.

    Only the main thread can ask the user. A question that arrives on it while it waits, for a result say, is asked at
    once. Any other is announced, and asked when the main thread next waits for a result. Tasks are known by their
    numbers, because a message may arrive before its task's result is made, and most results are not registered.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        # Unanswered questions by session, and the number of the task that asks.
        self._questions: OrderedDict[str, tuple[int, dict[str, Any]]] = OrderedDict()
        self._ended: set[str] = set()
        self._talks = False
        self._n_answers = 0
        self._lock = threading.Lock()

    def on_message(self, seq: int, data: bytes) -> None:
        """Handles a message from task number `seq`, on whichever thread has read it."""
        message = loads(data)
        if message.get("type") != "debugger":
            return
        said = message["data"]
        session = said["session"]
        if said["state"] == "ended":
            self._questions.pop(session, None)
            self._ended.add(session)
            _write(said["text"])
            return
        if said["state"] == "runs":
            _write(said["text"])
            return
        self._ended.discard(session)
        if said["state"] == "begins":
            can_ask = _can_ask()
            if not can_ask:
                _tell_passed_over(said)
            self._answer(said, json.dumps(_sources(said["files"]) if can_ask else None))
            return
        self._questions[session] = seq, said
        if threading.current_thread() is threading.main_thread():
            self.talk()
        elif _has_handler():
            with _untold_lock:
                _untold.append((self, session, said["engine_id"]))
            _thread.interrupt_main(signal.SIGURG)
        else:
            self.tell(said["engine_id"])

    def tell(self, engine: int) -> None:
        """Says that an engine has stopped, and makes the next wait open its prompt."""
        print(f"engine {engine} has stopped in the debugger: wait for its result to start debugging", file=sys.stderr)
        self._client.link.tell_waiting()

    def on_wait(self) -> None:
        """A wait begins on this thread while somebody waits to be answered."""
        if threading.current_thread() is threading.main_thread():
            self.talk()
        elif self._questions:
            self._client.link.tell_waiting()

    def waits(self, session: str) -> bool:
        """Whether this debugger waits for an answer."""
        return session in self._questions

    def asks(self, result: ResultSide) -> bool:
        """Whether a task of this result waits for an answer."""
        asking = [seq for seq, _ in list(self._questions.values())]
        return any(first <= seq < first + n for seq in asking for first, n in result.task_ranges())

    def talk(self) -> None:
        """Talks to the waiting debuggers one after the other until all have continued."""
        with self._lock:
            if self._talks:
                return
            self._talks = True
        try:
            while self._questions:
                self._talk_to(next(iter(self._questions)))
        finally:
            self._talks = False

    def _talk_to(self, session: str) -> None:
        while session in self._questions:
            seq, said = self._questions[session]
            _write(said["text"])
            said["text"] = ""
            _load_line_editing()
            try:
                line: str | None = input(f"(Pdb {said['engine_id']}) ")
            except EOFError:
                line = None
            except KeyboardInterrupt:
                print("--KeyboardInterrupt--")
                continue
            except (OSError, RuntimeError, ValueError):
                # Nobody can be asked after all: a program executes this notebook, or has taken the terminal away.
                _tell_passed_over(said)
                line = "continue"
            self._questions.pop(session, None)
            if self._client.link.is_outstanding(seq):
                self._answer(said, line)
            self._await_news(session, seq)
        self._ended.discard(session)

    def _await_news(self, session: str, seq: int) -> None:
        """Waits until the debugger asks again or has ended, perhaps with its engine."""
        link = self._client.link

        def has_news() -> bool:
            return session in self._questions or session in self._ended or not link.is_outstanding(seq)

        while not has_news():
            link.wait_for(has_news, _LOOK_S)

    def _answer(self, said: dict[str, Any], line: str | None) -> None:
        """Sends a line to the debugger that waits for one."""
        self._n_answers += 1
        link = self._client.link
        content = of_answer(said["session"], self._n_answers, line)
        # All answers have the same name, so engines that start later get only the last one.
        link.post(json.dumps(preparation("answer", reload=True)), content)
        link.flush()

    def debug(self, result: ResultSide, engine: int | None) -> None:
        """See `AsyncResult.debug`."""
        if self.asks(result):
            self.talk()
            return
        parts = [part for part in range(result.n_parts) if result.part_done(part) and result.failure(part) is not None]
        if engine is not None:
            parts = [part for part in parts if result._engine_id(part) == engine]
        if not parts:
            where = "" if engine is None else f" on engine {engine}"
            raise LookupError(f"no task of this result has failed{where}, and none is waiting at a breakpoint()")
        self._post_mortem(result.failure(parts[0]))

    def _post_mortem(self, error: BaseException | None) -> None:
        """Opens a debugger where a task failed. Raises `LookupError` if its engine has not kept the frames."""
        kept = error.engine_info.get("kept_frames") if isinstance(error, RemoteError) else None
        if kept is None:
            raise LookupError(
                "the engine did not keep the frames of this failure; with Cluster(keep_failed_frames=8), engines "
                "keep the frames of the last 8 failures"
            )
        if not _can_ask():
            print("debug() does nothing: this program has no terminal to debug in", file=sys.stderr)
            return
        engine = error.engine_info["engine_id"]  # type: ignore[union-attr]
        if self._client.engine_uuid(engine) != error.engine_info["engine_uuid"]:  # type: ignore[union-attr]
            raise LookupError(f"engine {engine} has been restarted since then, so its frames are lost")
        view = self._client.direct_view(engine)
        view._submit(view._operation("post_mortem"), (kept,), {}, "debug").get()


# Questions that another thread has read and the main thread has not seen.
_untold: list[tuple[Debugging, str, int]] = []
_untold_lock = threading.Lock()


def listen() -> bool:
    """Makes other threads notify the main thread, which calls this, of questions that they read. False if nobody can
    answer.

    It uses SIGURG, which programs hardly use. No signal is sent: `_thread.interrupt_main` only marks it as pending.
    """
    if not _can_ask() or threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(signal.SIGURG) in (signal.SIG_DFL, signal.SIG_IGN):
        signal.signal(signal.SIGURG, _on_news)
    return True


def _has_handler() -> bool:
    return signal.getsignal(signal.SIGURG) is _on_news


def _on_news(_number: int, frame: FrameType | None) -> None:
    """In the main thread: opens the prompt at once if that waits for a result, and otherwise says that an engine has
    stopped."""
    with _untold_lock:
        news = _untold.copy()
        _untold.clear()
    waits = False
    while frame is not None and not waits:
        waits = str(frame.f_globals.get("__name__")).startswith("broadleaf.client.")
        frame = frame.f_back
    for debugging, session, engine in news:
        if waits:
            debugging.talk()
        elif debugging.waits(session):
            debugging.tell(engine)


def _can_ask() -> bool:
    """Whether a user can answer here."""
    if inside_kernel():
        return True
    with contextlib.suppress(AttributeError, ValueError):  # closed, or none
        return sys.stdin.isatty()
    return False


def _sources(files: Iterable[str]) -> dict[str, str]:
    """The source of files that hold this session's code; engines are not sent any other file."""
    loaded = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    sources = {name: "".join(linecache.getlines(name)) for name in files if name in loaded or _was_typed(name)}
    return {name: text for name, text in sources.items() if 0 < len(text) <= _SOURCE_CHARACTERS}


def _was_typed(name: str) -> bool:
    """Whether it is the name of a cell, which has no modification time."""
    entry = linecache.cache.get(name, ())
    return len(entry) == 4 and entry[1] is None


def _tell_passed_over(said: dict[str, Any]) -> None:
    where = f"engine {said['engine_id']}"
    print(f"{where} skips a breakpoint(): this program has no terminal to debug it in", file=sys.stderr)


def _load_line_editing() -> None:
    """Gives `input` line editing and history: IPython has its own, and leaves Python's unloaded."""
    if not inside_kernel():
        with contextlib.suppress(ImportError):  # a Python that was built without it
            importlib.import_module("readline")


def _write(text: str) -> None:
    if text:
        print(text, end="" if text.endswith("\n") else "\n")
