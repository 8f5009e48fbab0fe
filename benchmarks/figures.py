"""Makes the tables and plots of README and pages from the recorded results; `--check` reports what does not match.

`benchmarks/tables.toml` says what each one shows. A table is between markers on a page; a plot contains the numbers
from which it was drawn, because two versions of Matplotlib do not draw the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shlex
import statistics
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from broadleaf.bench.record import Record
from broadleaf.text import number, readable_unit

from benchmarks import plots

ROOT = Path(__file__).resolve().parent.parent
LESS_IS_BETTER = {"us", "ms", "s", "MB", "ratio"}
COLOURS = {"broadleaf": "#0b5d3b", "raw": "#777777", "ppe": "#0072b2", "ipyparallel": "#d55e00", "ray": "#cc79a7",
           "mpi4py": "#e69f00"}  # fmt: skip


class Mismatch(Exception):
    """The declaration of a table, its results or its page do not match."""


@dataclass(frozen=True)
class Row:
    """A line of a table: for each system the medians of its runs, in one unit."""

    label: str
    unit: str
    medians: dict[str, list[float]]
    cases: list[str]


@dataclass(frozen=True)
class Table:
    """A declared table with the figures that it shows, all from one machine: none before the first run is recorded."""

    name: str
    pages: list[str]
    systems: list[str]
    titles: dict[str, str]
    runs: list[dict[str, Any]]
    rows: list[Row]

    def markdown(self) -> str:
        """The text between the markers: the machine, the table, and where the figures come from."""
        if not self.runs:
            return not_recorded(self.name)
        head = "".join(f" {self.titles[system]} |" for system in self.systems)
        lines = [
            machine(self.runs[0]),
            "",
            f"| |{head} `python -m benchmarks` |",
            "|---" * (len(self.systems) + 2) + "|",
        ]
        for row in self.rows:
            cells = "".join(f" {found} |" if (found := cell(row, system)) else " |" for system in self.systems)
            lines.append(f"| {row.label} |{cells} {', '.join(f'`{case}`' for case in row.cases)} |")
        return "\n".join([*lines, "", *sources(self.runs)])


@dataclass(frozen=True)
class Curves:
    """A declared plot of times over sizes, with the runs that it shows: none before the first one is recorded."""

    name: str
    pages: list[str]
    path: str
    title: str
    runs: list[dict[str, Any]]

    def markdown(self) -> str:
        """The text between the markers: the machine, the plot, and where the figures come from."""
        if not self.runs:
            return not_recorded(self.name)
        image = f"![{self.title}]({Path(self.path).relative_to('docs')})"
        return "\n".join([machine(self.runs[0]), "", image, "", *sources(self.runs)])

    def drawn_from(self) -> str:
        """A digest of what the plot shows."""
        return _digest([self.title, *(run["records"] for run in self.runs)])

    def draw(self, path: Path) -> None:
        """Draws the plot as SVG, as `python -m benchmarks --plot` does."""
        records = [
            Record(r["peer"], r["peer_version"], r["case"], r["params"], r["metric"], [r["median"]])
            for run in self.runs
            for r in run["records"]
            if r["median"] is not None
        ]
        plots.draw_sizes(records, path, f"drawn from {self.drawn_from()}")


def load(root: Path) -> tuple[list[Table], list[Curves], list[dict[str, Any]]]:
    """The tables, the plots over sizes, and the declarations of plots of tables. Raises `Mismatch`."""
    declared = tomllib.loads((root / "benchmarks" / "tables.toml").read_text())
    used = {name for shown in declared["tables"] + declared["curves"] for name in shown["results"]}
    there = {path.stem for path in (root / "benchmarks" / "results").glob("*.json")}
    if used != there:
        raise Mismatch(f"results that no table shows, or that do not exist: {', '.join(sorted(used ^ there))}")
    tables = [_table(root, table, declared["systems"]) for table in declared["tables"]]
    curves = [
        Curves(each["name"], each["pages"], each["path"], each["title"], _runs(root, each))
        for each in declared["curves"]
    ]
    return tables, curves, declared["plots"]


def _runs(root: Path, declared: dict[str, Any]) -> list[dict[str, Any]]:
    paths = [root / "benchmarks" / "results" / f"{name}.json" for name in declared["results"]]
    runs = [{"name": path.stem} | json.loads(path.read_text()) for path in paths]
    if any(run["machine"] != runs[0]["machine"] for run in runs):
        raise Mismatch(f"table {declared['name']!r} has figures of more than one machine")
    return runs


def _table(root: Path, declared: dict[str, Any], titles: dict[str, str]) -> Table:
    runs = _runs(root, declared)
    rows = [_row(row, declared["systems"], runs) for row in declared["rows"] if runs]
    return Table(declared["name"], declared["pages"], declared["systems"], titles, runs, rows)


def _row(declared: dict[str, Any], systems: list[str], runs: list[dict[str, Any]]) -> Row:
    medians: dict[str, list[float]] = {}
    units, cases_run = set(), []
    # `also` selects further records for the row, such as those of the bare machine; they have the same metric.
    selectors = [declared, *({"metric": declared["metric"]} | also for also in declared.get("also", ()))]
    for run in runs:
        if run["name"] not in declared.get("results", [run["name"]]):
            continue
        found = [record for record in run["records"] if any(_is_meant(record, each) for each in selectors)]
        for system in systems:
            values = [record["median"] for record in found if record["peer"] == system]
            units |= {record["unit"] for record in found if record["peer"] == system}
            if values:
                best = min if units & LESS_IS_BETTER else max
                medians.setdefault(system, []).append(best(values))
        if found:
            cases_run.append(_arguments(run)[0])
    if len(units) != 1:
        raise Mismatch(f"row {declared['label']!r}: one unit is needed, not {sorted(units)}")
    return Row(declared["label"], units.pop(), medians, list(dict.fromkeys(cases_run)))


def _is_meant(record: dict[str, Any], selector: dict[str, Any]) -> bool:
    params = record["params"]
    modes = selector.get("modes", {}).get(record["peer"])
    configs = selector.get("configs", {}).get(record["peer"])
    return (
        record["case"] == selector["case"]
        and record["metric"] == selector["metric"]
        and record["median"] is not None
        and record["peer"] in selector.get("only", [record["peer"]])
        and selector.get("params", {}).items() <= params.items()
        and not set(selector.get("without", ())) & params.keys()
        and (modes is None or params.get("mode") in modes)
        and (configs is None or params.get("config") in configs)
    )


def cell(row: Row, system: str) -> str:
    """A system's median, or the range of those of its runs, with the unit that suits the row's smallest."""
    values = row.medians.get(system)
    if not values:
        return ""
    factor, unit = readable_unit(min(map(min, row.medians.values())), row.unit)
    low, high = (number(_rounded(value * factor)) for value in (min(values), max(values)))
    words = {"ratio": " x"}.get(unit, f" {unit}")
    return (low if low == high else f"{low} to {high}") + words


def _rounded(value: float) -> float:
    """A figure with as many digits as a measurement bears out: three."""
    return float(f"{value:.3g}")


def not_recorded(name: str) -> str:
    """What a page says in place of a table or plot without figures, which has the name of its benchmark."""
    return f"No run of `python -m benchmarks {name}` has been recorded yet."


def machine(run: dict[str, Any]) -> str:
    """One line about the machine of a run, as far as it is known."""
    known = run["machine"]
    words = [known["processor"], f"{known['cores']} cores"]
    for name, word in ("memory", "{} of memory"), ("kernel", "Linux {}"), ("python", "Python {}"):
        if known[name]:
            words.append(word.format(known[name]))
    return "Medians. Machine: " + ", ".join(words) + "."


def sources(runs: list[dict[str, Any]]) -> Iterator[str]:
    """When the figures were taken, with which code, under which conditions."""
    dates = sorted({run["date"][:10] for run in runs})
    commits = sorted({run["commit"] for run in runs if run["commit"]})
    span = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    transcribed = any("transcribed" in run for run in runs)
    line = f"{'Noted on' if transcribed else 'Measured on'} {span}"
    if commits:
        line += f", at {'commit' if len(commits) == 1 else 'commits'} {' and '.join(commits)}"
    shared = [text for text in _remarks(runs[0]) if all(text in _remarks(run) for run in runs)]
    line += ". " + " ".join(shared) if shared else "."
    if transcribed:
        line += " The figures were written down before runs were recorded as files, so the spread is not known."
    commands = dict.fromkeys(shlex.join(["python", "-m", "benchmarks", *_arguments(run)]) for run in runs)
    yield line + " Commands: " + ", ".join(f"`{command}`" for command in commands) + "."


def _arguments(run: dict[str, Any]) -> list[str]:
    """The case and its options. Before ADR 27, comparisons were `broadleaf bench`; a record keeps the command that was
    given, and tables show the one that repeats it."""
    words = shlex.split(run["command"])
    return words[2:] if words[:2] == ["broadleaf", "bench"] else words[3:]


def _remarks(run: dict[str, Any]) -> list[str]:
    found: list[str] = run["conditions"].get("remarks", [])
    return found


def pages(tables: Sequence[Table | Curves], root: Path) -> Iterator[tuple[Path, str, str]]:
    """Each page with tables, its current text and the correct one."""
    for name in dict.fromkeys(page for table in tables for page in table.pages):
        path = root / name
        now = new = path.read_text()
        for table in tables:
            if name in table.pages:
                new = _filled(new, table, name)
        stray = set(re.findall(r"<!-- figures: ([a-z0-9-]+) -->", new)) - {t.name for t in tables if name in t.pages}
        if stray:
            raise Mismatch(f"{name} has markers of tables that are not declared for it: {', '.join(stray)}")
        yield path, now, new


def _filled(text: str, table: Table | Curves, page: str) -> str:
    begin, end = f"<!-- figures: {table.name} -->", f"<!-- end of figures: {table.name} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise Mismatch(f"{page} needs {begin} and {end} once each")
    before, rest = text.split(begin)
    return f"{before}{begin}\n\n{table.markdown()}\n\n{end}{rest.split(end)[1]}"


def drawn_from(plot: dict[str, Any], table: Table) -> str:
    """A digest of what a plot shows."""
    return _digest([plot["title"], *([row.label, row.unit, row.medians] for row in _rows(plot, table))])


def _digest(shown: list[Any]) -> str:
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()[:16]


def _rows(plot: dict[str, Any], table: Table) -> list[Row]:
    return [table.rows[place] for place in plot["rows"]]


def draw(plot: dict[str, Any], table: Table, path: Path) -> None:
    """Draws bars for each row beside each other, each row on a scale of its own, as SVG."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rows = _rows(plot, table)
    style: Any = {"svg.hashsalt": "broadleaf", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with rc_context(style):
        figure = Figure(figsize=(8.4, 2.6), layout="constrained", facecolor="white")
        figure.suptitle(plot["title"])
        for axes, row in zip(figure.subplots(1, len(rows)), rows, strict=True):
            systems = [system for system in table.systems if system in row.medians]
            values = [statistics.median(row.medians[system]) for system in systems]
            bars = axes.bar(range(len(systems)), values, color=[COLOURS[system] for system in systems])
            axes.bar_label(bars, [number(value) for value in values], fontsize=7)
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines["left"].set_visible(False)
            axes.set_title(_folded(f"{row.label.split(';')[0]}, {row.unit}"), fontsize=8)
            axes.margins(y=0.15)
        everyone = [system for system in table.systems if any(system in row.medians for row in rows)]
        handles = [_patch(COLOURS[system]) for system in everyone]
        labels = [table.titles[system].replace("`", "") for system in everyone]
        figure.legend(handles, labels, loc="outside lower center", ncols=len(everyone), frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None, "Description": f"drawn from {drawn_from(plot, table)}"})


def _patch(colour: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=colour)


def _folded(text: str, width: int = 24) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, width))


def outdated(root: Path, write: bool) -> list[str]:
    """The pages and plots that do not match the results; with `write`, they are made again."""
    tables, curves, plots_of_tables = load(root)
    found = []
    for path, now, new in pages([*tables, *curves], root):
        if now != new:
            found.append(str(path.relative_to(root)))
            if write:
                path.write_text(new)
    drawn: list[tuple[str, str, Callable[[Path], None]]] = [
        (each.path, each.drawn_from(), each.draw) for each in curves if each.runs
    ]
    for plot in plots_of_tables:
        table = next(table for table in tables if table.name == plot["table"])
        drawn.append((plot["path"], drawn_from(plot, table), partial(draw, plot, table)))
    for name, digest, draw_into in drawn:
        path = root / name
        if not path.exists() or digest not in path.read_text():
            found.append(name)
            if write:
                draw_into(path)
    return found


def main() -> None:
    """Makes what is outdated, or only names it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if something is out of date")
    check = parser.parse_args().check
    try:
        found = outdated(ROOT, write=not check)
    except Mismatch as error:
        sys.exit(f"error: {error}")
    for name in found:
        print(f"{name} is not what the results give; run `make figures`" if check else f"made {name}")
    sys.exit(1 if check and found else 0)


if __name__ == "__main__":
    main()
