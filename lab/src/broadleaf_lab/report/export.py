"""The tables of a study for other programs."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from broadleaf_lab.errors import RunError, writing
from broadleaf_lab.spec.runs import replace_file

if TYPE_CHECKING:
    import pandas as pd

DIALECTS = ("comma", "seed", "excel-es", "sqlite", "parquet")
"""comma: as the tables are. seed: semicolons and decimal points, for R's read.csv(sep=";"). excel-es: semicolons and
decimal commas, for a spreadsheet in most of Europe and Latin America. sqlite: one database. parquet: one file a table.
"""
TABLES = ("runs", "deltas", "effects", "paths", "path_vectors")

_TEXT_COLUMNS = ("error", "flags", "python", "git_sha", "started_at")


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
    if target.resolve() == directory.resolve() and dialect not in ("sqlite", "parquet"):
        raise RunError(f"{target} contains the study's own tables. Choose another directory with --to.")
    with writing(target):
        target.mkdir(parents=True, exist_ok=True)
    frames = {name: _table(source) for name, source in sources.items()}
    if dialect == "sqlite":
        return [_sqlite(frames, target / "study.sqlite")]
    written = [target / f"{name}.{'parquet' if dialect == 'parquet' else 'csv'}" for name in frames]
    for frame, file in zip(frames.values(), written, strict=True):
        match dialect:
            case "parquet":
                try:
                    frame.to_parquet(file, index=False)
                except ImportError:
                    raise RunError("Parquet needs pyarrow: pip install pyarrow.") from None
            case "excel-es":
                # The mark tells a spreadsheet that this is UTF-8.
                replace_file(file, "\ufeff" + frame.to_csv(index=False, sep=";", decimal=","))
            case _:
                replace_file(file, frame.to_csv(index=False, sep=";" if dialect == "seed" else ","))
    return written


def _table(source: Path) -> pd.DataFrame:
    """A table with whole numbers, numbers and text; nothing else than an empty cell is missing."""
    import pandas as pd

    frame = pd.read_csv(
        source, dtype=dict.fromkeys(_TEXT_COLUMNS, "string"), keep_default_na=False, na_values=[""],
        dtype_backend="numpy_nullable",
    )  # fmt: skip
    # Of pandas' own numbers, to_csv does not write decimal commas.
    return frame.astype(dict.fromkeys(frame.select_dtypes("Float64").columns, float))


def _sqlite(frames: dict[str, pd.DataFrame], target: Path) -> Path:
    draft = target.with_name(f".{target.name}.part")
    draft.unlink(missing_ok=True)
    with closing(sqlite3.connect(draft)) as database:
        for name, frame in frames.items():
            frame.to_sql(name, database, index=False)
        database.commit()
    draft.replace(target)
    return target
