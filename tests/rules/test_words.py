"""Words that the glossary rejects are found, and are not here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import words  # noqa: E402


def test_this_checkout_has_none():
    assert list(words.found(ROOT, words.tracked(ROOT))) == []


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("let bell = 1;", True),
        ("fn on_bells() {}", True),
        ("struct NodeBell;", True),
        ("Bell::ring()", True),
        ("a host process", True),
        ("except KernelError:", True),
        ("label of a doorbell", False),
        ("as Bell and McCaffrey say", False),
        ("struct Bellow;", False),
        ("cancellation", False),
    ],
)
def test_a_word_is_found_as_a_part_of_a_name(tmp_path, line, is_found):
    (tmp_path / words.GLOSSARY).parent.mkdir(parents=True)
    (tmp_path / words.GLOSSARY).write_text((ROOT / words.GLOSSARY).read_text())
    (tmp_path / "source.rs").write_text(f"first\n{line}\n")
    lines = list(words.found(tmp_path, [Path("source.rs")]))
    assert [text.startswith("source.rs:2: not ") for text in lines] == [True] * is_found
