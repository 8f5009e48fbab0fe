"""A page's side of the dashboard, without a browser."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


class UnixConnection(http.client.HTTPConnection):
    """A connection to a server on a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("dashboard", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(60)
        self.sock.connect(str(self._path))


def connect(url: str) -> http.client.HTTPConnection:
    """A connection to the server of an address."""
    if url.startswith("unix:"):
        return UnixConnection(Path(url.removeprefix("unix:")))
    return http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)


def token_of(url: str) -> str:
    """The token in an address; '' of a unix socket."""
    return urlsplit(url).query.removeprefix("token=")


def ask(url: str, path: str = "/", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer."""
    connection = connect(url)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


class EventStream:
    """The stream of a dashboard."""

    def __init__(self, url: str) -> None:
        self._connection = connect(url)
        self._connection.request("GET", f"/stream?token={token_of(url)}")
        self._response = self._connection.getresponse()
        assert (self._response.status, self._response.getheader("Content-Type")) == (200, "text/event-stream")

    def __enter__(self) -> EventStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leaves."""
        self._response.close()
        self._connection.close()

    def next(self) -> tuple[str, dict[str, Any]] | None:
        """Kind and content of the next event; None at the end."""
        kind, data = self._response.readline(), self._response.readline()
        if not data:
            return None
        assert self._response.readline() == b"\n"
        return kind.decode().removeprefix("event: ").strip(), json.loads(data.removeprefix(b"data: "))

    def until(self, wanted: Callable[[dict[str, Any]], Any], kind: str = "look") -> dict[str, Any]:
        """The first event of the requested kind."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            event = self.next()
            assert event is not None, "the stream has ended"
            if event[0] == kind and wanted(event[1]):
                return event[1]
        raise AssertionError(f"no {kind} as wanted within a minute")
