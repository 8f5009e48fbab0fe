"""What the laboratory says about a setting that makes runs fail: does the rate's interval contain the truth, is the
setting ever recommended, and are failures stated first?

    python studies/coverage/failures.py --sets 300

Each set has 120 runs of four flags, drawn with numpy alone: `risky` saves a fifth of the time and fails with a given
probability, and runs fail at random in the background. Runs go through runs.csv, like those of a study. A set is bad if
more runs failed with `risky` than without it, and it is called a help, is recommended silently, or is not mentioned in
the first sentence of its verdict or of the recommendation. `--csv FILE` keeps the rows.
"""

from __future__ import annotations

import argparse
import csv
import os
import tempfile
from pathlib import Path

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402
from broadleaf_lab.analysis import failures  # noqa: E402
from broadleaf_lab.analysis import frame as frames  # noqa: E402
from broadleaf_lab.analysis.summary import summarise  # noqa: E402
from broadleaf_lab.report.recommend import recommend, sentences  # noqa: E402
from broadleaf_lab.study import Study  # noqa: E402

NAMES = ("risky", "quick", "slow", "idle")
STUDY = '[study]\nname = "risk"\ncommand = ["true"]\n' + "".join(
    f'[factors.{name}]\nset.env = {{ {name.upper()} = "1" }}\n' for name in NAMES
)
HEAD = ("run_id", "status", "error", "block", "order_in_block", "started_unix", "time_per_task_us", "config_id", *NAMES)


def drawn(rng: np.random.Generator, chance: float, background: float, runs: int) -> list[list[object]]:
    """The rows of a study."""
    rows: list[list[object]] = []
    for number in range(runs):
        on = rng.integers(0, 2, len(NAMES))
        fails = rng.random() < background or (on[0] and rng.random() < chance)
        us = 1000 * 0.8 ** on[0] * 0.9 ** on[1] * 1.15 ** on[2] * np.exp(rng.normal(0, 0.03))
        status, error, told = ("failed", "exit code 3", "") if fails else ("ok", "", f"{us:.6f}")
        rows.append(
            [f"r{number:06d}", status, error, number // 15, number % 15, 1.7e9 + 4 * number, told, "c", *on.tolist()]
        )
    return rows


def one(directory: Path, rows: list[list[object]], chance: float, background: float, count: dict[str, int]) -> None:
    """Analyses a set, and counts the mistakes in the results."""
    (directory / "study.toml").write_text(STUDY, encoding="utf-8")
    with (directory / "runs.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEAD)
        writer.writerows(rows)
    study = Study.load(directory)
    found = failures.of_study(study.runs_path, study.factors)
    summary = summarise(study.factors, frames.load(study.runs_path, study.factors), failures=found)
    risky = found.of("risky", True)
    assert risky is not None
    count["sets"] += 1
    count["covered"] += risky.rate.low <= 1 - (1 - chance) * (1 - background) <= risky.rate.high
    count["accused"] += any(it.proven for it in found.levels if it.factor != "risky")
    if not risky.worse:
        return
    count["worse"] += 1
    count["proven"] += risky.proven
    verdict = next(v for v in summary.verdicts if v.factor == "risky")
    # If the default fails too and nothing is proven, its time may be called a help: failures are stated first.
    count["called a help"] += verdict.word == "helps" and bool(risky.word)
    count["verdict silent"] += not verdict.sentence.startswith(("risky fail", "risky may fail"))
    told = recommend(study)
    first = sentences(study, told)[0]
    count["recommended"] += bool(told.config["risky"])
    count["recommendation silent"] += "risky" not in first or "fail" not in first


def main() -> None:
    """Prints a line for each probability of failure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=300)
    parser.add_argument("--runs", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--csv", type=Path)
    asked = parser.parse_args()
    lines: list[dict[str, object]] = []
    kinds = ("sets", "covered", "accused", "worse", "proven", "called a help", "verdict silent", "recommended",
             "recommendation silent")  # fmt: skip
    for background in (0.0, 0.05):
        for chance in (0.0, 0.05, 0.4, 1.0):
            count = dict.fromkeys(kinds, 0)
            for number in range(asked.sets):
                rng = np.random.default_rng([asked.seed, number])
                with tempfile.TemporaryDirectory() as directory:
                    one(Path(directory), drawn(rng, chance, background, asked.runs), chance, background, count)
            lines.append({"chance": chance, "background": background, **count})
            if len(lines) == 1:
                print("  ".join(lines[0]))
            print("  ".join(f"{value:>{len(key)}}" for key, value in lines[-1].items()), flush=True)
            if asked.csv:
                # What is known so far, should it be stopped.
                with asked.csv.open("w", newline="") as file:
                    writer = csv.DictWriter(file, lines[0])
                    writer.writeheader()
                    writer.writerows(lines)


if __name__ == "__main__":
    main()
