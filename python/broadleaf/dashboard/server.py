"""The dashboard's server: a page, its files, and one stream."""

from __future__ import annotations

import asyncio
import atexit
import os
import socket
import threading
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broadleaf.dashboard.access import Guard
from broadleaf.errors import BroadleafError

if TYPE_CHECKING:
    from broadleaf.dashboard.feed import Watched

_START_TIMEOUT_S = 10.0


class DashboardError(BroadleafError):
    """The dashboard cannot be served."""


class Dashboard:
    """Serves a page that shows what a cluster does, on this host only and to whoever has its address.

    It starts when `url` is read, or a notebook shows it, and ends with `close`, with its cluster, or with the process.
    With `port` 0 it uses any free port. While no page is open, it does nothing. `interval_s` is the minimum time
    between two updates of an open page, and `max_share` the maximum share of the controller's time that updates may
    take: if answers take long, updates are less frequent. With `unix_socket` it is served on a socket at that path
    instead of a port, for whoever may open that file, such as `jupyter-server-proxy`.
    """

    def __init__(
        self,
        cluster: Watched,
        *,
        port: int = 0,
        interval_s: float = 1.0,
        max_share: float = 0.008,
        unix_socket: str | Path | None = None,
    ) -> None:
        self._cluster = cluster
        self._port = port
        self._interval_s = interval_s
        self._max_share = max_share
        self._unix_socket = None if unix_socket is None else Path(unix_socket)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._guard: Guard | None = None

    @property
    def url(self) -> str:
        """Its address, with its token; reading it starts the server. For a unix socket it is only the path."""
        self.start()
        if self._guard is None:
            return f"unix:{self._unix_socket}"
        return f"http://{self._guard.hosts[0]}/?token={self._guard.token}"

    @property
    def running(self) -> bool:
        """Whether it is served."""
        return self._thread is not None

    def start(self) -> None:
        """Serves it, if it is not served yet.

        Raises `DashboardError` if the port or path is not available, and `ModuleNotFoundError` without the extra
        `dashboard`.
        """
        with self._lock:
            if self._thread is not None:
                return
            try:
                from broadleaf.dashboard.pages import serve
            except ModuleNotFoundError as error:
                message = f"the dashboard needs {error.name}: pip install 'broadleaf[dashboard]'"
                raise ModuleNotFoundError(message, name=error.name) from None
            listening = self._listen()
            port = listening.getsockname()[1] if self._unix_socket is None else 0
            self._guard = Guard(port) if self._unix_socket is None else None
            ready = threading.Event()
            started = self._started(ready)
            serving = serve(listening, self._guard, self._cluster, self._interval_s, self._max_share, started)
            thread = threading.Thread(target=asyncio.run, args=(serving,), name="broadleaf-dashboard", daemon=True)
            thread.start()
            if not ready.wait(_START_TIMEOUT_S):
                raise DashboardError(f"the dashboard did not start within {_START_TIMEOUT_S:g} s")
            self._thread = thread
            atexit.register(self.close)

    def close(self) -> None:
        """Ends all streams and the server. May be called again; `url` then starts it again."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is None or self._loop is None or self._stopping is None:
                return
            atexit.unregister(self.close)
            self._loop.call_soon_threadsafe(self._stopping.set)
            thread.join()
            if self._unix_socket is not None:
                self._unix_socket.unlink(missing_ok=True)

    def __enter__(self) -> Dashboard:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Dashboard of cluster {self._cluster.cluster_id!r}: {self.url}>"

    def _repr_html_(self) -> str:
        url = escape(self.url)
        name = escape(self._cluster.cluster_id)
        shown = f'<b>Dashboard</b> of cluster {name}: <a href="{url}" target="_blank" rel="noopener">{url}</a>'
        if self._guard is not None:
            port = self._guard.port
            way = f"ssh -L {port}:127.0.0.1:{port} {escape(socket.gethostname())}"
            shown += f"<br>If this notebook runs on another machine, first run <code>{way}</code> on yours."
        return f"<div>{shown}</div>"

    def _started(self, ready: threading.Event) -> Any:
        def on_started(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
            self._loop, self._stopping = loop, stopping
            ready.set()

        return on_started

    def _listen(self) -> socket.socket:
        if self._unix_socket is not None:
            return _listen_at(self._unix_socket)
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setblocking(False)
        try:
            listening.bind(("127.0.0.1", self._port))
            listening.listen(128)
        except (OSError, OverflowError) as error:
            listening.close()
            raise DashboardError(f"port {self._port} on 127.0.0.1 is not available: {error}; choose another") from error
        return listening


def _listen_at(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.setblocking(False)
    # From the moment it exists, only the user may open it.
    mask = os.umask(0o177)
    try:
        listening.bind(str(path))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise DashboardError(f"cannot create a socket at {path}: {error}") from error
    finally:
        os.umask(mask)
    return listening
