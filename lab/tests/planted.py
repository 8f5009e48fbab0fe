"""A study whose truth is known and that has something for every figure."""

from __future__ import annotations

import csv
from pathlib import Path

from broadleaf_lab.spec.factors import Factor
from broadleaf_lab.study import Study
from synthetic.system import SyntheticSystem, simulate

LOG_OFF, LINES_OFF, PIN, DEBUG_OFF = "log_off", "lines_off", "pin", "debug_off"


def planted() -> SyntheticSystem:
    """Two factors that save the same time, one that hinders once logging is off, one that a larger batch makes useless,
    and a placebo."""
    factors = (
        Factor(LOG_OFF, "flag", tier=3, loses="no log"),
        Factor(LINES_OFF, "flag", tier=4, loses="fewer lines"),
        Factor(PIN, "wrapper"),
        Factor(DEBUG_OFF, "flag", tier=3),
        Factor("batch", "argument", (1, 8, 64), 1, "log2"),
        Factor("placebo", "placebo"),
    )
    effects = {
        LOG_OFF: -0.7,
        LINES_OFF: -0.4,
        PIN: -0.15,
        DEBUG_OFF: -0.2,
        "batch": {8: -0.1, 64: -0.3},
        "placebo": 0.0,
    }
    pairs = {(LOG_OFF, LINES_OFF): 0.39, (LOG_OFF, PIN): 0.3, (DEBUG_OFF, "batch"): 0.25}
    return SyntheticSystem(factors, 1000.0, effects, pairs, noise=0.02)


def written_study(folder: Path) -> Study:
    """A study of it with all runs made."""
    system = planted()
    study = system.study(folder, "planted & <known>", kind="full", paths=14, seed=5)
    rows = simulate(study.plan(), system, seed=2)
    with open(folder / "runs.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return study
