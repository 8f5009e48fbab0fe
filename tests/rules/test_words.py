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
    assert_found(tmp_path, "source.rs", line, is_found)


@pytest.mark.parametrize(
    ("name", "line", "is_found"),
    [
        ("source.rs", "let most = 1;", True),
        ("source.rs", "const MOST_BYTES: usize = 1;", True),
        ("source.rs", "struct LeastLoad;", True),
        ("source.rs", "head.is_apart = true;", True),
        ("source.rs", "// at most one, and most of all", False),
        ("source.rs", 'let text = "most of \\"them\\"";', False),
        ("source.rs", "let first: &'a str = almost;", False),
        ("source.rs", "at_most::<_, _, 1>(list)", False),
        ("source.rs", "fn least_loaded() {}", False),
        ("source.py", "def watch(after: int, most: int) -> None:", True),
        ("source.py", "self._most = least_ns = 1", True),
        ("source.py", "APART = 1  # a constant", True),
        ("source.py", 'text = "most"  # at least', False),
        ("source.py", "numpy.linalg.least_squares(counts.most_common())", False),
        ("source.py", "def test_most_of_a_sentence():", False),
        ("source.py", '"""Most of it, least and apart."""', False),
        ("page.md", "most of it lies apart", False),
    ],
)
def test_words_that_sentences_may_have_are_found_in_names(tmp_path, name, line, is_found):
    assert_found(tmp_path, name, line, is_found)


def test_a_name_is_found_on_its_line_below_a_text_of_several(tmp_path):
    assert_found(tmp_path, "source.py", '"""A text,\nmost of it long."""\nmost = 1', True, 4)


def assert_found(tmp_path, name, line, is_found, number=2):
    (tmp_path / words.GLOSSARY).parent.mkdir(parents=True)
    (tmp_path / words.GLOSSARY).write_text((ROOT / words.GLOSSARY).read_text())
    (tmp_path / name).write_text(f"first\n{line}\n")
    lines = list(words.found(tmp_path, [Path(name)]))
    assert all(text.startswith(f"{name}:{number}: not ") for text in lines)
    assert bool(lines) == is_found
