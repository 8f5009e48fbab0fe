"""Tables for other programs: each dialect is read back by a program of its kind."""

import csv
import shutil
import sqlite3
import subprocess

import pytest
from broadleaf_lab.cli.report.export import command
from broadleaf_lab.errors import RunError
from broadleaf_lab.report.export import export
from broadleaf_lab.spec.factors import Factor
from broadleaf_lab.spec.imported import read_table
from broadleaf_lab.spec.runs import RunsFile
from click.testing import CliRunner

FACTORS = (Factor("log", "config", levels=("debug", "off"), default="debug"), Factor("fast", "flag"),
           Factor("py", "python", levels=("3.11", "3.12"), default="3.11"))  # fmt: skip
TIMES = [101.25, 99.5, 50.125, None]


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "study.toml").write_text('[study]\nname = "t"\ncommand = ["true"]\n[factors.fast]\nset.flag = "--f"\n')
    with RunsFile(tmp_path / "runs.csv", FACTORS) as runs:
        for n, us in enumerate(TIMES):
            runs.append(
                {"status": "ok" if us else "failed", "time_per_task_us": us, "plan_row": n,
                 "error": 'a; "b", c' if not us else "",
                 "config_id": "c1e5", "started_unix": 1795250372.5},
                {"fast": n > 1, "log": "off" if n else "debug"},
            )  # fmt: skip
    return tmp_path


def test_the_seeds_dialect_has_semicolons_and_points(directory):
    (file,) = export(directory, "seed", directory / "out")
    with open(file, newline="") as f:
        rows = list(csv.DictReader(f, delimiter=";"))
    assert [row["time_per_task_us"] for row in rows] == ["101.25", "99.5", "50.125", ""]
    assert rows[3]["error"] == 'a; "b", c'
    assert [row["fast"] for row in rows] == ["0", "0", "1", "1"]


def test_a_spreadsheet_gets_decimal_commas(directory):
    (file,) = export(directory, "excel-es", directory / "out")
    assert file.read_bytes().startswith(b"\xef\xbb\xbf")
    with open(file, newline="", encoding="utf-8-sig") as f:
        rows = list(csv.DictReader(f, delimiter=";"))
    assert [row["time_per_task_us"] for row in rows] == ["101,25", "99,5", "50,125", ""]
    assert rows[0]["plan_row"] == "0"
    assert rows[0]["run_id"] == "r000001"


def test_sqlite_has_types(directory):
    (file,) = export(directory, "sqlite", directory / "out")
    export(directory, "sqlite", directory / "out")
    with sqlite3.connect(file) as database:
        means = database.execute(
            "SELECT fast, avg(time_per_task_us), count(*) FROM runs WHERE status = 'ok' GROUP BY fast ORDER BY fast"
        ).fetchall()
        kinds = database.execute(
            "SELECT typeof(time_per_task_us), typeof(plan_row), typeof(config_id) FROM runs"
        ).fetchone()
        missing = database.execute("SELECT count(*) FROM runs WHERE time_per_task_us IS NULL").fetchone()
    database.close()
    assert means == [(0, 100.375, 2), (1, 50.125, 1)]
    assert kinds == ("real", "integer", "text")
    assert missing == (1,)


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="no sqlite3 command")
def test_the_plain_table_is_imported_by_the_sqlite3_command(directory):
    script = ".mode csv\n.import runs.csv runs\nSELECT avg(time_per_task_us) FROM runs WHERE fast = '0';\n"
    done = subprocess.run(["sqlite3", ":memory:"], input=script, cwd=directory, capture_output=True, text=True,
                          check=True, timeout=30)  # fmt: skip
    assert float(done.stdout) == 100.375


@pytest.mark.skipif(shutil.which("Rscript") is None, reason="no R")
def test_the_seeds_dialect_is_read_by_r(directory):
    (file,) = export(directory, "seed", directory / "out")
    code = f'd <- read.csv("{file}", sep=";"); cat(mean(d$time_per_task_us, na.rm=TRUE), class(d$fast), d$log[2])'
    done = subprocess.run(["Rscript", "-e", code], capture_output=True, text=True, check=True, timeout=50)
    mean, kind, level = done.stdout.split()
    assert float(mean) == pytest.approx(83.625)
    assert (kind, level) == ("integer", "off")


def test_parquet_has_types(directory):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    (file,) = export(directory, "parquet", directory / "out")
    frame = pandas.read_parquet(file)
    assert frame["time_per_task_us"].tolist()[:3] == TIMES[:3]
    assert frame["time_per_task_us"].isna().tolist() == [False, False, False, True]
    assert str(frame["plan_row"].dtype) == "Int64"


def test_all_tables_that_are_there_are_written(directory):
    (directory / "deltas.csv").write_text("treatment,before_us,delta_us\nfast,100.5,-50.25\n")
    assert [path.name for path in export(directory, "excel-es", directory / "out")] == ["runs.csv", "deltas.csv"]
    assert read_table(directory / "out" / "deltas.csv")[1] == [["fast", "100,5", "-50,25"]]


def test_the_studys_own_tables_are_not_overwritten(directory):
    with pytest.raises(RunError, match="another directory"):
        export(directory, "seed", directory)


def test_the_command(directory):
    done = CliRunner().invoke(command, [str(directory), "--dialect", "seed"])
    assert done.exit_code == 0, done.output
    assert (directory / "export" / "runs.csv").exists()
