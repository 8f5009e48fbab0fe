"""Words that the glossary rejects, wherever they are used in code, messages and pages.

The table of `docs/concepts/glossary.md` says which, and what to write instead. A name counts by its parts: `on_bell`
and `NodeBell` have the word "bell".
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GLOSSARY = Path("docs/concepts/glossary.md")
_SOURCES = ("crates", "docs", "examples", "fuzz/src", "fuzz/fuzz_targets", "python", "tests", "tools", "README.md")
_TEXTS = {".py", ".pyi", ".rs", ".md", ".toml"}
# Decisions and measurements keep the words of their day; the compatibility layer and its guide use IPython Parallel's;
# this rule and its test name what they look for.
_EXEMPT = re.compile(
    r"docs/(adr|internals/notebook)/|docs/guides/coming-from-ipyparallel\.md|python/broadleaf/compat/|tests/compat/"
    r"|tools/words\.py|tests/rules/test_words\.py"
)


def rejected_words(root: Path) -> dict[str, str]:
    """Each rejected word, and what the glossary has instead."""
    table = (root / GLOSSARY).read_text().partition("## Words that are not used")[2]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", table, re.MULTILINE)
    return {word: instead for words, instead in rows if words != "Not" for word in words.split(", ")}


def pattern(words: Mapping[str, str]) -> re.Pattern[str]:
    """Matches each of the words: as a word or its plural, or as a part of a name in snake or camel case."""
    forms = []
    for word in words:
        capital = word[0].upper() + word[1:]
        if capital == word:
            forms.append(rf"\b{word}\b")
        else:
            # Capitalised and alone, it may be a person's name.
            forms.append(rf"(?<![A-Za-z]){word}s?(?![a-z])|(?<=[a-z]){capital}s?(?![a-z])|\b{capital}s?(?=[A-Z]|::)")
    return re.compile("|".join(forms))


def found(root: Path, paths: list[Path]) -> Iterator[str]:
    """A sentence for each line of `paths`, which are relative to `root`, with a rejected word."""
    words = rejected_words(root)
    matches = pattern(words)
    for path in paths:
        if path.suffix not in _TEXTS or path == GLOSSARY or _EXEMPT.match(path.as_posix()):
            continue
        for number, line in enumerate((root / path).read_text().splitlines(), 1):
            for match in matches.finditer(line):
                word = match[0]
                instead = next(
                    to for rejected, to in words.items() if word.lower().rstrip("s") == rejected.lower().rstrip("s")
                )
                yield f"{path}:{number}: not {word!r}, but {instead}"


def tracked(root: Path) -> list[Path]:
    """The files of this checkout that the rule applies to."""
    listed = subprocess.run(["git", "ls-files", "-z", *_SOURCES], cwd=root, check=True, capture_output=True, text=True)
    return [path for name in listed.stdout.split("\0") if name and (root / (path := Path(name))).exists()]


def main() -> int:
    """Prints what it finds; returns 1 if it finds anything."""
    lines = list(found(ROOT, tracked(ROOT)))
    print("\n".join(lines) or "no word that the glossary rejects")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
