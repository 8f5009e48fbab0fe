"""Sentences are picked from where people read them, and the same seed picks the same ones."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import sentences  # noqa: E402


def test_a_paragraph_ends_in_sentences():
    assert list(sentences.sentences("Engines run\ntasks. Pass `e.g.` numbers, i.e. integers to them. No.")) == [
        "Engines run tasks.",
        "Pass `e.g.` numbers, i.e. integers to them.",
    ]


def test_a_page_has_its_prose_and_no_code():
    page = (
        "# A title of it\n\nThe first line\nand the second.\n\n- An item of three words\n\n```python\nx = 1 + 2\n```\n"
    )
    assert list(sentences.of_page(page)) == [
        ("docs", 3, " The first line and the second."),
        ("docs", 6, " An item of three words"),
    ]


def test_python_has_docstrings_comments_errors_and_help():
    source = (
        '"""What the module does."""\n\n# Why it does it.\n\n\n'
        'def f(n):\n    """Counts."""\n    raise ValueError(f"n is {n}, "\n                     "not a number")\n\n\n'
        'option("--n", help="Number of engines.")\n'
    )
    found = {(kind, text.strip()) for kind, _, text in sentences.of_python(source, is_command=False)}
    assert found == {
        ("comment", "What the module does."),
        ("comment", "Counts."),
        ("comment", "Why it does it."),
        ("error", "n is {}, not a number"),
        ("help", "Number of engines."),
    }


def test_rust_has_comments_and_messages_and_none_of_tests():
    source = (
        '/// What it is.\nfn f() {\n    let x = "no such engine: {id}"; // Why.\n}\n'
        "#[cfg(test)]\nmod tests {\n    // Not this one.\n}\n"
    )
    found = [(kind, text.strip()) for kind, _, text in sentences.of_rust(source)]
    assert found == [("comment", "What it is."), ("comment", "Why."), ("error", "no such engine: {id}")]


def test_a_seed_picks_the_same_of_each_kind():
    picked = sentences.chosen(seed=7, count=50)
    assert picked == sentences.chosen(seed=7, count=50)
    assert len(set(picked)) == 50
    assert Counter(sentence.kind for sentence in picked) == {"docs": 13, "help": 13, "error": 12, "comment": 12}
