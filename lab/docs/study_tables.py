"""Writes the tables of the laboratory's own studies from the files that `--csv` of the scripts in studies/ recorded."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterable
from pathlib import Path

COVERAGE = {
    "scenario": "Scenario",
    "sets": "Sets",
    "runs": "Runs",
    "main": "Average effects",
    "baseline": "At the baseline",
    "best": "At the best",
    "pair": "Pairs",
    "planted": "Real pairs",
    "found": "Real pairs found",
    "flagged": "Called real",
    "fdr": "False, mean of sets",
    "false": "False, of all",
}
SHARES = ("main", "baseline", "best", "pair", "planted", "found", "fdr", "false")
FAILURES = {
    "chance": "Fails in",
    "background": "Others fail in",
    "covered": "Interval of the rate holds the truth",
    "accused": "An innocent setting is accused",
    "worse": "More failures with the setting",
    "called a help": "Called a help",
    "recommended": "Recommended",
    "verdict silent": "Not first in the verdict",
    "recommendation silent": "Not first in the recommendation",
}
SETTLED_FACTORS = 8
SIZES = {"size": "Runs x factors", "command": "Command", "cpu_s": "Processor s", "wall_s": "Elapsed s", "peak_mb": "MB"}


def pages(studies: Path) -> dict[str, str]:
    """The content of every generated page by its name."""
    made = {
        "laboratory-coverage": coverage(_lines(studies / "coverage" / "coverage.csv")),
        "laboratory-failures": failures(_lines(studies / "coverage" / "failures.csv")),
        "laboratory-settle": settle(_lines(studies / "settle" / "landscapes.csv")),
        "laboratory-settle-side-by-side": settle(_lines(studies / "settle" / "side-by-side.csv")),
        "laboratory-size": _table(SIZES.values(), ([line[name] for name in SIZES] for line in
                                                   _lines(studies / "size" / "size.csv"))),
    }  # fmt: skip
    return {f"{name}.md": text for name, text in made.items()}


def coverage(lines: list[dict[str, str]]) -> str:
    """How often intervals contain the truth, in per cent."""
    rows = [[_percent(line[name]) if name in SHARES else line[name] for name in COVERAGE] for line in lines]
    return _table(COVERAGE.values(), rows)


def failures(lines: list[dict[str, str]]) -> str:
    """What is said of a setting that makes runs fail: sets, of those in the column's head."""
    rows = [
        [_percent(line["chance"]), _percent(line["background"]), *(f"{line[name]} of {line['sets']}" for name in
         ("covered", "accused", "worse")), *(f"{line[name]} of {line['worse']}" for name in list(FAILURES)[5:])]
        for line in lines
    ]  # fmt: skip
    return _table(FAILURES.values(), rows)


def settle(lines: list[dict[str, str]]) -> str:
    """The totals of studies that choose their own runs."""
    total = {name: sum(int(line[name]) for line in lines) for name in lines[0]}
    share = statistics.median(int(line["runs"]) / int(line["full_runs"]) for line in lines)
    rows = [
        ["Landscapes", str(len(lines))],
        ["Runs, of the full design's (median)", _percent(share)],
        ["Verdicts, of which wrong", f"{total['decided']}, {total['wrong']}"],
        ["Verdicts of the full design, of which wrong", f"{total['full_decided']}, {total['full_wrong']}"],
        ["Verdicts of the full design that were reached", _percent(total["reached"] / total["full_decided"])],
    ]
    if "missed" in total:
        settings = len(lines) * SETTLED_FACTORS
        rows.append(
            ["Settings of which an interval at any look missed the truth", _percent(total["missed"] / settings)]
        )
    return _table(("", ""), rows)


def _lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _percent(share: str | float) -> str:
    return f"{100 * float(share):.1f} %" if share != "" else ""


def _table(heads: Iterable[str], rows: Iterable[list[str]]) -> str:
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
