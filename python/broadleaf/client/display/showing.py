"""Waiting for a result while its output, errors and progress are shown."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from typing import TYPE_CHECKING, Any

from broadleaf.client.connection.failures import link_lost
from broadleaf.client.connection.signals import signal_number
from broadleaf.client.display.descriptions import engines_in_words
from broadleaf.client.display.outputs import GROUPINGS, show_outputs, show_values
from broadleaf.client.display.progress import can_write_over, progress_bar
from broadleaf.client.display.streaming import OutputStream
from broadleaf.errors import AlreadyDisplayedError, CompositeError, hides_frames

if TYPE_CHECKING:
    from broadleaf.client.results.async_result import AsyncResult

__tracebackhide__ = hides_frames

# Time between two checks of what has ended.
_TICK_S = 0.1
# How long interrupted tasks have to end while their last output is still shown.
_END_S = 0.8


def show(
    result: AsyncResult, stream: bool, groupby: str, progress_after_s: float, signal_on_interrupt: str | int | None
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


def _wait(result: AsyncResult, shown: OutputStream | None, progress_after_s: float) -> None:
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


def _interrupt(result: AsyncResult, shown: OutputStream | None, name: str | int | None, number: int) -> None:
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


def _tell_of_busy(result: AsyncResult) -> None:
    """Says which engines have not reacted to the interrupt: nothing else shows that they will keep the next cell
    waiting."""
    parts = result._unfinished_parts()
    if not parts:
        return
    engines = sorted({engine for part in parts if (engine := result._engine_id(part)) is not None})
    who = engines_in_words(engines) if engines else f"{len(parts):,} task{'' if len(parts) == 1 else 's'}"
    print(
        f"Still busy: {who}. Compiled code is interrupted when it returns to Python; what you send there waits until "
        f"then. client.send_signal('SIGKILL', targets) ends an engine at once, with its variables.",
        file=sys.stderr,
    )
