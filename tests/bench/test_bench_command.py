"""`broadleaf bench` and `python -m benchmarks`: what they print for people and for programs."""

import json

import pytest
from broadleaf.bench import table
from broadleaf.bench.record import Record, skipped
from broadleaf.cli import group
from broadleaf.cli.bench import Records
from click.testing import CliRunner

from benchmarks.commands import against_option
from benchmarks.commands import group as benchmarks

pytestmark = pytest.mark.timeout(60)


def record(peer="ppe", metric="roundtrip_median", values=(3.0, 1.0, 2.0), case="latency", **params) -> Record:
    return Record(peer, "1", case, {"workers": 4, **params}, metric, list(values))


def shown(records, capsys, json_file=None):
    """The printed form of these records."""
    output = Records(json_file)
    for each in records:
        output.add(each)
    output.show()
    return capsys.readouterr().out


def bench(*arguments):
    return CliRunner().invoke(group, ["bench", *arguments])


def beside(*arguments):
    return CliRunner().invoke(benchmarks, arguments, prog_name="python -m benchmarks")


def test_columns_that_say_nothing_are_left_out(capsys):
    lines = shown([record("broadleaf", values=[10.0])], capsys).splitlines()
    assert lines[0] == "latency"
    assert lines[1].split() == ["OF", "FIGURE", "MEDIAN"]
    assert lines[2].split() == ["4", "workers", "roundtrip_median", "10", "us"]
    assert lines[3:] == [""]


def test_columns_that_say_something_are_there(capsys):
    records = [record("broadleaf", values=[10.0, 12.0], config="unix"), record("ppe", values=[33.0, 33.0])]
    lines = shown(records, capsys).splitlines()[1:]
    titles = [word.strip() for word in lines[0].split("  ") if word]
    assert titles == ["OF", "SYSTEM", "WAY", "FIGURE", "MEDIAN", "MIN TO MAX", "BROADLEAF IS"]
    assert "10 to 12" in lines[1]
    assert "unix" in lines[1]
    # Nothing is compared with itself, and two equal values are no range.
    assert " x " not in lines[1]
    assert lines[2].rstrip().endswith("3 x better")
    assert "33 to 33" not in lines[2]


def test_worse_is_said_as_such():
    rows = table.rows([record("broadleaf", values=[30.0]), record("ppe", values=[10.0])])
    assert [row.cells[-1] for row in rows] == ["", "3 x worse"]


def test_one_unit_for_what_is_compared():
    rows = table.rows(
        [record("broadleaf", values=[950.0]), record("ppe", values=[52_000.0]), record("loky", values=[2_100.0], n=7)]
    )
    assert [row.cells[4] for row in rows] == ["950 us", "52,000 us", "2.1 ms"]


def test_parameters_are_in_words():
    rows = table.rows(
        [record(case="hosts", metric="bytes_into_host", values=[1.0, 1.0], hosts=2, bytes=64_000_000, topology="chain")]
    )
    assert rows[0].cells[0] == "4 workers, 2 hosts, 64 MB, topology chain"
    assert rows[0].cells[4:6] == ("1 x the data", "")


def test_what_was_not_measured_is_said_once(capsys):
    records = [
        record("broadleaf"),
        skipped("ray", "2", "echo", {"workers": 4, "size_bytes": 1000}, "no way"),
        skipped("ray", "2", "echo", {"workers": 4, "size_bytes": 2000}, "no way"),
    ]
    text = shown(records, capsys)
    assert text.count("no way") == 1
    assert "not measured: ray, echo (4 workers, 1 kB), echo (4 workers, 2 kB): no way" in text
    assert "skipped" not in text


def test_json_lines_take_the_place_of_the_table(capsys):
    text = shown([record("broadleaf"), record("ppe")], capsys, "-")
    assert [json.loads(line)["peer"] for line in text.splitlines()] == ["broadleaf", "ppe"]


def test_json_lines_go_to_a_file_beside_the_table(capsys, tmp_path):
    out = tmp_path / "records.jsonl"
    out.write_text('{"from": "before"}\n')
    text = shown([record("broadleaf")], capsys, str(out))
    assert text.startswith("latency\nOF ")
    assert len([json.loads(line) for line in out.read_text().splitlines()]) == 2


def test_a_run_prints_a_table_and_tells_what_happens_elsewhere():
    done = beside("startup", "--quick", "--repeats", "1", "--engines", "1", "--only-peers", "--against", "ppe")
    assert done.exit_code == 0, done.output
    assert done.stdout.split()[:4] == ["startup", "OF", "SYSTEM", "FIGURE"]
    assert "machine: processor" in done.stderr
    assert "{" not in done.output


def test_a_run_with_nothing_to_show_is_a_failure():
    done = beside("latency", "--quick", "--repeats", "1", "--engines", "1", "--only-peers")
    # The bare machine is measured anyway.
    assert done.exit_code == 0
    done = beside("startup", "--quick", "--repeats", "1", "--only-peers")
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1] == "error: nothing could be measured"


def test_broadleaf_alone_is_measured_without_other_libraries():
    done = bench("latency", "--quick", "--repeats", "1", "--engines", "1", "--json", "-")
    assert done.exit_code == 0, done.output
    assert {json.loads(line)["peer"] for line in done.stdout.splitlines()} == {"raw", "broadleaf"}
    assert "isolation none" in done.stderr
    for option in ("--against", "--only-peers", "--record", "--plot", "--environments"):
        assert bench("latency", option, "ppe").exit_code == 2


def test_the_commands_of_the_repository_are_those_of_users_and_more():
    users, all_of_them = (set(each.list_commands(None)) for each in (group.get_command(None, "bench"), benchmarks))
    assert all_of_them - users == {"hosts", "clusters", "movers"}
    assert users <= all_of_them


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["hosts", "--smal-task"], "Did you mean '--small-task'?"),
        (["latency", "--against", "jobli"], "Did you mean 'joblib'?"),
        (["hosts", "--hosts", "two"], "'two' is not a list of numbers"),
        (["hosts", "--sizes", "1MB,x"], "'x' is not a size"),
        (["hosts", "--topologies", "auto,tree"], "no topology is called 'tree'"),
        (["hosts", "--option", "prefetch_mn=3"], "did you mean 'prefetch_min'"),
        (["--json", "out.json", "hosts"], "--json comes before the case"),
    ],
)
def test_a_mistake_is_told_in_a_line(arguments, said):
    done = beside(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert said.lower() in line.lower()


def test_peers_are_completed():
    offered = against_option(["ppe", "loky", "ray"]).shell_complete(None, "ppe,l")
    assert [each.value for each in offered] == ["ppe,loky"]


def test_figures_are_explained():
    for name, metric in (("latency", "roundtrip_median"), ("hosts", "last_engine"), ("movers", "last_host")):
        shown = beside(name, "--help").stdout
        assert metric in shown.partition("Figures:")[2]
    assert beside("raw", "--help").stdout.startswith("Usage: python -m benchmarks raw")
