"""The dashboard in a browser."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import broadleaf as ipp
import pytest
from broadleaf.dashboard.server import Dashboard
from broadleaf.requests import RequestFailed
from chromium import PROGRAM, Tab, browser, first_tab
from gates import Gate
from simulated_cluster import SimulatedCluster

pytestmark = [
    pytest.mark.sites,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium here (Debian: apt-get install chromium)"),
    pytest.mark.timeout(300),
]
LOOKS = "Number(document.documentElement?.dataset.looks ?? 0)"
# How many of the timeline's pixels are drawn by tasks: neither empty nor grey like its lines.
INK = """(() => {
  const canvas = document.querySelector('#timeline canvas');
  const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  let n = 0;
  for (let i = 0; i < data.length; i += 4) {
    const high = Math.max(data[i], data[i + 1], data[i + 2]), low = Math.min(data[i], data[i + 1], data[i + 2]);
    if (data[i + 3] > 100 && high - low > 40) n += 1;
  }
  return n / (canvas.width * canvas.height);
})()"""


def in_browser(directory: Path, use: Callable[[Tab], Awaitable[None]]) -> None:
    """Does something with a page, which must neither fail nor request anything from another host."""

    async def with_tab(port: int) -> None:
        tab = await first_tab(port)
        try:
            await use(tab)
        finally:
            await tab.close()
        assert tab.problems == []

    with browser(directory) as port:
        asyncio.run(with_tab(port))


def text(selector: str) -> str:
    return f"(document.querySelector({selector!r})?.innerText ?? '')"


FOCUSED = "(document.activeElement?.dataset.key ?? document.activeElement?.id ?? '')"
# What of a panel's table is out of sight, and how far the page sticks out to the right.
HIDDEN_COLUMNS = """[...document.querySelectorAll('.rows')]
  .filter((rows) => rows.offsetParent && rows.scrollWidth > rows.clientWidth).map((rows) => rows.id)"""
STICKS_OUT = "document.documentElement.scrollWidth - innerWidth"


def test_an_engine_has_a_panel_with_what_it_writes_and_how_it_died(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    with ipp.Cluster(n=2) as rc:
        opened = str(tmp_path / "gate" / "opened")

        def train() -> None:
            import os
            import time

            print("epoch 1")
            os.write(1, b"from C\n")
            print("\x1b[32m50 %\x1b[0m\r70 %", end="", flush=True)
            while not os.path.exists(opened):
                time.sleep(0.002)
            print("\r100 %\nepoch 2")
            raise ValueError("not converged")

        training = rc[1].apply_async(train)

        async def use(tab: Tab) -> None:
            await tab.open(dashboard.url)
            await tab.until(f"{text('#engines-table')}.includes('train')")
            await tab.value("document.querySelector('[data-key=\"engine 1\"]').focus()")
            await tab.press("Enter", "\r")
            await tab.until(f"{text('#detail-title')} === 'Engine 1'")
            # Python's and others', while the task runs.
            await tab.until(f"{text('#detail')}.includes('epoch 1\\nfrom C\\n70 %')")
            assert "train, for" in await tab.value(text("#detail dl"))
            assert "epoch 2" not in await tab.value(text("#detail"))
            gate.open()
            await tab.until(f"{text('#detail')}.includes('from C\\n100 %\\nepoch 2')")
            assert (await tab.value(text("#detail"))).count("epoch 1") == 1, "nothing is shown twice"
            # It has ended, in an error.
            await tab.until(f"{text('#detail table')}.includes('failed')")
            await tab.until(f"{text('#detail')}.includes('ValueError: not converged')")
            assert training.exception() is not None
            os.kill(rc[1].apply_sync(os.getpid), signal.SIGKILL)
            await tab.until(f"{text('#detail')}.includes('Death certificate')")
            assert "was ended by signal 9 (SIGKILL)" in await tab.value(text("#detail"))
            # What it wrote is still there, and its end is on the certificate.
            await tab.until(f"{text('#detail')}.split('epoch 1').length === 3")
            # From its tasks to one of them, back to the engine, and to where it was opened.
            await tab.value(
                "[...document.querySelectorAll('#detail table tbody tr')].at(-1).querySelector('button').click()"
            )
            await tab.until(f"{text('#detail-title')} === 'train'")
            await tab.value("document.querySelector('#detail dl button').click()")
            await tab.until(f"{text('#detail-title')} === 'Engine 1'")
            await tab.press("Escape")
            assert not await tab.value("document.getElementById('detail').open")
            await tab.until(f"{FOCUSED} === 'engine 1'")

        with Dashboard(rc.cluster, interval_s=0.2, max_share=1.0) as dashboard:
            in_browser(tmp_path, use)


def test_a_task_that_failed_leads_to_its_error(tmp_path: Path) -> None:
    with ipp.Cluster(n=1) as rc:

        def read(name: str) -> str:
            import time

            time.sleep(0.3)
            if name == "b.png":
                raise OSError(f"{name} is truncated")
            return name

        async def use(tab: Tab) -> None:
            await tab.open(dashboard.url)
            await tab.until(f"{LOOKS} >= 1")
            assert await tab.value("document.getElementById('timeline').closest('section').hidden")
            rc.load_balanced_view().map_async(read, ["a.png", "b.png"], chunksize=1).wait()
            await tab.until(f"{text('#timeline-note')}.startsWith('2 tasks')")
            await tab.value("document.querySelector('#timeline-buttons button').click()")
            await tab.value("document.getElementById('timeline').focus()")
            await tab.press("ArrowDown")
            # The newest, which its tip and a screen reader tell.
            assert await tab.value("document.getElementById('timeline-said').textContent.includes(', failed, ')")
            await tab.press("ArrowLeft")
            said = await tab.value("document.getElementById('timeline-said').textContent")
            assert said.startswith("read on engine 0, 3")
            assert "failed" not in said
            await tab.press("Enter", "\r")
            assert "returned" in await tab.value(text("#detail"))
            await tab.press("Escape")
            await tab.until(f"{FOCUSED} === 'timeline'")
            # Zoomed in on the other one, it is in the middle.
            await tab.press("ArrowRight")
            for _ in range(4):
                await tab.press("+", "+")
            await tab.value("document.getElementById('timeline').scrollIntoView({ block: 'center' })")
            box = "document.querySelector('#timeline .u-over').getBoundingClientRect()"
            width, height = await tab.value(f"(() => {{ const r = {box}; return [r.width, r.height]; }})()")
            await tab.click(box, width / 2, height / 2)
            await tab.until(f"{text('#detail dl')}.includes('failed')")
            shown = await tab.value(text("#detail"))
            words = ("failed", "received", "sent", "started", "ended", "took", "arguments", "error record")
            assert all(word in shown for word in words)
            assert "OSError: b.png is truncated" in shown
            await tab.value("document.querySelector('#detail p button').click()")
            await tab.until(f"{text('#errors')}.includes('Traceback')")
            assert "'b.png'" in await tab.value(text("#errors"))

        with Dashboard(rc.cluster, interval_s=0.2, max_share=1.0) as dashboard:
            in_browser(tmp_path, use)


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (400, "dark")])
def test_every_column_is_in_view(tmp_path: Path, width: int, theme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # One of the hosts is this one, of which more is known.
    monkeypatch.setattr(socket, "gethostname", lambda: "node00")
    cluster = SimulatedCluster(100, per_host=25, dead=(17, 64), past_s=60)

    async def use(tab: Tab) -> None:
        await tab.open(dashboard.url, width=width, height=900, theme=theme)
        await tab.until(f"{LOOKS} >= 3")
        await tab.until("!document.getElementById('errors').closest('section').hidden")
        assert await tab.value(HIDDEN_COLUMNS) == []
        assert await tab.value(STICKS_OUT) <= 0
        columns = await tab.value(
            "[...document.querySelectorAll('#engines-table th')].filter((th) => th.offsetParent).length"
        )
        assert columns == (11 if width == 1280 else 5)
        # What a narrow table leaves out is in the panel.
        await tab.value("document.querySelector('[data-key=\"engine 3\"]').click()")
        await tab.until(f"{text('#detail')}.includes('mean task')")
        facts = await tab.value(text("#detail dl"))
        assert all(word in facts for word in ("queued", "done", "host", "process"))
        assert (
            await tab.value(
                "document.getElementById('detail').scrollWidth - document.getElementById('detail').clientWidth"
            )
            <= 0
        )

    with Dashboard(cluster, interval_s=0.3, max_share=1.0) as dashboard:
        in_browser(tmp_path, use)


def test_whoever_listens_is_told_and_whoever_has_no_mouse_gets_everywhere(tmp_path: Path) -> None:
    cluster = SimulatedCluster(3, per_host=3, dead=(1,), past_s=60)

    async def use(tab: Tab) -> None:
        await tab.open(dashboard.url)
        await tab.until(f"{LOOKS} >= 2")
        await tab.call("Accessibility.enable")
        tree = (await tab.call("Accessibility.getFullAXTree"))["nodes"]
        shown = [node for node in tree if not node.get("ignored")]
        roles = {"button", "searchbox", "textbox", "application", "region", "dialog", "img", "DisclosureTriangle"}
        nameless = [node for node in shown if node["role"]["value"] in roles and not node.get("name", {}).get("value")]
        assert nameless == []
        # The alert is read when it changes, which it does only if an engine dies.
        alert = await tab.value("document.getElementById('alert').textContent")
        assert "Engine 1" in alert
        assert "ago" not in alert
        reached: list[str] = []
        while reached.count("pause") < 2:
            await tab.press("Tab")
            reached.append(await tab.value(FOCUSED))
        # The table is made anew with each look, and the focus stays.
        assert [key for key in reached if key.startswith("engine ")] == ["engine 0", "engine 1", "engine 2"]
        assert {"pause", "theme", "timeline", "engines-filter", "death of 1 20001"} <= set(reached)
        await tab.value("document.querySelector('[data-key=\"engine 2\"]').focus()")
        looks = await tab.value(LOOKS)
        await tab.until(f"{LOOKS} > {looks} + 1")
        assert await tab.value(FOCUSED) == "engine 2"

    with Dashboard(cluster, interval_s=0.3, max_share=1.0) as dashboard:
        in_browser(tmp_path, use)


def test_an_engines_panel_says_why_its_output_cannot_be_read(tmp_path: Path) -> None:
    cluster = SimulatedCluster(3, per_host=3, past_s=1)
    cluster.unreadable = {1: RequestFailed("the output of engine 1 cannot be read")}
    said = "Its output and log are not available: the output of engine 1 cannot be read"

    async def use(tab: Tab) -> None:
        await tab.open(dashboard.url)
        await tab.until(f"{LOOKS} >= 2")
        await tab.value("document.querySelector('[data-key=\"engine 1\"]').click()")
        await tab.until(f"{text('#detail-body')}.includes({said!r})")
        looks = await tab.value(LOOKS)
        await tab.until(f"{LOOKS} > {looks} + 1")
        assert (await tab.value(text("#detail-body"))).count(said) == 1
        cluster.unreadable.clear()
        await tab.until(f"!{text('#detail-body')}.includes('not available')")

    with Dashboard(cluster, interval_s=0.3, max_share=1.0) as dashboard:
        in_browser(tmp_path, use)


def test_the_page_says_what_failed_and_how_far_maps_are(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    with ipp.Cluster(n=2) as rc:

        def read(name: str) -> str:
            if name == "c.png":
                raise OSError(f"{name} is truncated")
            return name

        held = gate.task()

        async def use(tab: Tab) -> None:
            await tab.open(dashboard.url)
            await tab.until(f"{text('#tiles')}.includes('2 / 2')")
            assert await tab.value("document.getElementById('errors').closest('section').hidden")
            rc.load_balanced_view().map_async(read, ["a.png", "b.png", "c.png"] * 4, chunksize=6).wait()
            waiting = rc.load_balanced_view().map_async(held, range(40), chunksize=1)
            await tab.until(f"{text('#errors')}.includes('OSError: c.png is truncated')")
            await tab.until(f"{text('#errors-note')}.includes('4 of 1 kind')")
            shown = await tab.value(text("#errors"))
            assert "4 \N{MULTIPLICATION SIGN}" in shown
            assert "read, test_dashboard_page.py:" in shown
            assert "Traceback" not in shown
            await tab.value("document.querySelector('#errors summary').click()")
            await tab.until(f"{text('#errors')}.includes('Traceback')")
            shown = await tab.value(text("#errors"))
            assert "first for item 2 of its chunk, 'c.png' · last on engine " in shown
            assert "in 2 tasks" in shown
            assert 'raise OSError(f"{name} is truncated")' in shown
            await tab.until(f"{text('#progress')}.includes('0 of 40')")
            # What is open stays open.
            looks = await tab.value(LOOKS)
            await tab.until(f"{LOOKS} > {looks} + 1")
            await tab.until(f"{text('#errors')}.includes('Traceback')")
            gate.open()
            await tab.until("document.getElementById('progress').closest('section').hidden")
            waiting.get(30)

        with Dashboard(rc.cluster, interval_s=0.2) as dashboard:
            in_browser(tmp_path, use)


def test_the_page_shows_a_cluster(tmp_path: Path) -> None:
    with ipp.Cluster(n=3) as rc:

        def square(x: int) -> int:
            return x * x

        rc.load_balanced_view().map_sync(square, range(300), chunksize=1)
        pid = rc[2].apply_sync(os.getpid)

        async def use(tab: Tab) -> None:
            await tab.open(dashboard.url)
            await tab.until(f"{text('#tiles')}.includes('3 / 3')")
            await tab.until(f"{text('#functions')}.includes('square')")
            assert "token" not in await tab.value("location.href")
            assert await tab.value("document.querySelectorAll('#engines-table tbody tr').length") == 3
            assert await tab.value("document.getElementById('engines-grid').hidden")
            assert await tab.value("document.getElementById('alert').hidden")
            # There is nothing to show of these.
            assert await tab.value(
                "['deaths', 'transfers', 'errors', 'progress']"
                ".every((id) => document.getElementById(id).closest('section').hidden)"
            )
            os.kill(pid, signal.SIGKILL)
            await tab.until("!document.getElementById('alert').hidden")
            assert f"Engine 2 (pid {pid} on " in await tab.value(text("#alert"))
            assert "SIGKILL" in await tab.value(text("#deaths"))
            assert "2 / 3" in await tab.value(text("#tiles"))
            await tab.until(f"{text('#log')}.includes('engine 2 is gone')")
            # The address no longer has the token, but the tab keeps it.
            await tab.call("Page.reload")
            await tab.until(f"{text('#tiles')}.includes('2 / 3')")

        with Dashboard(rc.cluster, interval_s=0.2, max_share=1.0) as dashboard:
            in_browser(tmp_path, use)


def test_a_thousand_engines_fit(tmp_path: Path) -> None:
    cluster = SimulatedCluster(1000, dead=(17, 640), past_s=20)

    async def use(tab: Tab) -> None:
        await tab.open(dashboard.url, theme="dark")
        await tab.until(f"{LOOKS} >= 2")
        assert await tab.value("document.documentElement.dataset.theme") == "dark"
        assert "998 / 1,000" in await tab.value(text("#tiles"))
        assert "998 up, 2 gone" in await tab.value(text("#engines-note"))
        # A square for each, but rows only for those in view.
        assert not await tab.value("document.getElementById('engines-grid').hidden")
        assert 0 < await tab.value("document.querySelectorAll('#engines-table tbody tr').length") < 60
        await tab.value("document.getElementById('engines-table').scrollTop = 1e6")
        await tab.until("document.querySelector('#engines-table tbody tr:last-child td').innerText === '999'")
        await tab.value("document.getElementById('engines-filter').value = 'gone'")
        await tab.value("document.getElementById('engines-filter').dispatchEvent(new Event('input'))")
        await tab.until(f"{text('#engines-note')}.includes('2 shown')")
        assert "2 engines have died" in await tab.value(text("#alert"))
        assert await tab.value("document.querySelectorAll('#transfers .route').length") == 2
        assert await tab.value("document.querySelectorAll('#transfers svg circle.have').length") == 40
        await tab.value("document.getElementById('engines-grid').scrollIntoView({ block: 'center' })")
        await tab.click("document.getElementById('engines-grid').getBoundingClientRect()", 5, 5)
        await tab.until(f"{text('#detail-title')} === 'Engine 0'")
        await tab.value("document.getElementById('detail-close').click()")
        await tab.until(f"{INK} > 0.1")
        width = await tab.value("document.documentElement.scrollWidth - innerWidth")
        assert width <= 0, "nothing sticks out to the right"
        await tab.value("document.querySelector('#timeline-buttons button').click()")
        assert (
            await tab.value("document.querySelector('#timeline-buttons button').getAttribute('aria-pressed')") == "true"
        )
        await tab.value("document.getElementById('theme').click()")
        assert await tab.value("document.documentElement.dataset.theme") == "light"
        looks = await tab.value(LOOKS)
        await tab.until(f"{LOOKS} > {looks}")
        await tab.until(f"{INK} > 0.1")

    with Dashboard(cluster, interval_s=0.3, max_share=1.0) as dashboard:
        in_browser(tmp_path, use)


def test_a_part_of_the_timeline_can_be_dragged_open(tmp_path: Path) -> None:
    cluster = SimulatedCluster(8, per_host=8, past_s=20)

    async def drag(tab: Tab, x0: float, y0: float, x1: float, y1: float) -> None:
        box = await tab.value(
            "(() => { const r = document.querySelector('#timeline .u-over').getBoundingClientRect();"
            " return [r.left, r.top, r.width, r.height]; })()"
        )
        left, top, width, height = box
        points = [(left + x * width, top + y * height) for x, y in ((x0, y0), (x1, y1))]
        for kind, (x, y) in (("Pressed", points[0]), ("Moved", points[1]), ("Released", points[1])):
            await tab.call(
                "Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, button="left", buttons=1, clickCount=1
            )

    pressed = "document.querySelectorAll('#timeline-buttons [aria-pressed=true]').length"

    async def use(tab: Tab) -> None:
        await tab.open(dashboard.url)
        await tab.until(f"{LOOKS} >= 2")
        assert await tab.value(pressed) == 1
        await drag(tab, 0.4, 0.1, 0.6, 0.6)
        await tab.until(f"{pressed} === 0")
        assert await tab.value(INK) > 0.1, "tasks are drawn where it was zoomed into"
        await tab.value("document.querySelector('#timeline-buttons button').click()")
        await tab.until(f"{pressed} === 1")

    with Dashboard(cluster, interval_s=0.3, max_share=1.0) as dashboard:
        in_browser(tmp_path, use)
