"""Acceptance 14: the report opens in a browser without network, draws everything, and is smaller than 5 MB."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("statsmodels")
pytest.importorskip("altair")
import converter  # noqa: F401
from broadleaf.lab.report.build import Report
from test_report import references

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
WIDTH, HEIGHT = 1280, 14000


@pytest.fixture
def page(report: Report) -> Path:
    return report.html


def without_network() -> list[str]:
    """What to put before a command so that it has no network at all, where this user may do that."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return []
    prefix = [unshare, "--user", "--map-root-user", "--net"]
    works = subprocess.run([*prefix, "true"], capture_output=True, timeout=10, check=False).returncode == 0
    return prefix if works else []


def chromium(page: Path, profile: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Chromium without a window on a page, until its scripts are done."""
    assert CHROMIUM is not None
    command = [
        *without_network(),
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
        "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={profile}", f"--window-size={WIDTH},{HEIGHT}",
        "--virtual-time-budget=60000", *arguments, page.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=True)


def test_nothing_is_loaded_and_it_is_small(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert page.stat().st_size < 5_000_000
    assert [url for url in references(text).loads if not url.startswith("data:")] == []
    assert re.search(r"@import|url\(\s*['\"]?https?:", text[: text.index("</style>")]) is None


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: apt-get install chromium)")
@pytest.mark.timeout(240)
def test_a_browser_without_network_draws_every_figure(page: Path, tmp_path: Path) -> None:
    dom = chromium(page, tmp_path / "profile", "--dump-dom").stdout
    assert 'data-ready="yes"' in dom
    assert 'class="error"' not in dom
    body = dom[dom.index("<body") :]
    charts = re.findall(r'<div class="chart[^"]*" id="chart-(\d+)".*?(?=<div class="chart|</main>)', body, re.DOTALL)
    assert [int(n) for n in charts] == list(range(1, 27))
    assert len(re.findall(r'<svg [^>]*class="marks"', body)) == 26 + 3, (
        "26 figures, and three that follow the drop-downs"
    )
    assert body.count("<option") == 6 + 7 + 3 + 2, "treatments, factors or nothing, scales, paths"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: apt-get install chromium)")
@pytest.mark.timeout(240)
def test_a_screenshot_shows_ink_all_the_way_down(page: Path, tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image")
    shot = tmp_path / "page.png"
    chromium(page, tmp_path / "profile", f"--screenshot={shot}")
    pixels = image.imread(shot)[:, :, :3]
    assert pixels.shape[:2] == (HEIGHT, WIDTH)
    inked = pixels.min(axis=(1, 2)) < 0.9
    # No stretch of the height of a chart is blank.
    assert all(inked[top : top + 500].any() for top in range(0, HEIGHT, 500))
