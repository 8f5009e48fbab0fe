"""The report of a study: what the page says, in which order, and that it loads nothing from the network."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("scipy")
pytest.importorskip("altair")
import pandas as pd
from broadleaf_lab.errors import AnalysisError
from broadleaf_lab.report import collect as collecting
from broadleaf_lab.report.build import Report, write
from broadleaf_lab.report.figures.base import Figure, Missing
from broadleaf_lab.report.figures.registry import draw_all
from broadleaf_lab.study import Study
from converter import validated
from planted import DEBUG_OFF, LINES_OFF, LOG_OFF, PIN, planted, written_study
from synthetic.system import SyntheticSystem, simulate


class References(HTMLParser):
    """Everything a page would load, and what it links to."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        for name in ("src", "srcset", "data", "poster"):
            if given.get(name):
                self.loads.append(str(given[name]))
        if tag == "link" and given.get("href"):
            self.loads.append(str(given["href"]))
        if tag == "a":
            self.links.append(str(given.get("href")))


def references(page: str) -> References:
    parser = References()
    parser.feed(page)
    return parser


def test_every_figure_can_be_drawn_from_a_complete_study(found: collecting.Collected) -> None:
    assert found.evidence is not None
    figures = draw_all(found.evidence)
    assert not [f.key for f in figures if isinstance(f, Missing)]
    for figure in figures:
        assert isinstance(figure, Figure)
        validated(figure)
        assert len(figure.table) > 0


def test_the_evidence_is_what_was_planted(found: collecting.Collected) -> None:
    evidence = found.evidence
    assert evidence is not None
    assert (evidence.roles.first, evidence.roles.second) == (LOG_OFF, LINES_OFF)
    assert evidence.roles.flip == PIN
    assert {evidence.roles.puzzle, evidence.roles.moderator} == {DEBUG_OFF, "batch"}
    assert evidence.greedy is not None
    first = evidence.greedy.iloc[0]
    assert first["name"] == LOG_OFF
    assert first["before_us"] == pytest.approx(1000, rel=0.03)
    assert first["after_us"] == pytest.approx(1000 * 2.718281828**-0.7, rel=0.03)
    # Each step starts where the one before ended.
    assert evidence.greedy["before_us"].tolist()[1:] == pytest.approx(evidence.greedy["after_us"].tolist()[:-1])
    assert evidence.nice is not None
    assert evidence.nice["tier"].is_monotonic_increasing
    assert evidence.means is not None
    assert "batch = 64" in set(evidence.means["name"])
    assert evidence.means_kept is not None
    assert not {LOG_OFF, LINES_OFF} & set(evidence.means_kept["name"])
    assert evidence.levels is not None
    assert evidence.levels["mean_us"].is_monotonic_decreasing
    assert evidence.drift is not None
    assert set(evidence.drift["control"]) == {"", "baseline", "all on"}


def test_deltas_kept_without_logging_are_those_of_runs_without_it(found: collecting.Collected) -> None:
    """The mean of pin's deltas without either log factor, computed by hand from the runs."""
    assert found.evidence is not None
    frame, rest = found.frame, ["debug_off", "batch", "placebo"]
    kept = frame[(frame[LOG_OFF] == 0) & (frame[LINES_OFF] == 0)]
    cells = kept.groupby([PIN, *rest])["y_us"].agg(["median", "size"])
    joined = cells.loc[0].add_suffix("_0").join(cells.loc[1].add_suffix("_1"), how="inner")
    weight = 2 / (1 / joined["size_0"] + 1 / joined["size_1"])
    expected = float(((joined["median_1"] - joined["median_0"]) * weight).sum() / weight.sum())
    assert found.evidence.means_kept is not None
    row = found.evidence.means_kept.set_index("name").loc[PIN]
    assert row["mean_us"] == pytest.approx(expected)
    assert row["n"] == len(joined)


def test_the_page_says_verdicts_then_figures_then_the_rest(report: Report) -> None:
    page = report.html.read_text(encoding="utf-8")
    places = [page.index(f'id="{part}"') for part in ("verdicts", "figures", "explore", "tables", "method")]
    assert places == sorted(places)
    assert "planted &amp; &lt;known&gt;" in page
    assert "<known>" not in page
    for name in (LOG_OFF, LINES_OFF, PIN, "batch = 64", "placebo"):
        assert f'<td class="name">{name}</td>' in page
    assert page.count('<span class="word') == 7


def test_the_page_loads_nothing_and_is_small(report: Report) -> None:
    page = report.html.read_text(encoding="utf-8")
    assert report.html.stat().st_size < 5_000_000
    parsed = references(page)
    assert [url for url in parsed.loads if not url.startswith("data:")] == []
    assert all(url.startswith(("#", "figures/")) for url in parsed.links)
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    # Vega, Vega-Lite and vega-embed are inside, and once only.
    assert page.count("vegaEmbed=") + page.count("vegaEmbed =") == 1


def test_every_link_to_a_figure_leads_somewhere(report: Report) -> None:
    page = report.html.read_text(encoding="utf-8")
    wanted = {url for url in references(page).links if url.endswith(".csv")}
    assert len(wanted) == 14
    for url in wanted:
        table = pd.read_csv(report.folder / url)
        assert len(table) > 0


def test_charts_in_the_page_are_those_of_the_registry(report: Report) -> None:
    page = report.html.read_text(encoding="utf-8")
    specs = json.loads(_script(page, "specs"))
    assert list(specs) == [f"chart-{n}" for n in range(1, 15)]
    assert all("$schema" in spec for spec in specs.values())


def test_drop_downs_know_every_delta(report: Report, found: collecting.Collected) -> None:
    data = json.loads(_script(report.html.read_text(encoding="utf-8"), "explorer-data"))
    assert found.deltas is not None
    assert len(data["treatment"]) == len(data["before_us"]) == len(found.deltas)
    assert data["second"] == LINES_OFF
    names = {factor["name"]: factor["levels"] for factor in data["factors"]}
    assert names["batch"] == ["1", "8", "64"]
    assert names[LOG_OFF] == ["off", "on"]
    assert list(data["paths"]) == ["best first", "nicest first"]
    # A row by hand: the context of the first delta of pin.
    row = found.deltas[found.deltas["treatment"] == PIN].iloc[0]
    place = data["treatment"].index(data["treatments"].index(PIN))
    assert data["before_us"][place] == pytest.approx(row["before_us"], rel=1e-4)
    assert data["context"]["batch"][place] == names["batch"].index(str(int(row["batch"])))


def _script(page: str, name: str) -> str:
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return found.group(1)


def test_images_are_written_beside_the_tables(found: collecting.Collected, tmp_path: Path) -> None:
    from broadleaf_lab.report.build import write_figure

    assert found.evidence is not None
    figure = next(f for f in draw_all(found.evidence) if isinstance(f, Figure) and f.key == "drift")
    write_figure(figure, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["14_drift.csv", "14_drift.png", "14_drift.svg"]
    assert (tmp_path / "14_drift.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "14_drift.svg").read_text()


def test_a_fraction_without_pairs_still_has_a_report(tmp_path: Path) -> None:
    system = planted()
    factors = tuple(f for f in system.factors if f.is_bool)
    effects = {f.name: system.effects[f.name] for f in factors}
    pairs = {pair: size for pair, size in system.pairs.items() if set(pair) <= set(effects)}
    fraction = SyntheticSystem(factors, 1000.0, effects, pairs, noise=0.02)
    study = fraction.study(tmp_path, "fraction", kind="resolution5", seed=1)
    rows = [row for row in simulate(study.plan(), fraction, seed=2) if row["purpose"] == "design"]
    with open(tmp_path / "runs.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    found = collecting.collect(study)
    assert found.evidence is not None
    assert found.deltas is not None
    assert set(found.deltas["source"]) == {"model"}
    assert any("model's predictions" in note for note in found.notes)
    missing = {f.key: f.reason for f in draw_all(found.evidence) if isinstance(f, Missing)}
    assert "paths" in missing["orders"]


def test_a_study_without_runs_says_what_to_do(tmp_path: Path) -> None:
    study = planted().study(tmp_path, "empty")
    with pytest.raises(Exception, match=r"runs\.csv"):
        write(study)
    assert not (tmp_path / "report").exists()


def test_runs_of_one_configuration_have_no_report(tmp_path: Path) -> None:
    study = written_study(tmp_path)
    with open(tmp_path / "runs.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    same = [row for row in rows if row["config_id"] == rows[0]["config_id"]]
    with open(tmp_path / "runs.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(same)
    with pytest.raises(AnalysisError, match="same configuration"):
        write(study)


def test_the_command_prints_where_everything_is(study: Study, report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    from broadleaf_lab.cli.report import report as cli
    from click.testing import CliRunner

    asked: list[object] = []

    def written(*arguments: object) -> Report:
        asked.extend(arguments)
        return report

    monkeypatch.setattr("broadleaf_lab.report.build.write", written)
    monkeypatch.setattr(cli, "load_study", lambda _: study)
    done = CliRunner().invoke(cli.command, [str(study.directory), "--to", "elsewhere", "--no-images"])
    assert done.exit_code == 0, done.output
    assert asked == [study, Path("elsewhere"), False]
    assert f"Report: {report.html}" in done.output
    assert "(14 as CSV)" in done.output
    assert f"Rscript {report.folder / 'report.R'} {study.directory}" in done.output


def test_the_command_fails_in_words_without_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from broadleaf_lab.cli import command as lab
    from broadleaf_lab.cli.report import report as cli
    from click.testing import CliRunner

    monkeypatch.setattr(cli, "load_study", lambda _: planted().study(tmp_path, "empty"))
    done = CliRunner().invoke(lab, ["report", str(tmp_path)])
    assert done.exit_code == 1
    assert "there are no runs yet. Make them with `broadleaf-lab run`." in done.stderr


@pytest.mark.timeout(120)
def test_r_reads_the_same_files(study: Study, report: Report, found: collecting.Collected, tmp_path: Path) -> None:
    """R draws its figures from runs.csv and deltas.csv, and its main effects are those behind figure 13."""
    script = shutil.which("Rscript")
    if script is None:
        pytest.skip("no R here (Debian: apt-get install r-base-core r-cran-ggplot2)")
    if subprocess.run([script, "-e", "library(ggplot2)"], capture_output=True, timeout=60, check=False).returncode != 0:
        pytest.skip("R has no ggplot2 (Debian: apt-get install r-cran-ggplot2)")
    assert found.deltas is not None
    found.deltas.to_csv(study.directory / "deltas.csv", index=False)
    done = subprocess.run(
        [script, str(report.folder / "report.R"), str(study.directory), str(tmp_path)],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    drawn = {p.stem for p in tmp_path.glob("*.png")}
    assert drawn == {"model_main", "model_pairs", "means", "before_after", "colour_strip", "pca"}
    printed = dict(re.findall(r"^ *(\w+) +(-?[0-9.]+)$", done.stdout[done.stdout.index("mean deltas") :], re.MULTILINE))
    for name, mean in found.deltas.groupby("treatment")["delta_us"].mean().items():
        assert float(printed[str(name)]) == pytest.approx(mean, rel=1e-4)
