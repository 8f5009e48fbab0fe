"""Showing output: as text anywhere, rich inside IPython."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, TextIO

from broadleaf.client.connection.failures import STATUS_OK
from broadleaf.client.display.line_groups import LineGroups
from broadleaf.client.display.progress import inside_ipython, inside_kernel
from broadleaf.client.results.metadata import STDERR, STDOUT

if TYPE_CHECKING:
    from broadleaf.client.results.async_result import AsyncResult

GROUPINGS = ("type", "engine", "order", "lines")


def show_bundle(data: dict[str, Any], metadata: dict[str, Any] | None = None) -> None:
    """Shows a MIME bundle: rich inside IPython, its plain text elsewhere."""
    # IPython on a terminal would also print plain text, and keep it forever.
    if inside_ipython() and (inside_kernel() or data.keys() != {"text/plain"}):
        display: Any = importlib.import_module("IPython.display")
        display.publish_display_data(data, metadata or {})
    elif data.get("text/plain"):
        print(data["text/plain"])


def write_labelled(text: str, label: str, file: TextIO | None = None) -> None:
    """Writes what one engine has printed."""
    end = "" if text.endswith("\n") else "\n"
    newline = "\n" if label and text.count("\n") > 1 else ""
    print(f"{label}{newline}{text}", end=end, file=file or sys.stdout)


def engine_label(result: AsyncResult, part: int, kind: str) -> str:
    """`[stdout:3] `, or nothing for a result of a single engine."""
    return "" if result.origin.single else f"[{kind}:{result._engine_id(part)}] "


def display_outputs(result: AsyncResult, groupby: str = "type", result_only: bool = False) -> None:
    """Waits for `result`, then shows what its tasks wrote, displayed and returned."""
    if groupby not in GROUPINGS:
        raise ValueError(f"groupby must be one of {', '.join(map(repr, GROUPINGS))}, not {groupby!r}")
    result.wait()
    show_outputs(result, groupby, result_only)


def show_outputs(result: AsyncResult, groupby: str, result_only: bool = False) -> None:
    """Shows what the tasks of `result` have written and displayed so far, and returned."""
    parts = range(result.n_parts)
    shown = [result.part_metadata(part) for part in parts]
    if groupby == "engine":
        for part in parts:
            _show_streams(result, [part], shown, result_only)
            _show_rich(result, [part], shown, groupby, result_only)
    else:
        if groupby == "lines" and not result.origin.single:
            _show_grouped(result, shown, result_only)
        else:
            _show_streams(result, parts, shown, result_only)
        _show_rich(result, parts, shown, groupby, result_only)


def _show_streams(result: AsyncResult, parts: Any, shown: list[Any], result_only: bool) -> None:
    if result_only:
        return
    for kind, file in (("stdout", sys.stdout), ("stderr", sys.stderr)):
        for part in parts:
            text = shown[part][kind]
            if text:
                write_labelled(text, engine_label(result, part, kind), file)


def _show_grouped(result: AsyncResult, shown: list[Any], result_only: bool) -> None:
    if result_only:
        return
    for stream, kind in ((STDOUT, "stdout"), (STDERR, "stderr")):
        groups = LineGroups(result, stream)
        for part, metadata in enumerate(shown):
            groups.add(part, metadata[kind])
        groups.show(is_end=True)


def show_values(result: AsyncResult) -> None:
    """Shows the values of the tasks' last expressions, for those that returned."""
    for part in range(result.n_parts):
        # Most cells on many engines return nothing, and reading metadata for each would cost more than the cell.
        if result.part_status(part) == STATUS_OK and has_shown_value(result, part):
            _show_value(result, part)


def _show_value(result: AsyncResult, part: int) -> None:
    reply = result._part_value(part)
    # A table or a picture does not say which engine it came from; plain text does.
    if inside_kernel() and not result.origin.single and reply.data.keys() != {"text/plain"}:
        print(reply.label)
    reply.display()


def has_shown_value(result: AsyncResult, part: int) -> bool:
    """Whether a task was code whose last expression has a value."""
    value = result.value(part)
    if isinstance(value, dict):
        return result.origin.method == "execute" and value.get("execute_result") is not None
    return getattr(value, "execute_result", None) is not None


def _show_rich(result: AsyncResult, parts: Any, shown: list[Any], groupby: str, result_only: bool) -> None:
    if not result_only:
        outputs = [(order, part) for part in parts for order in range(len(shown[part]["outputs"]))]
        if groupby == "order":
            outputs.sort()
        previous = None
        for order, part in outputs:
            label = engine_label(result, part, "output").rstrip()
            if label and part != previous:
                print(label)
            previous = part
            output = shown[part]["outputs"][order]
            show_bundle(output["data"], output["metadata"])
    for part in parts:
        if result.part_status(part) == STATUS_OK and shown[part]["execute_result"] is not None:
            _show_value(result, part)
