"""What one may ask of the explorer: the choices that draw what the published study drew, named as questions."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from broadleaf_lab.report.figures.evidence import Roles
from broadleaf_lab.report.figures.registry import BEST, NICE


def questions(roles: Roles, kept: str, treatments: Collection[str], orders: Collection[str]) -> list[dict[str, Any]]:
    """A question with the treatment, colour, scale, path and condition that answer it, for each that can be asked.

    `kept` is the condition that leaves out the two strongest.
    """
    return [asked for asked in _asked(roles, kept, orders) if asked.get("treatment") in {None, *treatments}]


def _asked(roles: Roles, kept: str, orders: Collection[str]) -> Iterator[dict[str, Any]]:
    first, second, flip, puzzle, moderator = roles.first, roles.second, roles.flip, roles.puzzle, roles.moderator
    if first:
        yield {"question": f"When does {first} save time?", "treatment": first, "colour": second, "scale": "us"}
    if second:
        yield {"question": f"When does {second} save time?", "treatment": second, "colour": first, "scale": "us"}
    if kept:
        names = " and ".join(name for name in (first, second) if name)
        yield {"question": f"What is left to gain without {names}?", "condition": kept, "colour": None, "scale": "us"}
    if flip:
        yield {
            "question": f"Does {flip} help slow and fast runs alike?", "treatment": flip, "colour": None,
            "scale": "log",
        }  # fmt: skip
    if puzzle:
        yield {"question": f"Where does {puzzle} help?", "treatment": puzzle, "colour": None, "scale": "log"}
    if puzzle and moderator:
        yield {
            "question": f"Does {moderator} decide whether {puzzle} helps?", "treatment": puzzle, "colour": moderator,
            "scale": "log",
        }  # fmt: skip
    for order, words in ((BEST, "best"), (NICE, "nicest")):
        if order in orders:
            yield {"question": f"How many tasks per second, {words} steps first?", "order": order, "scale": "rate"}
