"""The tables of a study for other programs."""

from __future__ import annotations

import csv
import io
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from broadleaf_lab.errors import RunError, writing
from broadleaf_lab.spec.imported import read_table
from broadleaf_lab.spec.runs import replace_file

DIALECTS = ("comma", "seed", "excel-es", "sqlite", "parquet")
"""comma: as the tables are. seed: semicolons and decimal points, for R's read.csv(sep=";"). excel-es: semicolons and
decimal commas, for a spreadsheet in most of Europe and Latin America. sqlite: one database. parquet: one file a table.
"""
TABLES = ("runs", "deltas", "effects", "paths", "path_vectors")

_TEXT_COLUMNS = {"error", "flags", "python", "git_sha", "started_at"}


def export(directory: Path, dialect: str, target: Path, tables: Sequence[str] = TABLES) -> list[Path]:
    """Writes the tables that exist in the study's directory to the directory `target`; returns the files. Raises
    RunError if there are none, or the dialect needs a library that is missing.
    """
    if dialect not in DIALECTS:
        raise RunError(f"unknown dialect {dialect!r}. Choose one of {', '.join(DIALECTS)}.")
    sources = {name: directory / f"{name}.csv" for name in tables if (directory / f"{name}.csv").is_file()}
    if not sources:
        names = ", ".join(f"{t}.csv" for t in tables)
        raise RunError(f"{directory} contains none of {names}. Run `broadleaf-lab run` first.")
    with writing(target):
        target.mkdir(parents=True, exist_ok=True)
    if dialect == "sqlite":
        return [_sqlite(sources, target / "study.sqlite")]
    written = []
    for name, source in sources.items():
        file = target / f"{name}.{'parquet' if dialect == 'parquet' else 'csv'}"
        if file.resolve() == source.resolve():
            raise RunError(f"{file} is the study's own table. Choose another directory with --to.")
        if dialect == "parquet":
            _parquet(source, file)
        else:
            _delimited(source, file, dialect)
        written.append(file)
    return written


def kinds(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Whether each column holds INTEGER, REAL or TEXT."""
    found = []
    for at, name in enumerate(header):
        cells = [row[at] for row in rows if row[at] != ""]
        if name in _TEXT_COLUMNS or not cells:
            found.append("TEXT")
        elif all(_is(int, cell) for cell in cells):
            found.append("INTEGER")
        else:
            found.append("REAL" if all(_is(float, cell) for cell in cells) else "TEXT")
    return found


def _is(kind: type, text: str) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    # Python reads 1_000 as a number, other programs do not.
    return "_" not in text and text == text.strip()


def _delimited(source: Path, target: Path, dialect: str) -> None:
    header, rows = read_table(source)
    if dialect == "excel-es":
        real = [kind == "REAL" for kind in kinds(header, rows)]
        rows = [[_comma(cell) if is_real else cell for cell, is_real in zip(row, real, strict=True)] for row in rows]
    text = io.StringIO()
    csv.writer(text, delimiter="," if dialect == "comma" else ";", lineterminator="\n").writerows([header, *rows])
    # The mark tells a spreadsheet that this is UTF-8.
    replace_file(target, ("\ufeff" if dialect == "excel-es" else "") + text.getvalue())


def _comma(cell: str) -> str:
    return cell.replace(".", ",")


def _sqlite(sources: dict[str, Path], target: Path) -> Path:
    draft = target.with_name(f".{target.name}.part")
    draft.unlink(missing_ok=True)
    database = sqlite3.connect(draft)
    try:
        for name, source in sources.items():
            header, rows = read_table(source)
            types = kinds(header, rows)
            columns = ", ".join(f"{_quoted(column)} {kind}" for column, kind in zip(header, types, strict=True))
            database.execute(f"CREATE TABLE {_quoted(name)} ({columns})")
            marks = ", ".join("?" * len(header))
            database.executemany(
                f"INSERT INTO {_quoted(name)} VALUES ({marks})", [[cell or None for cell in row] for row in rows]
            )
        database.commit()
    finally:
        database.close()
    draft.replace(target)
    return target


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _parquet(source: Path, target: Path) -> None:
    try:
        import pandas
    except ImportError:
        raise RunError("Parquet needs pandas and pyarrow: pip install broadleaf-lab pyarrow.") from None
    header, rows = read_table(source)
    frame = pandas.DataFrame([[cell or None for cell in row] for row in rows], columns=header)
    for name, kind in zip(header, kinds(header, rows), strict=True):
        if kind != "TEXT":
            frame[name] = pandas.to_numeric(frame[name]).astype("Int64" if kind == "INTEGER" else "float64")
    try:
        frame.to_parquet(target, index=False)
    except ImportError:
        raise RunError("Parquet needs pyarrow: pip install pyarrow.") from None
