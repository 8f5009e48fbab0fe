"""Comparing two versions: verdicts and exit codes on programs whose time is known."""

import math
import random
import subprocess
import sys
from pathlib import Path

import pytest
from broadleaf_lab.analysis.pairs.intervals import Interval
from broadleaf_lab.cli.comparisons.compare import command as compare_command
from broadleaf_lab.cli.comparisons.gate import command as gate_command
from broadleaf_lab.comparisons.compare import (
    Judgement,
    PairFailures,
    Side,
    compare,
    conclude,
    judge,
    more_pairs,
    parse_settings,
    sentence,
    side,
)
from broadleaf_lab.comparisons.gate import MAX_PAIRS, decide
from broadleaf_lab.comparisons.versus.commands import Pair
from broadleaf_lab.comparisons.versus.duel import measured
from broadleaf_lab.errors import RunError
from broadleaf_lab.run.environments.environment import Variant
from broadleaf_lab.run.single import Quiet
from broadleaf_lab.spec.factors import Factor
from broadleaf_lab.spec.runs import read_runs
from broadleaf_lab.spec.study import Calibrate
from broadleaf_lab.study import Study
from click.testing import CliRunner

AT_ONCE = Quiet(max_wait_s=0)

# Reports a time instead of taking it, and its noise is the same in every test run: nothing here depends on the machine.
PROGRAM = """
import json, os, random, sys
time_us = 100.0
calls = os.path.getsize("calls") if os.path.exists("calls") else 0
open("calls", "a").write(".")
rng = random.Random(f"{time_us} {calls}")
turbo, log = "--turbo" in sys.argv, "--log" in sys.argv
if turbo:
    time_us *= 1.5 if log else 0.5
print(json.dumps({"time_per_task_us": time_us * rng.lognormvariate(0, 0.004)}))
"""


def git(root: Path, *arguments: str) -> None:
    settings = ["-c", "user.name=Lab", "-c", "user.email=lab@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(root), *settings, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path):
    """main, and a branch for each verdict."""
    root = tmp_path / "repo"
    (root / "lab").mkdir(parents=True)
    (root / "lab" / "study.toml").write_text("""
[study]
name = "known"
command = ["{python}", "program.py"]
score = "json:time_per_task_us"
rope_pct = 2.0
source = ".."
calibrate.n_tasks = 1
[factors.turbo]
set.flag = "--turbo"
[factors.log]
set.flag = "--log"
""")
    git(root, "init", "--quiet", "--initial-branch", "main")
    program = root / "program.py"
    program.write_text(PROGRAM)
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "program")
    for branch, text in {
        "slower": PROGRAM.replace("= 100.0", "= 105.0"),
        "faster": PROGRAM.replace("= 100.0", "= 80.0"),
        "same": PROGRAM + "# The same.\n",
        "close": PROGRAM.replace("= 100.0", "= 102.02").replace("0.004", "0.05"),
        "broken": "import sys; sys.exit('broken')\n",
    }.items():
        git(root, "switch", "--quiet", "--create", branch, "main")
        program.write_text(text)
        git(root, "commit", "--quiet", "--all", "--message", branch)
    git(root, "switch", "--quiet", "main")
    return root


@pytest.mark.parametrize(
    ("head", "code", "word"),
    [("slower", 1, "hinders"), ("faster", 0, "helps"), ("same", 0, "no practical difference"),
     ("close", 4, "undecided"), ("broken", 3, ""), ("nowhere", 3, "")],
)  # fmt: skip
def test_the_gates_exit_code_is_its_verdict(repository, head, code, word):
    done = CliRunner().invoke(
        gate_command, ["--study", str(repository / "lab"), "--head", head, "--max-pairs", "12", "--max-wait", "0"]
    )
    assert done.exit_code == code, done.output
    assert word in done.output
    assert read_runs(repository / "lab" / ".lab" / "gate.csv") if code != 3 else True


def test_a_build_that_fails_cannot_be_gated(repository):
    file = repository / "lab" / "study.toml"
    file.write_text(file.read_text().replace("[study]", '[study]\nbuild = ["sh", "-c", "echo no compiler; exit 4"]'))
    done = CliRunner().invoke(gate_command, ["--study", str(repository / "lab"), "--head", "same"])
    assert done.exit_code == 3
    assert "no compiler" in done.output


def test_gated_runs_alternate_and_are_kept(repository):
    CliRunner().invoke(gate_command, ["--study", str(repository / "lab"), "--head", "same", "--max-wait", "0"])
    rows = read_runs(repository / "lab" / ".lab" / "gate.csv")
    assert {row["purpose"] for row in rows} == {"gate"}
    assert len({row["git_sha"] for row in rows}) == 2
    assert len({row["config_id"] for row in rows}) == 2
    firsts = [row["change"] for row in rows if row["order_in_block"] == 0]
    assert firsts.count(0) == firsts.count(1)
    trees = repository / "lab" / ".lab" / "trees"
    CliRunner().invoke(gate_command, ["--study", str(repository / "lab"), "--head", "faster", "--max-wait", "0"])
    assert sum(path.is_dir() for path in trees.iterdir()) == 2


@pytest.mark.parametrize(("at", "code"), [("baseline", 0), ("turbo=on", 0), ("turbo,log=on", 1)])
def test_a_gate_compares_in_the_settings_it_is_given(repository, at, code):
    git(repository, "switch", "--quiet", "same")
    (repository / "program.py").write_text(PROGRAM.replace("1.5", "1.6"))
    git(repository, "commit", "--quiet", "--all", "--message", "slower with both")
    options = ["--study", str(repository / "lab"), "--head", "same", "--max-pairs", "10", "--max-wait", "0"]
    done = CliRunner().invoke(gate_command, [*options, "--at", at])
    assert done.exit_code == code, done.output
    rows = read_runs(repository / "lab" / ".lab" / "gate.csv")
    assert {(row["turbo"], row["log"]) for row in rows} == {("turbo" in at, "log" in at)}


def test_a_gate_refuses_settings_that_the_study_does_not_have(repository):
    options = ["--study", str(repository / "lab"), "--head", "same", "--at", "turbbo=on"]
    done = CliRunner().invoke(gate_command, options)
    assert done.exit_code == 3
    assert "Did you mean 'turbo'" in done.output


# Each run of a pair waits for the other: if they were made in turn, the first would wait in vain.
SIDE_BY_SIDE = """
import json, os, sys, time
calls = os.open(os.environ["CALLS"], os.O_RDWR | os.O_CREAT | os.O_APPEND)
os.write(calls, b".")
mine = os.lseek(calls, 0, os.SEEK_CUR)
if mine > 2:  # The first two warm up, one after the other.
    deadline = time.monotonic() + 20
    while os.fstat(calls).st_size < mine + mine % 2:
        if time.monotonic() > deadline:
            sys.exit("alone")
        time.sleep(0.001)
    if len(os.sched_getaffinity(0)) != 1:
        sys.exit("not on one processor")
print(json.dumps({"time_per_task_us": 100.0 + mine % 2}))
"""


def test_runs_of_a_gate_share_one_processor_where_the_study_says_so(repository):
    git(repository, "switch", "--quiet", "same")
    (repository / "program.py").write_text(SIDE_BY_SIDE)
    git(repository, "commit", "--quiet", "--all", "--message", "side by side")
    (repository / "program.py").write_text(SIDE_BY_SIDE + "# The same.\n")
    git(repository, "commit", "--quiet", "--all", "--message", "the same")
    file = repository / "lab" / "study.toml"
    file.write_text(file.read_text().replace("[study]", "[study]\nside_by_side = true")
                    + '[study.env]\nCALLS = "{study}/calls"\n')  # fmt: skip
    options = ["--study", str(repository / "lab"), "--base", "same~1", "--head", "same", "--max-pairs", "10"]
    done = CliRunner().invoke(gate_command, [*options, "--max-wait", "0"])
    assert done.exit_code == 0, done.output
    rows = read_runs(repository / "lab" / ".lab" / "gate.csv")
    assert [row["status"] for row in rows] == ["ok"] * 20


def test_a_wall_clock_score_cannot_be_taken_side_by_side(repository):
    file = repository / "lab" / "study.toml"
    text = file.read_text().replace("json:time_per_task_us", "wall/n")
    file.write_text(text.replace("[study]", "[study]\nside_by_side = true"))
    done = CliRunner().invoke(gate_command, ["--study", str(repository / "lab"), "--head", "same"])
    assert done.exit_code == 3
    assert "side_by_side" in done.output


class Drawn:
    """Pairs that differ by `effect` on average; one in twenty is disturbed."""

    texts = ("main", "HEAD")
    clock = "wall"
    side_by_side = False

    def __init__(self, effect: float, noise: float, rng: random.Random) -> None:
        self.effect, self.noise, self.rng = effect, noise, rng

    def look(self) -> None: ...

    def pair(self, cpu: int | None = None) -> Pair:
        noise = self.noise if self.rng.random() < 0.95 else 0.3
        return Pair(1.0, math.exp(self.rng.gauss(self.effect, noise)))


def gate_verdict(effect: float, noise: float, rng: random.Random) -> tuple[bool | None, int]:
    """Whether head is harmless, and after how many pairs."""
    interval, pairs = measured(
        Drawn(effect, noise, rng), lambda it, _: decide(it, 2.0).harmless is not None, budget_s=60, max_pairs=MAX_PAIRS
    )
    return decide(interval, 2.0).harmless, len(pairs)


def test_gates_are_right_where_there_is_a_difference_and_seldom_wrong_where_there_is_hardly_one():
    rng = random.Random(8)
    slower = [gate_verdict(math.log(1.05), 0.03, rng) for _ in range(100)]
    assert [harmless for harmless, _ in slower].count(False) >= 99
    same = [gate_verdict(0.0, 0.03, rng) for _ in range(100)]
    assert [harmless for harmless, _ in same].count(True) >= 99
    # The smallest slow-down that matters: either answer would be wrong by a hair.
    edge = [gate_verdict(math.log(1.02), 0.03, rng)[0] for _ in range(100)]
    assert edge.count(None) >= 90


def study(root: Path) -> Study:
    return Study.load(root / "lab")


def test_a_setting_that_helps_or_hinders_depending_on_another(repository):
    found = compare(study(repository), Side("baseline"), Side("turbo", settings={"turbo": True}), contexts=4, pairs=3,
                    quiet=AT_ONCE)  # fmt: skip
    # With and without the other factor.
    assert (found.contexts, found.failed_pairs) == (2, 0)
    assert found.heterogeneity_p < 1e-6
    rows = read_runs(repository / "lab" / "runs.csv", study(repository).factors)
    assert {row["purpose"] for row in rows} == {"confirm"}
    assert {(row["turbo"], row["log"]) for row in rows} == {(a, b) for a in (False, True) for b in (False, True)}


def test_a_patch_is_compared_with_the_source_without_it(repository):
    (repository / "program.py").write_text(PROGRAM.replace("= 100.0", "= 90.0"))
    patch = subprocess.run(["git", "-C", str(repository), "diff"], capture_output=True, text=True, check=True).stdout
    git(repository, "checkout", "--", ".")
    (repository / "faster.diff").write_text(patch)
    done = CliRunner().invoke(
        compare_command,
        [
            "--study",
            str(repository / "lab"),
            "--patch",
            str(repository / "faster.diff"),
            "--contexts",
            "3",
            "--max-wait",
            "0",
        ],
    )
    assert done.exit_code == 0, done.output
    assert "faster.diff against without: helps; -10." in done.output or "helps; -9." in done.output
    rows = read_runs(repository / "lab" / "compare.csv")
    assert {row["change"] for row in rows} == {0, 1}
    assert not (repository / "lab" / "runs.csv").exists()


def test_two_refs_are_compared(repository):
    found = compare(study(repository), Side("main", Variant("main")), Side("slower", Variant("slower")), contexts=0,
                    pairs=3, quiet=AT_ONCE)  # fmt: skip
    assert (found.exit_code, found.judgement.word) == (1, "hinders")
    assert found.low < 1.05 < found.high


def test_nothing_to_compare_is_could_not_run(repository):
    arguments = ["--study", str(repository / "lab"), "--max-wait", "0"]
    assert CliRunner().invoke(compare_command, ["turbo", "turbo=1", *arguments]).exit_code == 3
    assert CliRunner().invoke(compare_command, ["main", "broken", "--contexts", "0", *arguments]).exit_code == 3
    assert CliRunner().invoke(compare_command, ["main", *arguments]).exit_code == 2


FACTORS = (Factor("a", "flag"), Factor("b", "flag"), Factor("c", "flag"))


def test_the_factor_that_an_effect_depends_on_is_named():
    rng = random.Random(3)
    subject = Study(name="t", factors=FACTORS, rope_pct=1.0)
    contexts = [{f.name: rng.random() < 0.5 for f in FACTORS} for _ in range(18)]
    ratios = [[(math.log(0.8) if c["b"] else math.log(1.2)) + rng.gauss(0, 0.02) for _ in range(2)] for c in contexts]
    found = conclude(subject, Side("old"), Side("new"), [(c, c) for c in contexts], ratios)
    assert [m.factor for m in found.moderators] == ["b"]
    assert dict(found.moderators[0].ratios)[True] == pytest.approx(0.8, rel=0.02)
    assert found.judgement.word == "depends on b (hinders at False, helps at True)"
    assert found.exit_code == 1


def test_an_effect_that_is_everywhere_the_same_depends_on_nothing():
    rng = random.Random(4)
    subject = Study(name="t", factors=FACTORS, rope_pct=1.0)
    contexts = [{f.name: rng.random() < 0.5 for f in FACTORS} for _ in range(18)]
    ratios = [[math.log(1.05) + rng.gauss(0, 0.02) for _ in range(2)] for _ in contexts]
    found = conclude(subject, Side("old"), Side("new"), [(c, c) for c in contexts], ratios)
    assert (found.judgement.word, found.exit_code, found.moderators) == ("hinders", 1, ())
    assert found.low < 1.05 < found.high


@pytest.mark.parametrize(
    ("low", "high", "word", "code"),
    [(-0.2, -0.05, "helps", 0), (0.05, 0.2, "hinders", 1), (-0.005, 0.005, "no practical difference", 0),
     (-0.03, 0.005, "no harm", 0), (-0.005, 0.03, "unknown", 4), (0.005, 0.03, "unknown", 4),
     (-0.5, 0.5, "unknown", 4)],
)  # fmt: skip
def test_verdicts_by_interval(low, high, word, code):
    judged = judge(Interval((low + high) / 2, low, high, 10), 1.0)
    assert (judged.word, judged.exit_code) == (word, code)


def test_more_pairs_are_asked_for_where_the_interval_is_wide():
    # Half-width 0.04 has to become 0.02: four times the pairs.
    assert more_pairs(Interval(0.03, -0.01, 0.07, 10), 1.0) == pytest.approx(30, abs=2)


def test_a_number_of_pairs_beyond_reach_is_no_advice():
    wide = Interval(0.0, -0.4, 0.4, 8)
    said = sentence("A", "B", judge(wide, 1.0), wide, 1.0, 8)
    assert "more pairs would decide" not in said
    assert "let each run take longer" in said
    near = Interval(0.02, -0.005, 0.045, 40)
    assert "more pairs would decide" in sentence("A", "B", judge(near, 1.0), near, 1.0, 40)


def test_words_of_the_command_line():
    subject = Study(name="t", factors=(*FACTORS, Factor("n", "argument", levels=(1, 2, 4), default=1)))
    assert parse_settings(subject, "a,n=4") == {"a": True, "n": 4}
    assert parse_settings(subject, "baseline") == {}
    assert side(subject, "a=off").settings == {"a": False}
    assert side(subject, "feature/x").variant == Variant("feature/x")


def test_without_pairs_there_is_no_verdict():
    with pytest.raises(RunError, match="too few pairs finished"):
        conclude(Study(name="t", calibrate=Calibrate()), Side("a"), Side("b"), [({}, {})], [[]])


def test_importing_the_runner_needs_the_standard_library_only():
    modules = "run.run run.status run.sweep report.export comparisons.compare comparisons.gate"
    code = (
        f"import sys\nfor m in {modules.split()!r}: __import__('broadleaf_lab.cli.' + m)\n"
        "import broadleaf_lab.run.planned, broadleaf_lab.comparisons.gate\n"
        "import broadleaf_lab.comparisons.sweep, broadleaf_lab.report.export\n"
        "print([m for m in ('numpy', 'pandas', 'z3', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "[]"


def test_what_fails_more_is_never_called_harmless():
    good, bad = Pair(1.0, 1.0), Pair(1.0, None, b_error="failed: exit code 3")
    faster = Judgement("helps", True)
    found = PairFailures()
    assert found.count(good)
    assert found.judged(faster) == faster
    assert found.told("main", "HEAD", "HEAD helps.") == "HEAD helps."
    assert not found.count(bad)
    assert found.judged(faster) == Judgement("undecided", None)
    for _ in range(5):
        found.count(bad)
    assert found.judged(faster) == Judgement("fails more", False)
    said = found.told("main", "HEAD", "HEAD helps.")
    assert said.startswith("HEAD fails more than main: 6 of 7 runs of HEAD and 0 of main (failed: exit code 3).")
    for _ in range(6):
        found.count(Pair(None, 1.0, a_error="failed: exit code 3"))
    assert found.judged(faster) == faster
