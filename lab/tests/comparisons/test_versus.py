"""`broadleaf-lab vs`: two commands against each other. A fake run reports the times, so that no machine's load matters;
processes are started only where nothing is timed.
"""

from __future__ import annotations

import json
import random
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from broadleaf_lab.cli import command as lab
from broadleaf_lab.comparisons.versus import commands as making
from broadleaf_lab.comparisons.versus.commands import Commands, Hooks, words_of
from broadleaf_lab.comparisons.versus.duel import duel
from broadleaf_lab.errors import RunError
from broadleaf_lab.run.process import Finished
from click.testing import CliRunner

PYTHON = shlex.quote(sys.executable)

pytestmark = pytest.mark.timeout(300)


class Told:
    """Replaces `run_command`: a takes 0.1 s, b as much more as `ratio` says, both disturbed together and separately."""

    def __init__(self, ratio=1.0, noise=0.02, seed=1, fails=0.0, wall=None):
        self.ratio, self.noise, self.fails, self.wall = ratio, noise, fails, wall
        self.rng = random.Random(seed)
        self.environments = []

    def __call__(self, command, *, env, **_):
        self.environments.append((command[0], env["PYTHONHASHSEED"], len(env["LAB_PADDING"])))
        cpu_s = 0.1 * (self.ratio if command[0] == "b" else 1.0) * self.rng.lognormvariate(0, self.noise)
        if command[0] == "b" and len(self.environments) > 2 and self.rng.random() < self.fails:
            return Finished(3, cpu_s, stderr="it broke")
        wall = self.wall or cpu_s
        return Finished(0, wall, cpu_s=cpu_s, main_cpu_s=cpu_s, stdout="")


def judged(monkeypatch, told, **options):
    monkeypatch.setattr(making, "run_command", told)
    return duel(Commands("a", "b", seed=1, side_by_side=False), max_pairs=300, budget_s=250, **options)


@pytest.mark.parametrize(
    ("ratio", "word", "code"),
    [(1.02, "slower", 1), (0.98, "faster", 0), (1.0, "no practical difference", 0)],
)
def test_two_percent_are_found_and_nothing_is_not(monkeypatch, ratio, word, code):
    for seed in range(10):
        found = judged(monkeypatch, Told(ratio, seed=seed))
        assert (found.word, found.exit_code) == (word, code)
        assert found.interval.low <= found.interval.estimate <= found.interval.high


def test_what_cannot_be_told_is_undecided(monkeypatch):
    found = judged(monkeypatch, Told(1.01, noise=0.2))
    assert (found.word, found.exit_code) == ("undecided", 4)
    assert found.sentences[0].startswith("Undecided: ")
    assert len(found.pairs) == 300


def test_a_clear_case_ends_early(monkeypatch):
    assert len(judged(monkeypatch, Told(2.0)).pairs) < 20


def test_looking_often_does_not_make_false_claims(monkeypatch):
    wrong = sum(
        judged(monkeypatch, Told(1.0, noise=0.05, seed=seed), rope_pct=1e-6).word in ("faster", "slower")
        for seed in range(60)
    )
    assert wrong <= 8


def test_a_faster_command_that_fails_is_not_recommended(monkeypatch):
    found = judged(monkeypatch, Told(0.7, fails=0.4))
    assert (found.word, found.exit_code) == ("fails more", 1)
    assert found.sentences[0].startswith("B fails more than A: ")
    assert "it broke" in found.sentences[0]
    assert "B is faster than A" in found.sentences[1]


def test_both_runs_of_a_pair_draw_the_same_and_pairs_differ(monkeypatch):
    told = Told()
    judged(monkeypatch, told)
    drawn = [environment[1:] for environment in told.environments[2:]]
    assert all(drawn[i] == drawn[i + 1] for i in range(0, len(drawn) - 1, 2))
    assert len(set(drawn)) > len(drawn) // 3
    firsts = [environment[0] for environment in told.environments[2::2]]
    assert {"a", "b"} <= set(firsts)


def test_what_waits_is_measured_by_the_clock(monkeypatch):
    found = judged(monkeypatch, Told(wall=1.0))
    assert found.clock == "wall"
    assert judged(monkeypatch, Told()).clock == "cpu"


def test_load_that_makes_computing_look_like_waiting_once_does_not_change_the_clock(monkeypatch):
    class Disturbed(Told):
        def __call__(self, command, **options):
            finished = super().__call__(command, **options)
            late = len(self.environments) in (1, 3)
            return replace(finished, duration_s=5 * finished.duration_s) if late else finished

    assert judged(monkeypatch, Disturbed()).clock == "cpu"


def test_a_watcher_that_waits_for_a_processor_does_not_make_computing_look_like_waiting(monkeypatch):
    class Starved(Told):
        def __call__(self, command, **options):
            finished = super().__call__(command, **options)
            return replace(
                finished, duration_s=4 * finished.duration_s, queued_s=finished.cpu_s, late_s=2 * finished.cpu_s
            )

    assert judged(monkeypatch, Starved()).clock == "cpu"


def test_a_shell_is_started_only_where_it_is_needed():
    assert words_of("sort -n 'a b'") == ["sort", "-n", "a b"]
    assert words_of("sort a | uniq")[:2] == ["/bin/sh", "-c"]
    assert words_of("python -c 'print(1 * 2)'") == ["python", "-c", "print(1 * 2)"]
    assert words_of("FAST=1 true")[:2] == ["/bin/sh", "-c"]
    for wrong in ("", "echo 'open"):
        with pytest.raises(RunError):
            words_of(wrong)


def test_hooks_run_around_every_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "program.py"
    # It can only run between its hooks.
    script.write_text("import os\nos.stat('ready')\nopen('runs', 'a').write('.')\n")
    hooks = Hooks(prepare="touch ready", cleanup="rm ready")
    commands = Commands(*[f"{PYTHON} -S program.py"] * 2, hooks=hooks, seed=1)
    found = duel(commands, max_pairs=5, budget_s=250)
    assert found.failed == (0, 0)
    assert not commands.side_by_side
    assert 2 <= Path("runs").stat().st_size - 2 * len(found.pairs) <= 8, "the looks beforehand are runs too"
    assert not Path("ready").exists()


def test_side_by_side_both_are_on_one_processor(tmp_path):
    script = tmp_path / "one.py"
    script.write_text("import os, sys\nsys.exit(len(os.sched_getaffinity(0)) != 1)\n")
    commands = Commands(*[f"{PYTHON} -S {script}"] * 2, side_by_side=True, clock="cpu", seed=1)
    assert all(p.a_s and p.b_s for p in (commands.pair(making.processors()[0]) for _ in range(2)))


def test_the_commands_exit_codes(tmp_path):
    def call(*arguments):
        return CliRunner().invoke(lab, ["vs", *map(str, arguments)])

    broken = call("true", "sh -c 'echo [no] disk >&2; exit 4'")
    assert broken.exit_code == 3
    assert "[no] disk" in broken.output
    assert call("true", "true", "--prepare", "false").exit_code == 3
    assert call("true").exit_code == 2
    done = call("sleep 0.01", "sleep 1", "--max-pairs", 10, "--json")
    assert done.exit_code == 1, done.output
    found = json.loads(done.output.splitlines()[-1])
    assert found["verdict"] == "slower"
    assert found["clock"] == "wall"
