"""The part of a result that shows what its tasks write, and their progress."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ALL_COMPLETED
from typing import TYPE_CHECKING, cast

from broadleaf.client.results.metadata import MESSAGES
from broadleaf.client.results.times import TimedResult

if TYPE_CHECKING:
    from broadleaf.client.display.debugger import Debugging
    from broadleaf.client.display.streaming import OutputStream
    from broadleaf.client.results.async_result import AsyncResult


def seconds(timeout: float | None) -> float | None:
    """A timeout as the native side takes it: None means forever, and so do negative numbers."""
    return None if timeout is None or timeout < 0 else timeout


class ShownResult(TimedResult):
    """Output, progress, and a notebook's view of a result."""

    _output_listeners: tuple[Callable[[int, int, bytes], None], ...] = ()

    def _result(self) -> AsyncResult:
        return cast("AsyncResult", self)

    def _repr_html_(self) -> str:
        from broadleaf.client.display.html_reprs import result_html

        return result_html(self._result())

    def wait_interactive(
        self,
        interval: float = 0.1,
        timeout: float | None = -1,
        widget: bool | None = None,
        return_when: str = ALL_COMPLETED,
    ) -> None:
        """Waits, showing progress every `interval` seconds. Raises nothing when `timeout` seconds are over."""
        from broadleaf.client.display.progress import show_progress

        with self._result()._aborting_on_interrupt():
            show_progress(self._result(), interval, seconds(timeout), return_when, widget)

    def wait_for_output(self, timeout: float | None = -1) -> bool:
        """Waits until everything the tasks wrote is here: output comes before the result it belongs to."""
        return self._result().wait_all_done(seconds(timeout))

    def stream_output(self, group_lines: bool = False) -> OutputStream:
        """While the block runs, shows what the tasks write as it arrives; with `group_lines` alike lines once."""
        from broadleaf.client.display.streaming import OutputStream

        return OutputStream(self._result(), group_lines)

    def show(
        self,
        stream: bool = True,
        groupby: str = "type",
        progress_after: float = 2.0,
        signal_on_interrupt: str | int | None = "SIGINT",
    ) -> None:
        """Waits, showing what the tasks write, display, return and raise: what a cell of `%%px` does.

        With `stream` all of it is shown as it arrives, errors too, and an `AlreadyDisplayedError` says how many there
        were; otherwise at the end, grouped as `display_outputs` does, and `get`'s error is raised. A progress bar
        comes after `progress_after` seconds (negative: never) on a terminal and in a notebook. On Ctrl-C engines get
        the signal, and this returns: SIGINT aborts the tasks; with None they are aborted and the interrupt is raised.
        """
        from broadleaf.client.display.showing import show

        show(self._result(), stream, groupby, progress_after, signal_on_interrupt)

    def display_outputs(self, groupby: str = "type", result_only: bool = False) -> None:
        """Waits, then shows all output, grouped by 'type', 'engine' or 'order', or as 'lines', alike ones once."""
        from broadleaf.client.display.outputs import display_outputs

        display_outputs(self._result(), groupby, result_only)

    def on_output(self, part: int, stream: int, data: bytes) -> None:
        """Live output of one part, from the client's hooks."""
        if stream == MESSAGES and b"debugger" in data:
            self._debugging().on_message(self._result(), part, data)
        for listener in self._output_listeners:
            listener(part, stream, data)

    def _debugging(self) -> Debugging:
        from broadleaf.client.display.debugger import Debugging

        client = self._result().origin.client
        if client.debugging is None:
            client.debugging = Debugging(client)
        return client.debugging

    def debug(self, engine: int | None = None) -> None:
        """Opens Python's debugger where a task of this result stopped or failed, by default the first that did.

        That is a task that waits in a `breakpoint()`, or one that has failed on an engine that keeps failed tasks'
        frames (the option `keep_failed_frames`). Returns when you leave the debugger. Raises `LookupError` where there
        is nothing to debug.
        """
        self._debugging().debug(self._result(), engine)

    def listen(self, listener: Callable[[int, int, bytes], None]) -> None:
        """Passes live output to `listener(part, stream, data)`."""
        self._output_listeners = (*self._output_listeners, listener)

    def unlisten(self, listener: Callable[[int, int, bytes], None]) -> None:
        """Undoes `listen`."""
        self._output_listeners = tuple(known for known in self._output_listeners if known != listener)
