"""What a client offers to interactive users."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ALL_COMPLETED
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

from broadleaf.client.results.async_result import seconds
from broadleaf.client.task_index import listed
from broadleaf.extensions import extension
from broadleaf.state import connection

if TYPE_CHECKING:
    from broadleaf.client.protocols import Client
    from broadleaf.client.views.direct import DirectView


_leaves_magics = ContextVar("leaves_magics", default=False)


@contextmanager
def leaving_magics() -> Iterator[None]:
    """While it is open, new clients leave `%px` and `%%px` as they are."""
    token = _leaves_magics.set(True)
    try:
        yield
    finally:
        _leaves_magics.reset(token)


class Interactive:
    """The part of a client for sessions of IPython and Jupyter, and for waiting with a progress bar."""

    def activate(self, targets: Any = "all", suffix: str = "") -> DirectView:
        """Makes `%px`, `%%px` and related magics act on a direct view. Warns outside IPython.

        Args:
            targets: Engines: an id, a list of ids, a slice, or 'all'.
            suffix: A suffix for the magics' names, so that several views can have their own.

        Returns:
            The view.

        Raises:
            IndexError: One of the engines does not exist.
        """
        view: DirectView = self._client().direct_view(targets, block=True)
        view.activate(suffix)
        return view

    def _client(self) -> Client:
        return cast("Client", self)

    def _listen_to_debuggers(self) -> None:
        """Reports messages of tasks as they arrive if a user can talk to debuggers; otherwise loads almost nothing."""
        isatty = getattr(sys.stdin, "isatty", None)
        if "IPython" not in sys.modules and not (isatty is not None and not sys.stdin.closed and isatty()):
            return
        from broadleaf.client.display.debugger import listen

        if listen():
            client = self._client()
            client._listeners += 1  # for as long as there is a connection
            client.link.live_output = True

    def _activate_first(self) -> None:
        """Adds the magics to an IPython session, unless it has working ones; the shell of an engine is not a
        session."""
        ipython = sys.modules.get("IPython")
        if ipython is None or ipython.get_ipython() is None or connection.is_engine() or _leaves_magics.get():
            return
        if not extension("magics are active")():
            self.activate()

    def _repr_html_(self) -> str:
        from broadleaf.client.display.reprs import client_html

        return client_html(self._client())

    def wait_interactive(
        self, jobs: Any = None, interval: float = 1.0, timeout: float | None = -1, widget: bool | None = None
    ) -> bool:
        """Like `wait`, but shows progress.

        Args:
            jobs: A result, a task's id, an index of `history`, or a list of these. By default, everything that was
                submitted.
            interval: Seconds between two updates.
            timeout: Seconds to wait; None or a negative number means forever.
            widget: Whether the bar is a Jupyter widget; by default, if widgets are available.

        Returns:
            Whether everything is done.

        Raises:
            KeyError: The id does not belong to a task of this client.
            LinkLost: The connection is closed or was lost.
        """
        from broadleaf.client.display.progress import show_outstanding

        if jobs is None:
            return show_outstanding(self._client(), interval, seconds(timeout), widget)
        jobs = listed(jobs)
        if not jobs:
            return True
        result = self._client().get_result(jobs)
        result.wait_interactive(interval, timeout, widget, ALL_COMPLETED)
        return result.ready()
