"""Links of pages that are not on the site, which the build of the documentation checks."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_dead_links_are_found_and_code_is_left(tmp_path):
    pytest.importorskip("sphinx")
    spec = importlib.util.spec_from_file_location("unpublished", ROOT / "docs/extensions/unpublished_pages.py")
    unpublished = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(unpublished)
    page = tmp_path / "page.md"
    (tmp_path / "there.md").touch()
    page.write_text(
        "[a](there.md#part) [b](gone.md) [c](https://example.org/x) [d](#here) `[e](code.md)`\n"
        "```text\n[f](example.md)\n```\n[g](../nowhere.md#x)\n"
    )
    assert list(unpublished.dead_links(page)) == ["gone.md", "../nowhere.md#x"]
