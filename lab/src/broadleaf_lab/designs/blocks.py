"""From runs to an order: blocks of about equal size, each with its own controls, everything shuffled by the seed.

Blocks of paths and of designed runs take turns as long as there are both. A study that is stopped early would else
consist mostly of paths, whose runs show little of averages: they are the greater part of most plans.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from broadleaf_lab.designs.entries import Entry
from broadleaf_lab.designs.plan import PlanRow
from broadleaf_lab.spec.factors import Level

if TYPE_CHECKING:
    import numpy as np

_STRETCH = 1.5
"""By how much a block may be larger than asked for, to keep together what belongs together."""


def arrange(
    groups: Iterable[Sequence[Entry]],
    loose: Sequence[Entry],
    controls: Sequence[dict[str, Level]],
    block_size: int,
    rng: np.random.Generator,
) -> tuple[PlanRow, ...]:
    """Every run in its position. A group is one block, or shares one with other small groups; one that is much larger
    than a block is cut, with the run at the cut in both parts. Every block has each of the `controls` at least once.
    """
    pieces = [piece for group in groups for piece in cut(group, block_size)]
    paths = [piece for piece in pieces if piece[0].purpose == "path"]
    designed = [piece for piece in pieces if piece[0].purpose != "path"]
    dealt = _dealt(loose, block_size - len(controls), rng)
    kinds = [
        [kind[int(i)] for i in rng.permutation(len(kind))]
        for kind in ([*_packed(designed, block_size), *dealt], _packed(paths, block_size))
    ]
    ordered = [block for turn in itertools.zip_longest(*kinds) for block in turn if block is not None]
    rows: list[PlanRow] = []
    for number, block in enumerate(ordered, 1):
        entries = [*block, *_missing(controls, block, number)]
        for position, index in enumerate(rng.permutation(len(entries))):
            e = entries[int(index)]
            rows.append(PlanRow(len(rows), e.purpose, number, position, e.path_id, e.path_step, e.replicate, e.config))
    return tuple(rows)


def cut(group: Sequence[Entry], block_size: int) -> list[Sequence[Entry]]:
    """Splits a group that does not fit a block into parts that overlap by one run."""
    if len(group) <= _STRETCH * block_size:
        return [group]
    parts = -(-(len(group) - 1) // (block_size - 1))
    steps = len(group) - 1
    bounds = [round(i * steps / parts) for i in range(parts + 1)]
    found: list[Sequence[Entry]] = []
    for index in range(parts):
        part = list(group[bounds[index] : bounds[index + 1] + 1])
        if index:
            part[0] = replace(part[0], replicate=part[0].replicate + 1)
        found.append(part)
    return found


def _packed(pieces: Sequence[Sequence[Entry]], block_size: int) -> list[list[Entry]]:
    """Small groups share a block as long as its size is not exceeded."""
    blocks: list[list[Entry]] = []
    for piece in pieces:
        if blocks and len(blocks[-1]) + len(piece) <= block_size:
            blocks[-1].extend(piece)
        else:
            blocks.append(list(piece))
    return blocks


def _dealt(loose: Sequence[Entry], size: int, rng: np.random.Generator) -> list[list[Entry]]:
    """Blocks of runs in random order, whose sizes differ by at most one."""
    if not loose:
        return []
    n_blocks = max(1, round(len(loose) / max(size, 1)))
    shuffled = [loose[int(i)] for i in rng.permutation(len(loose))]
    return [shuffled[i::n_blocks] for i in range(n_blocks)]


def _missing(controls: Sequence[dict[str, Level]], block: Sequence[Entry], number: int) -> list[Entry]:
    # The ends of a path are controls already; a run of the design at a control's levels is not enough, because it is
    # one of the design's own runs and is omitted with it.
    ends = [entry.config for entry in block if entry.purpose == "path"]
    return [Entry("control", dict(config), replicate=number) for config in controls if config not in ends]
