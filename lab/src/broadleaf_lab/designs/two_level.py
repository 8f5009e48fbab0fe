"""Designs of factors at two levels: full, fractions of resolution V in blocks, fold-overs of resolution IV.

A regular fraction of 2^r runs is a list of r-bit words, one for each factor: the level of a factor in run x is the
parity of (word & x). Words that add to nothing (XOR) are aliased; resolution V means that no four of them do.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from broadleaf_lab.designs.entries import Chosen, Entry
from broadleaf_lab.errors import DesignError
from broadleaf_lab.spec.constraints import Constraints
from broadleaf_lab.spec.factors import Factor, Level

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def full(factors: Sequence[Factor], rules: Constraints, block_size: int) -> Chosen:
    """Every possible combination of levels."""
    names = [f.name for f in factors]
    if all(len(f.levels) == 2 for f in factors):
        words = [1 << i for i in range(len(factors))]
        made = _regular("full", factors, words, len(words), block_size)
        if all(rules.allows(entry.config) for group in made.groups for entry in group):
            return made
    configs = [dict(zip(names, levels, strict=True)) for levels in itertools.product(*(f.levels for f in factors))]
    possible = [config for config in configs if rules.allows(config)]
    entries = tuple(Entry("design", config) for config in possible)
    return Chosen({"kind": "full", "runs": len(entries), "impossible": len(configs) - len(possible)}, loose=entries)


def resolution5(factors: Sequence[Factor], rules: Constraints, block_size: int) -> Chosen:
    """The smallest regular fraction in which all main effects and all pairs can be distinguished."""
    _only_two_levels("resolution5", factors)
    words, r = fraction(len(factors))
    made = _regular("resolution5", factors, words, r, block_size)
    _all_possible("resolution5", made, rules)
    return made


def foldover(factors: Sequence[Factor], rules: Constraints, block_size: int) -> Chosen:
    """A Plackett-Burman design and its mirror image: resolution IV, main effects clear of pairs. For screening."""
    _only_two_levels("foldover", factors)
    import pydoe

    half = pydoe.pbdesign(max(len(factors), 3))[:, : len(factors)]
    pairs = [tuple(Entry("design", _config(factors, signs)) for signs in (row, -row)) for row in half]
    # A run and its mirror image are in one block: no main effect is confounded with a difference between blocks.
    each = max(1, block_size // 2)
    n_blocks = -(-len(pairs) // each)
    groups = tuple(tuple(itertools.chain(*pairs[i::n_blocks])) for i in range(n_blocks))
    made = Chosen({"kind": "foldover", "runs": 2 * len(half), "resolution": 4, "blocks": n_blocks}, groups=groups)
    _all_possible("foldover", made, rules)
    return made


def fraction(k: int) -> tuple[list[int], int]:
    """The words of a resolution V fraction of `k` factors, and r: it has 2^r runs."""
    if k < 5:
        return [1 << i for i in range(k)], k
    import pydoe

    return words_of(pydoe.fracfact_by_res(k, 5))


def words_of(signs: NDArray[np.float64]) -> tuple[list[int], int]:
    """The words of a regular fraction given as a matrix of -1 and 1, and r."""
    import numpy as np

    bits = (np.asarray(signs) > 0).astype(np.uint8)
    r = int(bits.shape[0]).bit_length() - 1
    # A basis: r columns that take all 2^r combinations.
    spanned: dict[bytes, int] = {bytes(len(bits)): 0}
    words: list[int] = []
    rank = 0
    for column in bits.T:
        flipped = column ^ column[0]
        key = flipped.tobytes()
        if key not in spanned:
            added = {(np.frombuffer(old, np.uint8) ^ flipped).tobytes(): w | 1 << rank for old, w in spanned.items()}
            spanned.update(added)
            rank += 1
        words.append(spanned[key])
    if rank != r:
        raise DesignError(f"a fraction of {len(bits)} runs with {rank} independent columns is not regular.")
    return words, r


def resolution(words: Sequence[int], up_to: int = 5) -> int:
    """The length of the shortest set of words that add to nothing; `up_to` if there is no shorter one. Brute force."""
    for size in range(1, up_to):
        for chosen in itertools.combinations(words, size):
            total = 0
            for word in chosen:
                total ^= word
            if total == 0:
                return size
    return up_to


def block_words(words: Sequence[int], r: int, wanted: int) -> list[int]:
    """Up to `wanted` words that cut a fraction into 2^wanted blocks, none of whose differences is confounded with a
    main effect or a pair: neither they nor their sums are a word or the sum of two.
    """
    taken = set(words) | {one ^ other for one, other in itertools.combinations(words, 2)} | {0}
    free = [word for word in range(1, 1 << r) if word not in taken]
    best: list[int] = []
    budget = 200_000

    def search(chosen: list[int], span: set[int], start: int) -> bool:
        nonlocal best, budget
        if len(chosen) > len(best):
            best = list(chosen)
        if len(chosen) == wanted:
            return True
        for index in range(start, len(free)):
            budget -= 1
            if budget < 0:
                return True
            added = {free[index] ^ old for old in span}
            if not added & taken and search([*chosen, free[index]], span | added, index + 1):
                return True
        return False

    search([], {0}, 0)
    return best


def _regular(kind: str, factors: Sequence[Factor], words: Sequence[int], r: int, block_size: int) -> Chosen:
    runs = 1 << r
    wanted = max(0, (runs // block_size).bit_length() - 1)
    cuts = block_words(words, r, wanted)
    blocks: dict[tuple[int, ...], list[Entry]] = {}
    for x in range(runs):
        signs = [1 if (word & x).bit_count() % 2 else -1 for word in words]
        key = tuple((cut & x).bit_count() % 2 for cut in cuts)
        blocks.setdefault(key, []).append(Entry("design", _config(factors, signs)))
    spec: dict[str, Any] = {
        "kind": kind,
        "runs": runs,
        "resolution": None if r == len(words) else 5,
        "blocks": len(blocks),
        "block_words": len(cuts),
    }
    return Chosen(spec, groups=tuple(tuple(group) for group in blocks.values()))


def _config(factors: Sequence[Factor], signs: Sequence[float] | NDArray[np.float64]) -> dict[str, Level]:
    return {f.name: f.on if sign > 0 else f.default for f, sign in zip(factors, signs, strict=True)}


def _only_two_levels(kind: str, factors: Sequence[Factor]) -> None:
    more = [f.name for f in factors if len(f.levels) > 2]
    if more:
        raise DesignError(
            f"design {kind!r} is for factors of two levels; {', '.join(more)} have more. Choose kind 'auto' or 'dopt'."
        )


def _all_possible(kind: str, made: Chosen, rules: Constraints) -> None:
    broken = {name for group in made.groups for entry in group for name in rules.violated(entry.config)}
    if broken:
        raise DesignError(
            f"design {kind!r} has runs that the constraints {', '.join(sorted(broken))} forbid. "
            "Choose kind 'auto' or 'dopt', which respect them."
        )
