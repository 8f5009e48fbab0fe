"""Files of results: what `python -m benchmarks --record` writes."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from broadleaf.bench.record import Record

from benchmarks import recorded

CHECKOUT = Path(__file__).resolve().parents[2]
FACTS = {
    "processor": "P",
    "cores": 2,
    "memory": "8 GB",
    "kernel": "6",
    "python": "3.11",
    "load": "0.1",
    "isolation": "no",
}
WHEN = datetime(2026, 11, 24, 12, tzinfo=UTC)


def test_a_file_has_machine_commit_conditions_and_figures(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded, "commit", lambda: "0123456789ab-changed")
    record = Record("ppe", "1", "latency", {"workers": 4}, "roundtrip_median", [3.0, 1.0, 2.0])
    path = recorded.write(tmp_path / "new", "latency", "python -m benchmarks latency --record", FACTS, [record], WHEN)
    assert path.name == "2026-11-24-latency-01234567.json"
    run = json.loads(path.read_text())
    assert run["machine"] == {name: FACTS[name] for name in ("processor", "cores", "memory", "kernel", "python")}
    assert run["conditions"] == {"load": "0.1", "isolation": "no"}
    assert (run["commit"], run["command"]) == ("0123456789ab-changed", "python -m benchmarks latency --record")
    assert run["date"] == "2026-11-24T12:00:00+00:00"
    assert [(r["median"], r["min"], r["max"], r["n_runs"], r["unit"]) for r in run["records"]] == [(2, 1, 3, 3, "us")]


def test_the_command_names_no_folder_of_this_machine():
    given = ["map", "--environments", "/here/venvs", "--repeats", "3", "--environments=/there"]
    assert list(recorded.without_environments(given)) == ["map", "--repeats", "3"]


def test_no_file_is_written_over(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded, "commit", lambda: None)
    paths = [recorded.write(tmp_path, "map", "", FACTS, [], WHEN).name for _ in range(2)]
    assert paths == ["2026-11-24-map.json", "2026-11-24-map-2.json"]


@pytest.mark.timeout(60)
def test_the_command_records_itself(tmp_path):
    pytest.importorskip("broadleaf._native", reason="the native module is not built")
    results = str(tmp_path / "results")
    command = [sys.executable, "-m", "benchmarks", "latency", "--quick", "--repeats", "1", "--record", results]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "results").glob("*-latency*.json")
    run = json.loads(path.read_text())
    assert run["command"] == f"python -m benchmarks latency --quick --repeats 1 --record {results}"
    assert {r["metric"] for r in run["records"]} >= {"roundtrip_median", "roundtrip_p99"}
    assert f"results/{path.name}" in done.stderr
