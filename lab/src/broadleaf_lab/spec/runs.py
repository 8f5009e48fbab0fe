"""runs.csv: one row per run, including failures. Appending survives a runner that is killed in the middle of a line."""

from __future__ import annotations

import contextlib
import csv
import fcntl
import io
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from broadleaf_lab.errors import RunError, WriteError, writing
from broadleaf_lab.spec.factors import Factor, Level, column_value

Run: TypeAlias = dict[str, Any]
"""A row: column name to text, number or None."""

COLUMNS = (
    "run_id",
    "study",
    "session_id",
    "machine_id",
    "block",
    "order_in_block",
    "pair_id",
    "plan_row",
    "purpose",
    "path_id",
    "path_step",
    "replicate",
    "config_id",
    "started_at",
    "started_unix",
    "duration_s",
    "status",
    "exit_code",
    "error",
    "time_per_task_us",
    "marginal_us",
    "tasks_per_s",
    "total_s",
    "submit_us",
    "latency_p50_us",
    "latency_p99_us",
    "n_tasks",
    "n_iter",
    "iter_sd_us",
    "cpu_us_per_task",
    "max_rss_kb",
    "bytes_written",
    "ctx_switches",
    "page_faults",
    "instructions_per_task",
    "cycles_per_task",
    "cache_misses_per_task",
    "branch_misses_per_task",
    "energy_uj_per_task",
    "python",
    "git_sha",
    "dirty",
    "load1_before",
    "cpu_mhz",
    "temp_c",
    "steal_pct",
    "flags",
)
"""Columns of every study; one per factor follows."""

STATUSES = ("ok", "failed", "timeout", "invalid", "skipped")

_TEXT = {
    "run_id", "study", "session_id", "machine_id", "purpose", "config_id", "started_at", "status", "error", "python",
    "git_sha", "flags",
}  # fmt: skip
_WHOLE = {
    "block", "order_in_block", "pair_id", "plan_row", "path_id", "path_step", "replicate", "exit_code", "n_tasks",
    "n_iter",
    "max_rss_kb", "bytes_written", "ctx_switches", "page_faults", "dirty",
}  # fmt: skip
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")


def read_runs(path: str | Path, factors: Sequence[Factor] = (), columns: Collection[str] | None = None) -> list[Run]:
    """The rows of a file, numbers as numbers, empty cells as None. Columns of `factors` get the factors' levels; other
    columns after the fixed ones get whatever they look like. An incomplete last line is ignored. With `columns`, the
    rows hold these only, as far as there are any.
    Raises RunError if the file is not a table of runs.
    """
    header, lines = _parse(_read(Path(path)), Path(path))
    known = {factor.column: factor for factor in factors}
    names = [name for name in header if columns is None or name in columns]
    told = []
    for name in names:
        at = header.index(name)
        texts = [cells[at] for cells in lines]
        # Most columns have few different values.
        values = {text: _value(name, text, known.get(name)) for text in dict.fromkeys(texts)}
        told.append([values[text] for text in texts])
    return [dict(zip(names, row, strict=True)) for row in zip(*told, strict=True)]


class RunsFile:
    """runs.csv, opened for appending. Only one process at a time can open it: a second one gets RunError. Raises
    WriteError if the system does not allow writing; the existing rows are complete then.
    """

    def __init__(self, path: str | Path, factors: Sequence[Factor], responses: Sequence[str] = ()) -> None:
        """Opens or creates it, with columns for a study's own `responses`. An incomplete last line is cut off; columns
        of new factors are filled with their defaults.
        """
        self.path: Path = Path(path)
        self.factors: tuple[Factor, ...] = tuple(factors)
        self.responses: tuple[str, ...] = tuple(responses)
        with writing(self.path, "Runs are kept there, so none was made. Copy the study to a folder that has room."):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.path.with_suffix(".lock"), "w")  # noqa: SIM115
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise RunError(
                f"{self.path}: another process is writing to it. Wait for that process, or stop it."
            ) from None
        try:
            self._prepare()
        except BaseException:
            self._lock.close()
            raise

    def _prepare(self) -> None:
        wanted = [*COLUMNS, *(factor.column for factor in self.factors), *self.responses]
        text = _read(self.path)
        if not text:
            self.header: list[str] = wanted
            self._rewrite([])
        else:
            header, lines = _parse(text, self.path)
            added = [name for name in wanted if name not in header]
            self.header = [*header, *added]
            if added:
                defaults = {f.column: str(column_value(f.default)) for f in self.factors}
                self._rewrite([[*cells, *(defaults.get(name, "") for name in added)] for cells in lines])
            else:
                kept = len(_whole(text).encode())
                if kept < self.path.stat().st_size:
                    os.truncate(self.path, kept)
        self._open()
        self._rows = read_runs(self.path, self.factors)
        self._next = 1 + max((int(str(row["run_id"])[1:]) for row in self._rows), default=0)

    def _open(self) -> None:
        # Unbuffered: data that a full disk refused must not be written again at the end.
        with writing(self.path):
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115

    @property
    def rows(self) -> list[Run]:
        """All rows, those of earlier sessions first."""
        return self._rows

    @property
    def next_block(self) -> int:
        """The number of a block after all others."""
        return 1 + max((row["block"] for row in self._rows if row["block"] is not None), default=-1)

    def append(self, row: Mapping[str, Any], config: Mapping[str, Level]) -> Run:
        """Adds a run, and returns once it is on disk; assigns its run_id. Raises RunError for an unknown column, and
        WriteError if there is no space for it.
        """
        whole = {
            **row,
            "run_id": f"r{self._next:06d}",
            **{f.column: column_value(config.get(f.name, f.default)) for f in self.factors},
        }
        if strangers := set(whole) - set(self.header):
            raise RunError(f"{self.path} has no column {', '.join(sorted(strangers))}")
        cells = [_text(whole.get(name)) for name in self.header]
        self._write(_line(cells).encode(), f"Run {whole['run_id']} is lost, the {len(self._rows)} before it are kept.")
        self._next += 1
        known = {f.column: f for f in self.factors}
        kept = {name: _value(name, text, known.get(name)) for name, text in zip(self.header, cells, strict=True)}
        self._rows.append(kept)
        return kept

    def _write(self, line: bytes, loss: str) -> None:
        kept = os.fstat(self._file.fileno()).st_size
        try:
            left = memoryview(line)
            while left:
                left = left[self._file.write(left) or 0 :]
            os.fsync(self._file.fileno())
        except OSError as error:
            os.ftruncate(self._file.fileno(), kept)
            raise WriteError(
                f"{self.path} cannot be written: {error.strerror or error}. {loss} Free some space, then run the "
                "same command again: it continues."
            ) from error

    def set_flags(self, flags: Mapping[str, str]) -> None:
        """Replaces the flags of the runs named by id. The file is replaced completely or not at all."""
        if all(row["flags"] == flags[row["run_id"]] for row in self._rows if row["run_id"] in flags):
            return
        header, lines = _parse(_read(self.path), self.path)
        at, key = header.index("flags"), header.index("run_id")
        for cells in lines:
            cells[at] = flags.get(cells[key], cells[at])
        for row in self._rows:
            row["flags"] = flags.get(row["run_id"], row["flags"])
        self._file.close()
        try:
            self._rewrite(lines)
        finally:
            self._open()

    def _rewrite(self, lines: Iterable[Sequence[str]]) -> None:
        replace_file(self.path, "".join(map(_line, [self.header, *lines])))

    def close(self) -> None:
        """Lets another process write."""
        self._file.close()
        self._lock.close()

    def __enter__(self) -> RunsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def replace_file(path: Path, text: str) -> None:
    """Writes a file so that a reader, or a crash, sees the old one or the new one, never a part. Raises WriteError if
    it cannot be written: then the old one is unchanged.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with writing(path):
        try:
            with open(draft, "w", newline="") as f:
                f.write(text)
                f.flush()
                os.fsync(f.fileno())
            os.replace(draft, path)
        except BaseException:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _read(path: Path) -> str:
    try:
        # Text that was cut within a character is in the last line, which is dropped.
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return ""


def _whole(text: str) -> str:
    """`text` without an incomplete last line. No cell holds a line break, so a line break ends a row."""
    return text[: text.rfind("\n") + 1]


def _parse(text: str, path: Path) -> tuple[list[str], list[list[str]]]:
    table = list(csv.reader(io.StringIO(_whole(text), newline="")))
    if not table:
        return [*COLUMNS], []
    header, *lines = table
    if "run_id" not in header or "status" not in header:
        raise RunError(
            f"{path} is not a table of runs: it has no column 'run_id'. Convert it with `broadleaf-lab export` first."
        )
    for number, cells in enumerate(lines, 2):
        if len(cells) != len(header):
            raise RunError(f"{path}, line {number}: {len(cells)} cells, but the header has {len(header)}.")
    return header, lines


def _line(cells: Sequence[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        # Nine digits are more than any clock gives, and keep the file small.
        return f"{value:.3f}" if value > 1e8 else f"{value:.9g}"
    return _CONTROL.sub(" ", str(value)).strip()


def _value(name: str, text: str, factor: Factor | None) -> Any:
    if factor is not None:
        return factor.parse(text) if text else factor.default
    if text == "":
        return None if name not in ("flags", "error") else ""
    if name in _TEXT:
        return text
    if name in _WHOLE:
        return int(float(text))
    if name in COLUMNS:
        return float(text)
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
