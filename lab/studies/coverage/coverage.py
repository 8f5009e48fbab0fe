"""How often the laboratory's 95 % intervals contain the truth, and how many of the pairs that it flags are false.

    python studies/coverage/coverage.py --sets 300 few- outliers

For every scenario of lab/tests/truth.py whose name starts with one of the words (all, without words), it makes that
many sets of runs with numpy alone, passes them to the laboratory's analysis, and prints one line. `--csv FILE` keeps
the lines in FILE, after every 20 sets; those of other scenarios stay. coverage.csv is what was recorded.

`main`, `baseline`, `best`, `pair` and `planted` are the shares of intervals that contain the truth: of effects on
average, at the baseline and at the best configuration that the laboratory names, of all pairs, and of the pairs that
are not zero. `fdr` is the share of the flagged pairs that are not real, in each set (0 in one that
flags none), averaged over the sets; `false` is the same share of the flagged pairs of all sets together.

The limit of 6 % is for `fdr`. It is what somebody with one study has to expect, and the false discovery rate as
Benjamini and Hochberg define it. No rule can keep `false` below a limit in every scenario: it is 1 if no pair is real,
however seldom one is flagged, and it is the higher the fewer real pairs there are to find.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

import numpy as np  # noqa: E402
import truth  # noqa: E402
from broadleaf_lab.analysis import frame as frames  # noqa: E402
from broadleaf_lab.analysis import multiplicity  # noqa: E402
from broadleaf_lab.analysis.model.fit import fit  # noqa: E402
from broadleaf_lab.errors import AnalysisError  # noqa: E402
from broadleaf_lab.spec.factors import Factor  # noqa: E402

_KEPT_EVERY = 20


class Count:
    """The totals of a scenario."""

    def __init__(self) -> None:
        self.main: list[bool] = []
        self.corner: dict[str, list[bool]] = {"baseline": [], "best": []}
        self.corner_width: dict[str, list[float]] = {"baseline": [], "best": []}
        self.pair: list[bool] = []
        self.planted: list[bool] = []
        self.flagged = self.false = self.found = self.truly = self.refused = self.told = self.sets = 0
        self.share: list[float] = []
        self.main_width: list[float] = []
        self.seconds = 0.0

    def row(self, name: str) -> dict[str, object]:
        """One line of the table."""
        return {
            "scenario": name,
            "sets": self.sets,
            "refused": self.refused,
            "main": _share(self.main),
            "baseline": _share(self.corner["baseline"]),
            "best": _share(self.corner["best"]),
            "pair": _share(self.pair),
            "planted": _share(self.planted),
            "flagged": self.flagged,
            "false": round(self.false / self.flagged, 4) if self.flagged else 0.0,
            "fdr": round(float(np.mean(self.share)), 4) if self.share else 0.0,
            "found": round(self.found / self.truly, 3) if self.truly else "",
            "half_width": round(float(np.median(self.main_width)), 4) if self.main_width else "",
            "corner_width": round(float(np.median(self.corner_width["baseline"])), 4)
            if self.corner["baseline"]
            else "",
            "runs": round(self.told / max(self.sets - self.refused, 1)),
            "cpu_s_per_set": round(self.seconds / max(self.sets, 1), 3),
        }


def _share(held: list[bool]) -> object:
    return round(float(np.mean(held)), 4) if held else ""


def factors_of(known: truth.Truth) -> list[Factor]:
    """The factors as a study file would declare them."""
    return [
        Factor(name, "flag") if len(levels) == 2 else Factor(name, "config", levels, levels[0], "log2")
        for name, levels in known.levels.items()
    ]


def one_set(known: truth.Truth, rows: list[dict[str, object]], count: Count) -> None:
    """Analyses a set of runs and compares the results with the truth."""
    factors = factors_of(known)
    begun = time.process_time()
    count.sets += 1
    try:
        made = fit(factors, frames.load(rows, factors))
        effects, pairs = made.effects(), made.interactions()
        corners = {"baseline": made.effects("baseline"), "best": made.effects("best")}
    except AnalysisError:
        count.refused += 1
        return
    finally:
        count.seconds += time.process_time() - begun
    count.told += made.n_runs
    for e in effects:
        count.main.append(e.ci_low <= known.effect(e.factor, e.level) <= e.ci_high)
        count.main_width.append((e.ci_high - e.ci_low) / 2)
    for where, listed in corners.items():
        config = known.baseline if where == "baseline" else made.best_config
        for e in listed:
            count.corner[where].append(e.ci_low <= known.effect_at(e.factor, e.level, config) <= e.ci_high)
            count.corner_width[where].append((e.ci_high - e.ci_low) / 2)
    flagged = false = 0
    real = {frozenset(pair) for pair in known.pairs}
    seen = set()
    for p in pairs:
        value = known.interaction(p.a, p.b, p.a_level, p.b_level)
        held = p.ci_low <= value <= p.ci_high
        count.pair.append(held)
        if value:
            count.planted.append(held)
        if p.q <= 0.05:
            flagged += 1
            false += value == 0
            if value:
                seen.add(frozenset((p.a, p.b)))
    count.flagged += flagged
    count.false += false
    count.share.append(false / flagged if flagged else 0.0)
    count.truly += len(real)
    count.found += len(seen & real)


def scenario(name: str, sets: int, seed: int) -> Iterator[Count]:
    """All sets of a scenario: the count after every 20 sets, and after the last."""
    made, size, noise, design = truth.scenarios()[name]
    count = Count()
    for number in range(sets):
        rng = np.random.default_rng([seed, number])
        known = made(rng) if callable(made) else made
        one_set(known, truth.runs(known, size, noise, rng, design), count)
        if count.sets % _KEPT_EVERY == 0 or count.sets == sets:
            yield count


def main() -> None:
    """Runs the requested scenarios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="beginnings of scenarios' names")
    parser.add_argument("--sets", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--csv", type=Path)
    parser.add_argument(
        "--caution", type=float, default=multiplicity.CAUTION, help="by how much false discovery rates are raised"
    )
    asked = parser.parse_args()
    multiplicity.CAUTION = asked.caution
    names = [name for name in truth.scenarios() if not asked.names or name.startswith(tuple(asked.names))]
    for number, name in enumerate(names):
        row: dict[str, object] = {}
        for count in scenario(name, asked.sets, asked.seed):
            row = count.row(name)
            if asked.csv:
                keep(asked.csv, {**row, "seed": asked.seed, "date": datetime.now(UTC).date().isoformat()})
        if number == 0:
            print(" ".join(f"{key:>10}" for key in row))
        print(" ".join(f"{value:>10}" for value in row.values()), flush=True)


def keep(file: Path, row: dict[str, object]) -> None:
    """Puts a line in a table, in place of that of the same scenario."""
    rows: list[dict[str, object]] = []
    if file.exists():
        with file.open(newline="") as old:
            rows = [dict(line) for line in csv.DictReader(old)]
    rows = [*(line for line in rows if line["scenario"] != row["scenario"]), row]
    order = list(truth.scenarios())
    rows.sort(key=lambda line: order.index(str(line["scenario"])))
    with file.open("w", newline="") as new:
        writer = csv.DictWriter(new, row)
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
