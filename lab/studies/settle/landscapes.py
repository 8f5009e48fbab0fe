"""Does a study that chooses its own runs reach the verdicts of the full design, with how many runs, and how often is it
wrong?

    python studies/settle/landscapes.py --landscapes 50

Each landscape is made with numpy alone: flags of which a third do something, three pairs that interact, noise, blocks.
The full design is the one that `broadleaf-lab plan` makes of the same study; its runs are the budget of the other. A
verdict is wrong if it says helps, hinders or no practical difference, and the truth lies on another side of the
practical limit by more than a tenth of it. `missed` counts the settings of which the interval of any look did not
contain the truth; 5 % are allowed. With `--side-by-side SD` runs are made two at once, and what disturbs both varies by
SD, from pair to pair. `--csv FILE` keeps a line for each landscape; landscapes.csv is what was
recorded.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

import numpy as np  # noqa: E402
import truth  # noqa: E402
from broadleaf_lab.analysis import frame as frames  # noqa: E402
from broadleaf_lab.analysis.effects import Effect  # noqa: E402
from broadleaf_lab.analysis.model.fit import Fit, fit  # noqa: E402
from broadleaf_lab.analysis.verdict import verdicts  # noqa: E402
from broadleaf_lab.settle.settler import DECIDED, Question, Settler  # noqa: E402
from broadleaf_lab.spec.factors import Factor, Level  # noqa: E402
from broadleaf_lab.study import Study  # noqa: E402

ROPE_PCT = 1.0


class World:
    """Runs of a truth in the order in which they are requested."""

    def __init__(
        self, known: truth.Truth, rng: np.random.Generator, sd: float, block_sd: float, pair_sd: float = 0.0
    ) -> None:
        self.known, self.rng, self.sd, self.block_sd, self.pair_sd = known, rng, sd, block_sd, pair_sd
        self.made = self.pairs = 0

    def block(self, configs: Sequence[Mapping[str, Level]], number: int) -> list[dict[str, object]]:
        """The rows of a block, as runs.csv has them."""
        shift = self.block_sd * self.rng.standard_normal()
        rows: list[dict[str, object]] = [{} for _ in configs]
        disturbed = self.pair_sd * self.rng.standard_normal(len(configs)) if self.pair_sd else np.zeros(len(configs))
        for place in self.rng.permutation(len(configs)):
            config = configs[place]
            at = {n: self.known.levels[n].index(config[n]) for n in self.known.levels}
            y = math.log(500) + sum(float(self.known.effects[n][i]) for n, i in at.items())
            y += sum(float(table[at[a], at[b]]) for (a, b), table in self.known.pairs.items())
            y += shift + float(disturbed[place // 2]) + self.sd * self.rng.standard_normal()
            cells = {n: int(v) if isinstance(v, bool) else v for n, v in config.items()}
            told = {"status": "ok", "time_per_task_us": math.exp(y), "started_unix": 4.0 * self.made, "block": number}
            rows[place] = {**told, **cells}
            if self.pair_sd:
                rows[place]["pair_id"] = self.pairs + place // 2
            self.made += 1
        self.pairs += len(configs)
        return rows


class Watched(Settler):
    """A settler that keeps every interval at which it looked."""

    def _judged(self, made: Fit, effect: Effect, alpha: float) -> Question:
        self.seen = [*getattr(self, "seen", []), effect]
        return super()._judged(made, effect, alpha)

    def missed(self, known: truth.Truth) -> int:
        """How many settings had an interval at some look that did not contain the truth."""
        return len({e.factor for e in self.seen if not e.ci_low <= known.effect(e.factor, e.level) <= e.ci_high})


def side(word: str) -> int | None:
    """-1 faster, 1 slower, 0 no difference; None if it claims none of these."""
    return {"helps": -1, "hinders": 1, "no practical difference": 0}.get(word)


def wrong(word: str, effect: float) -> bool:
    """Whether a verdict makes a false claim."""
    rope = math.log1p(ROPE_PCT / 100)
    claimed = side(word)
    if claimed is None:
        return False
    if claimed == 0:
        return abs(effect) > 1.1 * rope
    return claimed * effect < 0.9 * rope


def main() -> None:
    """Prints a line for each landscape, and the totals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--landscapes", type=int, default=50)
    parser.add_argument("--factors", type=int, default=8)
    parser.add_argument("--sd", type=float, default=0.05)
    parser.add_argument("--side-by-side", type=float, default=0.0, metavar="SD")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--csv", type=Path)
    asked = parser.parse_args()
    plan = None
    lines: list[dict[str, int]] = []
    shares, told, false, known_full, same, false_full, told_full, missed, asked_of = [], 0, 0, 0, 0, 0, 0, 0, 0
    for number in range(asked.landscapes):
        rng = np.random.default_rng([asked.seed, number])
        known = truth.flags(rng, asked.factors)
        factors = tuple(Factor(n, "flag") for n in known.levels)
        study = Study("landscape", factors=factors, command=("true",), rope_pct=ROPE_PCT)
        plan = plan or study.plan()
        world = World(known, np.random.default_rng([asked.seed, number, 1]), asked.sd, 0.02, asked.side_by_side)
        rows: list[dict[str, object]] = []
        for block in sorted({row.block for row in plan.rows}):
            rows += world.block([row.config for row in plan.rows if row.block == block], block)
        full = {v.factor: v.word for v in verdicts(fit(factors, frames.load(rows, factors)), ROPE_PCT)}
        world = World(known, np.random.default_rng([asked.seed, number, 2]), asked.sd, 0.02, asked.side_by_side)
        settler = Watched(study, len(plan.rows), seed=number, pairs=bool(asked.side_by_side))
        block = 0
        while configs := settler.next_block():
            settler.add(world.block(configs, block), configs)
            block += 1
        mine = {q.factor: q.verdict.word for q in settler.questions.values() if q.state == DECIDED and q.verdict}
        out = settler.missed(known)
        missed, asked_of = missed + out, asked_of + len(factors)
        shares.append(len(settler.rows) / len(plan.rows))
        wrongs = [n for n, word in mine.items() if wrong(word, known.effect(n, True))]
        told, false = told + len(mine), false + len(wrongs)
        told_full += sum(word != "unknown" for word in full.values())
        wrong_full = sum(wrong(word, known.effect(n, True)) for n, word in full.items())
        false_full += wrong_full
        decided = [n for n, word in full.items() if word != "unknown"]
        known_full += len(decided)
        agree = [n for n in decided if n in mine and mine[n].split()[0] == full[n].split()[0]]
        same += len(agree)
        lines.append(
            {
                "landscape": number,
                "seed": asked.seed,
                "runs": len(settler.rows),
                "full_runs": len(plan.rows),
                "decided": len(mine),
                "wrong": len(wrongs),
                "full_decided": len(decided),
                "full_wrong": wrong_full,
                "reached": len(agree),
                "missed": out,
            }
        )
        if asked.csv:
            keep(asked.csv, lines)
        print(
            f"{number:3} runs {len(settler.rows):4} of {len(plan.rows)}, decided {len(mine)}, wrong {len(wrongs)}, "
            f"as the full design {len(agree)} of {len(decided)}",
            flush=True,
        )
    print(
        f"median share of runs {np.median(shares):.2f}; verdicts {told}, false {false / max(told, 1):.3f}; of the full "
        f"design's {known_full} verdicts {same / max(known_full, 1):.3f} reached; its own false "
        f"{false_full / max(told_full, 1):.3f}; settings missed by an interval {missed / max(asked_of, 1):.3f}"
    )


def keep(file: Path, lines: list[dict[str, int]]) -> None:
    """Writes the lines known so far."""
    with file.open("w", newline="") as table:
        writer = csv.DictWriter(table, lines[0])
        writer.writeheader()
        writer.writerows(lines)


if __name__ == "__main__":
    main()
