"""Settings that make runs fail: the truth is drawn here with numpy alone."""

from __future__ import annotations

import numpy as np
import pytest
from broadleaf_lab.cli import command as lab
from broadleaf_lab.spec.factors import Factor
from click.testing import CliRunner

pytest.importorskip("scipy")
from broadleaf_lab.analysis import failures

pytestmark = [pytest.mark.statistics, pytest.mark.timeout(300)]
FACTORS = tuple(Factor(name, "flag") for name in ("risky", "quick", "slow", "idle"))
STUDY = """
[study]
name = "risk"
command = ["true"]
score = "wall/n"
[factors.risky]
set.flag = "--risky"
[factors.quick]
set.flag = "--quick"
[factors.slow]
set.flag = "--slow"
[factors.idle]
kind = "placebo"
"""


def drawn(seed, chance, n=120, background=0.0, only_with=None):
    """Rows of a study: `risky` saves a fifth of the time and fails with this chance, `quick` saves a tenth."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        on = {f.name: bool(rng.integers(2)) for f in FACTORS}
        fails = rng.random() < background
        if on["risky"] and (only_with is None or on[only_with]):
            fails |= rng.random() < chance
        us = 1000 * 0.8 ** on["risky"] * 0.9 ** on["quick"] * 1.15 ** on["slow"] * np.exp(rng.normal(0, 0.03))
        status = ("timeout" if rng.random() < 0.5 else "failed") if fails else "ok"
        rows.append({
            "run_id": f"r{i:06d}", "status": status, "error": "exit code 3" if fails else "", "block": i // 15,
            "time_per_task_us": None if fails else us, "started_unix": 1.7e9 + i, "duration_s": 1.0,
            "config_id": "c", "session_id": "s1", "purpose": "design", "replicate": 0, "plan_row": i, "flags": "",
            **{name: int(level) for name, level in on.items()},
        })  # fmt: skip
    return rows


def written(directory, rows):
    from broadleaf_lab.spec.runs import RunsFile
    from broadleaf_lab.study import Study

    (directory / "study.toml").write_text(STUDY)
    study = Study.load(directory)
    names = [f.name for f in FACTORS]
    with RunsFile(study.runs_path, study.factors) as file:
        for row in rows:
            fixed = {k: v for k, v in row.items() if k not in (*names, "run_id")}
            file.append(fixed, {name: bool(row[name]) for name in names})
    return study


def call(*arguments):
    return CliRunner().invoke(lab, [str(argument) for argument in arguments])


@pytest.mark.parametrize("chance", [0.05, 0.4, 1.0])
def test_what_fails_more_is_never_called_a_help_and_its_first_words_say_so(chance, tmp_path):
    study = written(tmp_path, drawn(4, chance, n=200))
    assert sum(it.failed for it in [failures.of_study(study.runs_path, study.factors).of("risky", True).rate]) > 0
    done = call("analyse", tmp_path)
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    said = next(line for line in lines if line.startswith("risky "))
    assert said.startswith(("risky fails more: ", "risky failed more often here, by no more than chance allows: "))
    assert not any(line.startswith("risky helps") for line in lines)
    assert any(line.startswith("quick helps") for line in lines)
    assert "runs failed" in lines[0]


def test_a_study_without_failures_says_nothing_of_them(tmp_path):
    written(tmp_path, drawn(4, 0.0))
    done = call("analyse", tmp_path)
    assert "fail" not in done.output
    assert any(line.startswith("risky helps") for line in done.output.splitlines())


def test_a_setting_whose_runs_all_fail_has_a_verdict(tmp_path):
    written(tmp_path, drawn(4, 1.0))
    done = call("analyse", tmp_path)
    assert "(100.0 %, 95 % interval 9" in done.output
    assert "Never varied" not in done.output


@pytest.mark.parametrize(("chance", "background"), [(0.04, 0.0), (0.3, 0.0), (1.0, 0.0), (0.08, 0.06)])
def test_a_recommendation_says_first_what_fails_more(chance, background, tmp_path):
    from broadleaf_lab.report.recommend import recommend, sentences

    seen = 0
    for seed in range(6):
        (tmp_path / str(seed)).mkdir()
        study = written(tmp_path / str(seed), drawn(seed, chance, n=160, background=background))
        found = recommend(study)
        risky = failures.of_study(study.runs_path, study.factors).of("risky", True)
        if not risky.worse:
            continue
        seen += 1
        first = sentences(study, found)[0]
        assert "risky" in first
        assert "fail" in first
        # Only what is proven costs a proven help.
        assert found.config["risky"] == (not risky.proven)
        if risky.proven:
            assert "without risky, which fails more" in first
    assert seen >= 3


@pytest.mark.parametrize("chance", [0.0, 0.05, 0.4, 1.0])
def test_the_interval_of_the_rate_covers_and_innocents_stay_innocent(chance):
    covered = accused = recommended = 0
    sets = 40
    for seed in range(sets):
        found = failures.of_runs(drawn(seed, chance), FACTORS)
        risky = found.of("risky", True)
        covered += risky.rate.low <= chance <= risky.rate.high
        recommended += risky.rate.failed > 10 and not risky.word
        accused += any(it.word for it in found.levels if it.factor != "risky")
    assert covered >= 0.9 * sets
    assert recommended == 0
    assert accused <= 0.1 * sets


@pytest.mark.parametrize(("chance", "background"), [(0.05, 0.0), (0.1, 0.0), (0.3, 0.0), (0.1, 0.05)])
def test_beside_one_real_cause_eleven_innocent_settings_stay_innocent(chance, background):
    """By numpy alone: with few failures, all of them fall on one side of some innocent setting in most studies."""
    factors = [Factor(f"f{number}", "flag") for number in range(12)]
    accused = 0
    for seed in range(120):
        rng = np.random.default_rng([9, seed])
        on = rng.integers(0, 2, (120, 12))
        bad = (on[:, 0] * rng.random(120) > 1 - chance) | (rng.random(120) < background)
        rows = [
            {"status": "failed" if fails else "ok", **{f.name: int(v) for f, v in zip(factors, row, strict=True)}}
            for fails, row in zip(bad, on, strict=True)
        ]
        accused += any(it.word for it in failures.of_runs(rows, factors).levels if it.factor != "f0")
    assert accused <= 0.06 * 120


def test_failures_of_two_settings_together_name_both():
    found = failures.of_runs(drawn(1, 0.9, n=160, only_with="slow"), FACTORS)
    risky = found.of("risky", True)
    slow = found.of("slow", True)
    assert risky.proven
    assert slow.proven
    assert "with slow on" in risky.sentence or "with risky on" in slow.sentence
    assert not found.of("quick", True).word


def test_failures_by_chance_accuse_nobody():
    """Fisher's test at 5 % per setting: of 40 sets with four settings each, few are accused by name."""
    accused = sum(
        it.is_cause for seed in range(40) for it in failures.of_runs(drawn(seed, 0.0, background=0.1), FACTORS).levels
    )
    assert accused <= 6


def test_a_run_that_was_made_again_counts_once():
    rows = drawn(2, 0.0, n=30)
    again = [{**rows[0], "status": "failed", "time_per_task_us": None}, *rows]
    assert failures.of_runs(again, FACTORS).total.failed == 0
    assert failures.of_runs([*rows[1:], again[0]], FACTORS).total.failed == 1


def test_paths_leave_out_what_fails(tmp_path):
    written(tmp_path, drawn(4, 0.4, n=200))
    done = call("path", "greedy", "--study", tmp_path)
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[0].endswith("times are those of the other runs.")
    assert not any(line.startswith("risky  ") for line in done.output.splitlines())
    assert any(line.startswith("quick") for line in done.output.splitlines())
