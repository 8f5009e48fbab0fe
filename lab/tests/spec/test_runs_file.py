"""runs.csv: what is written is read back, torn lines are dropped, factors are added, one writer at a time."""

import csv

import pytest
from broadleaf_lab.errors import RunError
from broadleaf_lab.spec.factors import Factor
from broadleaf_lab.spec.runs import COLUMNS, RunsFile, read_runs

FLAG = Factor("flag", "flag")
LEVEL = Factor("level", "config", levels=(1, 4, 16), default=4, scale="log2")
TEXT = Factor("py", "python", levels=("3.11", "3.12"), default="3.11")


def row(n: int, **more):
    return {"status": "ok", "plan_row": n, "replicate": 0, "time_per_task_us": 10.5 + n, "flags": "", **more}


def test_rows_come_back_as_they_were(tmp_path):
    path = tmp_path / "runs.csv"
    with RunsFile(path, (FLAG, LEVEL, TEXT)) as runs:
        runs.append(
            row(0, error='a "quoted",\nlong;\x00 error', started_unix=1795250372.015, dirty=True), {"flag": True}
        )
        runs.append(row(1, status="skipped", time_per_task_us=None), {"level": 16, "py": "3.12"})
    first, second = read_runs(path, (FLAG, LEVEL, TEXT))
    assert first["run_id"] == "r000001"
    assert second["run_id"] == "r000002"
    assert first["error"] == 'a "quoted", long;  error'
    assert first["started_unix"] == 1795250372.015
    assert (first["flag"], first["level"], first["py"]) == (True, 4, "3.11")
    assert (second["flag"], second["level"], second["py"]) == (False, 16, "3.12")
    assert (first["dirty"], first["time_per_task_us"], second["time_per_task_us"]) == (1, 10.5, None)
    with open(path, newline="") as f:
        header = next(csv.reader(f))
    assert header == [*COLUMNS, "flag", "level", "py"]


def test_a_version_is_no_number_to_a_reader_that_knows_the_factor(tmp_path):
    with RunsFile(tmp_path / "runs.csv", (TEXT,)) as runs:
        assert runs.append(row(0), {})["py"] == "3.11"
    assert read_runs(tmp_path / "runs.csv", (TEXT,))[0]["py"] == "3.11"


@pytest.mark.parametrize("cut", [1, 2, 10, 60])
def test_a_torn_last_line_is_dropped_and_overwritten(tmp_path, cut):
    path = tmp_path / "runs.csv"
    with RunsFile(path, (FLAG,)) as runs:
        for n in range(3):
            runs.append(row(n, error="Fehler: \u00fc" * 5), {})
    path.write_bytes(path.read_bytes()[:-cut])
    assert [r["plan_row"] for r in read_runs(path, (FLAG,))] == [0, 1]
    with RunsFile(path, (FLAG,)) as runs:
        assert [r["plan_row"] for r in runs.rows] == [0, 1]
        assert runs.append(row(7), {"flag": True})["run_id"] == "r000003"
    assert [r["plan_row"] for r in read_runs(path, (FLAG,))] == [0, 1, 7]


def test_a_file_torn_within_its_header_starts_afresh(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("run_id,stu")
    with RunsFile(path, (FLAG,)) as runs:
        runs.append(row(0), {})
    assert len(read_runs(path, (FLAG,))) == 1


def test_an_added_factor_is_at_its_default_in_old_runs(tmp_path):
    path = tmp_path / "runs.csv"
    with RunsFile(path, (FLAG,)) as runs:
        runs.append(row(0), {"flag": True})
    with RunsFile(path, (LEVEL, FLAG)) as runs:
        runs.append(row(1), {"level": 16})
    assert [(r["flag"], r["level"]) for r in read_runs(path, (FLAG, LEVEL))] == [(True, 4), (False, 16)]


def test_a_second_writer_is_refused(tmp_path):
    with RunsFile(tmp_path / "runs.csv", ()):
        with pytest.raises(RunError, match="another process"):
            RunsFile(tmp_path / "runs.csv", ())
    RunsFile(tmp_path / "runs.csv", ()).close()


def test_flags_are_replaced(tmp_path):
    path = tmp_path / "runs.csv"
    with RunsFile(path, (FLAG,)) as runs:
        runs.append(row(0), {})
        runs.append(row(1), {})
        runs.set_flags({"r000002": "noisy_block"})
        runs.append(row(2), {})
        assert [r["flags"] for r in runs.rows] == ["", "noisy_block", ""]
    assert [r["flags"] for r in read_runs(path)] == ["", "noisy_block", ""]


def test_another_table_is_no_table_of_runs(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(RunError, match="run_id"):
        read_runs(path)


def test_an_unknown_column_is_refused(tmp_path):
    with RunsFile(tmp_path / "runs.csv", ()) as runs, pytest.raises(RunError, match="colour"):
        runs.append({"colour": "red"}, {})
