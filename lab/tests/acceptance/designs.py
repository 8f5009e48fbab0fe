"""Acceptance 8 of the laboratory: designs are what they are called and keep to the constraints.

Resolution by brute force over all products of columns; balance of balanced designs counted; at least 10,000
configurations of random constrained studies, every kind of design, none of which violates a constraint; contradictions
planted among constraints that are fine, named by a set of which none can be left out.

    python lab/tests/acceptance/designs.py --configs 10000
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter

import numpy as np
from broadleaf_lab.designs import balanced, two_level
from broadleaf_lab.errors import ConstraintError, DesignError
from broadleaf_lab.spec.constraints import Constraints
from broadleaf_lab.spec.factors import Factor
from broadleaf_lab.spec.study import DesignSpec
from broadleaf_lab.study import Study

KINDS = ("auto", "full", "dopt", "paths", "edges", "balanced", "greedy", "random")


def flags(k: int) -> tuple[Factor, ...]:
    return tuple(Factor(f"f{i}", "flag") for i in range(k))


def resolution(matrix: np.ndarray, up_to: int = 6) -> int:
    """The smallest number of columns whose product is constant."""
    bits = matrix > 0
    for size in range(1, up_to):
        for columns in itertools.combinations(range(matrix.shape[1]), size):
            odd = np.bitwise_xor.reduce(bits[:, columns], axis=1)
            if odd.all() or not odd.any():
                return size
    return up_to


def check_resolution(max_factors: int) -> bool:
    good = True
    for k in range(5, max_factors + 1):
        factors = flags(k)
        made = two_level.resolution5(factors, Constraints(factors, {}), 16)
        configs = [entry.config for group in made.groups for entry in group]
        matrix = np.array([[1 if c[f.name] else -1 for f in factors] for c in configs])
        found = resolution(matrix)
        pairs = [matrix[:, i] * matrix[:, j] for i, j in itertools.combinations(range(k), 2)]
        columns = np.column_stack([matrix, *pairs])
        blocks = np.array([n for n, group in enumerate(made.groups) for _ in group])
        mixed = max(abs(columns[blocks == b].sum(axis=0)).max() for b in set(blocks)) if len(made.groups) > 1 else 0
        print(f"  k={k:2d}: {len(configs):4d} runs, resolution {found}{'+' if found == 6 else ''}, "
              f"{len(made.groups)} blocks, largest confounding with an effect or pair {mixed}")  # fmt: skip
        good &= found >= 5 and mixed == 0
    return good


def check_balance(sizes: tuple[int, ...]) -> bool:
    good = True
    for k in sizes:
        factors = flags(k)
        made = balanced.balanced(factors, Constraints(factors, {}), np.random.default_rng(k))
        matrix = np.array([[entry.config[f.name] for f in factors] for entry in made.loose])
        n = len(matrix)
        level = max(abs(column.sum() - n / 2) for column in matrix.T)
        pair = max(
            abs((matrix[:, [i, j]] == (a, b)).all(axis=1).sum() - n / 4)
            for i, j in itertools.combinations(range(k), 2)
            for a, b in itertools.product((False, True), repeat=2)
        )
        flips = Counter(
            int(np.flatnonzero(one != other)[0])
            for one, other in itertools.combinations(matrix, 2)
            if (one != other).sum() == 1
        )
        min_flips = min(flips.get(i, 0) for i in range(k))
        print(
            f"  k={k:2d}: {n} runs, levels off by {level:g}, pairs off by {pair:g}, at least {min_flips} flips a factor"
        )
        good &= level == 0 and pair <= 2 and min_flips >= 1
    return good


def random_study(rng: np.random.Generator) -> Study | None:
    """Six to nine factors of all sorts with a nested one and up to four random constraints; None if they contradict."""
    n = int(rng.integers(4, 7))
    factors = [
        *flags(n),
        Factor("py", "python", ("3.11", "3.12", "3.13t"), "3.12"),
        Factor("jit", "env", when="py >= '3.13'"),
        Factor("size", "argument", (0, 4, 64, 1024), 4, "log2"),
    ]
    forms = (
        "not ({a} and {b})",
        "not {a} or {b}",
        "size < 1024 or not {a}",
        "{a} + {b} + {c} <= 2",
        "py != '3.11' or not {b}",
        "size in (0, 4) or {a} == {b}",
    )
    rules = {}
    for number in range(int(rng.integers(0, 5))):
        a, b, c = (f"f{i}" for i in rng.choice(n, 3, replace=False))
        rules[f"rule{number}"] = str(rng.choice(forms)).format(a=a, b=b, c=c)
    study = Study("random", factors=tuple(factors), constraints=rules)
    try:
        study.rules().check()
    except ConstraintError:
        return None
    return study


def check_feasible(wanted: int) -> bool:
    rng = np.random.default_rng(1)
    seen: Counter[str] = Counter()
    violations = studies = 0
    while sum(seen.values()) < wanted:
        study = random_study(rng)
        if study is None:
            continue
        studies += 1
        rules = study.rules()
        for kind in KINDS:
            spec = DesignSpec(kind=kind, seed=studies, paths=3 if kind != "paths" else 8, edges=None, runs=None)
            try:
                plan = Study("s", factors=study.factors, constraints=study.constraints, design=spec).plan()
            except DesignError as error:
                print(f"  {kind} of {dict(study.constraints)}: {error}")
                continue
            configs = [row.config for row in plan.rows]
            seen[kind] += len(configs)
            violations += sum(bool(rules.violated(config)) for config in configs)
    print(f"  {sum(seen.values())} configurations of {studies} studies ({dict(seen)}): {violations} violations")
    return violations == 0


def check_names(rounds: int) -> bool:
    rng = np.random.default_rng(2)
    right = 0
    for _ in range(rounds):
        factors = flags(12)
        fine = {}
        for number in range(10):
            a, b = rng.choice(12, 2, replace=False)
            # All of these hold where everything is off, so they never contradict one another.
            form = str(rng.choice(["not ({a} and {b})", "not {a} or {b}"]))
            fine[f"fine{number}"] = form.format(a=f"f{a}", b=f"f{b}")
        length = int(rng.integers(2, 5))
        chain = rng.choice(12, length, replace=False)
        planted = {"bad0": f"f{chain[0]}"}
        for number, (one, other) in enumerate(itertools.pairwise(chain), 1):
            planted[f"bad{number}"] = f"not f{one} or f{other}"
        planted["bad_end"] = f"not f{chain[-1]}"
        try:
            Constraints(factors, {**fine, **planted}).check()
        except ConstraintError as error:
            # Fine ones may contradict the planted ones in a shorter way; whatever is named must be a contradiction that
            # is gone when any one of it is.
            named = {name: {**fine, **planted}[name] for name in error.names}
            minimal = all(
                possible(factors, {n: text for n, text in named.items() if n != left_out}) for left_out in named
            )
            right += not possible(factors, named) and minimal
    print(f"  {right} of {rounds} planted contradictions named, by a set none of which can be left out")
    return right == rounds


def possible(factors: tuple[Factor, ...], rules: dict[str, str]) -> bool:
    """By trying all combinations."""
    constraints = Constraints(factors, rules)
    used = sorted({f.name for f in factors if any(f.name in text.split() or f"({f.name}" in text or f"{f.name})" in text
                                                  for text in rules.values())})  # fmt: skip
    base = {f.name: False for f in factors}
    return any(
        constraints.allows({**base, **dict(zip(used, levels, strict=True))})
        for levels in itertools.product((False, True), repeat=len(used))
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", type=int, default=10_000)
    parser.add_argument("--max-factors", type=int, default=21)
    options = parser.parse_args()
    good = True
    for title, check in (
        ("resolution", lambda: check_resolution(options.max_factors)),
        ("balance", lambda: check_balance((4, 6, 8, 12, 17))),
        ("constraints", lambda: check_feasible(options.configs)),
        ("contradictions", lambda: check_names(100)),
    ):
        print(title)
        passed = check()
        print(f"  {'passed' if passed else 'FAILED'}")
        good &= passed
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
