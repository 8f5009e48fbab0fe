"""Acceptance 14: the report opens in a browser without network, draws everything, and is smaller than 5 MB."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("scipy")
pytest.importorskip("altair")
import converter  # noqa: F401
from broadleaf_lab.report.build import Report
from broadleaf_lab.report.collect import Collected
from broadleaf_lab.spec import expressions
from test_report import references

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
WIDTH, HEIGHT = 1280, 4500
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def page(report: Report) -> Path:
    return report.html


def without_network() -> list[str]:
    """A prefix that gives a command no network at all, if this user may do that."""
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


# Opens everything that is folded, and leaves the page's height before that and the width of each column in attributes.
UNFOLDED = """
<script>
(async function () {
  while (document.body.dataset.ready !== "yes") await new Promise((later) => setTimeout(later, 20));
  document.body.dataset.height = document.documentElement.scrollHeight;
  document.body.dataset.width = document.documentElement.scrollWidth;
  document.body.dataset.drawn = document.querySelectorAll("svg.marks").length;
  document.body.dataset.places = JSON.stringify([...document.querySelectorAll("figure")].slice(0, 6).map((figure) => {
    const at = figure.getBoundingClientRect();
    return [Math.round(at.left), Math.round(at.top)];
  }));
  for (const fold of document.querySelectorAll("details")) fold.open = true;
  while (document.querySelectorAll("svg.marks").length < CHARTS) await new Promise((later) => setTimeout(later, 20));
  document.body.dataset.unfolded = "yes";
})();
</script>
"""


def with_script(page: Path, script: str, folder: Path) -> Path:
    """A copy of the page with a script at its end."""
    made = folder / "page.html"
    # The scripts inside the page contain that tag in their text too.
    before, tag, after = page.read_text(encoding="utf-8").rpartition("</body>")
    made.write_text(before + script + tag + after, encoding="utf-8")
    return made


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: apt-get install chromium)")
def test_a_browser_without_network_draws_every_figure(page: Path, tmp_path: Path) -> None:
    made = with_script(page, UNFOLDED.replace("CHARTS", "14 + 3"), tmp_path)
    dom = chromium(made, tmp_path / "profile", "--dump-dom").stdout
    assert 'data-unfolded="yes"' in dom, "14 figures, and three that follow the drop-downs"
    assert 'class="error"' not in dom
    body = dom[dom.index("<body") :]
    charts = re.findall(r'<div class="chart[^"]*" id="chart-(\d+)".*?(?=<div class="chart|</main>)', body, re.DOTALL)
    assert [int(n) for n in charts] == list(range(1, 15))
    assert body.count("<option") == 6 + 7 + 3 + 2 + 1 + 8, "treatments, factors or nothing, scales, paths, questions"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: apt-get install chromium)")
def test_the_first_reading_is_two_columns_and_not_long(page: Path, tmp_path: Path) -> None:
    made = with_script(page, UNFOLDED.replace("CHARTS", "14 + 3"), tmp_path)
    dom = chromium(made, tmp_path / "profile", "--dump-dom").stdout
    told = dict(re.findall(r'data-(height|width|drawn)="(\d+)"', dom))
    assert int(told["drawn"]) == 6, "the rest is drawn when somebody opens it"
    assert int(told["height"]) < 6000
    assert int(told["width"]) <= WIDTH
    places = json.loads(html.unescape(re.findall(r'data-places="([^"]*)"', dom)[0]))
    (left, right) = sorted({x for x, _ in places})
    assert [x for x, _ in places] == [left, right] * 3
    assert all(a[1] == b[1] for a, b in zip(places[::2], places[1::2], strict=True)), "rows begin on one line"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: apt-get install chromium)")
def test_a_screenshot_shows_ink_all_the_way_down(page: Path, tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image")
    shot = tmp_path / "page.png"
    chromium(page, tmp_path / "profile", f"--screenshot={shot}")
    pixels = image.imread(shot)[:, :, :3]
    assert pixels.shape[:2] == (HEIGHT, WIDTH)
    inked = pixels.min(axis=(1, 2)) < 0.9
    # No stretch of the height of a chart is blank.
    assert all(inked[top : top + 500].any() for top in range(0, HEIGHT, 500))


CONDITIONS = (
    "not log_off",
    "batch > 1 and log_off",
    "(pin or batch == 8) and not (lines_off and debug_off)",
    "batch != 8 or placebo == True",
)
# Does what a reader does, and leaves the outcome in an attribute of the page.
READER = """
<script>
(async function () {
  while (document.body.dataset.ready !== "yes") await new Promise((later) => setTimeout(later, 20));
  const asked = ASKED, told = {}, at = (id) => document.getElementById(id);
  const changed = (element, value, event) => { element.value = value; element.dispatchEvent(new Event(event)); };
  const soon = () => new Promise((later) => setTimeout(later, 20));
  const model = JSON.parse(at("model").textContent), names = model.factors.map((f) => f.name);
  told.names = names;
  told.predicted = asked.places.map((places) => predictor(model).predict(places));
  told.held = asked.conditions.map((text) => asked.configs.map((config) => condition(text, names)(config)));
  told.wrong = ["log_off and", "nothing", "log_off log_off", "(pin"].map((text) => {
    try { condition(text, names); } catch (error) { return error.message; }
  });
  for (const fold of document.querySelectorAll("details")) fold.open = true;
  while (!document.querySelector("#scatter svg")) await soon();
  changed(at("question"), [...at("question").options].find((one) => one.value.startsWith("How many")).value, "change");
  told.scale = at("scale").value;
  changed(at("scale"), "us", "change");
  const all = at("scatter").textContent;
  changed(at("condition"), "batch == 64", "change");
  while (at("scatter").textContent === all || !at("scatter").textContent.includes(" contexts. Below")) await soon();
  told.left = at("scatter").textContent.match(/(\\d+) contexts/)[1];
  changed(at("condition"), "no_such_factor", "change");
  told.error = at("condition-error").textContent;
  changed(document.querySelector("#sliders input"), 1, "input");
  told.prediction = at("prediction").textContent;
  told.first = document.querySelector("#own-path b").textContent;
  document.querySelector("#own-path li button:nth-of-type(2)").click();
  told.second = document.querySelector("#own-path b").textContent;
  told.order = at("order").value;
  document.body.dataset.told = JSON.stringify(told);
})();
</script>
"""


@pytest.fixture(scope="module")
def told(report: Report, found: Collected, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the page does for a reader who types, slides and reorders."""
    if CHROMIUM is None:
        pytest.skip("no Chromium here (Debian: apt-get install chromium)")
    folder = tmp_path_factory.mktemp("reader")
    fit = found.log
    assert fit is not None
    configs = fit.measured_configs[:40]
    places = [[fit.coding.levels[f.name].index(config[f.name]) for f in fit.factors] for config in configs]
    asked = json.dumps({"places": places, "configs": configs, "conditions": CONDITIONS})
    page = with_script(report.html, READER.replace("ASKED", asked), folder)
    dom = chromium(page, folder / "profile", "--dump-dom").stdout
    match = re.search(r'data-told="([^"]*)"', dom)
    assert match is not None, "the reader did not come to an end"
    return {**json.loads(html.unescape(match[1])), "configs": configs}


def test_the_page_predicts_what_python_predicts(told: dict[str, Any], found: Collected) -> None:
    assert found.log is not None
    us, low, high = found.log.predict(told["configs"])
    for number, it in enumerate(told["predicted"]):
        assert it["us"] == pytest.approx(us[number], rel=1e-4)
        # One quantile serves all configurations.
        assert it["high_us"] - it["low_us"] == pytest.approx(high[number] - low[number], rel=0.1)


def test_the_page_reads_conditions_as_python_does(told: dict[str, Any], found: Collected) -> None:
    factors = {f.name: f for f in found.factors}
    for text, held in zip(CONDITIONS, told["held"], strict=True):
        node = expressions.parse(text, factors, "test")
        assert held == [expressions.holds(node, config) for config in told["configs"]], text
        assert len(set(held)) == 2, text
    assert all(told["wrong"]), "what is no condition says what is wrong"


def test_the_page_follows_what_a_reader_does(told: dict[str, Any]) -> None:
    assert 0 < int(told["left"]) < 48
    assert "there is no factor" in told["error"]
    assert "times as fast as the baseline" in told["prediction"]
    assert told["first"] != told["second"]
    assert told["order"] == "my order"
    assert told["scale"] == "rate", "a question sets what answers it"
