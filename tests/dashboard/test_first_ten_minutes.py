"""What somebody does who has just installed Broadleaf and has read the README: JupyterLab, a cell on all engines, a map
with an item that fails, and the dashboard, which says which one."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from chromium import PROGRAM, Tab, browser, first_tab, tab_at
from waiting import until

CHECKOUT = Path(__file__).resolve().parents[2]
README = (CHECKOUT / "README.md").read_text()
PYTHON = CHECKOUT / ".jupyter-venv" / "bin" / "python"

pytestmark = [
    pytest.mark.sites,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium here (Debian: apt-get install chromium)"),
    pytest.mark.skipif(not PYTHON.exists(), reason="JupyterLab is not installed: make .venv/.stamps/jupyter-venv"),
    pytest.mark.timeout(300),
]


def told(code: str) -> str:
    """What the README says to type."""
    assert f"`{code}`" in README or f"{code}(" in README, f"the README does not say {code!r}"
    return code


START = "\n".join([
    "import broadleaf as ipp",
    told("cluster = ipp.Cluster(n=4)"),
    told("rc = cluster.start_and_connect_sync(activate=True)"),
])  # fmt: skip
EVERYWHERE = "\n".join([told("%%px"), "import os", "print('process', os.getpid())"])
MAP = "\n".join([
    "def read(name):",
    "    if name == 'c.png':",
    "        raise OSError(f'{name} is truncated')",
    "    return len(name)",
    "",
    told("rc.load_balanced_view().map_sync") + "(read, ['a.png', 'b.png', 'c.png', 'd.png'])",
])  # fmt: skip
DASHBOARD = told("cluster.dashboard")


class Steps:
    """The seconds that each step takes."""

    def __init__(self, record: Callable[[str, object], None]) -> None:
        self._record = record

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        began_s = time.monotonic()
        yield
        took_s = time.monotonic() - began_s
        self._record(name, round(took_s, 2))
        print(f"{name}: {took_s:.1f} s")


@contextmanager
def jupyter_lab(folder: Path) -> Iterator[str]:
    """The address of a server that runs as long as the block."""
    log = folder / "jupyter.log"
    environment = os.environ | {
        "HOME": str(folder),
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "IPYTHONDIR": str(folder / "ipython"),
        "PYTHONPATH": str(CHECKOUT / "python"),
    }
    command = [str(PYTHON), "-m", "jupyterlab", "--no-browser", "--allow-root", "--port=0", "--ip=127.0.0.1"]
    with log.open("wb") as file:
        server = subprocess.Popen(command, cwd=folder, env=environment, stdout=file, stderr=file)
        try:
            address = re.compile(r"http://127\.0\.0\.1:[1-9]\d*/lab\?token=\w+")
            assert until(lambda: address.search(log.read_text()), 120), log.read_text()
            found = address.search(log.read_text())
            assert found is not None
            yield found[0]
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)


def output(cell: int) -> str:
    """What a cell has shown."""
    return f"([...document.querySelectorAll('.jp-CodeCell')][{cell}]?.querySelector('.jp-OutputArea')?.innerText ?? '')"


async def run_cell(tab: Tab, cell: int, source: str) -> None:
    """Types a cell and runs it; a new one follows."""
    code = f"document.querySelectorAll('.jp-CodeCell')[{cell}]"
    await tab.until(f"{code} !== undefined")
    await tab.value(f"{code}.scrollIntoView({{ block: 'center' }})")
    await tab.click(f"{code}.querySelector('.cm-content').getBoundingClientRect()", 20, 8)
    await tab.until(f"{code}.contains(document.activeElement)")
    await tab.call("Input.insertText", text=source)
    await tab.press("Enter", "\r", modifiers=8)
    await tab.until(f"/\\[\\d+\\]/.test({code}.querySelector('.jp-InputPrompt')?.innerText ?? '')")


def test_the_first_ten_minutes(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    steps = Steps(record_property)

    async def use(port: int, url: str) -> None:
        tab = await first_tab(port)
        try:
            with steps.step("open JupyterLab"):
                await tab.open(url)
                await tab.until("document.querySelector('.jp-LauncherCard[data-category=Notebook]') !== null")
            with steps.step("new notebook"):
                await tab.value("document.querySelector('.jp-LauncherCard[data-category=Notebook]').click()")
                await tab.until("document.querySelector('.jp-NotebookPanel .jp-CodeCell') !== null")
                # What is run before the kernel has started is dropped.
                await tab.until("document.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status === 'idle'")
            with steps.step("start the kernel and four engines"):
                await run_cell(tab, 0, START)
                assert "Error" not in await tab.value(output(0))
            with steps.step("a cell on all engines"):
                await run_cell(tab, 1, EVERYWHERE)
                shown = await tab.value(output(1))
                assert len(set(re.findall(r"process (\d+)", shown))) == 4, shown
            with steps.step("a map with an item that fails"):
                await run_cell(tab, 2, MAP)
                shown = await tab.value(output(2))
                assert "OSError" in shown, shown
                assert "c.png is truncated" in shown, shown
            with steps.step("open the dashboard"):
                await run_cell(tab, 3, DASHBOARD)
                link = "[...document.querySelectorAll('.jp-CodeCell')][3].querySelector('.jp-OutputArea a')"
                await tab.value(f"{link}.scrollIntoView({{ block: 'center' }})")
                address = await tab.value(f"{link}.href")
                await tab.click(f"{link}.getBoundingClientRect()", 20, 5)
                dashboard = await tab_at(port, address.split("?")[0])
                await dashboard.until("(document.getElementById('tiles')?.innerText ?? '').includes('4 / 4')")
            with steps.step("find what failed"):
                summary = "document.querySelector('#errors summary')"
                await dashboard.until(f"({summary}?.innerText ?? '').includes('OSError: c.png is truncated')")
                await dashboard.click(f"{summary}.getBoundingClientRect()", 20, 10)
                await dashboard.until("document.getElementById('errors').innerText.includes('Traceback')")
                shown = await dashboard.value("document.getElementById('errors').innerText")
                assert "'c.png'" in shown
                assert "raise OSError" in shown
                assert "Cell In[3]" in shown
            with steps.step("what an engine printed"):
                await dashboard.value("document.querySelector('[data-key=\"engine 2\"]').click()")
                await dashboard.until("document.getElementById('detail').innerText.includes('process ')")
            await dashboard.close()
            await tab.call("Page.bringToFront")
            with steps.step("stop"):
                await run_cell(tab, 4, "cluster.stop_cluster_sync()")
                assert "Error" not in await tab.value(output(4))
        finally:
            await tab.picture(tmp_path / "notebook.png")
            await tab.close()

    with ExitStack() as running:
        with steps.step("start JupyterLab"):
            url = running.enter_context(jupyter_lab(tmp_path))
        port = running.enter_context(browser(tmp_path))
        asyncio.run(use(port, url))
