"""The part of a result that shows what its tasks write, and their progress."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ALL_COMPLETED
from typing import TYPE_CHECKING, cast

from broadleaf.client.display.html_reprs import result_html
from broadleaf.client.display.outputs import display_outputs
from broadleaf.client.display.progress import show_progress
from broadleaf.client.display.showing import show
from broadleaf.client.display.streaming import OutputStream
from broadleaf.client.results.metadata import MESSAGES
from broadleaf.client.results.parts import Value
from broadleaf.client.results.times import TimedResult

if TYPE_CHECKING:
    from broadleaf.client.display.debugger import Debugging
    from broadleaf.client.results.async_result import AsyncResult


def seconds(timeout: float | None) -> float | None:
    """A timeout as the native side takes it: None means forever, and so do negative numbers."""
    return None if timeout is None or timeout < 0 else timeout


class ShownResult(TimedResult[Value]):
    """Output, progress, and a notebook's view of a result."""

    _output_listeners: tuple[Callable[[int, int, bytes], None], ...] = ()

    def _as_result(self) -> AsyncResult:
        return cast("AsyncResult", self)

    def _repr_html_(self) -> str:
        return result_html(self._as_result())

    def wait_interactive(
        self,
        interval: float = 0.1,
        timeout: float | None = -1,
        widget: bool | None = None,
        return_when: str = ALL_COMPLETED,
    ) -> None:
        """Waits, showing progress. Raises nothing when the time is up. Ctrl-C aborts the tasks it is waiting for.

        Args:
            interval: Seconds between two updates.
            timeout: Seconds to wait; None or a negative number: forever.
            widget: Whether the bar is a Jupyter widget; by default, if widgets are available.
            return_when: `FIRST_COMPLETED`, `FIRST_EXCEPTION` or `ALL_COMPLETED`.

        Raises:
            LinkLost: The connection is closed or was lost.
        """
        with self._as_result()._aborting_on_interrupt():
            show_progress(self._as_result(), interval, seconds(timeout), return_when, widget)

    def wait_for_output(self, timeout: float | None = -1) -> bool:
        """Waits until everything the tasks wrote has arrived: output comes before the result it belongs to.

        Args:
            timeout: Seconds to wait; None or a negative number: forever.

        Returns:
            Whether all tasks are done.
        """
        return self._as_result().wait_all_done(seconds(timeout))

    def stream_output(self, group_lines: bool = False) -> OutputStream:
        """Shows what the tasks write as it arrives, while a `with` block runs.

        Args:
            group_lines: Whether to show identical lines once, with the engines that wrote them.

        Returns:
            A context manager.
        """
        return OutputStream(self._as_result(), group_lines)

    def show(
        self,
        stream: bool = True,
        groupby: str = "type",
        progress_after: float = 2.0,
        signal_on_interrupt: str | int | None = "SIGINT",
    ) -> None:
        """Waits, showing what the tasks write, display, return and raise: what a cell of `%%px` does.

        Args:
            stream: Whether to show everything as it arrives, including errors. Otherwise it is shown at the end, as by
                `display_outputs`.
            groupby: How it is grouped at the end: 'type', 'engine', 'order', or 'lines' to show identical lines once.
            progress_after: Seconds after which a progress bar appears, on a terminal or in a notebook; negative: never.
            signal_on_interrupt: The signal that engines get on Ctrl-C, after which this returns; SIGINT aborts the
                tasks. With None, they are aborted and the interrupt is raised.

        Raises:
            AlreadyDisplayedError: Tasks of several engines failed, and their errors have been shown.
            RemoteError: A task did not return. Without `stream`, a `CompositeError` if there are several engines.
            ValueError: The grouping or signal does not exist.
            LinkLost: The connection is closed or was lost.
        """
        show(self._as_result(), stream, groupby, progress_after, signal_on_interrupt)

    def display_outputs(self, groupby: str = "type", result_only: bool = False) -> None:
        """Waits, then shows everything that the tasks wrote, displayed and returned.

        Args:
            groupby: 'type', 'engine', 'order', or 'lines' to show identical lines once.
            result_only: Whether only the values of last expressions are shown.

        Raises:
            ValueError: The grouping does not exist.
            LinkLost: The connection is closed or was lost.
        """
        display_outputs(self._as_result(), groupby, result_only)

    def on_output(self, part: int, stream: int, data: bytes) -> None:
        """Live output of one part, from the client's hooks."""
        if stream == MESSAGES and b"debugger" in data:
            self._debugging().on_message(self._as_result(), part, data)
        for listener in self._output_listeners:
            listener(part, stream, data)

    def _debugging(self) -> Debugging:
        from broadleaf.client.display.debugger import Debugging

        client = self._as_result().origin.client
        if client.debugging is None:
            client.debugging = Debugging(client)
        return client.debugging

    def debug(self, engine: int | None = None) -> None:
        """Opens Python's debugger where a task of this result stopped or failed. Returns when you leave the debugger.

        That is a task that waits in a `breakpoint()`, or one that failed on an engine that keeps the frames of failed
        tasks (the option `keep_failed_frames`).

        Args:
            engine: The engine that runs the task; by default, the first that stopped or failed.

        Raises:
            LookupError: There is nothing to debug.
        """
        self._debugging().debug(self._as_result(), engine)

    def listen(self, listener: Callable[[int, int, bytes], None]) -> None:
        """Passes live output to `listener(part, stream, data)`."""
        self._output_listeners = (*self._output_listeners, listener)

    def unlisten(self, listener: Callable[[int, int, bytes], None]) -> None:
        """Undoes `listen`."""
        self._output_listeners = tuple(known for known in self._output_listeners if known != listener)
