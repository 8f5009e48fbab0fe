"""Output and errors of tasks, shown while the tasks run."""

from __future__ import annotations

import contextvars
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from broadleaf.client.connection.failures import STATUS_OK
from broadleaf.client.display.line_groups import LineGroups
from broadleaf.client.display.outputs import engine_label, show_bundle, write_labelled
from broadleaf.client.display.progress import can_write_over, inside_ipython
from broadleaf.client.results.metadata import STDERR, STDOUT, outputs_of
from broadleaf.errors.display import coloured_traceback, headline, id_ranges

if TYPE_CHECKING:
    from broadleaf.client.results.async_result import AsyncResult


class OutputStream:
    """A context: while it is open, what a result's tasks write is shown as it arrives, together with what they wrote
    before.

    Each engine's output is shown in order, once. With `grouped`, lines that several engines print are shown once, with
    all their engines. With `errors`, so are the tracebacks of tasks that fail, when `show_new` is called.
    """

    def __init__(self, result: AsyncResult, grouped: bool = False, errors: bool = False) -> None:
        self._result = result
        # Keyed by part, and only for parts that have written: most cells on many engines write nothing.
        self._positions: defaultdict[tuple[int, int], int] = defaultdict(int)
        self._unfinished: dict[tuple[int, int], str] = {}
        self._n_messages: defaultdict[int, int] = defaultdict(int)
        self._n_shown: defaultdict[int, int] = defaultdict(int)
        self._groups = {stream: LineGroups(result, stream) for stream in (STDOUT, STDERR)} if grouped else None
        self._errors = _ErrorGroups(result) if errors else None
        self._n_done_seen = 0
        # Live output may arrive on another thread: it is shown there as if on this one, one piece at a time.
        self._lock = threading.RLock()
        self._context = contextvars.copy_context()
        self.aside: Callable[[], AbstractContextManager[Any]] = nullcontext
        """A context to write in, where something else, such as a progress bar, has the line."""
        self._listeners: list[tuple[AsyncResult, Callable[[int, int, bytes], None]]] = []
        self._live: Any = None

    def __enter__(self) -> Self:
        result = self._result
        # Live output goes to the submitted results, of which this one may be a selection.
        numbers = {(id(owner), number): part for part, (owner, number) in enumerate(result.parts())}
        owners = {id(owner): owner for owner, _ in result.parts()}
        self._live = result.origin.client.live_output()
        self._live.__enter__()
        for owner in owners.values():

            def listener(number: int, stream: int, data: bytes, owner_id: int = id(owner)) -> None:
                part = numbers.get((owner_id, number))
                if part is not None:
                    self._context.copy().run(self._catch_up, part)

            result.origin.client.tasks.remember(owner)
            owner.listen(listener)
            self._listeners.append((owner, listener))
        try:
            self._catch_up_all()
        except BaseException:  # such as Ctrl-C
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for owner, listener in self._listeners:
            owner.unlisten(listener)
        self._live.__exit__(kind, error, traceback)
        self._catch_up_all()
        for part, stream in list(self._unfinished):
            self._write(part, stream, self._unfinished.pop((part, stream)))
        for groups in (self._groups or {}).values():
            groups.show(is_end=True)

    def show_new(self) -> None:
        """Shows the errors of tasks that have failed since the last call, and lines that are complete now."""
        result = self._result
        with self._lock:
            done = [result.completed_part(rank) for rank in range(self._n_done_seen, result.n_done())]
            self._n_done_seen += len(done)
            for part in sorted(set(done).intersection(result.written_parts())):
                self._catch_up(part)
            failed = [part for part in done if result.part_status(part) != STATUS_OK] if result.n_failed() else []
            if self._groups is None and (self._errors is None or not failed):
                return
            with self.aside():
                for groups in (self._groups or {}).values():
                    groups.show()
                if self._errors is not None:
                    self._errors.show(failed)

    def close_errors(self) -> bool:
        """Says on which engines errors that were already shown occurred again. Returns whether any error was shown."""
        return self._errors is not None and self._errors.close()

    def _catch_up_all(self) -> None:
        for part in self._result.written_parts():
            self._catch_up(part)

    def _catch_up(self, part: int) -> None:
        # The stored output is authoritative; live output only says when to look, so nothing is shown twice.
        with self._lock:
            result = self._result
            for stream in (STDOUT, STDERR):
                text, self._positions[part, stream] = result.text_since(part, stream, self._positions[part, stream])
                if text:
                    with self.aside():
                        self._take(part, stream, text)
            messages = result.messages(part)
            if len(messages) > self._n_messages[part]:
                self._n_messages[part] = len(messages)
                with self.aside():
                    self._show_displays(part, outputs_of(messages)[0])

    def _show_displays(self, part: int, outputs: list[dict[str, Any]]) -> None:
        seen = self._n_shown[part]
        self._n_shown[part] = max(seen, len(outputs))
        for output in outputs[seen:]:
            label = engine_label(self._result, part, "output").rstrip()
            if label:
                print(label)
            show_bundle(output["data"], output["metadata"])

    def _take(self, part: int, stream: int, text: str) -> None:
        if self._groups is not None:
            self._groups[stream].add(part, text)
            return
        if self._result.origin.single:
            _file(stream).write(text)
            _file(stream).flush()
            return
        # Half a line would be taken for a whole one, and its rest for another.
        text = self._unfinished.pop((part, stream), "") + text
        whole, newline, rest = text.rpartition("\n")
        if rest:
            self._unfinished[part, stream] = rest
        if newline:
            self._write(part, stream, whole + newline)

    def _write(self, part: int, stream: int, text: str) -> None:
        write_labelled(text, engine_label(self._result, part, _kind(stream)), _file(stream))


def _kind(stream: int) -> str:
    return "stdout" if stream == STDOUT else "stderr"


def _file(stream: int) -> Any:
    return sys.stdout if stream == STDOUT else sys.stderr


class _ErrorGroups:
    """Errors of tasks by traceback: each shown once, with the engines that failed so."""

    def __init__(self, result: AsyncResult) -> None:
        self._result = result
        self._shown: dict[Any, int] = {}
        self._again: dict[Any, list[int]] = {}

    def show(self, parts: Iterable[int]) -> None:
        """Shows those of the failed parts that differ from all earlier ones."""
        groups: dict[Any, list[int]] = {}
        for part in parts:
            error = self._result.failure(part)
            name, text = getattr(error, "ename", type(error).__name__), str(getattr(error, "evalue", error))
            groups.setdefault((name, text, getattr(error, "traceback", "")), []).append(part)
        for key, alike in groups.items():
            if key in self._shown:
                self._again.setdefault(key, []).extend(alike)
                continue
            self._shown[key] = alike[0]
            name, text, traceback = key
            shown = traceback.rstrip() or headline(name, text)
            if traceback and inside_ipython() and can_write_over():
                shown = coloured_traceback(shown)
            print(f"{self._label(alike)}\n{shown}", file=sys.stderr)

    def close(self) -> bool:
        """Names the engines on which errors occurred again; returns whether there was any error."""
        for (name, text, _), parts in self._again.items():
            print(f"{self._label(parts)} {headline(name, text)}", file=sys.stderr)
        self._again.clear()
        return bool(self._shown)

    def _label(self, parts: list[int]) -> str:
        engines = {engine for part in parts if (engine := self._result._engine_id(part)) is not None}
        return f"[{id_ranges(engines)}:{self._result.origin.method}]"
