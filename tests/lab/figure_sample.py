"""A small study made up with known effects, as plain tables in the shape that the figures take.

Thirteen yes-or-no factors and one of many levels: two that save the same time (either-or), one that helps slow runs
and hinders fast ones, one that is bad unless another is on, and a placebo.
"""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd

BOOLS = ("cfg_log_off", "src_hotlogs_remove", "python_313_nogil_jit", "env_affinity", "cfg_prefetch_100", "cfg_poll_100",
         "src_engine_logs_remove", "cfg_engine_debug", "env_rundir_tmpfs", "cfg_encrypted", "src_no_proxy", "placebo")  # fmt: skip
TIERS = dict(zip(BOOLS, (3, 4, 1, 1, 1, 1, 4, 3, 1, 3, 4, 1), strict=True))
PREFETCH = "cfg_batch"


def truth_us(x: dict[str, float]) -> float:
    """Time per task without noise."""
    logging = 600 * (1 - x["cfg_log_off"]) * (1 - x["src_hotlogs_remove"])
    base = 420 - 150 * x["python_313_nogil_jit"] - 70 * x["cfg_prefetch_100"] - 40 * x["env_rundir_tmpfs"] * (1 - x["cfg_log_off"])
    base += 12 * x["cfg_encrypted"] + 45 * x["src_engine_logs_remove"] * (1 - x["cfg_engine_debug"]) - 8 * x["src_no_proxy"]
    base -= 30 * x["cfg_poll_100"] * (1 if logging else 0.2)
    total = logging + base
    return total * (1 + x["env_affinity"] * (-0.2 if total > 500 else 0.12)) * (1 - 0.02 * np.log2(x.get(PREFETCH, 1)))


def sample_deltas(paths: int = 40, seed: int = 1, noise: float = 0.03) -> pd.DataFrame:
    """Deltas along random orders, with the columns of deltas.csv that figures use."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(paths):
        x = dict.fromkeys(BOOLS, 0)
        before = truth_us(x) * np.exp(rng.normal(0, noise))
        for name in rng.permutation(BOOLS):
            context = dict(x)
            x[name] = 1
            after = truth_us(x) * np.exp(rng.normal(0, noise))
            rows.append({"treatment": str(name), "level_from": 0, "level_to": 1, "before_us": before, "after_us": after,
                         "delta_us": after - before, "log2_ratio": np.log2(after / before), **context})  # fmt: skip
            before = after
    return pd.DataFrame(rows)


def sample_means(deltas: pd.DataFrame) -> pd.DataFrame:
    """Mean deltas with crude intervals."""
    groups = deltas.groupby("treatment")["delta_us"]
    means, errors = groups.mean(), groups.std() / np.sqrt(groups.size())
    return pd.DataFrame({"name": means.index, "mean_us": means.values, "ci_low_us": (means - 2 * errors).values,
                         "ci_high_us": (means + 2 * errors).values, "n": groups.size().values})  # fmt: skip


def sample_path(order: tuple[str, ...] = BOOLS) -> pd.DataFrame:
    """The true path of one order."""
    x: dict[str, float] = dict.fromkeys(BOOLS, 0)
    rows = []
    before = truth_us(x)
    for step, name in enumerate(order, 1):
        x[name] = 1
        after = truth_us(x)
        rows.append({"step": step, "name": name, "before_us": before, "after_us": after, "tier": TIERS[name],
                     "ci_low_us": after * 0.97, "ci_high_us": after * 1.03})  # fmt: skip
        before = after
    return pd.DataFrame(rows)


def sample_runs(n: int = 400, seed: int = 2) -> pd.DataFrame:
    """Random configurations with drift and noise, as runs.csv has them."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        x = {name: int(rng.random() < 0.5) for name in BOOLS} | {PREFETCH: float(rng.choice([1, 4, 16, 64]))}
        control = ""
        if i % 16 in (3, 11):
            control = "baseline" if i % 16 == 3 else "all on"
            x = dict.fromkeys(BOOLS, int(control == "all on")) | {PREFETCH: 1.0}
        time = truth_us(x) * np.exp(rng.normal(0.02 * np.sin(i / 60) + 0.05 * i / n, 0.03))
        rows.append({**x, "started_unix": 1.7e9 + 4.0 * i, "control": control, "y_us": time, "true_us": truth_us(x), "block": i // 16})
    return pd.DataFrame(rows)


def sample_pairs(seed: int = 3) -> pd.DataFrame:
    """Differences of differences of the truth at the baseline, in microseconds, with a crude q."""
    rng = np.random.default_rng(seed)
    rows = []
    zero = dict.fromkeys(BOOLS, 0)
    for a, b in itertools.combinations(BOOLS, 2):
        g = truth_us(zero | {a: 1, b: 1}) - truth_us(zero | {a: 1}) - truth_us(zero | {b: 1}) + truth_us(zero)
        rows.append({"a": a, "b": b, "estimate": g + rng.normal(0, 2), "q": 0.001 if abs(g) > 8 else 0.6})
    return pd.DataFrame(rows)
