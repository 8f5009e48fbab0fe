"""The runner: rows in order, failures as rows, resuming after any end (acceptance 13), noisy blocks."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from broadleaf_lab.designs.plan import Plan, PlanRow
from broadleaf_lab.errors import RunError
from broadleaf_lab.run.planned import Progress, noisy_blocks, run_plan
from broadleaf_lab.run.single import Quiet
from broadleaf_lab.spec.factors import Factor, config_id
from broadleaf_lab.spec.runs import read_runs
from broadleaf_lab.spec.study import Calibrate
from broadleaf_lab.study import Study
from waiting import until

AT_ONCE = Quiet(max_wait_s=0)
MARKER = "LAB_TEST_RUNNER"

WORKLOAD = """
import json, os, subprocess, sys, time
mode = sys.argv[1]
if mode == "crash":
    sys.exit("it broke")
if mode == "hang":
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    time.sleep(600)
if mode == "silent":
    sys.exit(0)
if mode == "child":
    holds = os.path.exists("hold_after_rows")
    holds = holds and len(open("runs.csv").readlines()) > int(open("hold_after_rows").read())
    child = subprocess.Popen(["sleep", "600" if holds else "0.1"], start_new_session=True)
    time.sleep(0.05)
    child.wait()
print(json.dumps({"time_per_task_us": 5.0, "latency_p50_us": 3.5, "n_tasks": 2}))
"""

MODE = Factor("mode", "argument", levels=("fine", "crash", "hang", "silent", "child"), default="fine")


def study(directory: Path, **more) -> Study:
    (directory / "workload.py").write_text(WORKLOAD)
    given = {
        "name": "synthetic",
        "command": ("{python}", "workload.py", "{mode}"),
        "score": "json:time_per_task_us",
        "timeout_s": 60.0,
        "calibrate": Calibrate(n_tasks=2),
        "factors": (MODE,),
        "directory": directory,
    }
    return Study(**{**given, **more})


def plan(modes: list[str]) -> Plan:
    rows = [PlanRow(i, "design", i // 4, i % 4, None, None, 0, {"mode": mode}) for i, mode in enumerate(modes)]
    return Plan("synthetic", 1, tuple(rows))


def test_failures_are_rows_and_do_not_stop_the_rest(tmp_path):
    seen: list[Progress] = []
    summary = run_plan(
        study(tmp_path, timeout_s=10.0),
        plan(["fine", "crash", "hang", "silent", "child"]),
        quiet=AT_ONCE,
        on_progress=seen.append,
    )
    rows = read_runs(tmp_path / "runs.csv", (MODE,))
    assert [row["status"] for row in rows] == ["ok", "failed", "timeout", "invalid", "ok"]
    assert [row["mode"] for row in rows] == ["fine", "crash", "hang", "silent", "child"]
    assert rows[1]["error"] == "it broke"
    assert "killed after 10 s" in rows[2]["error"]
    assert "time_per_task_us" in rows[3]["error"]
    assert (rows[0]["time_per_task_us"], rows[0]["latency_p50_us"], rows[0]["n_tasks"]) == (5.0, 3.5, 2)
    assert [row["time_per_task_us"] for row in rows[1:4]] == [None] * 3
    assert (summary.done, summary.statuses) == (5, {"ok": 2, "failed": 1, "timeout": 1, "invalid": 1})
    assert [(p.done, p.total) for p in seen] == [(i, 5) for i in range(1, 6)]


def test_a_second_session_makes_only_what_is_left(tmp_path):
    modes = ["fine"] * 6
    first = run_plan(study(tmp_path), plan(modes), quiet=AT_ONCE, max_runs=2)
    assert (first.made, first.stopped) == (2, "runs")
    none = run_plan(study(tmp_path), plan(modes), quiet=AT_ONCE, budget_s=0)
    assert (none.made, none.stopped) == (0, "budget")
    second = run_plan(study(tmp_path), plan(modes), quiet=AT_ONCE)
    assert (second.made, second.done, second.stopped) == (4, 6, "")
    rows = read_runs(tmp_path / "runs.csv", (MODE,))
    assert [row["plan_row"] for row in rows] == list(range(6))
    assert len({row["session_id"] for row in rows}) == 2


def test_failed_runs_are_made_again_on_request(tmp_path):
    modes = ["crash", "fine"]
    run_plan(study(tmp_path), plan(modes), quiet=AT_ONCE)
    (tmp_path / "workload.py").write_text(WORKLOAD.replace('"crash"', '"never"'))
    fixed = study(tmp_path)
    (tmp_path / "workload.py").write_text(WORKLOAD.replace('"crash"', '"never"'))
    assert run_plan(fixed, plan(modes), quiet=AT_ONCE).made == 0
    assert run_plan(fixed, plan(modes), quiet=AT_ONCE, retry_failed=True).made == 1
    assert [row["status"] for row in read_runs(tmp_path / "runs.csv")] == ["failed", "ok", "ok"]
    assert run_plan(fixed, plan(modes), quiet=AT_ONCE, retry_failed=True).made == 0


def test_runs_of_another_plan_are_not_continued(tmp_path):
    run_plan(study(tmp_path), plan(["fine", "child"]), quiet=AT_ONCE)
    with pytest.raises(RunError, match="another plan"):
        run_plan(study(tmp_path), plan(["child", "fine"]), quiet=AT_ONCE)


def test_a_factor_may_be_added_to_a_study_under_way(tmp_path):
    run_plan(study(tmp_path), plan(["fine", "fine"]), quiet=AT_ONCE, max_runs=1)
    more = study(tmp_path, factors=(MODE, Factor("nothing", "placebo")))
    assert run_plan(more, plan(["fine", "fine"]), quiet=AT_ONCE).made == 1
    assert [row["nothing"] for row in read_runs(tmp_path / "runs.csv", more.factors)] == [False, False]


def test_another_number_of_tasks_is_refused(tmp_path):
    run_plan(study(tmp_path), plan(["fine", "fine"]), quiet=AT_ONCE, max_runs=1)
    with pytest.raises(RunError, match="2 tasks"):
        run_plan(study(tmp_path, calibrate=Calibrate(n_tasks=3)), plan(["fine", "fine"]), quiet=AT_ONCE)


def test_a_level_this_machine_lacks_is_skipped(tmp_path):
    python = Factor("py", "python", levels=("here", "9.99t"), default="here",
                    setting={"python": {"here": sys.executable, "9.99t": "python9.99t"}})  # fmt: skip
    rows = tuple(PlanRow(i, "design", 0, i, None, None, 0, {"mode": "fine", "py": level})
                 for i, level in enumerate(("here", "9.99t")))  # fmt: skip
    run_plan(study(tmp_path, factors=(MODE, python)), Plan("synthetic", 1, rows), quiet=AT_ONCE)
    first, second = read_runs(tmp_path / "runs.csv", (MODE, python))
    assert (first["status"], second["status"]) == ("ok", "skipped")
    assert "python9.99t" in second["error"]


def block_rows(times: list[float], session: str = "s1") -> list[dict]:
    study_factors = (MODE,)
    return [
        {"run_id": f"r{i}", "session_id": session, "block": i, "status": "ok", "time_per_task_us": us, "flags": "",
         "config_id": config_id({"mode": "fine"}, study_factors)}
        for i, us in enumerate(times)
    ]  # fmt: skip


def test_a_block_whose_baseline_stands_out_is_noisy():
    baseline = config_id({"mode": "fine"}, (MODE,))
    times = [100.0, 101.0, 99.0, 100.5, 130.0, 99.5, 100.2]
    assert noisy_blocks(block_rows(times), baseline) == {"s1": (4,)}
    # Another session has another median: nothing stands out there.
    both = block_rows(times) + block_rows([t * 1.3 for t in times if t < 120], "s2")
    assert noisy_blocks(both, baseline) == {"s1": (4,), "s2": ()}
    # Fewer baselines than five say nothing.
    assert noisy_blocks(block_rows([1.0, 1.0, 9.0]), baseline) == {}


def marked(value: str) -> list[str]:
    """Command lines of living processes with the marker in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARKER}={value}".encode() in (path / "environ").read_bytes() and int(path.name) != os.getpid():
                found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


@pytest.mark.timeout(120)
def test_killed_runners_lose_and_repeat_nothing_and_leave_no_process(tmp_path):
    """Acceptance 13."""
    subject = study(tmp_path, timeout_s=60.0)
    (tmp_path / "study.toml").write_text(f"""
[study]
name = "{subject.name}"
command = {list(subject.command)}
score = "{subject.score}"
calibrate.n_tasks = 2
[factors.mode]
set.argument = true
levels = {list(MODE.levels)}
""")
    made = plan(["child", "fine"] * 8)
    made.save(tmp_path / "plan.json")
    name = uuid.uuid4().hex
    command = [
        sys.executable,
        "-c",
        "from broadleaf_lab.cli import main; main()",
        "run",
        str(tmp_path),
        "--max-wait",
        "0",
    ]

    def start() -> subprocess.Popen:
        return subprocess.Popen(command, env={**os.environ, MARKER: name}, stdout=subprocess.DEVNULL)

    def rows() -> int:
        path = tmp_path / "runs.csv"
        return len(read_runs(path)) if path.exists() else 0

    for _ in range(3):
        (tmp_path / "hold_after_rows").write_text(str(rows() + 2))
        with start() as runner:
            # In the middle of a run: its child lives.
            assert until(lambda: any("sleep 600" in line for line in marked(name))), "never: a run"
            runner.kill()
        assert until(lambda: not marked(name)), "never: every process gone"
    (tmp_path / "hold_after_rows").unlink()
    with open(tmp_path / "runs.csv", "a") as f:
        # A runner that died while it wrote.
        f.write("r000099,synthetic,s1")
    kept = read_runs(tmp_path / "runs.csv", (MODE,))
    assert len(kept) == 6
    with start() as runner:
        assert runner.wait(60) == 0
    after = read_runs(tmp_path / "runs.csv", (MODE,))
    assert after[: len(kept)] == kept
    assert [row["plan_row"] for row in after] == list(range(16))
    assert [row["run_id"] for row in after] == [f"r{i:06d}" for i in range(1, 17)]
    assert [row["mode"] for row in after] == ["child", "fine"] * 8
    assert {row["status"] for row in after} == {"ok"}
    assert marked(name) == []
