"""`broadleaf-lab why`: the cells of two settings side by side, and the functions that make them interact."""

from __future__ import annotations

import json
import sys

import pytest
from broadleaf_lab.cli import command as lab
from broadleaf_lab.comparisons.why import cells
from broadleaf_lab.comparisons.why.cells import Line, Why, why
from broadleaf_lab.comparisons.why.profilers import Profiler, folded, perf_script, profiler_for
from broadleaf_lab.errors import RunError
from broadleaf_lab.spec.runs import read_runs
from broadleaf_lab.study import Study
from click.testing import CliRunner

pytestmark = pytest.mark.timeout(180)
# Either saves the same 30 us; the memory and the faults are real.
STUDY = """
[study]
command = ["{python}", "program.py"]
score = "json:time_per_task_us"
[study.calibrate]
n_tasks = 10
[factors.quiet]
set.flag = "--quiet"
[factors.short]
set.flag = "--short"
[factors.other]
set.env = "OTHER"
levels = ["x", "y"]
[constraints]
never = "not (quiet and other == 'y')"
"""
PROGRAM = """
import json, sys, time
works = not ("--quiet" in sys.argv or "--short" in sys.argv)

def shared_work():
    end = time.process_time() + 0.25
    while time.process_time() < end:
        pass

kept = bytearray(96 << 20) if works else b""
for place in range(0, len(kept), 4096):
    kept[place] = 1
if works and "--slow" in sys.argv:
    pass
if works:
    shared_work()
print(json.dumps({"time_per_task_us": 40 if works else 10}))
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "study.toml").write_text(STUDY)
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def test_the_cells_are_side_by_side(folder):
    found = why(Study.load(folder), [("quiet", True), ("short", True)], rounds=3, profile=False, seed=1)
    assert found.labels == ("neither", "quiet", "short", "both")
    used = {line.name: line for line in found.used}
    time = used["time per task, us"]
    assert (time.cells, time.beyond, time.margin) == ((40, 10, 10, 10), 30, 0)
    assert used["peak memory, MB"].cells[0] > 90
    assert used["peak memory, MB"].beyond > 60
    assert "quiet alone takes -30 us per task, short alone -30, both -30: 30 us more than the sum." in found.sentences
    assert not (folder / "runs.csv").exists()
    kept = read_runs(folder / ".lab" / "why.csv")
    assert len(kept) == found.runs == 12
    assert sorted({row["block"] for row in kept}) == [0, 1, 2]


def test_one_setting_has_two_cells(folder):
    found = why(Study.load(folder), [("short", True)], rounds=2, profile=False, seed=1)
    assert found.labels == ("neither", "short")
    assert found.sentences == ("short takes -30 us per task.",)


def test_a_cell_that_is_forbidden_or_fails_is_told(folder):
    study = Study.load(folder)
    with pytest.raises(RunError, match="do not allow both"):
        why(study, [("quiet", True), ("other", "y")], profile=False)
    (folder / "program.py").write_text(PROGRAM + "sys.exit('broken' if '--short' in sys.argv else 0)\n")
    with pytest.raises(RunError, match="short cannot be run"):
        why(study, [("short", True)], profile=False)


def test_the_command_shows_and_tells_as_json(folder):
    words = ["why", "quiet", "short", "--study", str(folder), "--rounds", "2", "--max-wait", "0", "--no-profile"]
    shown = CliRunner().invoke(lab, words)
    assert shown.exit_code == 0, shown.output
    assert "beyond the sum" in shown.output
    assert "time per task, us" in shown.output
    told = json.loads(CliRunner().invoke(lab, [*words, "--json"]).stdout)
    assert told["used"][0]["cells"] == [40, 10, 10, 10]


def test_without_settings_the_strongest_pair_is_taken(study):
    pytest.importorskip("scipy")
    pair = cells.strongest_pair(study)
    real = [p for p in study.fit().interactions() if p.q <= 0.05]
    assert {name for name, _ in pair} == {max(real, key=lambda p: abs(p.estimate)).a,
                                          max(real, key=lambda p: abs(p.estimate)).b}  # fmt: skip


def test_sentences_name_the_functions_that_matter():
    time = Line("time per task, us", (40, 10, 10, 10), 30, 1)
    spent = (
        Line("shared (a.py)", (30, 0, 0, 0), 30),
        Line("little (a.py)", (1, 0, 1, 0), 0.1),
        Line("other (a.py)", (0, 1, 1, 0), -2),
    )
    found = Why((), ("neither", "a", "b", "both"), 20, (time,), spent, "py-spy", 900, "")
    assert found.sentences[1] == "That lies most of all in shared (a.py) +30."
    unsure = Why((), ("neither", "a"), 20, (Line("time per task, us", (40, 41), 1, 5),), spent, "", 0, "No profile: x.")
    assert unsure.sentences == ("a takes +1 us per task, which is within the noise of these runs.", "No profile: x.")


def test_samples_are_counted_by_the_innermost_function():
    stacks = ("process 1:main;<module> (p.py:1);work (/x/lib/p.py:12) 30", "<module> (p.py:1);work (/x/lib/p.py:20) 5")
    assert folded("\n".join((*stacks, "nonsense"))) == {"work (lib/p.py)": 35}
    perf = "     55d0c8 _PyEval_EvalFrameDefault+0x1b (/usr/bin/python3.11)\n  ffff [unknown] ([unknown])\n\n"
    assert perf_script(perf) == {"_PyEval_EvalFrameDefault (python3.11)": 1, "[unknown] ([unknown])": 1}


@pytest.mark.skipif(isinstance(profiler_for([sys.executable]), str), reason="py-spy is not installed")
def test_a_python_program_is_profiled_with_py_spy(folder):
    found = why(Study.load(folder), [("quiet", True), ("short", True)], rounds=2, seed=1)
    assert found.profiler == "py-spy"
    assert found.spent[0].name.startswith("shared_work ")
    assert found.spent[0].cells[0] > 10 * max(*found.spent[0].cells[1:], 1)


def test_what_cannot_be_profiled_says_why(folder, monkeypatch):
    monkeypatch.setattr("broadleaf_lab.comparisons.why.profilers.shutil.which", lambda name, path=None: None)
    assert profiler_for([sys.executable]) == "py-spy is not installed: pip install py-spy"
    assert profiler_for(["/usr/bin/sort"]) == "perf is not installed"
    found = why(Study.load(folder), [("short", True)], rounds=2, seed=1)
    assert found.sentences[-1] == "No profile: py-spy is not installed: pip install py-spy."


def test_a_profiler_that_writes_nothing_is_told(tmp_path):
    with pytest.raises(RunError, match="wrote no samples"):
        Profiler("py-spy", "py-spy").samples(tmp_path / "none")
