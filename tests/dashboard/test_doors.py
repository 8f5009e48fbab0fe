"""Connections of others to the dashboard: every user of the host can make some."""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from broadleaf.dashboard import doors
from broadleaf.dashboard.server import Dashboard
from event_stream import EventStream, ask, token_of
from simulated_cluster import SimulatedCluster
from waiting import until

# More than the sockets on both sides buffer.
MANY_BYTES = 32 << 20


@pytest.fixture
def url() -> Iterator[str]:
    with Dashboard(SimulatedCluster(2)) as dashboard:
        yield dashboard.url


@pytest.fixture
def strangers(url: str) -> Iterator[Strangers]:
    with contextlib.closing(Strangers(url)) as found:
        yield found


class Strangers:
    """Connections that say nothing by themselves."""

    def __init__(self, url: str) -> None:
        self._netloc = urlsplit(url).netloc
        self._open: list[socket.socket] = []

    def connect(self) -> socket.socket:
        host, _, port = self._netloc.partition(":")
        connection = socket.create_connection((host, int(port)), timeout=20)
        self._open.append(connection)
        return connection

    def n_open(self) -> int:
        """How many the server has not closed."""
        for connection in [connection for connection in self._open if is_closed(connection)]:
            connection.close()
            self._open.remove(connection)
        return len(self._open)

    def close(self) -> None:
        for connection in self._open:
            connection.close()


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed it, after which there is nothing to read from it."""
    readable = select.poll()
    readable.register(connection, select.POLLIN)
    try:
        return bool(readable.poll(0)) and connection.recv(1 << 16) == b""
    except OSError:
        return True


def test_silent_connections_are_few_and_keep_nobody_out(url: str, strangers: Strangers) -> None:
    with EventStream(url) as stream:
        assert stream.until(bool)
        for _ in range(10 * doors.MAX_STRANGERS):
            strangers.connect()
        assert until(lambda: strangers.n_open() <= doors.MAX_STRANGERS)
        assert ask(url, f"/?token={token_of(url)}")[0] == 200
        assert stream.until(bool), "a stream is never closed for a stranger"


def test_whoever_was_let_in_stays(url: str, strangers: Strangers) -> None:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    for _ in range(3):
        connection.request("GET", f"/page/main.js?token={token_of(url)}")
        assert connection.getresponse().read().startswith(b"//")
        own = connection.sock
        for _ in range(2 * doors.MAX_STRANGERS):
            strangers.connect()
        assert until(lambda: strangers.n_open() <= doors.MAX_STRANGERS)
        assert connection.sock is own
    connection.close()


@pytest.mark.parametrize("sent", [b"", b"GET", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nX-Y: "])
def test_a_request_has_to_come_in_time(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(doors, "HEAD_TIMEOUT_S", 0.05)
    with Dashboard(SimulatedCluster(1)) as dashboard:
        strangers = Strangers(dashboard.url)
        with contextlib.closing(strangers):
            strangers.connect().sendall(sent)
            assert until(lambda: strangers.n_open() == 0)


def bytes_taken(connection: socket.socket, head: bytes, body: bytes) -> int:
    """How much of a request the server has taken, or the sockets hold, before it closes the connection."""
    connection.sendall(head)
    taken = 0
    with contextlib.suppress(OSError):
        while taken < MANY_BYTES:
            taken += connection.send(body)
    return taken


@pytest.mark.parametrize("has_token", [False, True])
@pytest.mark.parametrize("method", ["POST", "PUT", "GET"])
def test_no_body_is_read(url: str, strangers: Strangers, method: str, has_token: bool) -> None:
    path = f"/?token={token_of(url)}" if has_token else "/"
    start = f"{method} {path} HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\n".encode()
    announced = strangers.connect()
    announced.sendall(start + b"Content-Length: 100000000\r\n\r\n")
    assert announced.recv(100).startswith(b"HTTP/1.1 400")
    for head, body in (
        (b"Content-Length: 100000000\r\n\r\n", b"x" * (1 << 20)),
        (b"Transfer-Encoding: chunked\r\n\r\n", b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"),
        (b"X-Long: ", b"x" * (1 << 20)),
    ):
        assert bytes_taken(strangers.connect(), start + head, body) < MANY_BYTES, head


# Uses nearly all descriptors, then says so; the rest is what is left for its own work.
PROGRAM = """
import os, resource, sys
sys.path.insert(0, sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from broadleaf.dashboard.server import Dashboard
from simulated_cluster import SimulatedCluster
with Dashboard(SimulatedCluster(1)) as dashboard:
    print(dashboard.url, flush=True)
    held = []
    for command in sys.stdin:
        if command == "use nearly all\\n":
            while not held or held[-1] < 256 - 40:
                held.append(os.open("/dev/null", os.O_RDONLY))
        elif command == "use all\\n":
            try:
                while True:
                    held.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                pass
        elif command == "free\\n":
            while held:
                os.close(held.pop())
        left = []
        try:
            while len(left) < 100:
                left.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        for number in left:
            os.close(number)
        print(len(left), flush=True)
"""


def test_the_last_descriptors_are_the_programs_own() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(Path(__file__).parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None

        def tell(command: str) -> int:
            program.stdin.write(f"{command}\n")  # type: ignore[union-attr]
            program.stdin.flush()  # type: ignore[union-attr]
            return int(program.stdout.readline())  # type: ignore[union-attr]

        url = program.stdout.readline().strip()
        strangers = Strangers(url)
        with contextlib.closing(strangers):
            tell("use nearly all")
            for _ in range(100):
                strangers.connect()
            # Those that it accepted and closed are gone, and the others were never accepted.
            assert until(lambda: strangers.n_open() <= doors.MAX_STRANGERS)
            assert tell("count") >= 256 // 8 - 1
            tell("use all")
            for _ in range(50):
                strangers.connect()
            tell("free")
            assert ask(url, f"/?token={token_of(url)}")[0] == 200
        program.stdin.close()
        assert program.wait(20) == 0
