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
from collections.abc import Mapping, Sequence
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

_SHARES = ("main", "baseline", "best", "pair", "planted")


def row_of(name: str, sets: Sequence[Mapping[str, float]]) -> dict[str, object]:
    """One line of the table, of the lines of its sets."""

    def total(key: str) -> float:
        return sum(one[key] for one in sets)

    def middle(key: str) -> object:
        told = [one[key] for one in sets if not one["refused"]]
        return round(float(np.median(told)), 4) if told else ""

    flagged, real, refused = total("flagged"), total("real"), total("refused")
    judged = [one for one in sets if not one["refused"]]
    return {
        "scenario": name,
        "sets": len(sets),
        "refused": int(refused),
        **{key: round(total(key) / n, 4) if (n := total(f"{key}_of")) else "" for key in _SHARES},
        "flagged": int(flagged),
        "false": round(total("false") / flagged, 4) if flagged else 0.0,
        "fdr": round(sum(one["false"] / max(one["flagged"], 1) for one in judged) / len(judged), 4) if judged else 0.0,
        "found": round(total("found") / real, 3) if real else "",
        "half_width": middle("half_width"),
        "corner_width": middle("corner_width"),
        "runs": round(total("runs") / max(len(judged), 1)),
        "cpu_s_per_set": round(total("cpu_s") / len(sets), 3),
    }


def factors_of(known: truth.Truth) -> list[Factor]:
    """The factors as a study file would declare them."""
    return [
        Factor(name, "flag") if len(levels) == 2 else Factor(name, "config", levels, levels[0], "log2")
        for name, levels in known.levels.items()
    ]


def one_set(known: truth.Truth, rows: list[dict[str, object]]) -> dict[str, float]:
    """Analyses a set of runs: how many intervals of each kind contain the truth, of how many, and the like."""
    factors = factors_of(known)
    begun = time.process_time()
    one: dict[str, float] = {"refused": 0, **{key: 0 for share in _SHARES for key in (share, f"{share}_of")}}
    one |= dict.fromkeys(("flagged", "false", "found", "real", "half_width", "corner_width", "runs"), 0)
    try:
        made = fit(factors, frames.load(rows, factors))
        effects, pairs = made.effects(), made.interactions()
        corners = {"baseline": made.effects("baseline"), "best": made.effects("best")}
    except AnalysisError:
        return {**one, "refused": 1, "cpu_s": round(time.process_time() - begun, 4)}
    one["cpu_s"] = round(time.process_time() - begun, 4)

    def held(kind: str, contains: bool) -> None:
        one[kind] += contains
        one[f"{kind}_of"] += 1

    one["runs"] = made.n_runs
    one["half_width"] = float(np.median([e.ci_high - e.ci_low for e in effects])) / 2
    one["corner_width"] = float(np.median([e.ci_high - e.ci_low for e in corners["baseline"]])) / 2
    for e in effects:
        held("main", e.ci_low <= known.effect(e.factor, e.level) <= e.ci_high)
    for where, listed in corners.items():
        config = known.baseline if where == "baseline" else made.best_config
        for e in listed:
            held(where, e.ci_low <= known.effect_at(e.factor, e.level, config) <= e.ci_high)
    real, seen = {frozenset(pair) for pair in known.pairs}, set()
    for p in pairs:
        value = known.interaction(p.a, p.b, p.a_level, p.b_level)
        held("pair", p.ci_low <= value <= p.ci_high)
        if value:
            held("planted", p.ci_low <= value <= p.ci_high)
        if p.q <= 0.05:
            one["flagged"] += 1
            one["false"] += value == 0
            if value:
                seen.add(frozenset((p.a, p.b)))
    one["real"], one["found"] = len(real), len(seen & real)
    return one


def main() -> None:
    """Runs the requested scenarios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="beginnings of scenarios' names")
    parser.add_argument("--sets", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--csv", type=Path, help="where to keep a line for each scenario")
    parser.add_argument("--each", type=Path, help="where to append a line for each set; those in it are not made again")
    parser.add_argument(
        "--caution", type=float, default=multiplicity.CAUTION, help="by how much false discovery rates are raised"
    )
    asked = parser.parse_args()
    multiplicity.CAUTION = asked.caution
    names = [name for name in truth.scenarios() if not asked.names or name.startswith(tuple(asked.names))]
    done = known_sets(asked.each, asked.seed) if asked.each else {}
    for number, name in enumerate(names):
        made, size, noise, design = truth.scenarios()[name]
        sets = dict(done.get(name, {}))
        for index in range(asked.sets):
            if index in sets:
                continue
            rng = np.random.default_rng([asked.seed, index])
            known = made(rng) if callable(made) else made
            sets[index] = one_set(known, truth.runs(known, size, noise, rng, design))
            if asked.each:
                append(asked.each, {"scenario": name, "seed": asked.seed, "set": index, **sets[index]})
        row = row_of(name, list(sets.values()))
        if asked.csv:
            keep(asked.csv, {**row, "seed": asked.seed, "date": datetime.now(UTC).date().isoformat()})
        if number == 0:
            print(" ".join(f"{key:>10}" for key in row))
        print(" ".join(f"{value:>10}" for value in row.values()), flush=True)


def known_sets(file: Path, seed: int) -> dict[str, dict[int, dict[str, float]]]:
    """The sets of this seed that a file of `append` contains, by scenario and number."""
    found: dict[str, dict[int, dict[str, float]]] = {}
    if file.exists():
        with file.open(newline="") as lines:
            for line in csv.DictReader(lines):
                name, its, index = line.pop("scenario"), int(line.pop("seed")), int(line.pop("set"))
                if its == seed:
                    found.setdefault(name, {})[index] = {key: float(value) for key, value in line.items()}
    return found


def append(file: Path, line: dict[str, object]) -> None:
    """Adds a line to a table."""
    fresh = not file.exists()
    with file.open("a", newline="") as lines:
        writer = csv.DictWriter(lines, line)
        if fresh:
            writer.writeheader()
        writer.writerow(line)


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
