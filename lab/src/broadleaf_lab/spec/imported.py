"""A study made from runs that others have made: any table with a row per run, its settings, its score and its time."""

from __future__ import annotations

import csv
import io
import json
import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from broadleaf_lab.errors import RunError, writing
from broadleaf_lab.spec.factors import Factor, Level, config_id
from broadleaf_lab.spec.file import FILE_NAME, TAKEN
from broadleaf_lab.spec.runs import COLUMNS, STATUSES, replace_file
from broadleaf_lab.text import listed

UNITS_US = {"us": 1.0, "ms": 1e3, "s": 1e6, "ns": 1e-3}
MAX_LEVELS = 12
"""A column of more different words or numbers is not taken for a factor."""
_BLOCK = 32
_ON, _OFF = {"1", "true", "yes", "on", "t"}, {"0", "false", "no", "off", "f", ""}


@dataclass(slots=True)
class Imported:
    """What was read: rows, the levels of each factor, the default first, and what the table lacks, in words."""

    rows: int
    levels: dict[str, list[Level]]
    columns: dict[str, str]
    lacks: list[str] = field(default_factory=list)


def read_table(path: Path) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table with commas, semicolons or tabs."""
    with open(path, newline="", encoding="utf-8-sig") as f:
        text = f.read()
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
    rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    if not rows:
        raise RunError(f"{path} is empty.")
    return rows[0], [row for row in rows[1:] if row]


def import_runs(
    file: Path, directory: Path, score: str, time: str | None = None, factors: Sequence[str] = (), unit: str = "us",
    by_name: bool = False,
) -> Imported:  # fmt: skip
    """Writes study.toml and runs.csv into `directory`. `score` and `time` are columns, `factors` those of the settings
    (by default all others with few different values). `by_name` takes tiers from names, as in the published study:
    `src_` changes the source, and `_no_`, `remove` and `danger` give something up.

    Raises RunError, with the names of the columns, if one is missing or none can be a factor.
    """
    header, rows = read_table(file)
    for name in (score, *([time] if time else ()), *factors):
        if name not in header:
            raise RunError(f"{file} has no column {name!r}. It has {', '.join(header)}.")
    if ragged := [number for number, row in enumerate(rows, 2) if len(row) != len(header)]:
        raise RunError(f"{file}: {len(ragged)} lines do not have {len(header)} cells; the first is line {ragged[0]}.")
    table = {name: [row[at].strip() for row in rows] for at, name in enumerate(header)}
    found = Imported(len(rows), {}, {})
    ours = "run_id" in header and "flags" in header
    asked = factors or [n for n in header if n not in (score, time) and not (ours and n in COLUMNS)]
    given: dict[str, list[Level]] = {}
    for name in asked:
        levels = _levels(table[name])
        if isinstance(levels, str):
            found.lacks.append(f"{name} is not a factor: {levels}.")
            if factors:
                raise RunError(f"{file}: {name} cannot be a factor: {levels}.")
            continue
        column = _factor_name(name, found.levels)
        if column != name:
            found.lacks.append(f"{name} is called {column} here.")
        found.levels[column], found.columns[column] = levels[0], name
        given[column] = levels[1]
    if not found.levels:
        raise RunError(f"{file}: no column can be a factor: {' '.join(found.lacks)} Name the factors with --factors.")
    runs = _runs(table, score, time, UNITS_US[unit], ours, given, found)
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*COLUMNS, *given])
    writer.writerows(runs)
    replace_file(directory / FILE_NAME, _study_text(directory.resolve().name, file, found, by_name))
    replace_file(directory / "runs.csv", text.getvalue())
    return found


def _runs(
    table: Mapping[str, list[str]], score: str, time: str | None, unit_us: float, ours: bool,
    given: Mapping[str, list[Level]], found: Imported,
) -> list[list[object]]:  # fmt: skip
    started = _times(table, time, found)
    order = sorted(range(found.rows), key=lambda i: started[i])
    if not (ours and any(table.get("block", []))):
        found.lacks.append(f"No blocks: every {_BLOCK} runs, in the order of time, count as one block.")
    lost = 0
    names = list(given)
    ids: dict[tuple[Level, ...], str] = {}
    factors = [_factor(name, levels) for name, levels in found.levels.items()]
    at = {name: position for position, name in enumerate(COLUMNS)}
    made: list[list[object]] = []
    for place, i in enumerate(order):
        row: list[object] = [table[name][i] if ours and name in table else "" for name in COLUMNS]
        us = _number(table[score][i])
        status = table["status"][i] if ours and table.get("status", [""])[0] in STATUSES else "ok"
        if (us is None or us <= 0) and status == "ok":
            status, lost = "invalid", lost + 1
        levels = tuple(given[name][i] for name in names)
        if levels not in ids:
            ids[levels] = config_id(dict(zip(names, levels, strict=True)), factors)
        row[at["run_id"]] = row[at["run_id"]] or f"r{place:06d}"
        row[at["status"]], row[at["config_id"]] = status, ids[levels]
        row[at["started_unix"]] = started[i]
        row[at["time_per_task_us"]] = "" if us is None else f"{us * unit_us:.10g}"
        if not row[at["block"]]:
            row[at["block"]], row[at["order_in_block"]] = place // _BLOCK, place % _BLOCK
        made.append([*row, *(int(level) if isinstance(level, bool) else level for level in levels)])
    if lost:
        found.lacks.append(f"{lost} of {found.rows} runs have no {score} above 0: they count as failed.")
    return made


def _times(table: Mapping[str, list[str]], time: str | None, found: Imported) -> list[float]:
    """When each run began, as seconds; their order in the file if that is not known."""
    if time is None:
        found.lacks.append("No time: the runs are assumed to be in the order of the lines (--time names a column).")
        return [float(number) for number in range(found.rows)]
    seconds = [_seconds(text) for text in table[time]]
    if unread := sum(value is None for value in seconds):
        found.lacks.append(
            f"{unread} of {found.rows} runs have no readable {time}: they are placed after the run before them."
        )
    last, made = 0.0, []
    for value in seconds:
        last = last if value is None else value
        made.append(last)
    return made


def _seconds(text: str) -> float | None:
    if (number := _number(text)) is not None:
        # Milli- and microseconds since 1970 are larger than any second of the next thousand years.
        return number / 1e6 if number > 1e14 else number / 1e3 if number > 1e11 else number
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _number(text: str) -> float | None:
    """A number, also with a decimal comma."""
    try:
        return float(text.replace(",", ".") if text.count(",") == 1 and "." not in text else text)
    except ValueError:
        return None


def _levels(cells: Sequence[str]) -> tuple[list[Level], list[Level]] | str:
    """The levels of a column, the default first, and that of each run; or why it has none."""
    different = sorted({cell.lower() for cell in cells})
    if len(different) < 2:
        return f"it is {different[0]!r} in all runs" if different else "it is empty"
    if set(different) <= _ON | _OFF:
        return [False, True], [cell.lower() in _ON for cell in cells]
    if len(different) > MAX_LEVELS:
        return f"it has {len(different)} different values"
    numbers = [_number(cell) for cell in different]
    known: list[float] = [number for number in numbers if number is not None]
    if len(known) == len(numbers):
        whole = all(number.is_integer() for number in known)
        ordered: list[Level] = [int(number) if whole else number for number in sorted(known)]
        to = {cell: _number(cell) for cell in set(cells)}
        return ordered, [ordered[sorted(known).index(to[cell] or 0.0)] for cell in cells]
    words: list[Level] = sorted(set(cells))
    return words, list(cells)


def _factor_name(name: str, others: Mapping[str, object]) -> str:
    made = re.sub(r"\W", "_", name, flags=re.ASCII)
    made = f"f_{made}" if not re.match(r"[A-Za-z_]", made) else made
    while keyword.iskeyword(made) or made in COLUMNS or made in TAKEN or made in others:
        made += "_"
    return made


def _factor(name: str, levels: Sequence[Level]) -> Factor:
    if levels == [False, True]:
        return Factor(name, "flag")
    return Factor(name, "argument", tuple(levels), levels[0], None if isinstance(levels[0], str) else "linear")


def _tier(name: str) -> int:
    gives_up = bool(re.search(r"_no_|remove|danger", name))
    return (4 if gives_up else 2) if name.startswith("src_") else 3 if gives_up else 1


def _study_text(name: str, file: Path, found: Imported, by_name: bool) -> str:
    lines = [
        f"# The runs of {file.name}. To make more, write the command that makes one, and what each factor sets.",
        "[study]",
        f"name = {json.dumps(name)}",
        'command = ["false"]',
    ]
    for column, levels in found.levels.items():
        own = json.dumps("--" + found.columns[column])
        lines += ["", f"[factors.{column}]"]
        if levels == [False, True]:
            lines.append(f"set.flag = {own}")
        else:
            lines += [f"set.argument = {own}", f"levels = {json.dumps(levels)}"]
            lines += ['scale = "linear"'] if not isinstance(levels[0], str) else []
        if by_name and (tier := _tier(column)) > 1:
            lines.append(f"tier = {tier}")
    return "\n".join(lines) + "\n"


def sentences(found: Imported, directory: Path) -> list[str]:
    """What was read, and what the table lacks."""
    said = [f"{found.rows} runs with {len(found.levels)} factors: {listed(found.levels, 40)}.", *found.lacks]
    return [*said, f"Written: {directory / FILE_NAME} and {directory / 'runs.csv'}."]
