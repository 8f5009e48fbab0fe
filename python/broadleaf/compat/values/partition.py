"""Cutting a sequence into as many parts as there are engines."""

from __future__ import annotations

from itertools import islice
from typing import Any

from broadleaf.client.partition import is_array, join_parts


class Map:
    """Contiguous parts; the first ones are one item longer if the lengths differ."""

    def getPartition(self, seq: Any, p: int, q: int, n: int | None = None) -> Any:
        """Part `p` of `q` of the first `n` items of `seq`, or of all."""
        length = len(seq) if n is None else n
        if not 0 <= p < q:
            raise ValueError(f"must have 0 <= p < q, but have p={p},q={q}")
        size, longer = divmod(length, q)
        low = p * size + min(p, longer)
        high = low + size + (p < longer)
        try:
            return seq[low:high]
        except TypeError:
            return list(islice(seq, low, high))

    def joinPartitions(self, listOfPartitions: list[Any]) -> Any:
        """The sequence of which these are all parts."""
        return join_parts(listOfPartitions, "b")


class RoundRobinMap(Map):
    """Parts that take items in turn."""

    def getPartition(self, seq: Any, p: int, q: int, n: int | None = None) -> Any:
        """Part `p` of `q` of the first `n` items of `seq`, or of all."""
        return seq[p : len(seq) if n is None else n : q]

    def joinPartitions(self, listOfPartitions: list[Any]) -> Any:
        """The sequence of which these are all parts."""
        return join_parts(listOfPartitions, "r")


def mappable(obj: Any) -> bool:
    """Whether this is a list, a tuple or an array."""
    return isinstance(obj, list | tuple) or is_array(obj)
