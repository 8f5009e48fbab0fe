"""Small promises of the laboratory's commands: what they write, what they print, and how they read a score."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from broadleaf_lab.cli import command as lab
from broadleaf_lab.run.outcome import measure
from broadleaf_lab.run.process import Finished
from broadleaf_lab.spec.factors import Factor
from broadleaf_lab.spec.runs import RunsFile
from broadleaf_lab.study import Study
from click.testing import CliRunner

pytest.importorskip("scipy")
from broadleaf_lab.analysis import frame as frames
from broadleaf_lab.analysis.convergence import Precision
from broadleaf_lab.analysis.model.fit import fit

pytestmark = pytest.mark.timeout(300)


def rows_of(names, n, log_us, seed=1, noise=0.02):
    """Runs of random settings; `log_us` returns the logarithm of a configuration's time."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        on = {name: bool(rng.integers(2)) for name in names}
        us = float(np.exp(log_us(on, i) + rng.normal(0, noise)))
        when = {"started_unix": 1.7e9 + 10 * i, "block": i // 15, "duration_s": 1.0, "session_id": "s1"}
        rows.append(
            (on, {"status": "ok", "time_per_task_us": us, "purpose": "design", "flags": "", "error": "", **when})
        )
    return rows


def written(directory, names, rows):
    factors = "".join(f'[factors.{name}]\nset.flag = "--{name}"\n' for name in names)
    (directory / "study.toml").write_text(f'[study]\nname = "s"\ncommand = ["true"]\nscore = "wall/n"\n{factors}')
    study = Study.load(directory)
    with RunsFile(study.runs_path, study.factors) as file:
        for on, row in rows:
            file.append(row, on)
    return study


def call(*arguments):
    return CliRunner().invoke(lab, [str(argument) for argument in arguments])


def test_runs_left_out_replace_no_table_of_all_runs(tmp_path):
    written(tmp_path, "ab", rows_of("ab", 60, lambda on, _: 5 - 0.3 * on["a"]))
    assert call("deltas", tmp_path).exit_code == call("analyse", tmp_path).exit_code == 0
    before = {name: (tmp_path / name).read_text() for name in ("deltas.csv", "effects.csv")}
    assert call("deltas", tmp_path, "--where", "not a").exit_code == 0
    assert call("analyse", tmp_path, "--where", "not a").exit_code == 0
    assert {name: (tmp_path / name).read_text() for name in before} == before
    asked = call("deltas", tmp_path, "--where", "not a", "--to", tmp_path / "part.csv")
    assert asked.exit_code == 0
    with open(tmp_path / "part.csv", newline="") as file:
        assert {row["treatment"] for row in csv.DictReader(file)} == {"b"}


@pytest.mark.parametrize("command", ["analyse", "deltas"])
def test_results_are_shown_where_they_cannot_be_written(tmp_path, monkeypatch, command):
    written(tmp_path, "ab", rows_of("ab", 60, lambda on, _: 5 - 0.3 * on["a"]))

    def full(*_, **__):
        raise OSError(28, "No space left on device", str(tmp_path / "effects.csv"))

    monkeypatch.setattr("broadleaf_lab.spec.runs.replace_file", full)
    monkeypatch.setattr("broadleaf_lab.analysis.pairs.deltas.save", full)
    done = call(command, tmp_path)
    assert done.exit_code == 1
    assert done.stderr == f"error: {tmp_path}/effects.csv: No space left on device\n"
    assert "a helps" in done.output or "mean change per task" in done.output


def test_drift_is_told_in_percent_and_only_where_there_is_some(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "none").mkdir()
    written(tmp_path / "one", "ab", rows_of("ab", 90, lambda on, i: 5 - 0.3 * on["a"] + 0.2 * i / 90))
    written(tmp_path / "none", "ab", rows_of("ab", 90, lambda on, _: 5 - 0.3 * on["a"], seed=3))
    said = call("analyse", tmp_path / "one", "--no-blocks").output
    drift = next(line for line in said.splitlines() if line.startswith("Drift "))
    assert "% time per task (" in drift
    assert "log ratio" not in drift
    assert "Drift " not in call("analyse", tmp_path / "none", "--no-blocks").output


@pytest.mark.parametrize(("rest", "ending"), [(0.0, "either one is enough."), (-0.6, "not the reverse.")])
def test_either_one_is_enough_only_where_both_are(rest, ending):
    """b saves 0.2 alone and nothing beside a; a saves 0.2 + rest more. If a does more than b, b is no substitute."""

    def log_us(on, _):
        return 6 + (-0.2 + rest) * on["a"] - 0.2 * on["b"] + 0.2 * (on["a"] and on["b"])

    factors = tuple(Factor(name, "flag") for name in "ab")
    rows = [{**row, **{k: int(v) for k, v in on.items()}} for on, row in rows_of("ab", 120, log_us)]
    (pair,) = fit(factors, frames.load(rows, factors)).interactions()
    assert pair.kind == "either-or"
    assert pair.sentence.endswith(ending)


def test_a_number_of_runs_beyond_reach_becomes_advice():
    near = Precision(False, 0.1, 0.05, 0.0, 0.1, "a", "", 300, 100)
    assert near.sentence.endswith("about 300 more runs.")
    far = Precision(False, 0.1, 0.005, 0.0, 0.1, "a", "", 1_417_412, 100)
    assert "1417412" not in far.sentence
    assert "quieten the machine" in far.sentence


@pytest.mark.parametrize(
    ("score", "us"),
    [("json:seconds", 2e6), ("json:wall_seconds", 2e6), ("json:time_ms", 2e3), ("json:class", 2.0),
     (r"regex:took (?P<t>[0-9.]+)", 2.0)],
)  # fmt: skip
def test_units_and_the_last_of_several_results(score, us):
    """Earlier output may be progress: JSON and regular expressions both use the last match."""
    key = score.partition(":")[2]
    lines = [f'{{"{key}": {x}}}' for x in (9, 2)] if score.startswith("json") else ["took 9", "took 2"]
    study = Study(name="s", factors=(), command=("true",), score=score)
    row = measure(study, Finished(0, 1.0, stdout="\n".join(lines)), n_tasks=1)
    assert (row["status"], row["time_per_task_us"]) == ("ok", us)


def test_the_method_and_the_command_fit_the_same_model(tmp_path):
    # Microseconds that add up: the likeliest scale is not the command's default.
    study = written(
        tmp_path, "ab", rows_of("ab", 60, lambda on, _: float(np.log(1000 - 500 * on["a"] - 300 * on["b"])))
    )
    assert study.fit("auto").scale != "log"
    assert study.fit().scale == "log"


def test_the_report_of_a_study_with_few_runs_is_made(tmp_path):
    """If the model used only some of the runs, the figure of drift still has one row per run."""
    names = [f"f{i}" for i in range(9)]

    def log_us(on, _):
        return 5 - 0.3 * on["f0"] - 0.3 * on["f1"] + 0.5 * (on["f0"] and on["f1"])

    study = written(tmp_path, names, rows_of(names, 60, log_us, noise=0.03))
    from broadleaf_lab.report.collect import collect

    found = collect(study)
    assert found.evidence.drift is not None
    assert set(found.evidence.drift.columns) >= {"control", "residual_log"}


def test_a_gates_comment_is_markdown_that_names_cannot_break():
    from broadleaf_lab.analysis.pairs.intervals import Interval
    from broadleaf_lab.comparisons.compare import Judgement
    from broadleaf_lab.comparisons.gate import Outcome, markdown

    said = "x|y against main: hinders; +5.0 % time."
    it = Interval(0.05, 0.04, 0.06, 12)
    outcome = Outcome(Judgement("hinders", False), said, it, "a" * 40, "b" * 40, 12, 60.0, 2)
    text = markdown(outcome, "speed", "main", "x|y", 1.0)
    assert text.startswith("### :x: speed: hinders\n")
    assert "2 pairs failed" in text
    row = next(line for line in text.splitlines() if line.startswith("| main"))
    assert row.replace("\\|", "").count("|") == 6
    assert "+5.1 %" in row
