"""A tuning with runs that fail: what fails more often never wins silently."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("optuna")
pytest.importorskip("sklearn")

from broadleaf_lab.cli import command as lab
from broadleaf_lab.spec.factors import Factor
from broadleaf_lab.tune import outcome
from broadleaf_lab.tune.meter import Budget, Trial
from broadleaf_lab.tune.tuner import tune
from synthetic.system import SyntheticSystem

pytestmark = pytest.mark.timeout(120)
FACTORS = (Factor("crash", "flag"), Factor("good", "flag"), Factor("idle", "flag"), Factor("lazy", "flag"))


def system():
    return SyntheticSystem(FACTORS, 1000.0, {"crash": -0.4, "good": -0.15}, noise=0.02)


def tuned(share, seed, fails=lambda config: config["crash"], **options):
    """A tuning where `share` of the runs with the fastest setting fail."""
    rng = np.random.default_rng(seed)
    world = system()

    def evaluate(config, /, *, purpose, block):
        return None if fails(config) and rng.random() < share else world.time_us(config, rng, 0.0)

    study = world.study()
    found = tune(study, evaluate, Budget(runs=140), seed=seed, algorithm="random", **options)
    return found, outcome.sentences(study, found)


@pytest.mark.parametrize("share", [0.4, 1.0])
def test_what_fails_more_is_left_out_and_the_first_sentence_says_so(share):
    for seed in range(3):
        found, lines = tuned(share, seed)
        assert not found.config["crash"]
        assert found.config["good"]
        assert "without crash, which fails more (" in lines[0]


def test_what_fails_seldom_is_not_recommended_without_a_word():
    for seed in range(12):
        found, lines = tuned(0.05, seed)
        failed = sum(trial.time_us is None for trial in found.trials)
        if failed and found.config["crash"]:
            assert "crash may fail more (" in lines[0]
        if found.config["crash"]:
            # At least all of its own runs were good, or the default's were no better.
            assert not found.winner_failing.suspect


def test_a_winner_whose_own_runs_fail_is_not_recommended():
    # It fails beside `good` alone, and only where it would win.
    found, lines = tuned(0.5, 3, fails=lambda config: config["crash"] and config["good"])
    assert not (found.config["crash"] and found.config["good"])
    assert "fail" in lines[0]


def test_without_failures_nothing_is_said_of_them():
    found, lines = tuned(0.0, 1)
    assert found.config["crash"]
    assert not found.failing
    assert not any("fail" in line for line in lines)


def test_failures_of_earlier_runs_count():
    from broadleaf_lab.spec.factors import config_id

    study = system().study()
    known = []
    for number in range(40):
        config = {**study.baseline, "crash": number % 2 == 0}
        known.append(Trial(config, config_id(config, FACTORS), None if config["crash"] else 1000.0, "design", 1))
    found, lines = tuned(0.0, 1, known=known)
    assert not found.config["crash"]
    assert "without crash, which fails more (20 of 20 runs, 0 of " in lines[0]


STUDY = """
[study]
callable = "bench:run"
[study.calibrate]
n_tasks = 10
[factors.fast]
set.keyword = "fast"
[factors.placebo]
kind = "placebo"
"""


def test_the_command_tells_by_its_exit_code_that_nothing_could_be_run(tmp_path):
    (tmp_path / "study.toml").write_text(STUDY)
    (tmp_path / "bench.py").write_text(
        "import pathlib, random\n"
        "def run(fast):\n"
        "    calibrated = pathlib.Path(__file__).with_name('study.lock.toml').exists()\n"
        "    assert not calibrated, 'broken since'\n"
        "    return 1e-4 * random.gauss(1, 0.02)\n"
    )
    done = CliRunner().invoke(lab, ["tune", str(tmp_path), "--runs", "80", "--max-wait", "0"])
    assert done.exit_code == 3, done.output
    assert "6 of 6 runs of the default failed" in done.stderr


def test_the_command_prints_what_it_cannot_write(tmp_path):
    (tmp_path / "study.toml").write_text(STUDY)
    (tmp_path / "bench.py").write_text(
        "import random\ndef run(fast):\n    return 1e-6 * (50 if fast else 100) * random.gauss(1, 0.02)\n"
    )
    (tmp_path / "file").write_text("")
    arguments = ["tune", str(tmp_path), "--runs", "80", "--algorithm", "random", "--max-wait", "0", "--json",
                 "--output", str(tmp_path / "file" / "below")]  # fmt: skip
    done = CliRunner().invoke(lab, arguments)
    assert done.exit_code == 3
    assert json.loads(done.stdout)["recommended"]["fast"] == 1
    assert "cannot be written" in done.stderr


@pytest.mark.parametrize("runs", [80, 140])
def test_ties_go_to_fewer_and_nicer_settings_and_no_placebo_is_recommended(runs):
    """Two settings save the same work: either is enough, and one of them gives nothing up."""
    factors = (
        Factor("log_off", "flag", tier=3, loses="the log"),
        Factor("log_lazy", "flag"),
        Factor("good", "flag"),
        Factor("placebo", "placebo"),
    )
    world = SyntheticSystem(
        factors, 1000.0, {"log_off": -0.5, "log_lazy": -0.5, "good": -0.15}, {("log_off", "log_lazy"): 0.5}, noise=0.01
    )
    both = 0
    for seed in range(4):
        rng = np.random.default_rng([30, seed])
        found = tune(world.study(), lambda config, /, *, purpose, block, rng=rng: world.time_us(config, rng, 0.0),
                     Budget(runs=runs), seed=seed)  # fmt: skip
        assert found.config["good"]
        assert found.config["log_off"] or found.config["log_lazy"]
        assert not found.config["placebo"]
        both += found.config["log_off"] and found.config["log_lazy"]
    assert both <= 1
