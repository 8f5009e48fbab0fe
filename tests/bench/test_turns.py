"""Turns with real child processes: the standard library's pool and the bare machine, which need no environment."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from broadleaf.bench.cases import CASES, FIGURES, ROUTES, Case, Session, Step
from broadleaf.bench.runner import Run
from broadleaf.bench.turn import SYSTEMS, System, Turn, TurnFailed
from broadleaf.bench.workload import measure, raw
from broadleaf.bench.workload.adapter import Carry, returned
from click.testing import CliRunner
from waiting import until

from benchmarks.commands import group
from benchmarks.environments import PEERS
from benchmarks.isolation import Isolated

pytestmark = pytest.mark.timeout(120)

CHECKOUT = Path(__file__).resolve().parents[2]
PPE = PEERS["ppe"]
BESIDE = {"raw": SYSTEMS["raw"], "ppe": PPE}


def isolated(system: System, workers: int) -> Turn:
    """A turn in namespaces, where they are permitted."""
    return Turn(system, workers, Isolated())


def bench(*arguments: str, code: int = 0) -> str:
    """Runs `python -m benchmarks`; returns its standard output, or its standard error if `code` is not 0."""
    done = CliRunner().invoke(group, arguments)
    assert done.exit_code == code, done.output
    return done.stderr if code else done.stdout


def tagged(tag: str) -> list[int]:
    """Processes that carry a turn's tag."""
    mark = f"BROADLEAF_BENCH_TAG={tag}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_a_turn_starts_measures_and_leaves_nothing():
    with isolated(PPE, 2) as turn:
        assert turn.start(2, "default") > 0
        values = turn.run("latency", {"mode": "submit", "calls": 5, "warmup": 1})
        assert 0 < values["roundtrip_median"] <= values["roundtrip_p99"]
        assert len(tagged(turn.tag)) >= 3
        folder = turn.folder
    assert tagged(turn.tag) == []
    assert not os.path.exists(folder)


def test_an_error_in_a_measurement_is_told_and_the_turn_goes_on():
    with isolated(PPE, 1) as turn:
        turn.start(1, "default")
        with pytest.raises(TurnFailed, match="KeyError"):
            turn.run("latency", {"mode": "no such mode", "calls": 1, "warmup": 0})
        assert turn.usable
        assert turn.run("latency", {"mode": "submit", "calls": 1, "warmup": 0})


def test_a_child_that_dies_is_noticed_and_its_workers_are_ended():
    with pytest.raises(TurnFailed, match=r"died|gone"), isolated(PPE, 2) as turn:
        turn.start(2, "default")
        os.kill(turn.process.pid, signal.SIGKILL)
        # So many that it is gone before it can answer: the namespace around it is killed first.
        turn.run("latency", {"mode": "submit", "calls": 100_000_000, "warmup": 0})
    assert tagged(turn.tag) == []


def test_a_child_that_does_not_answer_is_ended():
    with pytest.raises(TurnFailed, match="no answer"), Turn(SYSTEMS["raw"], 1) as turn:
        turn.start(0, "")
        turn.ask({"do": "run", "case": "raw_sleep", "arguments": {"ms": 60_000, "n": 1}}, timeout_s=0.2)
    assert tagged(turn.tag) == []


def test_a_run_that_is_killed_takes_its_children_with_it():
    code = (
        "import time; from broadleaf.bench.turn import Turn; from benchmarks.environments import PEERS; "
        "from benchmarks.isolation import Isolated; turn = Turn(PEERS['ppe'], 2, Isolated()); "
        "turn.start(2, 'default'); print(turn.tag, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        tag = run.stdout.readline().strip()
        assert len(tagged(tag)) >= 3
        run.kill()
    assert until(lambda: not tagged(tag)), "processes outlived the run"


def test_systems_take_turns_repeat_by_repeat():
    lines: list[str] = []
    step = Step("latency", {}, {"calls": 3, "warmup": 1})
    rtt = Step("raw_rtt", {"kind": "unix"}, {"calls": 3, "warmup": 1})
    case = Case("latency", "", lambda *_: [Session(1, [step], 2)], lambda quick: [rtt])
    records = list(Run(case, BESIDE, 1, 2, True, lines.append).records())
    assert [line.split()[:2] for line in lines] == [["1", "raw"], ["1", "ppe"], ["2", "raw"], ["2", "ppe"]]
    assert {(r.peer, r.metric, len(r.values)) for r in records} == {
        (peer, metric, 2) for peer in ("raw", "ppe") for metric in ("roundtrip_median", "roundtrip_p99")
    }


def test_a_system_that_cannot_start_becomes_a_record_and_the_others_go_on(monkeypatch):
    case = CASES["startup"]
    records = list(
        Run(case, {"broken": System("broken", "no_such_adapter"), "ppe": PPE}, 1, 1, True, lambda text: None).records()
    )
    assert [(r.peer, r.metric) for r in records] == [("ppe", "ready"), ("broken", "skipped")]
    assert "no_such_adapter" in (records[1].note or "")


def kill(turn: Turn) -> None:
    """Kills a turn's process, and waits until its child, which lives in that process's namespace, is gone."""
    os.kill(turn.process.pid, signal.SIGKILL)
    assert until(lambda: not tagged(turn.tag)), "processes outlived their parent"


def run_three_steps() -> tuple[dict[tuple[str, str], int], set[str]]:
    """Two repeats of three steps: how many figures of each metric there are, and the steps left out."""
    steps = [
        Step("latency", {}, {"calls": 3, "warmup": 1}),
        Step("throughput", {"n": 10}, {"warmup": 1}, first_mode_only=True),
        Step("map", {"n": 10}, {"warmup": 1}),
    ]
    case = Case("latency", "", lambda *_: [Session(1, steps, 2)], lambda quick: [])
    records = list(Run(case, BESIDE, 1, 2, True, lambda text: None, Isolated()).records())
    found = {(r.case, r.metric): len(r.values) for r in records}
    return found, {r.case for r in records if r.metric == "skipped"}


def test_a_step_that_ends_its_process_is_left_out_and_the_others_go_on_in_a_new_one(monkeypatch):
    run = Turn.run

    def deadly(turn, case, arguments, timeout_s):
        if case == "throughput":
            kill(turn)
        return run(turn, case, arguments, timeout_s)

    monkeypatch.setattr(Turn, "run", deadly)
    found, left_out = run_three_steps()
    assert found["latency", "roundtrip_median"] == found["map", "items"] == 2
    assert left_out == {"throughput"}


def test_a_process_that_ends_between_two_steps_takes_neither_with_it(monkeypatch):
    run = Turn.run

    def deadly(turn, case, arguments, timeout_s):
        values = run(turn, case, arguments, timeout_s)
        if case == "throughput":
            kill(turn)
        return values

    monkeypatch.setattr(Turn, "run", deadly)
    found, left_out = run_three_steps()
    assert found["latency", "roundtrip_median"] == found["throughput", "roundtrip"] == found["map", "items"] == 2
    assert left_out == set()


def test_two_measurements_of_the_same_thing_are_both_taken():
    steps = [
        Step("throughput", {"n": 10}, {"warmup": 1}, "sent"),
        Step("map", {"n": 10}, {"warmup": 1}, "sent", first_mode_only=True),
    ]
    case = Case("latency", "", lambda *_: [Session(1, steps, 2)], lambda quick: [])
    records = list(Run(case, BESIDE, 1, 2, True, lambda text: None).records())
    assert {(r.case, r.metric): len(r.values) for r in records}["sent", "items"] == 2


@pytest.mark.parametrize("case", ["latency", "throughput", "map", "sleep-map", "sizes", "startup", "memory", "raw"])
def test_the_command_writes_records_for_every_case(case, tmp_path):
    out = tmp_path / "records.jsonl"
    arguments = [case, "--quick", "--repeats", "1", "--engines", "2", "--only-peers", "--against", "ppe"]
    shown = bench(*arguments, "--json", str(out))
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert found
    assert [r for r in found if r["metric"] == "skipped"] == []
    assert all(r["min"] <= r["median"] <= r["max"] and r["n_runs"] >= 1 and r["unit"] for r in found)
    # The table is for people, the file for programs.
    assert "\nOF " in shown
    assert "{" not in shown
    # The help of the case explains each figure.
    assert {r["metric"] for r in found if r["peer"] != "raw"} <= set(FIGURES[case])


@pytest.mark.parametrize("case", ["in-place", "overhead"])
def test_the_cases_that_only_we_have_are_measured(case, tmp_path):
    pytest.importorskip("numpy")
    out = tmp_path / "records.jsonl"
    bench(case, "--quick", "--repeats", "1", "--engines", "2", "--json", str(out))
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert {r["case"] for r in found} == {case}
    assert [r for r in found if r["metric"] == "skipped"] == []


def test_arrays_come_back_and_are_sent():
    pytest.importorskip("numpy")
    with isolated(PPE, 1) as turn:
        turn.start(1, "default")
        assert turn.run("echo", {"mode": "submit", "size_bytes": 80_000, "n": 3, "warmup": 1})["bandwidth"] > 0
        assert turn.run("send", {"mode": "submit", "size_bytes": 80_000, "n": 3, "warmup": 1})["complete"] > 0


@pytest.mark.parametrize("route", ROUTES)
def test_values_arrive_on_every_route_of_every_view(route):
    pytest.importorskip("numpy")
    arguments = {
        "route": route,
        "value": "list of dicts",
        "size_bytes": 30_000,
        "n": ROUTES[route],
        "calls": 2,
        "warmup": 1,
    }
    with Turn(SYSTEMS["broadleaf"], 2) as turn:
        turn.start(2, "unix")
        modes = turn.ask({"do": "modes", "case": "sizes", "route": route})["modes"]
        assert "direct view" in modes
        assert all(turn.run("sizes", arguments | {"mode": mode})["per_value"] > 0 for mode in modes)


def test_a_value_that_does_not_arrive_gives_no_figure(monkeypatch):
    pytest.importorskip("numpy")
    peer = raw.Peer()
    arguments = {"mode": "pickler", "value": "bytes", "size_bytes": 1000, "n": 1, "calls": 1, "warmup": 0}
    assert measure.sizes(peer, route="apply", **arguments)["per_value"] > 0
    monkeypatch.setattr(peer, "carry", lambda route: {"pickler": Carry(lambda values: [b"other"], returned)})
    with pytest.raises(RuntimeError, match="did not arrive"):
        measure.sizes(peer, route="apply", **arguments)


def test_figures_are_drawn_as_png_and_svg(tmp_path):
    pytest.importorskip("matplotlib")
    from broadleaf.bench.record import Record

    from benchmarks import plots

    params = {"workers": 4, "mode": "submit"}
    records = [
        Record("ppe", "1", "latency", params, "roundtrip_median", [100.0]),
        Record("ppe", "1", "latency", params, "roundtrip_p99", [200.0]),
        Record("ppe", "1", "sleep-map", params | {"ms": 1}, "efficiency", [0.9]),
        *(
            Record(
                peer,
                "1",
                "sizes",
                {"workers": 1, "mode": mode, "value": value, "route": "apply", "size_bytes": size_bytes},
                "per_value",
                [size_bytes / 1e9],
            )
            for peer, mode in (("broadleaf", "direct view"), ("ppe", "submit"), ("raw", "pickler"))
            for value in ("array", "bytes", "str", "forest")
            for size_bytes in (1000, 2000)
        ),
    ]
    written = plots.draw(records, tmp_path)
    names = ("latency", "task-length", "sizes")
    assert {path.name for path in written} == {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    assert all(path.stat().st_size > 1000 for path in written)
