"""The tables of the laboratory's studies are made from what was recorded."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.timeout(60)
LAB = Path(__file__).resolve().parents[1]


def load_tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("study_tables", LAB / "docs" / "study_tables.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


study_tables = load_tables()


def test_shares_are_per_cent_and_a_share_of_nothing_is_empty():
    line = dict.fromkeys(study_tables.COVERAGE, "") | {
        "scenario": "few-6x60",
        "sets": "300",
        "runs": "60",
        "main": "0.9494",
    }
    assert study_tables.coverage([line]).splitlines()[2] == "| few-6x60 | 300 | 60 | 94.9 % |  |  |  |  |  |  |  |  |"


def test_mistakes_are_counted_of_the_sets_in_which_they_could_happen():
    line = {"chance": "0.05", "background": "0.0", "sets": "300", "covered": "290", "accused": "1", "worse": "250",
            "proven": "3", "called a help": "0", "recommended": "2", "verdict silent": "0",
            "recommendation silent": "0"}  # fmt: skip
    assert study_tables.failures([line]).splitlines()[2] == (
        "| 5.0 % | 0.0 % | 290 of 300 | 1 of 300 | 250 of 300 | 0 of 250 | 2 of 250 | 0 of 250 | 0 of 250 |"
    )


def test_totals_of_landscapes():
    lines = [
        {"runs": runs, "full_runs": "400", "decided": "6", "wrong": wrong, "full_decided": "5", "full_wrong": "0",
         "reached": "4"}
        for runs, wrong in (("100", "0"), ("200", "1"), ("120", "0"))
    ]  # fmt: skip
    text = study_tables.settle(lines)
    assert "(median) | 30.0 % |" in text
    assert "| 18, 1 |" in text
    assert "were reached | 80.0 % |" in text


def test_pages_exist_for_everything_that_is_recorded():
    for name, text in study_tables.pages(LAB / "studies").items():
        page = (LAB / "docs" / "method.md").read_text()
        assert f"../../docs/_build/generated/{name}" in page
        assert len(text.splitlines()) > 2
