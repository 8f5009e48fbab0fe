"""Runs far from the model: disturbed ones count for nothing, those that gather somewhere say something."""

import csv

import numpy as np
import pytest

pytest.importorskip("scipy")

import truth
from broadleaf_lab.analysis import frame as frames
from broadleaf_lab.analysis import verdict
from broadleaf_lab.analysis.model.fit import fit
from broadleaf_lab.report.collect import collect
from broadleaf_lab.spec.factors import Factor
from broadleaf_lab.study import Study

NAMES = ("no_init_log", "lines_off", "encrypted", "app_big", "prefetch")


def seed_like(rng, n=400):
    """Runs of the published study's kind: two settings save the same time, so one quadrant is slow; noise and the hour
    multiply. Made with numpy alone.
    """
    on = (rng.random((n, len(NAMES))) < 0.75).astype(int)
    us = np.where((on[:, 0] == 0) & (on[:, 1] == 0), 1000.0, 350.0) * np.where(on[:, 2], 1.05, 1.0)
    started = np.cumsum(rng.uniform(60, 900, n))
    us *= np.exp(0.05 * rng.standard_normal(n) + 0.03 * np.cos(2 * np.pi * started / 86400))
    rows = [
        {"run_id": f"r{i:06d}", "status": "ok", "time_per_task_us": float(us[i]), "started_unix": float(started[i]),
         "block": i // 16, "order_in_block": i % 16, "config_id": "c", **dict(zip(NAMES, on[i].tolist(), strict=True))}
        for i in range(n)
    ]  # fmt: skip
    return rows, on, us, started


def written(folder, rows):
    """A study of these runs."""
    text = '[study]\nname = "seed"\ncommand = ["true"]\n' + "".join(
        f'[factors.{name}]\nset.env = {{ {name.upper()} = "1" }}\n' for name in NAMES
    )
    (folder / "study.toml").write_text(text)
    with (folder / "runs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return Study.load(folder)


def test_the_linear_models_figures_are_least_squares(tmp_path):
    """As `lm(us ~ treatments + timestamp + cos + sin)` has them, by a solver of its own."""
    rows, on, us, started = seed_like(np.random.default_rng(1))
    found = collect(written(tmp_path, rows)).evidence
    hour = 2 * np.pi * (started % 86400) / 86400
    pairs = [on[:, [i]] * on[:, i + 1 :] for i in range(len(NAMES) - 1)]
    for model, columns in ((found.main_model, on), (found.pair_model, np.hstack([on, *pairs]))):
        x = np.column_stack([np.ones(len(us)), columns, started / started.max(), np.cos(hour), np.sin(hour)])
        beta = np.linalg.lstsq(x, us, rcond=None)[0]
        rest = us - x @ beta
        drawn = model.table["actual_us"] - model.table["predicted_us"]
        assert model.r_squared == pytest.approx(1 - rest @ rest / ((us - us.mean()) ** 2).sum(), rel=1e-6)
        assert (drawn**2).sum() == pytest.approx(rest @ rest, rel=1e-6)
        if model is found.main_model:
            told = found.coefficients.set_index("name")["mean_us"]
            assert told[list(NAMES)].to_numpy() == pytest.approx(beta[1:6], rel=1e-6)


def test_a_quadrant_far_from_the_model_is_not_thrown_away():
    claimed = 0
    for seed in range(8):
        rows, on, us, _ = seed_like(np.random.default_rng([2, seed]))
        factors = [Factor(name, "flag") for name in NAMES]
        made = fit(factors, frames.load(rows, factors), "us", pairs=False)
        assert (made.weights == 1).all()
        assert any("no_init_log=0 and lines_off=0" in note for note in made.notes)
        slope = np.linalg.lstsq(np.column_stack([np.ones(len(us)), on]), us, rcond=None)[0][1]
        effect = next(e for e in made.effects() if e.factor == "no_init_log")
        assert effect.estimate == pytest.approx(slope, rel=0.1)
        # A model that misses the main thing does not judge.
        claimed += sum(v.known for v in verdict.verdicts(made))
    assert claimed == 0


def flags_of(known):
    return [Factor(name, "flag") for name in known.levels]


def test_a_setting_that_doubles_a_tenth_of_its_runs_makes_a_difference():
    named = 0
    for seed in range(20):
        rng = np.random.default_rng([4, seed])
        known = truth.flags(rng, 8, pairs=2)
        known = truth.Truth(known.levels, {**known.effects, "f0": np.zeros(2)}, known.pairs)
        rows = truth.runs(known, 160, truth.Noise(sd=0.02, doubled=0.1), rng)
        factors = flags_of(known)
        told = {v.factor: v for v in verdict.verdicts(fit(factors, frames.load(rows, factors)), rope_pct=2.0)}
        assert told["f0"].word != "no practical difference"
        named += told["f0"].word == "slows some runs"
    assert named >= 5


def test_slow_runs_anywhere_accuse_few_settings():
    accused = 0
    for seed in range(20):
        rng = np.random.default_rng([6, seed])
        known = truth.flags(rng, 8, pairs=2)
        rows = truth.runs(known, 160, truth.Noise(outliers=0.05), rng)
        factors = flags_of(known)
        accused += any(v.word == "slows some runs" for v in verdict.verdicts(fit(factors, frames.load(rows, factors))))
    assert accused <= 3


def test_where_replicates_show_nothing_missing_what_they_cannot_show_is_named():
    """Of studies with an interaction of three factors that the F test does not find, none may exclude its size."""
    unseen = []
    for seed in range(12):
        rng = np.random.default_rng([8, seed])
        known = truth.threeway(rng, 5, pairs=2, size=0.06)
        factors = flags_of(known)
        lack = fit(factors, frames.load(truth.runs(known, 200, truth.Noise(), rng), factors), triples=False).lack_of_fit
        if not lack.significant:
            unseen.append(lack.unseen)
    assert len(unseen) >= 3
    assert min(unseen) > 0.06
