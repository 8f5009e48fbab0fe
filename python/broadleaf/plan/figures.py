"""Figures of the model: those of the page "Broadcast View" of IPython's documentation, corrected, and transfer times.

Matplotlib is imported when drawing (`pip install broadleaf[plan]`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from broadleaf.plan import cost, transfer

SIZE_INCHES = (7.2, 4.6)
ENGINES = tuple(2**power for power in range(12))
DEPTHS = range(7)
ARITIES = range(2, 17)
MANY_ENGINES = (100, 1000, 10_000)
SIZES_BYTES = tuple(int(1000 * 10 ** (step / 8)) for step in range(49))
# Markers also distinguish the lines for colour-blind readers, and in print.
COLOURS = {
    "flat": "#777777",
    "binomial": "#d55e00",
    "k-ary": "#0072b2",
    "chain": "#0b5d3b",
    "scatter-allgather": "#cc79a7",
    "round-optimal": "#e69f00",
}
MARKERS = dict(zip(COLOURS, "sDo^vP", strict=True))
WRONG, RIGHT = "#d55e00", "#0b5d3b"


def draw(
    folder: Path, engines: int, arity: int, hosts: int, link: transfer.Link, kinds: Sequence[str] = ("png", "svg")
) -> list[Path]:
    """Draws every figure; returns the paths written. Raises ImportError with advice if matplotlib is missing."""
    figures: dict[str, Callable[[Any], None]] = {
        "sends": lambda axes: sends(axes, arity),
        "ratio-to-direct": lambda axes: ratio_to_direct(axes, arity),
        "formulas": lambda axes: formulas(axes, engines),
        "arities": arities,
        "transfer-time": lambda axes: transfer_time(axes, hosts, link),
    }
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"figures need matplotlib: pip install broadleaf[plan] ({error})") from error
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    style: dict[Any, Any] = {
        "svg.hashsalt": "broadleaf",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with rc_context(style):
        for name, fill in figures.items():
            figure = Figure(figsize=SIZE_INCHES, layout="constrained")
            fill(figure.add_subplot())
            for kind in kinds:
                path = folder / f"{name}.{kind}"
                figure.savefig(path, dpi=150, metadata={"Date": None} if kind == "svg" else None)
                written.append(path)
    return written


def _depth_colours() -> list[Any]:
    from matplotlib import colormaps

    # Its ends are too close to the black of the direct view's line and the white of the paper.
    return [colormaps["viridis"](0.15 + 0.75 * depth / max(DEPTHS)) for depth in DEPTHS]


def sends(axes: Any, arity: int) -> None:
    """Sends that the last of N engines waits for: direct, and by depth."""
    axes.plot(ENGINES, [cost.direct_sends(n) for n in ENGINES], "--k", label="direct view", zorder=4)
    for depth, colour in zip(DEPTHS, _depth_colours(), strict=True):
        _mark(axes, ENGINES, [cost.sends(n, arity, depth) for n in ENGINES], depth, colour, f"depth {depth}")
    _logarithmic(axes, ENGINES)
    axes.set_ylabel("sends, one after another")
    axes.set_title(f"Sends that the last engine waits for, {arity} branches at each scheduler")
    _legend(axes)


def ratio_to_direct(axes: Any, arity: int) -> None:
    """The same over the direct view's; below 1 the tree is better."""
    axes.plot(ENGINES, [1] * len(ENGINES), "--k", label="direct view", zorder=4)
    for depth, colour in zip(DEPTHS, _depth_colours(), strict=True):
        ratios = [cost.sends(n, arity, depth) / cost.direct_sends(n) for n in ENGINES]
        _mark(axes, ENGINES, ratios, depth, colour, f"depth {depth}")
    _logarithmic(axes, ENGINES)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylabel("sends, relative to a direct view")
    axes.set_title(f"Broadcast over direct, {arity} branches at each scheduler (below 1: fewer sends)")
    _legend(axes)


def _mark(axes: Any, xs: Sequence[int], ys: Sequence[float], depth: int, colour: Any, label: str) -> None:
    axes.plot(xs, ys, "os^vD<P"[depth] + "-", color=colour, markersize=4, linewidth=1.4, label=label)


def formulas(axes: Any, engines: int) -> None:
    """The published formula and the corrected one over the depth, two branches, with the best depth of each."""
    from matplotlib.ticker import LogLocator, NullFormatter

    deepest = max(len(DEPTHS) - 1, cost.best_depth(engines).depth + 2)
    depths = list(range(deepest + 1))
    published = [cost.published_sends(engines, d) for d in depths]
    corrected = [cost.smooth_sends(engines, 2, d) for d in depths]
    axes.plot(depths, published, "s--", color=WRONG, markersize=5, label="published: $1 + 2^d + N/2^d$")
    axes.plot(depths, corrected, "o-", color=RIGHT, markersize=5, label="corrected: $1 + 2d + N/2^d$")
    whole = [cost.sends(engines, 2, d) for d in depths]
    axes.plot(depths, whole, "x", color="black", markersize=6, label="whole sends: $N/2^d$ rounded up")
    wrong, right = min(depths, key=published.__getitem__), cost.best_depth(engines)
    # The published formula is never below the corrected one, so there is space for its note above, and for the other's
    # below.
    notes = (
        (f"best: d = {wrong}, {published[wrong]:.1f} sends", wrong, published[wrong], 30, WRONG),
        (f"best: d = {right.depth}, {right.sends} sends", right.depth, corrected[right.depth], -28, RIGHT),
    )
    for text, depth, height, offset, colour in notes:
        line = {"arrowstyle": "-", "color": colour, "linewidth": 0.8}
        axes.annotate(
            text,
            (depth, height),
            (0, offset),
            textcoords="offset points",
            ha="center" if depth else "left",
            color=colour,
            arrowprops=line,
        )
    axes.set_yscale("log")
    # With few engines the axis spans less than a decade, and powers of ten alone would leave it with one number.
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    lowest = min(corrected)
    axes.set_ylim(bottom=lowest / (max(published) / lowest) ** 0.22)
    axes.set_xticks(depths)
    axes.set_xlabel("depth d of the tree of schedulers")
    axes.set_ylabel("sends, one after another")
    axes.set_title(f"{engines:,} engines: the published formula and the corrected one")
    _legend(axes)


def arities(axes: Any) -> None:
    """Sends at the best depth over the arity, for some N: the lowest point of the smooth curve, and whole sends."""
    for engines, colour, marker in zip(MANY_ENGINES, ("#0072b2", RIGHT, WRONG), "os^", strict=True):
        axes.plot(
            ARITIES,
            [cost.min_sends(engines, k) for k in ARITIES],
            "-",
            color=colour,
            label=f"N = {engines:,}: formula",
        )
        whole = [cost.best_depth(engines, k).sends for k in ARITIES]
        axes.plot(ARITIES, whole, marker, color=colour, markersize=5, label=f"N = {engines:,}: whole depth")
        axes.axhline(cost.binomial_rounds(engines), linestyle=":", linewidth=1, color=colour,
                     label=f"N = {engines:,}: fewest of any scheme")  # fmt: skip
    axes.axvline(3, color="#777777", linewidth=0.6)
    axes.set_ylim(bottom=0)
    axes.set_xticks(ARITIES)
    axes.grid(True, axis="y", linewidth=0.3)
    axes.set_xlabel("arity: branches at each scheduler")
    axes.set_ylabel("sends, one after another")
    axes.set_title("Sends at the best depth, by arity: fewest at 3")
    axes.figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)


def transfer_time(axes: Any, hosts: int, link: transfer.Link) -> None:
    """Time until the last host has the payload, over its size, by algorithm; solid lines are the algorithms that relays
    use.
    """
    for name in transfer.ALGORITHMS:
        times = [transfer.transfers(hosts, size, link, among=[name])[0].seconds for size in SIZES_BYTES]
        axes.plot(
            SIZES_BYTES,
            times,
            "-" if name in transfer.RUNNABLE else "--",
            marker=MARKERS[name],
            markevery=8,
            markersize=4,
            color=COLOURS[name],
            linewidth=1.4,
            label=name if name in transfer.RUNNABLE else f"{name} (for comparison)",
        )
    chosen = [transfer.choose(hosts, size, link).seconds for size in SIZES_BYTES]
    axes.plot(SIZES_BYTES, chosen, color=RIGHT, alpha=0.2, linewidth=8, label="chosen", zorder=1)
    min_times_s = [transfer.min_possible_time(hosts, size, link) for size in SIZES_BYTES]
    axes.plot(SIZES_BYTES, min_times_s, ":k", label="nothing is faster")
    from matplotlib.ticker import EngFormatter

    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(EngFormatter("B"))
    axes.yaxis.set_major_formatter(EngFormatter("s"))
    axes.grid(True, which="major", linewidth=0.3)
    axes.set_xlabel("payload")
    axes.set_ylabel("time until the last host has it")
    gbit = 8e-9 / link.seconds_per_byte
    axes.set_title(f"One payload to {hosts:,} hosts, {link.latency_s * 1e6:g} us and {gbit:g} Gb/s a hop")
    _legend(axes)


def _logarithmic(axes: Any, ticks: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.set_xlabel("engines N")
    axes.grid(True, which="major", linewidth=0.3)


def _legend(axes: Any) -> None:
    axes.figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)
