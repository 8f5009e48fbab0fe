"""The dashboard's request handlers, for Tornado."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tornado.iostream import StreamClosedError
from tornado.web import Application, HTTPError, RequestHandler, StaticFileHandler

from broadleaf.dashboard.access import Asked, Guard
from broadleaf.dashboard.doors import Doors
from broadleaf.dashboard.feed import Feed, Watched
from broadleaf.engine.written import Seen

# A page may use only what is served with it, and only its own address may frame it: JupyterLab's, if that is in front.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
# A log line for each refused request would be noise in a notebook.
_PAGE = Path(__file__).parent / "page"
_COUNT = re.compile(r"[0-9]{1,15}")
_log = logging.getLogger("broadleaf.dashboard")


class _Guarded(RequestHandler):
    """Answers requests that the guard lets in."""

    is_for_page = True
    """Whether it serves the page itself, for which the key in the cookie is enough."""

    def initialize(self, guard: Guard | None, **_: Any) -> None:
        self.guard = guard

    def set_default_headers(self) -> None:
        self.clear_header("Server")
        for name, value in _HEADERS.items():
            self.set_header(name, value)

    def prepare(self) -> None:
        # Only its user can open a unix socket: whoever forwards requests to it has to check them.
        if self.guard is not None:
            headers = self.request.headers
            token, page_key = self.get_query_argument("token", None), self.get_cookie(self.guard.cookie)
            asked = Asked(headers.get("Host", ""), headers.get("Origin"), token, page_key)
            if (why := self.guard.refusal(asked, self.is_for_page)) is not None:
                raise HTTPError(403, "%s", why, reason="Forbidden")
        doors: Doors = self.settings["doors"]
        doors.let_in(self.request.server_connection.stream)  # type: ignore[attr-defined]

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        why = str(error.args[0]) if isinstance(error, HTTPError) and error.args else self._reason
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(f"{status_code}: {why}\n")

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        if not isinstance(value, HTTPError):
            super().log_exception(typ, value, tb)


class _Page(_Guarded):
    """The page itself. Its address has the token, which the page keeps; requests for its files have the cookie."""

    def get(self) -> None:
        if self.guard is not None:
            self.set_cookie(self.guard.cookie, self.guard.page_key, path="/", httponly=True, samesite="Strict")
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.finish((_PAGE / "index.html").read_bytes())


class _File(_Guarded, StaticFileHandler):
    """A file of the page."""

    def initialize(self, guard: Guard | None, path: str) -> None:  # type: ignore[override]
        _Guarded.initialize(self, guard)
        StaticFileHandler.initialize(self, path)

    def parse_url_path(self, url_path: str) -> str:
        if "\0" in url_path:
            raise HTTPError(404)
        return super().parse_url_path(url_path)


class _Stream(_Guarded):
    """Server-sent events: https://html.spec.whatwg.org/multipage/server-sent-events.html."""

    is_for_page = False

    def initialize(self, guard: Guard | None, feed: Feed) -> None:  # type: ignore[override]
        super().initialize(guard)
        self.feed = feed

    async def get(self) -> None:
        self.set_header("Content-Type", "text/event-stream")
        # Proxies must not buffer it.
        self.set_header("X-Accel-Buffering", "no")
        self._reading = asyncio.current_task()
        events = self.feed.stream()
        try:
            async for event in events:
                self.write(event)
                await self.flush()
        except (StreamClosedError, asyncio.CancelledError):
            pass
        finally:
            await events.aclose()  # type: ignore[attr-defined]

    def on_connection_close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()


class _Engine(_Guarded):
    """What an engine has written since. A page says of which process it has how much of output and log."""

    is_for_page = False

    def initialize(self, guard: Guard | None, feed: Feed) -> None:  # type: ignore[override]
        super().initialize(guard)
        self.feed = feed

    async def get(self, engine_id: str) -> None:
        self.finish(await self.feed.engine_news(int(engine_id), self._seen()))

    def _seen(self) -> Seen | None:
        given = [self.get_query_argument(name, None) for name in ("pid", "output", "log")]
        if None in given:
            return None
        if not all(value is not None and _COUNT.fullmatch(value) for value in given):
            raise HTTPError(400, "%s", "pid, output and log must be numbers")
        return Seen(*(int(value or 0) for value in given))


async def serve(
    listening: socket.socket,
    guard: Guard | None,
    cluster: Watched,
    interval_s: float,
    max_share: float,
    on_started: Callable[[asyncio.AbstractEventLoop, asyncio.Event], None],
) -> None:
    """Serves until the event passed to `on_started` is set."""
    stopping = asyncio.Event()
    feed = Feed(cluster, interval_s, max_share)
    application = Application(
        [
            (r"/", _Page, {"guard": guard}),
            (r"/stream", _Stream, {"guard": guard, "feed": feed}),
            (r"/engine/(\d{1,9})", _Engine, {"guard": guard, "feed": feed}),
            (r"/page/(.*)", _File, {"guard": guard, "path": str(_PAGE)}),
        ],
        default_handler_class=_Missing,
        default_handler_args={"guard": guard},
        log_function=_log_request,
    )
    doors = Doors(listening, application)
    application.settings["doors"] = doors
    doors.open()
    looking = asyncio.create_task(feed.run())
    on_started(asyncio.get_running_loop(), stopping)
    try:
        await stopping.wait()
    finally:
        feed.close()
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        await doors.close()


class _Missing(_Guarded):
    """Handles all other requests."""

    def get(self) -> None:
        raise HTTPError(404)


def _log_request(handler: RequestHandler) -> None:
    _log.debug("%d %s %s", handler.get_status(), handler.request.method, handler.request.path)
