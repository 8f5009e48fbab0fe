"""A headless Chromium, controlled over its debugging protocol: https://chromedevtools.github.io/devtools-protocol/."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from processes import processes_with
from tornado.httpclient import AsyncHTTPClient
from tornado.websocket import websocket_connect
from waiting import until

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--hide-scrollbars", "--remote-debugging-port=0",
]  # fmt: skip


class Tab:
    """One page of a browser."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.problems: list[str] = []
        """Exceptions, errors on the console, and requests that failed or left this host."""

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The browser's answer."""
        number = next(self._numbers)
        await self._socket.write_message(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            text = await asyncio.wait_for(self._socket.read_message(), 60)
            message = json.loads(text)
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.problems.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            url = parameters["request"]["url"]
            if not url.startswith(("http://127.0.0.1:", "data:", "about:")):
                self.problems.append(f"asked for {url}")

    async def value(self, expression: str) -> Any:
        """The value of an expression in JavaScript."""
        result = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    async def until(self, expression: str, timeout_s: float = 25.0) -> None:
        """Waits until the expression is true in JavaScript."""
        deadline_s = time.monotonic() + timeout_s
        while not await self.value(expression):
            assert time.monotonic() < deadline_s, f"not true within {timeout_s:g} s: {expression}"
            await asyncio.sleep(0.05)

    async def press(self, key: str, text: str = "", modifiers: int = 0) -> None:
        """Presses a key, which types a text; 8 as `modifiers` is Shift."""
        codes = {"Enter": 13, "Tab": 9, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        event: dict[str, Any] = {"key": key, "modifiers": modifiers}
        if key in codes:
            event |= {"code": key, "windowsVirtualKeyCode": codes[key]}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **event, **({"text": text} if text else {}))
        await self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    async def click(self, box: str, x: float, y: float) -> None:
        """Clicks so far from the corner of a box, which is an expression in JavaScript."""
        left, top = await self.value(f"(() => {{ const r = {box}; return [r.left, r.top]; }})()")
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            await self.call(
                "Input.dispatchMouseEvent", type=kind, x=left + x, y=top + y, button="left", buttons=1, clickCount=1
            )

    async def open(self, url: str, width: int = 1440, height: int = 1000, theme: str = "light") -> None:
        """Opens an address, in a window of that size."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        await self.call("Page.navigate", url=url)

    async def close(self) -> None:
        """Closes the connection to the page."""
        self._socket.close()
        while await asyncio.wait_for(self._socket.read_message(), 60) is not None:
            pass

    async def picture(self, path: Path) -> None:
        """Writes a PNG of the window."""
        shot = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def browser(directory: Path) -> Iterator[int]:
    """The debugging port of a browser that runs as long as the block."""
    assert PROGRAM is not None
    profile = directory / "chromium"
    with open(directory / "chromium.log", "wb") as log:
        # Its processes that report crashes end after it.
        mark = {"TEST_BROWSER": str(profile)}
        command = [PROGRAM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | mark)
        try:
            port = profile / "DevToolsActivePort"
            assert until(lambda: port.exists() and port.read_text().count("\n"), 60), (
                directory / "chromium.log"
            ).read_text()
            yield int(port.read_text().split()[0])
        finally:
            process.terminate()
            process.wait(30)
            assert until(lambda: not processes_with(**mark), 30), processes_with(**mark)


async def first_tab(port: int) -> Tab:
    """The page that a browser has open when it starts."""
    return await tab_at(port, "")


async def tab_at(port: int, address: str) -> Tab:
    """A page whose address begins so."""
    for _ in range(600):
        answer = await AsyncHTTPClient().fetch(f"http://127.0.0.1:{port}/json/list")
        pages = [page for page in json.loads(answer.body) if page["type"] == "page" and page["url"].startswith(address)]
        if pages:
            socket = await websocket_connect(pages[0]["webSocketDebuggerUrl"], max_message_size=64 << 20)
            return Tab(socket)
        await asyncio.sleep(0.05)
    raise AssertionError(f"the browser has no page {address}")
