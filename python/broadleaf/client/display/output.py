"""What tasks write, display and raise: shown while they run, and afterwards."""

from __future__ import annotations

import contextlib
import contextvars
import importlib
import math
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from broadleaf.client.display.progress import can_write_over, inside_ipython, inside_kernel, progress_bar
from broadleaf.client.display.reprs import engines_in_words
from broadleaf.client.failures import STATUS_OK, link_lost
from broadleaf.client.metadata import STDERR, STDOUT, outputs_of
from broadleaf.errors import AlreadyDisplayedError, CompositeError, hides_frames
from broadleaf.errors.display import coloured_traceback, headline, id_ranges
from broadleaf.requests import signal_number

if TYPE_CHECKING:
    from broadleaf.client.protocols import ResultSide


# Showing output: as text anywhere, rich inside IPython.


GROUPINGS = ("type", "engine", "order", "lines")


def show_bundle(data: dict[str, Any], metadata: dict[str, Any] | None = None) -> None:
    """Shows a MIME bundle: rich inside IPython, its plain text elsewhere."""
    # IPython on a terminal would also print plain text, and keep it forever.
    if inside_ipython() and (inside_kernel() or data.keys() != {"text/plain"}):
        display: Any = importlib.import_module("IPython.display")
        display.publish_display_data(data, metadata or {})
    elif data.get("text/plain"):
        print(data["text/plain"])


def write_labelled(text: str, label: str, file: TextIO | None = None) -> None:
    """Writes what one engine has printed."""
    end = "" if text.endswith("\n") else "\n"
    newline = "\n" if label and text.count("\n") > 1 else ""
    print(f"{label}{newline}{text}", end=end, file=file or sys.stdout)


def engine_label(result: ResultSide, part: int, kind: str) -> str:
    """`[stdout:3] `, or nothing for a result of a single engine."""
    return "" if result.origin.single else f"[{kind}:{result._engine_id(part)}] "


def display_outputs(result: ResultSide, groupby: str = "type", result_only: bool = False) -> None:
    """Waits for `result`, then shows what its tasks wrote, displayed and returned."""
    if groupby not in GROUPINGS:
        raise ValueError(f"groupby must be one of {', '.join(map(repr, GROUPINGS))}, not {groupby!r}")
    result.wait()
    show_outputs(result, groupby, result_only)


def show_outputs(result: ResultSide, groupby: str, result_only: bool = False) -> None:
    """Shows what the tasks of `result` have written and displayed so far, and returned."""
    parts = range(result.n_parts)
    shown = [result.part_metadata(part) for part in parts]
    if groupby == "engine":
        for part in parts:
            _show_streams(result, [part], shown, result_only)
            _show_rich(result, [part], shown, groupby, result_only)
    else:
        if groupby == "lines" and not result.origin.single:
            _show_grouped(result, shown, result_only)
        else:
            _show_streams(result, parts, shown, result_only)
        _show_rich(result, parts, shown, groupby, result_only)


def _show_streams(result: ResultSide, parts: Any, shown: list[Any], result_only: bool) -> None:
    if result_only:
        return
    for kind, file in (("stdout", sys.stdout), ("stderr", sys.stderr)):
        for part in parts:
            text = shown[part][kind]
            if text:
                write_labelled(text, engine_label(result, part, kind), file)


def _show_grouped(result: ResultSide, shown: list[Any], result_only: bool) -> None:
    if result_only:
        return
    for stream, kind in ((STDOUT, "stdout"), (STDERR, "stderr")):
        groups = LineGroups(result, stream)
        for part, metadata in enumerate(shown):
            groups.add(part, metadata[kind])
        groups.show(is_end=True)


def show_values(result: ResultSide) -> None:
    """Shows the values of the tasks' last expressions, for those that returned."""
    for part in range(result.n_parts):
        # Most cells on many engines return nothing, and reading metadata for each would cost more than the cell.
        if result.part_status(part) == STATUS_OK and has_shown_value(result, part):
            _show_value(result, part)


def _show_value(result: ResultSide, part: int) -> None:
    reply = result._part_value(part)
    # A table or a picture does not say which engine it came from; plain text does.
    if inside_kernel() and not result.origin.single and reply.data.keys() != {"text/plain"}:
        print(reply.label)
    reply.display()


def has_shown_value(result: ResultSide, part: int) -> bool:
    """Whether a task was code whose last expression has a value."""
    value = result.value(part)
    if isinstance(value, dict):
        return result.origin.method == "execute" and value.get("execute_result") is not None
    return getattr(value, "execute_result", None) is not None


def _show_rich(result: ResultSide, parts: Any, shown: list[Any], groupby: str, result_only: bool) -> None:
    if not result_only:
        outputs = [(order, part) for part in parts for order in range(len(shown[part]["outputs"]))]
        if groupby == "order":
            outputs.sort()
        previous = None
        for order, part in outputs:
            label = engine_label(result, part, "output").rstrip()
            if label and part != previous:
                print(label)
            previous = part
            output = shown[part]["outputs"][order]
            show_bundle(output["data"], output["metadata"])
    for part in parts:
        if result.part_status(part) == STATUS_OK and shown[part]["execute_result"] is not None:
            _show_value(result, part)


# Lines that several engines print, shown once.


class LineGroups:
    """One stream of all tasks of a result, line by line: the first lines of all engines together, then the second.

    The lines of an engine stay in order. A line number is shown once every engine has printed its line, or has ended.
    """

    def __init__(self, result: ResultSide, stream: int) -> None:
        self._result = result
        self._kind, self._is_stdout = ("stdout", True) if stream == STDOUT else ("stderr", False)
        # For each task, the lines that are not shown yet; the last one may be incomplete.
        self._lines: list[deque[str]] = [deque() for _ in range(result.n_parts)]

    def add(self, part: int, text: str) -> None:
        """Adds what a task has written."""
        lines = self._lines[part]
        if lines and not lines[-1].endswith("\n"):
            text = lines.pop() + text
        *whole, rest = text.split("\n")
        lines.extend(line + "\n" for line in whole)
        if rest:
            lines.append(rest)

    def show(self, is_end: bool = False) -> None:
        """Shows the line numbers that are complete, and all of them at the end."""
        shown: list[tuple[tuple[int, ...], list[str]]] = []
        while any(self._lines) and (is_end or all(map(self._has_next, range(len(self._lines))))):
            alike: dict[str, list[int]] = {}
            for part, lines in enumerate(self._lines):
                if lines:
                    alike.setdefault(lines.popleft().rstrip("\n"), []).append(part)
            for text, parts in alike.items():
                if shown and shown[-1][0] == tuple(parts):
                    shown[-1][1].append(text)
                else:
                    shown.append((tuple(parts), [text]))
        for engines, texts in shown:
            self._write(engines, texts)

    def _has_next(self, part: int) -> bool:
        lines = self._lines[part]
        if self._result.part_done(part):
            return True
        return len(lines) > 1 or (len(lines) == 1 and lines[0].endswith("\n"))

    def _write(self, parts: tuple[int, ...], texts: list[str]) -> None:
        engines = {engine for part in parts if (engine := self._result._engine_id(part)) is not None}
        label = f"[{self._kind}:{id_ranges(engines)}]"
        file = sys.stdout if self._is_stdout else sys.stderr
        print(label, "\n".join(texts), sep="\n" if len(texts) > 1 else " ", file=file)


# Output and errors of tasks, shown while the tasks run.


class OutputStream:
    """A context: while it is open, what a result's tasks write is shown as it arrives, together with what they wrote
    before.

    Each engine's output is shown in order, once. With `grouped`, lines that several engines print are shown once, with
    all their engines. With `errors`, so are the tracebacks of tasks that fail, when `show_new` is called.
    """

    def __init__(self, result: ResultSide, grouped: bool = False, errors: bool = False) -> None:
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
        self._listeners: list[tuple[ResultSide, Callable[[int, int, bytes], None]]] = []
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

    def __init__(self, result: ResultSide) -> None:
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


# Waiting for a result while its output, errors and progress are shown.


__tracebackhide__ = hides_frames

# Time between two checks of what has ended.
_TICK_S = 0.1
# How long interrupted tasks have to end while their last output is still shown.
_END_S = 0.8


def show(
    result: ResultSide, stream: bool, groupby: str, progress_after_s: float, signal_on_interrupt: str | int | None
) -> None:
    """See `AsyncResult.show`."""
    if groupby not in GROUPINGS:
        raise ValueError(f"groupby must be one of {', '.join(map(repr, GROUPINGS))}, not {groupby!r}")
    number = None if signal_on_interrupt is None else signal_number(signal_on_interrupt)
    many = not result.origin.single
    with contextlib.ExitStack() as stack:
        shown = OutputStream(result, many and groupby == "lines", many) if stream else None
        try:
            # It shows what there is already, and whoever sees that may press Ctrl-C.
            if shown is not None:
                stack.enter_context(shown)
            _wait(result, shown, progress_after_s)
            interrupted = False
        except KeyboardInterrupt:
            if number is None:
                result.abort_interrupted()
                raise
            interrupted = True
            _interrupt(result, shown, signal_on_interrupt, number)
        except result.origin.client.native.LinkClosed as error:
            raise link_lost(error) from error
    if shown is None:
        show_outputs(result, groupby)
    elif not interrupted:
        show_values(result)
    errors_shown = shown is not None and shown.close_errors()
    if interrupted and number == signal_number("SIGINT"):
        _tell_of_busy(result)
    if interrupted or not result.n_failed():
        return
    try:
        result.get()
    except CompositeError as error:
        if errors_shown:
            raise AlreadyDisplayedError(error) from None
        raise


def _wait(result: ResultSide, shown: OutputStream | None, progress_after_s: float) -> None:
    wants_bar = progress_after_s >= 0 and can_write_over()
    begins = time.monotonic() + progress_after_s if wants_bar else math.inf
    if shown is None and not wants_bar:
        result.wait_all_done(None)
        return
    bar: Any = None
    is_done = False
    try:
        while not is_done:
            until_bar_s = _TICK_S if bar is not None else max(0.0, begins - time.monotonic())
            is_done = result.wait_all_done(min(_TICK_S, until_bar_s))
            if bar is None and not is_done and time.monotonic() >= begins:
                bar = progress_bar(len(result), result._name)
                if shown is not None:
                    shown.aside = bar.aside
            if shown is not None:
                shown.show_new()
            if bar is not None:
                bar.show(result.progress)
    finally:
        if bar is not None:
            if shown is not None:
                shown.aside = contextlib.nullcontext
            bar.close()


def _interrupt(result: ResultSide, shown: OutputStream | None, name: str | int | None, number: int) -> None:
    """Sends the signal to the engines that are waited for, and waits briefly for its effect."""
    print(f"Received Keyboard Interrupt. Sending signal {name} to engines...", file=sys.stderr)
    if number == signal_number("SIGINT"):
        # Includes tasks that have not started, but nothing that runs for others. Engines whose variables a session has
        # built up are not killed.
        result._aborted_by = "Ctrl-C"
        result.origin.client.interrupt_tasks(result._unfinished_seqs())
    else:
        engines = [result._engine_id(part) for part in result._unfinished_parts()]
        known = set(result.origin.client.ids)
        result.origin.client.send_signal(number, [engine for engine in engines if engine in known])
    result.wait_all_done(_END_S if number else 0.0)
    if shown is not None:
        shown.show_new()


def _tell_of_busy(result: ResultSide) -> None:
    """Says which engines have not reacted to the interrupt: nothing else shows that they will keep the next cell
    waiting."""
    parts = result._unfinished_parts()
    if not parts:
        return
    engines = sorted({engine for part in parts if (engine := result._engine_id(part)) is not None})
    who = engines_in_words(engines) if engines else f"{len(parts):,} task{'' if len(parts) == 1 else 's'}"
    print(
        f"Still busy: {who}. Compiled code is interrupted when it returns to Python; tasks sent there wait until "
        f"then. client.send_signal('SIGKILL', targets) kills an engine at once, and its variables are lost.",
        file=sys.stderr,
    )
