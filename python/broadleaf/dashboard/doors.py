"""Connections to the dashboard: how many it takes, how long they may wait, and what they may send.

Every user of the host can connect. Until a connection has sent a request that is let in, it is a stranger's: there are
few of them at a time, and a new one takes the place of the oldest. They never get the last descriptors of the process,
which is the user's own program.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream

# How many connections there may be: of strangers, and of those whose request was let in.
MAX_STRANGERS = 32
MAX_GUESTS = 64
# How long a request's head may take, and how long a connection may be idle between two requests.
HEAD_TIMEOUT_S = 5.0
_MAX_HEAD_BYTES = 16 * 1024
_READ_BUFFER_BYTES = 64 * 1024
# So many are accepted in a row, then none for this long: a flood must not keep the program from its work.
_ACCEPTED_AT_ONCE = 16
_PAUSE_S = 0.02
# How long none is accepted if the process has no descriptor left.
_EXHAUSTED_PAUSE_S = 0.5
# This share of the descriptors is not for connections: a stranger's would be the one that the program lacks.
_RESERVED_SHARE = 1 / 8


class Doors:
    """Accepts connections for a server.

    Args:
        listening: The socket that listens. It is closed with this.
        application: What answers the requests.
    """

    def __init__(self, listening: socket.socket, application: Any) -> None:
        self._listening = listening
        # No request has a body, so none is read: a body is an error as soon as it is announced.
        self._server = HTTPServer(
            application,
            max_body_size=0,
            max_header_size=_MAX_HEAD_BYTES,
            max_buffer_size=_READ_BUFFER_BYTES,
            idle_connection_timeout=HEAD_TIMEOUT_S,
        )
        self._loop = asyncio.get_running_loop()
        # Oldest first.
        self._strangers: dict[IOStream, None] = {}
        self._guests: set[IOStream] = set()
        self._is_open = False
        self._reopening: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Accepts from now on."""
        self._is_open = True
        self._loop.add_reader(self._listening, self._on_arrival)

    async def close(self) -> None:
        """Accepts no more, and ends all connections."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._listening)
        if self._reopening is not None:
            self._reopening.cancel()
        self._listening.close()
        await self._server.close_all_connections()
        for stream in (*self._strangers, *self._guests):
            stream.close()

    def let_in(self, stream: IOStream) -> None:
        """A request of this connection was let in: strangers no longer take its place."""
        self._guests = {guest for guest in self._guests if not guest.closed()}
        if len(self._guests) < MAX_GUESTS:
            self._strangers.pop(stream, None)
            self._guests.add(stream)

    def _on_arrival(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connection, address = self._listening.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError:
                # No descriptor is left. The socket stays readable, so it must not be looked at for a while.
                self._make_room(0)
                self._pause(_EXHAUSTED_PAUSE_S)
                return
            if connection.fileno() >= _first_reserved():
                connection.close()
                self._make_room(0)
                continue
            self._make_room(MAX_STRANGERS - 1)
            connection.setblocking(False)
            stream = IOStream(connection, max_buffer_size=_READ_BUFFER_BYTES)
            self._strangers[stream] = None
            self._server.handle_stream(stream, address)
        self._pause(_PAUSE_S)

    def _make_room(self, n_left: int) -> None:
        """Ends the oldest strangers until there are so many."""
        self._strangers = {stream: None for stream in self._strangers if not stream.closed()}
        while len(self._strangers) > n_left:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.close()

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listening)
        self._is_open = False
        self._reopening = self._loop.call_later(seconds, self.open)


def _first_reserved() -> float:
    """The first descriptor that no connection may have."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return float("inf") if limit == resource.RLIM_INFINITY else limit - limit * _RESERVED_SHARE
