"""Tables and plots of README and pages match the recorded results; the check notices if they do not."""

import json
import re
import shutil
from pathlib import Path

import pytest

from benchmarks import figures

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/benchmarks.md")
# A row of the table in the README, and the record that it is made from.
ROW = "map of 1,000,000 trivial items"


@pytest.fixture
def copied(tmp_path):
    """A copy of what figures are made from, and where they appear, to be damaged."""
    for name in ("benchmarks/results", "docs/figures"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("benchmarks/tables.toml", *PAGES):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def map_record(root: Path) -> Path:
    """The file with the figures of `ROW`."""
    (path,) = (root / "benchmarks/results").glob("*-map-*.json")
    return path


def shown(root: Path) -> str:
    """Broadleaf's figure in `ROW`."""
    (row,) = (line for line in (root / "README.md").read_text().splitlines() if ROW in line)
    return row.split("|")[2].strip()


def test_every_table_and_plot_is_what_the_results_give():
    assert figures.outdated(ROOT, write=False) == []


def test_the_last_column_names_the_case_that_was_run():
    (row,) = (line for line in (ROOT / "README.md").read_text().splitlines() if ROW in line)
    assert row.endswith("| `map` |")


def test_a_figure_typed_by_hand_is_noticed(copied):
    change(copied / "README.md", shown(copied), "9,990,000 items/s")
    assert figures.outdated(copied, write=False) == ["README.md"]


def test_a_new_result_changes_tables_and_plots(copied):
    path = map_record(copied)
    run = json.loads(path.read_text())
    for record in run["records"]:
        if record["peer"] == "broadleaf" and record["metric"] == "items":
            record["median"] = 9_990_000.0
    path.write_text(json.dumps(run))
    assert figures.outdated(copied, write=False) == [*PAGES, "docs/figures/rates.svg"]
    pytest.importorskip("matplotlib")
    figures.outdated(copied, write=True)
    assert figures.outdated(copied, write=False) == []
    assert shown(copied) == "9,990,000 items/s"


def record_sizes(root: Path, seconds: float) -> None:
    """Writes a run of `python -m benchmarks sizes`, and declares it in place of the one that was published."""
    for published in (root / "benchmarks/results").glob("*-sizes-*.json"):
        published.unlink()
    run = json.loads(map_record(root).read_text()) | {"command": "python -m benchmarks sizes --record"}
    params = {"workers": 1, "config": "unix", "mode": "direct view", "value": "bytes", "route": "apply"}
    run["records"] = [
        {"peer": "broadleaf", "peer_version": "1", "case": "sizes", "metric": "per_value", "unit": "s"}
        | {"params": params | {"size_bytes": size_bytes}, "median": seconds}
        for size_bytes in (1000, 4000)
    ]
    (root / "benchmarks/results/a-sizes-run.json").write_text(json.dumps(run))
    declared = root / "benchmarks/tables.toml"
    declared.write_text(
        re.sub(r'(name = "sizes"\n(?:.+\n)*results = )\[.*\]', r'\1["a-sizes-run"]', declared.read_text())
    )


def test_a_plot_over_sizes_is_of_the_recorded_run(copied):
    pytest.importorskip("matplotlib")
    record_sizes(copied, 1.0)
    assert figures.outdated(copied, write=True) == ["docs/benchmarks.md", "docs/figures/sizes.svg"]
    assert "(figures/sizes.svg)" in (copied / "docs/benchmarks.md").read_text()
    assert figures.outdated(copied, write=False) == []
    record_sizes(copied, 2.0)
    assert figures.outdated(copied, write=False) == ["docs/figures/sizes.svg"]


def test_a_table_is_of_one_machine(copied):
    path = map_record(copied)
    run = json.loads(path.read_text())
    path.write_text(json.dumps(run | {"machine": run["machine"] | {"cores": 64}}))
    with pytest.raises(figures.Mismatch, match="'tasks' has figures of more than one machine"):
        figures.outdated(copied, write=False)


def test_a_result_that_no_table_shows_is_noticed(copied):
    shutil.copy(map_record(copied), copied / "benchmarks/results/forgotten.json")
    with pytest.raises(figures.Mismatch, match="forgotten"):
        figures.outdated(copied, write=False)


def test_a_page_without_its_markers_is_noticed(copied):
    change(copied / "README.md", "<!-- end of figures: tasks -->", "")
    with pytest.raises(figures.Mismatch, match=r"README\.md needs"):
        figures.outdated(copied, write=False)


def test_the_readme_has_one_table_of_at_most_ten_rows():
    tables, *_ = figures.load(ROOT)
    assert [len(table.rows) <= 10 for table in tables if "README.md" in table.pages] == [True]
