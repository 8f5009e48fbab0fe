"""`broadleaf-lab deltas`, `analyse` and `path`, and the tables they write."""

import csv
import json

import numpy as np
import pytest
from broadleaf_lab.analysis import frame as frames
from broadleaf_lab.analysis.model.fit import fit
from broadleaf_lab.analysis.paths import path as paths
from broadleaf_lab.analysis.paths import remeasure
from broadleaf_lab.cli import command as lab
from broadleaf_lab.designs.plan import Plan
from broadleaf_lab.errors import AnalysisError
from broadleaf_lab.spec.runs import RunsFile
from broadleaf_lab.study import Study
from click.testing import CliRunner
from synthetic.system import simulate, two_level

FILE = """
[study]
name = "small"
command = ["true"]
score = "wall/n"
[factors.log_off]
set.config = "logging"
tier = 3
loses = "no logs"
[factors.lines_off]
set.patch = "lines.diff"
tier = 4
[factors.pin]
set.wrapper = "pin.sh"
[factors.nothing]
set.env = { NOTHING = "1" }
[constraints]
[design]
kind = "KIND"
paths = PATHS
replicates = REPLICATES
seed = 5
"""
SYSTEM = two_level(
    {"log_off": -0.6, "lines_off": -0.5, "pin": -0.15, "nothing": 0.0},
    {("log_off", "lines_off"): 0.4, ("log_off", "pin"): 0.2},
    noise=0.02,
    base_us=1000.0,
)


def written(directory, kind="full", n_paths=8, replicates=2, seed=3):
    """A study whose plan was run on the synthetic system."""
    directory.mkdir(exist_ok=True)
    text = FILE.replace("KIND", kind).replace("PATHS", str(n_paths)).replace("REPLICATES", str(replicates))
    (directory / "study.toml").write_text(text)
    study = Study.load(directory)
    plan = Plan.make(study)
    plan.save(directory / "plan.json")
    run(study, plan, seed)
    return study


def run(study, plan, seed, first_row=0):
    """Appends the runs of the plan's rows from one on."""
    with RunsFile(study.runs_path, study.factors) as file:
        for planned, row in zip(plan.rows, simulate(plan, SYSTEM, seed), strict=True):
            if planned.row >= first_row:
                file.append(row, planned.config)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return written(tmp_path_factory.mktemp("small") / "study")


def call(*arguments):
    return CliRunner().invoke(lab, [str(argument) for argument in arguments])


def table(path, separator=","):
    with open(path, newline="") as file:
        return list(csv.DictReader(file, delimiter=separator))


def test_analyse_says_verdicts_first(study):
    done = call("analyse", study.directory)
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert any(line.startswith("log_off helps") for line in lines[:4])
    assert any(line.startswith("pin depends on log_off") for line in lines[:4])
    assert "either-or" in done.output
    assert "sign-flip" in done.output
    assert "Effects are most nearly additive" in done.output
    effects = table(study.directory / "effects.csv")
    assert {row["context"] for row in effects} == {"average", "baseline", "best"}
    average = {row["factor"]: float(row["estimate"]) for row in effects if row["context"] == "average"}
    assert average["log_off"] == pytest.approx(SYSTEM.average_effect("log_off"), abs=0.05)
    assert len(table(study.directory / "interactions.csv")) == 6


def test_analyse_as_json(study):
    done = call("analyse", study.directory, "--json", "--scale", "auto")
    found = json.loads(done.output)
    assert found["scale"] == found["scale_answer"]["best"]
    found = json.loads(call("analyse", study.directory, "--json").output)
    assert found["scale"] == "log"
    assert {v["factor"]: v["word"] for v in found["verdicts"]}["pin"] == "depends on log_off"
    assert found["precision"]["reached"] in (True, False)
    assert found["lack_of_fit"]["p"] > 0
    assert {t["name"] for t in found["drift"]} >= {"time"}
    kinds = {(i["a"], i["b"]): i["kind"] for i in found["interactions"]}
    assert kinds["log_off", "lines_off"] == "either-or"


def test_analyse_can_leave_things_out(study):
    plain = json.loads(call("analyse", study.directory, "--json", "--no-pairs", "--no-blocks", "--no-drift").output)
    assert plain["interactions"] == []
    assert plain["blocks"] == "none"
    assert plain["drift"] == []
    kept = json.loads(call("analyse", study.directory, "--json", "--where", "not log_off").output)
    assert any("Never varied, so nothing is known about: log_off" in note for note in kept["notes"])
    words = {v["factor"]: v["word"] for v in kept["verdicts"]}
    assert words["pin"] == "helps"


def test_deltas_shows_means_and_writes_the_table(study):
    done = call("deltas", study.directory)
    assert done.exit_code == 0, done.output
    rows = table(study.directory / "deltas.csv")
    assert f"{len(rows)} deltas" in done.output
    assert {row["treatment"] for row in rows} == {"log_off", "lines_off", "pin", "nothing"}
    assert len([row for row in rows if row["treatment"] == "pin"]) == 8
    done = call("deltas", study.directory, "--where", "not log_off", "--to", study.directory / "d.csv")
    rows = table(study.directory / "d.csv")
    assert {row["log_off"] for row in rows} == {"0"}
    assert "No pair X, X + treatment for log_off" in done.output
    crossed = call("deltas", study.directory, "--pairing", "cross", "--json", "--to", study.directory / "c.csv")
    found = json.loads(crossed.output)
    assert "too narrow" in found["remarks"][0]
    assert {row["treatment"] for row in found["means"]} == {"log_off", "lines_off", "pin", "nothing"}


def test_deltas_of_a_design_without_pairs_say_so(tmp_path):
    study = written(tmp_path / "fraction", kind="full", n_paths=0, replicates=1)
    # Every second configuration, by parity: no two of them differ in one factor only.
    rows = table(study.runs_path)
    names = [f.name for f in study.factors]
    kept = [row for row in rows if sum(int(row[name]) for name in names) % 2 == 0]
    with open(study.runs_path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(kept)
    done = call("deltas", study.directory)
    assert done.exit_code == 0
    assert "no pair X, X + treatment at all: 0 deltas" in done.output
    assert "`paths = 40` or `edges = 16` to [design]" in done.output
    assert table(study.directory / "deltas.csv") == []


def test_a_condition_that_cannot_be_read_is_an_error(study):
    done = call("deltas", study.directory, "--where", "nonsense > 1")
    assert done.exit_code == 1
    assert done.stderr.startswith("error: ")
    assert "nonsense" in done.stderr


def test_paths_on_the_terminal(study):
    greedy = call("path", "--study", study.directory)
    assert greedy.exit_code == 0, greedy.output
    assert "tasks/s" in greedy.output
    assert "as the model predicts" in greedy.output
    rows = table(study.directory / "paths.csv")
    assert [row["step"] for row in rows] == [str(i + 1) for i in range(len(rows))]
    assert rows[0]["factor"] == "log_off"
    vectors = table(study.directory / "path_vectors.csv")
    assert len(vectors) == 8
    nice = json.loads(call("path", "nice", "--study", study.directory, "--json").output)
    assert [step["tier"] for step in nice["us"]["steps"]] == sorted(step["tier"] for step in nice["us"]["steps"])
    shares = json.loads(call("path", "shapley", "--study", study.directory, "--json").output)
    for unit in ("us", "rate"):
        total = sum(step["change"] for step in shares[unit]["steps"])
        assert total == pytest.approx(shares[unit]["end"] - shares[unit]["start"], rel=1e-12)
    mine = json.loads(call("path", "pin,log_off", "--study", study.directory, "--json").output)
    assert [step["factor"] for step in mine["us"]["steps"]] == ["pin", "log_off"]
    unknown = call("path", "nonsense", "--study", study.directory)
    assert unknown.exit_code != 0


def test_a_path_is_planned_again_and_then_shown_as_measured(tmp_path):
    study = written(tmp_path / "again")
    before = Plan.load(study.directory / "plan.json")
    done = call("path", "greedy", "--study", study.directory, "--again", "4")
    assert done.exit_code == 0, done.output
    after = Plan.load(study.directory / "plan.json")
    assert after.rows[: len(before.rows)] == before.rows
    added = after.rows[len(before.rows) :]
    n_nodes = len(added) // 4
    assert f"{len(added)} runs added" in done.output
    for replicate in range(4):
        block = [row for row in added if row.replicate == replicate]
        assert len({row.block for row in block}) == 1
        assert sorted(row.path_step for row in block) == list(range(n_nodes))
    orders = [[row.path_step for row in added if row.replicate == r] for r in range(4)]
    assert len({tuple(order) for order in orders}) > 1
    # Before they are made, the command says so.
    early = call("path", "greedy", "--study", study.directory)
    assert early.exit_code == 1
    assert early.stderr.startswith("error: ")
    run(study, after, 9, first_row=len(before.rows))
    shown = call("path", "greedy", "--study", study.directory)
    assert "measured again" in shown.output
    runs = frames.load(study.runs_path, study.factors)
    path = remeasure.measured_again(after, runs, study.factors, "greedy", "log")
    assert path is not None
    config = {f.name: False for f in study.factors}
    for step in path.order:
        truth = SYSTEM.contrast(step.factor, config)
        assert step.change == pytest.approx(truth, abs=0.08)
        config[step.factor] = True
    assert remeasure.measured_again(after, runs, study.factors, "nice") is None
    # These steps are not a sample of random orders.
    assert len(paths.path_vectors(runs, study.factors).path_ids) == 8


def test_main_effects_are_told_where_pairs_cannot_be(tmp_path):
    from broadleaf_lab.analysis.summary import summarise

    study = written(tmp_path / "few", kind="full", n_paths=0, replicates=1)
    runs = frames.load(study.runs_path, study.factors).iloc[:12]
    found = summarise(study.factors, runs)
    # Tested before the background of all others, and none of them known.
    assert set(found.fit.coding.pairs) == found.fit.background
    assert all(pair.q > 0.05 for pair in found.interactions)
    assert any(note.startswith("Too few runs to fit all 6 pairs") for note in found.notes)
    with pytest.raises(AnalysisError, match="same configuration"):
        summarise(study.factors, runs[runs["config_id"] == runs["config_id"][0]])


def test_an_infinite_number_is_null_in_json(study):
    from broadleaf_lab.analysis.summary import summarise

    runs = frames.load(study.runs_path, study.factors)
    text = json.dumps(summarise(study.factors, runs, "us").as_dict(), allow_nan=False)
    assert json.loads(text)["scale"] == "us"
    assert np.isfinite(fit(study.factors, runs, "us").sigma)
