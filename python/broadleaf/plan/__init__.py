"""The cost of sending the same message to N engines, and the tree that costs least: numbers, tables and figures.

Nothing here needs a cluster. `from broadleaf import plan`, then `plan.sends(100, arity=2, depth=5)`.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broadleaf.plan.cost import (
    LANE_ENGINES,
    Shape,
    best_depth,
    best_shape,
    binomial_rounds,
    broadcast_messages,
    broadcast_sends,
    direct_messages,
    direct_sends,
    host_sends,
    messages,
    min_sends,
    optimum_depth,
    published_sends,
    sends,
    smooth_sends,
)
from broadleaf.plan.transfer import ALGORITHMS, RUNNABLE, HostBytes, Link, Transfer, choose, host_bytes, transfers
from broadleaf.plan.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "ALGORITHMS",
    "LANE_ENGINES",
    "RUNNABLE",
    "HostBytes",
    "Link",
    "Shape",
    "Transfer",
    "Tree",
    "best_depth",
    "best_shape",
    "binomial_rounds",
    "broadcast_messages",
    "broadcast_sends",
    "choose",
    "direct_messages",
    "direct_sends",
    "draw",
    "host_bytes",
    "host_sends",
    "messages",
    "min_sends",
    "optimum_depth",
    "published_sends",
    "sends",
    "smooth_sends",
    "transfers",
]


def draw(
    folder: Path | str,
    engines: int = 100,
    arity: int = 2,
    hosts: int = 16,
    link: Link | None = None,
    kinds: Sequence[str] = ("png", "svg"),
) -> list[Path]:
    """Draws every figure into a folder.

    Args:
        folder: The folder, which is made if it is missing.
        engines: Number of engines.
        arity: Branches at each scheduler.
        hosts: Number of hosts besides the client's machine.
        link: Every hop between two machines; by default `Link()`.
        kinds: Formats that matplotlib writes.

    Returns:
        The paths of the files.

    Raises:
        ImportError: matplotlib is not installed; ``pip install "broadleaf[plan]"`` does it.
        ValueError: A number is below 1.
    """
    figures: Any = import_module("broadleaf.plan.figures")
    written: list[Path] = figures.draw(Path(folder), engines, arity, hosts, link or Link(), kinds)
    return written
