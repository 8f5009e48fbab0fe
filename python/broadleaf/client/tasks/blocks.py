"""Iterators, taken in blocks: what they yield in total need not fit into memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

# Items that are taken before their sizes are looked at.
_MAX_TAKEN = 16_384
# How deep, and into how many items of a container, an estimate looks.
_MAX_DEPTH = 4
_MAX_SAMPLED = 64
_SCALARS = frozenset({int, float, bool, complex, type(None)})
_SCALAR_BYTES = 32
_TEXTS = frozenset({str, bytes, bytearray})


def in_blocks(sequences: Sequence[Iterable[Any]], max_bytes: int) -> Iterator[list[list[Any]]]:
    """Blocks of items of several iterables taken together, cut to the shortest.

    Args:
        sequences: The iterables.
        max_bytes: A block ends with the item that makes it larger than this, by `estimated_bytes`.

    Yields:
        A list for each iterable, all of the same length. The first block may be empty.
    """
    take = _taker(sequences)
    block: list[list[Any]] = [[] for _ in sequences]
    block_bytes = 0
    is_first = True
    n_next = 1
    while True:
        columns = take(n_next)
        n_taken = len(columns[0])
        for column, taken in zip(block, columns, strict=True):
            column += taken
        taken_bytes = sum(map(_column_bytes, columns))
        block_bytes += taken_bytes
        is_last = n_taken < n_next
        if block_bytes >= max_bytes or (is_last and (block[0] or is_first)):
            yield block
            block, block_bytes, is_first = [[] for _ in sequences], 0, False
        if is_last:
            return
        item_bytes = max(1, taken_bytes // n_taken)
        n_next = max(1, min(2 * n_next, _MAX_TAKEN, (max_bytes - block_bytes) // item_bytes))


def _taker(sequences: Sequence[Iterable[Any]]) -> Callable[[int], list[list[Any]]]:
    """Takes at most so many items of several iterables: a list for each, of the same length."""
    if len(sequences) == 1:
        # Without a tuple around each item.
        only = iter(sequences[0])
        return lambda n: [list(islice(only, n))]
    items = zip(*sequences, strict=False)

    def take(n: int) -> list[list[Any]]:
        taken = list(islice(items, n))
        return [list(column) for column in zip(*taken, strict=True)] or [[] for _ in sequences]

    return take


def _column_bytes(column: list[Any]) -> int:
    types = set(map(type, column))
    if types <= _SCALARS:
        return _SCALAR_BYTES * len(column)
    if types <= _TEXTS:
        return sum(map(len, column)) + _SCALAR_BYTES * len(column)
    return sum(map(estimated_bytes, column))


def estimated_bytes(value: Any, depth: int = _MAX_DEPTH) -> int:
    """How much memory a value takes, about: exact for arrays, bytes and text, and by a few of its items for others."""
    kind = type(value)
    if kind in _SCALARS:
        return _SCALAR_BYTES
    if kind in _TEXTS:
        return len(value) + _SCALAR_BYTES
    n_bytes = getattr(value, "nbytes", None)
    if isinstance(n_bytes, int):
        return n_bytes + _SCALAR_BYTES
    own_bytes = sys.getsizeof(value, _SCALAR_BYTES)
    if not depth:
        return own_bytes
    inside: Any
    if isinstance(value, dict):
        inside = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        inside = value
    else:
        inside = getattr(value, "__dict__", {}).values()
    sampled = list(islice(inside, _MAX_SAMPLED))
    if not sampled:
        return own_bytes
    sampled_bytes = sum(estimated_bytes(item, depth - 1) for item in sampled)
    return own_bytes + sampled_bytes * len(inside) // len(sampled)
