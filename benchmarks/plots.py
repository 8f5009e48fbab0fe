"""Figures from the records, like those on IPython's performance page: latency, tasks per second, message size, task
length.

Each is written as PNG and SVG. Needs matplotlib (`pip install matplotlib`), which is imported when drawing.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from broadleaf.bench.record import OURS, RAW, Record

from benchmarks.environments import PEERS

# A colour for each system, chosen so that colour-blind readers can tell them apart; ours stands out by weight.
COLOURS = dict(
    zip(
        (OURS, RAW, *PEERS),
        ("#0b5d3b", "#555555", "#0072b2", "#56b4e9", "#d55e00", "#e69f00", "#cc79a7", "#7a5195", "#9c755f", "#66a61e"),
        strict=True,
    )
)
MARKERS = dict(zip((OURS, RAW, *PEERS), "os^vD<>pPX", strict=True))
SIZE_INCHES = (7.2, 4.6)
KINDS_OF_FILE = ("png", "svg")
# In the figure of sizes.
ROUTES: dict[str, str] = dict(
    zip(("apply", "send", "map", "push", "pull", "scatter"), list(COLOURS.values())[3:9], strict=True)
)
VIEWS: dict[str, str] = {"direct view": "-", "load-balanced view": "--", "broadcast view": "-."}


def draw(records: list[Record], folder: Path) -> list[Path]:
    """Draws every figure that has records; returns the paths written."""
    figures: dict[str, tuple[Callable[[Any, list[Record]], None], set[str]]] = {
        "latency": (latency, {"latency"}),
        "rate": (rate, {"throughput"}),
        "message-bandwidth": (bandwidth, {"echo"}),
        "message-time": (message_time, {"echo"}),
        "task-length": (task_length, {"sleep-map"}),
    }
    written: list[Path] = []
    for name, (fill, cases) in figures.items():
        if any(r.case in cases and r.values for r in records):
            with _style():
                figure = _figure(SIZE_INCHES)
                fill(figure.add_subplot(), records)
                for path in (paths := [folder / f"{name}.{kind}" for kind in KINDS_OF_FILE]):
                    _save(figure, path)
            written += paths
    if any(r.case == "sizes" and r.values for r in records):
        for path in (paths := [folder / f"sizes.{kind}" for kind in KINDS_OF_FILE]):
            draw_sizes(records, path)
        written += paths
    return written


def _style() -> AbstractContextManager[None]:
    from matplotlib import rc_context

    return rc_context(
        {"svg.hashsalt": "broadleaf", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    )


def _figure(inches: tuple[float, float]) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=inches, layout="constrained", facecolor="white")


def _save(figure: Any, path: Path, description: str | None = None) -> None:
    """SVG without the time, so that the same figures give the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None, "Description": description} if path.suffix == ".svg" else None
    figure.savefig(path, dpi=150, metadata=metadata)


def label(r: Record) -> str:
    own = [str(r.params[k]) for k in ("mode", "config") if r.params.get(k) not in (None, "", "default")]
    return ", ".join([r.peer, *own])


def latency(axes: Any, records: list[Record]) -> None:
    """One row per system and mode: the median as a point, the 99th percentile as the end of its line."""
    medians = {label(r): r for r in records if r.case == "latency" and r.metric == "roundtrip_median" and r.values}
    tails = {label(r): r.median for r in records if r.case == "latency" and r.metric == "roundtrip_p99"}
    ordered = sorted(medians.items(), key=lambda item: item[1].median or 0, reverse=True)
    for position, (name, r) in enumerate(ordered):
        colour = COLOURS[r.peer]
        axes.plot([r.median, tails.get(name) or r.median], [position, position], color=colour, linewidth=2)
        axes.plot([r.median], [position], MARKERS[r.peer], color=colour, markersize=7)
        end = (tails.get(name) or r.median, position)
        axes.annotate(f"{r.median:,.0f}", end, (6, -3), textcoords="offset points", fontsize=7)
    axes.set_yticks(range(len(ordered)), [name for name, _ in ordered])
    axes.set_xscale("log")
    axes.set_xlabel("round trip, us (point: median; line: to the 99th percentile)")
    for r in records:
        if r.peer == RAW and r.case == "raw_rtt" and r.metric == "roundtrip_median":
            axes.axvline(r.median, color=COLOURS[RAW], linestyle=":", linewidth=1)
            name = f"raw {r.params['kind']} socket"
            height = len(ordered) - 0.45 if r.params["kind"] == "unix" else -0.55
            align = "right" if r.params["kind"] == "unix" else "left"
            axes.text(r.median, height, f" {name} ", fontsize=7, color=COLOURS[RAW], ha=align)
    axes.margins(y=0.12)
    axes.set_title("One empty task, synchronous")


def lines(records: list[Record], case: str, metric: str, x: str) -> dict[str, tuple[str, list[tuple[float, float]]]]:
    """Label -> (system, points by x), for the largest number of workers that was run."""
    chosen = [r for r in records if r.case == case and r.metric == metric and r.values]
    max_workers = max((r.params["workers"] for r in chosen), default=0)
    found: dict[str, tuple[str, list[tuple[float, float]]]] = {}
    for r in chosen:
        if r.params["workers"] == max_workers and r.median is not None:
            found.setdefault(label(r), (r.peer, []))[1].append((r.params[x], r.median))
    return {name: (system, sorted(points)) for name, (system, points) in found.items()}


def one_each(
    found: dict[str, tuple[str, list[tuple[float, float]]]],
) -> dict[str, tuple[str, list[tuple[float, float]]]]:
    """Only the first mode of every system: more lines could not be told apart."""
    first: dict[str, str] = {}
    for name, (system, _) in found.items():
        first.setdefault(system, name)
    return {name: found[name] for name in first.values()}


def plot_lines(
    axes: Any, found: dict[str, tuple[str, list[tuple[float, float]]]], style: str, with_label: bool
) -> None:
    for name, (system, points) in found.items():
        axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            style,
            marker=MARKERS[system],
            markersize=5 if style == "-" else 3,
            color=COLOURS[system],
            linewidth=2.4 if system == OURS else 1.3,
            label=name if with_label else None,
            zorder=3 if system == OURS else 2,
        )


def rate(axes: Any, records: list[Record]) -> None:
    """Tasks per second over the number of tasks; dashed: submission alone."""
    done = one_each(lines(records, "throughput", "roundtrip", "n"))
    sent = {name: line for name, line in lines(records, "throughput", "sent", "n").items() if name in done}
    plot_lines(axes, done, "-", True)
    plot_lines(axes, sent, "--", False)
    _log_log(axes, "Small tasks", "tasks", "tasks/s (solid: collected, dashed: sent)")


def bandwidth(axes: Any, records: list[Record]) -> None:
    plot_lines(axes, one_each(lines(records, "echo", "bandwidth", "size_bytes")), "-", True)
    _log_log(axes, "Arrays there and back", "array, bytes", "GB/s, both directions")


def message_time(axes: Any, records: list[Record]) -> None:
    plot_lines(axes, one_each(lines(records, "echo", "time_per_task", "size_bytes")), "-", True)
    _log_log(axes, "Arrays there and back", "array, bytes", "time a task, us")


def task_length(axes: Any, records: list[Record]) -> None:
    """Efficiency of sleeping tasks over their length; 1 is what the workers could do at best."""
    plot_lines(axes, one_each(lines(records, "sleep-map", "efficiency", "ms")), "-", True)
    axes.axhline(1, color=COLOURS[RAW], linewidth=0.8, linestyle=":")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_ylim(0, 1.05)
    axes.set_xlabel("length of a task, ms")
    axes.set_ylabel("efficiency")
    axes.set_title("Map of short tasks")
    _legend(axes)


def draw_sizes(records: list[Record], path: Path, description: str | None = None) -> None:
    """Writes a figure with a panel for each kind of value: the time of one over its size, a line for each route and
    view. An SVG gets the description.

    Thin: the first other system, by the same colours. Dotted: the pickler alone, there and back.
    """
    found = [r for r in records if r.case == "sizes" and r.metric == "per_value" and r.params.get("workers", 1) == 1]
    kinds = list(dict.fromkeys(r.params["value"] for r in found))
    columns = min(3, len(kinds))
    rows = -(-len(kinds) // columns)
    with _style():
        figure = _figure((3.4 * max(2, columns), 3.1 * rows + 1.2))
        others = [peer for peer in dict.fromkeys(r.peer for r in found) if peer not in (OURS, RAW)][:1]
        panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat
        for axes, kind in zip(panels, kinds, strict=False):
            curves: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
            for r in found:
                if r.params["value"] == kind and r.peer in (OURS, RAW, *others) and r.median is not None:
                    place = (r.peer, r.params["route"], r.params["mode"])
                    curves.setdefault(place, []).append((r.params["size_bytes"], r.median * 1e6))
            for (peer, route, mode), points in curves.items():
                if peer != RAW or route == "apply":
                    axes.plot(*zip(*sorted(points), strict=True), **_line(peer, route, mode))
            axes.set(xscale="log", yscale="log", title=kind)
            axes.grid(True, which="major", linewidth=0.3)
        for axes in list(panels.base.flat)[len(kinds) :]:
            axes.set_visible(False)
        for axes in figure.axes:
            axes.set(xlabel="size, bytes", ylabel="time a value, us")
            axes.label_outer()
        labelled = {line.get_label(): line for axes in figure.axes for line in axes.lines}
        figure.legend(
            labelled.values(), labelled, loc="outside lower center", ncols=max(2, columns), fontsize=8, frameon=False
        )
        _save(figure, path, description)


def _line(peer: str, route: str, mode: str) -> dict[str, Any]:
    """How a line of the figure of sizes looks."""
    if peer == RAW:
        return {"color": "black", "linestyle": ":", "linewidth": 1, "label": "the pickler alone, there and back"}
    if peer != OURS:
        return {"color": ROUTES[route], "linewidth": 0.8, "alpha": 0.6, "label": f"{route}, {peer}"}
    return {"color": ROUTES[route], "linestyle": VIEWS[mode], "linewidth": 1.6, "label": f"{route}, {mode}"}


def _log_log(axes: Any, title: str, x: str, y: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title)
    _legend(axes)


def _legend(axes: Any) -> None:
    axes.grid(True, which="major", linewidth=0.3)
    axes.figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
