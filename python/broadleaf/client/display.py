"""Showing output and progress: as text anywhere, rich inside IPython."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION
from contextlib import contextmanager
from typing import Any, TextIO

from broadleaf.client.failures import STATUS_OK
from broadleaf.client.results import AsyncResult

STDOUT = 1
STDERR = 2
MESSAGES = 3


def inside_ipython() -> bool:
    """Whether IPython runs here; does not import it."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def show_bundle(data: dict[str, Any], metadata: dict[str, Any] | None = None) -> None:
    """Shows a MIME bundle: rich inside IPython, its plain text elsewhere."""
    if inside_ipython():
        display: Any = importlib.import_module("IPython.display")
        display.publish_display_data(data, metadata or {})
    elif data.get("text/plain"):
        print(data["text/plain"])


def _write_labelled(text: str, label: str, file: TextIO | None = None) -> None:
    end = "" if text.endswith("\n") else "\n"
    newline = "\n" if label and text.count("\n") > 1 else ""
    print(f"{label}{newline}{text}", end=end, file=file or sys.stdout)


def _engine_label(result: AsyncResult, part: int, kind: str) -> str:
    return "" if result.origin.single else f"[{kind}:{result._engine_id(part)}] "


def display_outputs(result: AsyncResult, groupby: str = "type", result_only: bool = False) -> None:
    """Waits for `result`, then shows what its tasks wrote, displayed and returned."""
    if groupby not in ("type", "engine", "order"):
        raise ValueError(f"groupby must be one of 'type', 'engine', 'order', not {groupby!r}")
    result.wait()
    parts = range(result.n_parts)
    shown = [result.part_metadata(part) for part in parts]
    if groupby == "engine":
        for part in parts:
            _show_streams(result, [part], shown, result_only)
            _show_rich(result, [part], shown, groupby, result_only)
    else:
        _show_streams(result, parts, shown, result_only)
        _show_rich(result, parts, shown, groupby, result_only)


def _show_streams(result: AsyncResult, parts: Any, shown: list[Any], result_only: bool) -> None:
    if result_only:
        return
    for kind, file in (("stdout", sys.stdout), ("stderr", sys.stderr)):
        for part in parts:
            text = shown[part][kind]
            if text:
                _write_labelled(text, _engine_label(result, part, kind), file)


def _show_rich(result: AsyncResult, parts: Any, shown: list[Any], groupby: str, result_only: bool) -> None:
    if not result_only:
        outputs = [(order, part) for part in parts for order in range(len(shown[part]["outputs"]))]
        if groupby == "order":
            outputs.sort()
        previous = None
        for order, part in outputs:
            label = _engine_label(result, part, "output").rstrip()
            if label and part != previous:
                print(label)
            previous = part
            output = shown[part]["outputs"][order]
            show_bundle(output["data"], output["metadata"])
    for part in parts:
        if shown[part]["execute_result"] is not None and result.part_status(part) == STATUS_OK:
            result._part_value(part).display()


@contextmanager
def stream_output(result: AsyncResult) -> Iterator[None]:
    """While the block runs, shows what `result`'s tasks write as it arrives, and what they wrote before."""
    from broadleaf.client.metadata import outputs_of

    lengths = {(part, stream): 0 for part in range(result.n_parts) for stream in (STDOUT, STDERR, MESSAGES)}

    def show(part: int, stream: int, text: str) -> None:
        kind, file = ("stdout", sys.stdout) if stream == STDOUT else ("stderr", sys.stderr)
        _write_labelled(text, _engine_label(result, part, kind), file)

    def on_output(part: int, stream: int, data: bytes) -> None:
        catch_up(part)

    def catch_up(part: int) -> None:
        # What is kept is the truth; live output only says when to look, so nothing is shown twice.
        stdout, stderr, messages = result.output(part)
        for stream, text in ((STDOUT, stdout), (STDERR, stderr)):
            seen = lengths[part, stream]
            if len(text) > seen:
                lengths[part, stream] = len(text)
                show(part, stream, text[seen:])
        outputs = outputs_of(messages)[0]
        seen = lengths[part, MESSAGES]
        lengths[part, MESSAGES] = max(seen, len(outputs))
        for output in outputs[seen:]:
            label = _engine_label(result, part, "output").rstrip()
            if label:
                print(label)
            show_bundle(output["data"], output["metadata"])

    # Live output comes to the submitted results, of which this one may be a selection.
    numbers = {(id(owner), number): part for part, (owner, number) in enumerate(result.parts())}
    owners = list({id(owner): owner for owner, _ in result.parts()}.values())
    listeners = []
    for owner in owners:

        def listener(number: int, stream: int, data: bytes, owner_id: int = id(owner)) -> None:
            part = numbers.get((owner_id, number))
            if part is not None:
                on_output(part, stream, data)

        listeners.append((owner, listener))
    with result.origin.client.live_output():
        for owner, listener in listeners:
            result.origin.client.remember(owner)
            owner.listen(listener)
        try:
            for part in range(result.n_parts):
                catch_up(part)
            yield
        finally:
            for owner, listener in listeners:
                owner.unlisten(listener)
            for part in range(result.n_parts):
                catch_up(part)


def show_progress(result: AsyncResult, interval_s: float, timeout_s: float | None, return_when: str) -> None:
    """Waits for `result` with a progress line: tqdm's where it is installed, plain text elsewhere."""
    bar = _progress_bar(len(result), result._name)
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    try:
        while True:
            bar.update(result.progress - bar.n)
            if _finished(result, return_when):
                return
            left = interval_s if deadline is None else min(interval_s, deadline - time.monotonic())
            if left <= 0:
                return
            result.wait_all_done(left)
    finally:
        bar.close()


def _finished(result: AsyncResult, return_when: str) -> bool:
    if result.all_done():
        return True
    if return_when == FIRST_COMPLETED:
        return result.n_done() > 0
    if return_when == FIRST_EXCEPTION:
        return result.failed()
    if return_when != ALL_COMPLETED:
        raise ValueError(f"return_when={return_when!r} is not a constant of concurrent.futures")
    return False


class _PlainBar:
    """Progress as one line that is written over."""

    def __init__(self, total: int, name: str) -> None:
        self._total, self._name, self.n = total, name, 0
        self._started = time.monotonic()

    def update(self, more: int) -> None:
        self.n += more
        elapsed_s = time.monotonic() - self._started
        print(f"\r{self._name}: {self.n}/{self._total} tasks, {elapsed_s:.1f} s", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        print(file=sys.stderr)


def _progress_bar(total: int, name: str) -> Any:
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped]
    except ImportError:
        return _PlainBar(total, name)
    return tqdm(total=total, unit="tasks", desc=name)
