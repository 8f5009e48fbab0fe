"""`broadleaf plan`: its tables, JSON, figures and the page that shows them."""

import json
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest
from broadleaf import plan
from broadleaf.cli import group
from click.testing import CliRunner

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "broadcast-plan.md"
FIGURES = {"sends", "ratio-to-direct", "formulas", "arities", "transfer-time"}


def run(*arguments, code=0):
    done = CliRunner().invoke(group, ["plan", *arguments])
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else done.stderr


def lines(text):
    return [line.rstrip() for line in text.splitlines()]


def test_100_engines():
    shown = [line.split(maxsplit=7) for line in lines(run("--engines", "100", "--tables"))[2:9]]
    assert [row[:6] for row in shown] == [
        ["0", "1", "102.00", "101.00", "101", "1.010"],
        ["1", "2", "53.00", "53.00", "53", "0.530"],
        ["2", "4", "30.00", "30.00", "30", "0.300"],
        ["3", "8", "21.50", "19.50", "20", "0.200"],
        ["4", "16", "23.25", "15.25", "16", "0.160"],
        ["5", "32", "36.13", "14.13", "15", "0.150"],
        ["6", "64", "66.56", "14.56", "15", "0.150"],
    ]
    assert {row[0]: row[7] for row in shown if len(row) > 7} == {"3": "best by the published formula", "5": "best"}


def test_the_best_arity_and_depth_are_marked():
    (best,) = [line.split() for line in lines(run("--engines", "100", "--tables"))[11:] if line.endswith("best")]
    assert best == ["3", "3.28", "13.56", "3", "14", "140", "best"]


def test_the_answer_is_in_words():
    text = run("--engines", "100")
    assert "100 engines" in text
    (direct,) = [line for line in lines(text) if line.startswith("the client, to every engine")]
    (best,) = [line for line in lines(text) if line.endswith("best tree")]
    assert "100 sends    10 ms" in direct
    assert best.startswith("a tree of 3 branches, 3 levels deep")
    assert "14 sends   1.4 ms" in best
    assert "7.1 times sooner" in text
    # The words of the model are those of the tables.
    assert not re.search(r"arity|depth|scheduler|leaves|formula\b", text.replace("--tables shows every depth", ""))


@pytest.mark.parametrize(
    ("engines", "hosts", "sends", "messages", "wakes_all"),
    [
        (7, None, 8, 8, False),
        (8, None, 2, 2, True),
        (64, 16, 21, 81, False),
        (80, 10, 12, 21, True),
        (3, 16, 5, 7, False),
    ],
)
def test_what_broadleaf_sends_is_beside_the_trees(engines, hosts, sends, messages, wakes_all):
    options = ["--engines", str(engines), *(["--hosts", str(hosts), "--bytes", "64MB"] if hosts else [])]
    text = run(*options)
    (row,) = [line for line in lines(text) if line.startswith("Broadleaf, engines on ")]
    assert re.search(rf" {sends} sends +\S+ \S+ +{messages}$", row)
    assert ("one send wakes all" in text) == wakes_all
    ours = json.loads(run(*options, "--json"))["broadleaf"]
    assert (ours["sends"], ours["messages"]) == (sends, messages)


def test_few_engines_need_no_tree():
    text = run("--engines", "3")
    assert "no tree of schedulers is faster" in text
    assert "branches" not in text


def test_another_arity_has_no_published_formula():
    text = run("--engines", "1000", "--arity", "5", "--tables")
    assert "PUBLISHED" not in text
    assert "corrected: 1 + 5 d + N/5^d" in text
    rows = [line.split() for line in lines(text)]
    assert ["5", "3.59", "22.05"] in [row[:3] for row in rows]


@pytest.mark.parametrize("engines", ["1", "2", "3", "1000000000"])
def test_few_and_many_engines(engines):
    found = json.loads(run("--engines", engines, "--json"))
    assert [row["depth"] for row in found["depths"] if row["best"]] == [plan.best_depth(int(engines)).depth]
    assert sum(row["best"] for row in found["arities"]) == 1
    assert "best" in run("--engines", engines, "--tables")
    assert "the fewest possible" in run("--engines", engines)


def test_a_payload_to_hosts():
    text = run("--engines", "64", "--hosts", "16", "--bytes", "64MB", "--gbit", "1")
    (chosen,) = [line for line in lines(text) if line.rstrip().endswith("chosen")]
    assert chosen.startswith("chain ")
    assert "Sending a copy for each of 64 engines from the client would take 4.1 GB" in text
    small = run("--engines", "64", "--hosts", "16", "--bytes", "1000")
    (chosen,) = [line for line in lines(small) if line.rstrip().endswith("chosen")]
    assert chosen.startswith("binomial ")


def test_json_holds_what_the_functions_give():
    found = json.loads(run("--engines", "64", "--hosts", "9", "--bytes", "5000000", "--latency-us", "50", "--json"))
    link = plan.Link.measured(latency_us=50, gbit=10)
    chosen = plan.choose(9, 5_000_000, link)
    (row,) = [row for row in found["transfer"]["algorithms"] if row["chosen"]]
    assert (row["algorithm"], row["seconds"], row["segment_bytes"]) == (
        chosen.algorithm,
        chosen.seconds,
        chosen.segment_bytes,
    )
    assert {row["algorithm"] for row in found["transfer"]["algorithms"]} == set(plan.ALGORITHMS)
    assert "transfer" not in json.loads(run("--engines", "64", "--json"))


def test_wrong_options_are_refused():
    assert "--hosts and --bytes must be used together" in run("--engines", "5", "--hosts", "2", code=2)
    assert "'64 MBit' is not a size" in run("--engines", "5", "--hosts", "2", "--bytes", "64 MBit", code=2)
    assert "--engines" in run("--engines", "0", code=2)
    assert "--engines" in run(code=2)


def test_figures_are_drawn_as_png_and_svg(tmp_path):
    pytest.importorskip("matplotlib")
    text = run("--engines", "100", "--json", "--plot", str(tmp_path / "figures"))
    assert json.loads(text)["engines"] == 100
    written = {path.name: path for path in (tmp_path / "figures").iterdir()}
    assert set(written) == {f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg")}
    for name in FIGURES:
        png = written[f"{name}.png"].read_bytes()
        assert png.startswith(b"\x89PNG\r\n")
        assert len(png) > 20_000
        svg = xml.etree.ElementTree.parse(written[f"{name}.svg"]).getroot()
        assert len(list(svg.iter("{http://www.w3.org/2000/svg}path"))) > 20


@pytest.mark.parametrize(("engines", "arity", "hosts"), [(1, 2, 1), (5000, 7, 300)])
def test_figures_of_extreme_numbers(tmp_path, engines, arity, hosts):
    pytest.importorskip("matplotlib")
    assert len(plan.draw(tmp_path, engines, arity, hosts, kinds=["svg"])) == len(FIGURES)


def test_without_matplotlib_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = CliRunner().invoke(group, ["plan", "--engines", "5", "--plot", str(tmp_path / "figures")])
    assert done.exit_code == 1
    assert "pip install 'broadleaf[plan]'" in done.stderr
    # It is reported before anything is computed.
    assert done.stdout == ""
    assert not (tmp_path / "figures").exists()


def test_the_page_shows_what_the_command_prints():
    blocks = re.findall(r"^```console\n\$ broadleaf plan (.*)\n([^`]*)^```$", PAGE.read_text(), re.MULTILINE)
    shown = [(command, output) for command, output in blocks if output]
    assert len(shown) >= 2
    for command, output in shown:
        assert lines(output) == lines(run(*shlex.split(command)))


def test_planning_loads_neither_matplotlib_nor_the_native_module():
    code = (
        "import sys, broadleaf; assert 'broadleaf.plan' not in sys.modules; broadleaf.plan.sends(100, 2, depth=3);"
        "print(*[m for m in ('matplotlib', 'numpy', 'broadleaf._native', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout.split() == []
