"""Words that the glossary rejects, wherever they are used in code, messages and pages.

The tables of `docs/concepts/glossary.md` say which, and what to write instead. A name counts by its parts: `on_bell`
and `NodeBell` have the word "bell". Words of the second table are refused in names alone: comments, texts and pages may
have them.
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
_IN_NAMES_ALONE = "As names in code"
# Idioms and terms of the field within names, and sentences as names of tests.
_ALLOWED_IN_NAMES = re.compile(
    r"at_(most|least)|least_(squares|loaded)|most_common|(told|tell|taken|kept|keep|lie|are|further)_apart|apart_from"
    r"|\btest_\w*|_output_apart"
)
# Comments and texts of a program; what is left has its names.
_NO_NAMES = {
    ".rs": r"//[^\n]*|/\*.*?\*/|\bb?r(?P<hashes>#*)\".*?\"(?P=hashes)|b?\"(?:\\.|[^\"\\])*\"|'(?:\\.[^']*|[^'\\])'",
    ".py": r"#[^\n]*|\"{3}(?:\\.|[^\\])*?\"{3}|'{3}(?:\\.|[^\\])*?'{3}|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'",
}
_NO_NAMES[".pyi"] = _NO_NAMES[".py"]


def _tables(root: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The rejected words, and those that are rejected in names alone: each with what the glossary has instead."""
    text = (root / GLOSSARY).read_text().partition("## Words that are not used")[2]
    everywhere, _, in_names = text.partition(_IN_NAMES_ALONE)
    found = []
    for table in (everywhere, in_names):
        rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", table, re.MULTILINE)
        found.append({word: instead for words, instead in rows if words != "Not" for word in words.split(", ")})
    return found[0], found[1]


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


def _name_pattern(words: Mapping[str, str]) -> re.Pattern[str]:
    """As `pattern`, also in the case of constants: `MOST_BYTES`."""
    constants = "|".join(rf"(?<![A-Za-z]){word.upper()}S?(?![A-Za-z])" for word in words)
    return re.compile(f"{pattern(words).pattern}|{constants}")


def names_of(text: str, suffix: str) -> str:
    """A program without its comments and texts, with its lines where they were."""
    removed = re.compile(_NO_NAMES[suffix], re.DOTALL)
    return removed.sub(lambda match: '""' + "\n" * match[0].count("\n"), text)


def found(root: Path, paths: list[Path]) -> Iterator[str]:
    """A sentence for each line of `paths`, which are relative to `root`, with a rejected word."""
    everywhere, in_names = _tables(root)
    for path in paths:
        if path.suffix not in _TEXTS or path == GLOSSARY or _EXEMPT.match(path.as_posix()):
            continue
        text = (root / path).read_text()
        yield from _found_in(path, text, everywhere, pattern(everywhere))
        if in_names and path.suffix in _NO_NAMES:
            names = _ALLOWED_IN_NAMES.sub("", names_of(text, path.suffix))
            yield from _found_in(path, names, in_names, _name_pattern(in_names))


def _found_in(path: Path, text: str, words: Mapping[str, str], matches: re.Pattern[str]) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
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
