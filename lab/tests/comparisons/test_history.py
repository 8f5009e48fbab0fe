"""History: change points, decisions on fresh runs, and a small repository measured for real."""

import json
import math
import subprocess
from dataclasses import dataclass

import numpy as np
import pytest
from broadleaf_lab.analysis.pairs.deltas import median_variance
from broadleaf_lab.cli import command as lab
from broadleaf_lab.comparisons import history_runs
from broadleaf_lab.comparisons.history import change_points, coarse_grid, pooled_sd, search
from broadleaf_lab.errors import AnalysisError, RunError
from broadleaf_lab.run.single import Quiet
from broadleaf_lab.study import Study
from click.testing import CliRunner

pytest.importorskip("ruptures")


@dataclass
class Commits:
    """1000 us per task; from each commit of `steps` on, slower by that log step."""

    steps: dict[int, float]
    rng: np.random.Generator
    noise: float = 0.02
    broken: frozenset[int] = frozenset()

    def __call__(self, commit, config, /, *, purpose, block):
        if commit in self.broken:
            return None
        slower = sum(step for at, step in self.steps.items() if commit >= at)
        return 1000 * math.exp(slower + self.rng.normal(0, self.noise))


def found(steps, seed=1, commits=60, points=None, **options):
    return search(
        commits, ["baseline"], Commits(steps, np.random.default_rng(seed), **options), points=points, seed=seed
    )


def test_grid_holds_both_ends_and_as_many_as_asked():
    assert coarse_grid(200, 50)[0] == 0
    assert coarse_grid(200, 50)[-1] == 199
    assert len(coarse_grid(200, 50)) == 50
    assert coarse_grid(5, 100) == [0, 1, 2, 3, 4]


def test_pooled_sd_is_that_within_groups():
    assert pooled_sd([[1.0, 3.0], [10.0, 12.0], [7.0]]) == pytest.approx(math.sqrt(2.0))
    with pytest.raises(AnalysisError, match="ran twice"):
        pooled_sd([[1.0], [2.0]])


def test_variance_of_the_median_agrees_with_simulation():
    rng = np.random.default_rng(3)
    for n in (2, 5, 7, 15):
        simulated = np.var(np.median(rng.normal(size=(40_000, n)), axis=1))
        assert median_variance(n) == pytest.approx(simulated, rel=0.06)


def test_change_points_without_noise():
    series = [0.0] * 10 + [1.0] * 5 + [0.5] * 7
    assert change_points(series, 0.01) == [10, 15]
    assert change_points([0.0] * 20, 0.01) == []


def test_steps_are_found_exactly():
    result = found({20: 0.05, 45: -0.08})
    assert [change.commit for change in result.changes] == [20, 45]
    for change, step in zip(result.changes, (0.05, -0.08), strict=True):
        assert change.ratio.low < math.exp(step) < change.ratio.high
        assert change.p < 0.05


def test_coarse_grid_is_bisected():
    result = found({137: 0.05}, commits=200, points=20)
    assert [change.commit for change in result.changes] == [137]
    assert result.runs < 200 * 5 / 2


def test_nothing_is_claimed_where_nothing_changed():
    assert all(not found({}, seed=seed).changes for seed in range(12))


def test_a_small_step_is_found_within_one_commit():
    near = [any(abs(c.commit - 31) <= 1 for c in found({31: 0.03}, seed=seed).changes) for seed in range(12)]
    assert sum(near) >= 11


def test_commits_that_cannot_run_are_left_out():
    result = found({20: 0.05}, broken=frozenset({5, 40}))
    assert [change.commit for change in result.changes] == [20]
    assert {point.commit for point in result.points} == set(range(60)) - {5, 40}


def test_a_history_that_never_runs_is_an_error():
    with pytest.raises(AnalysisError):
        found({}, commits=4, broken=frozenset(range(4)))


def git(folder, *words):
    subprocess.run(
        ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=e@x", *words], check=True, capture_output=True
    )


@pytest.fixture
def repository(tmp_path):
    """Six commits of a program that reports 100 us, and 150 from the fourth on."""
    source = tmp_path / "source"
    source.mkdir()
    git(tmp_path, "init", "-q", "source")
    for number in range(6):
        time_us = 100 if number < 3 else 150
        (source / "bench.py").write_text(
            f"x = {number}\ncount = open({str(tmp_path / 'count')!r}, 'a+')\ncount.write('.')\n"
            # A spread of 1 % that is the same whenever the test is run: chance would find changes now and then.
            f"noise = count.tell() * 0.618034 % 1\nprint('{{\"t_us\": %f}}' % ({time_us} + noise))\n"
        )
        git(source, "add", ".")
        git(source, "commit", "-q", "-m", f"number {number}")
    (source / "study.toml").write_text(
        '[study]\ncommand = ["{python}", "bench.py"]\nscore = "json:t_us"\n[study.calibrate]\nn_tasks = 1\n'
        '[factors.placebo]\nkind = "placebo"\n'
    )
    return source


def test_a_repository_is_searched(repository):
    study = Study.load(repository)
    measured = history_runs.measure_history(study, "HEAD~5..HEAD", replicates=2, quiet=Quiet(max_wait_s=0))
    assert [commit.subject for commit in measured.commits] == [f"number {i}" for i in range(6)]
    assert [measured.commits[change.commit].subject for change in measured.history.changes] == ["number 3"]
    assert measured.history.changes[0].ratio.estimate == pytest.approx(1.5, rel=0.02)
    told = json.loads(history_runs.write(measured, repository).read_text())
    assert told["changes"][0]["commit"] == 3
    assert [commit["sha"] for commit in told["commits"]] == [commit.sha for commit in measured.commits]
    medians = [point["median_us"] for point in told["points"]]
    assert medians[5] / medians[0] == pytest.approx(1.5, rel=0.02)


def test_what_is_no_range_is_refused(repository):
    for span in ("HEAD", "..HEAD", "HEAD..HEAD", "HEAD...HEAD~1"):
        with pytest.raises(RunError):
            history_runs.commits_of(repository, span)


def test_configurations_have_names(repository):
    study = Study.load(repository)
    assert history_runs.named_configs(study, ["baseline", "all-on", "placebo"]) == {
        "baseline": {"placebo": False},
        "all-on": {"placebo": True},
        "placebo": {"placebo": True},
    }
    with pytest.raises(RunError, match="no best configuration"):
        history_runs.named_configs(study, ["best"])


def test_the_command_tells_what_it_found(repository):
    arguments = ["history", "HEAD~5..HEAD", "-s", str(repository), "--replicates", "2", "--max-wait", "0"]
    done = CliRunner().invoke(lab, arguments)
    assert done.exit_code == 0, done.output
    assert "made baseline slower" in done.stdout
    assert "number 3" in done.stdout
    assert (repository / "history.json").is_file()


def test_a_configuration_that_never_runs_stops_the_history_after_a_round():
    made = []

    def measure(commit, config, *, purpose, block):
        made.append(config)
        return 100.0 if config == "good" else None

    with pytest.raises(AnalysisError, match="none of 6 runs in the first round succeeded"):
        search(6, ["good", "bad"], measure, replicates=5)
    assert len(made) == 12
