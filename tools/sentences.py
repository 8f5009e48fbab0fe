"""Picks sentences at random from pages, help, errors and comments, so that somebody can judge whether each reads well.

`python tools/sentences.py --seed 1 --count 50` prints as many of each kind, with the file and line of each. `--all`
prints every sentence of the paths that you name.
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("docs", "help", "error", "comment")
_SOURCES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs", "python", "crates", "examples", "tools")
_MIN_WORDS = 3
_END = re.compile(r"(?<=[.!?])[\"')*`]*\s+(?=[\"'(`*A-Z%])")
_ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|vs|et al|cf|No|Sec|Fig)\.$")
_LIST_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.|:)\s+")
_RUST_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)


@dataclass(frozen=True)
class Sentence:
    """A sentence, and where its paragraph begins."""

    kind: str
    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} ({self.kind})\n    {self.text}"


def sentences(text: str) -> Iterator[str]:
    """The sentences of a paragraph that have at least a few words."""
    start = 0
    flat = " ".join(text.split())
    for end in [*_END.finditer(flat), None]:
        sentence = flat[start : end.start() if end else len(flat)]
        if end and _ABBREVIATION.search(sentence):
            continue
        start = end.end() if end else len(flat)
        if sum(bool(re.search(r"[A-Za-z]{2,}", word)) for word in sentence.split()) >= _MIN_WORDS:
            yield sentence.strip()


def in_paragraphs(lines: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Joins lines to paragraphs; an empty line or an item of a list begins a new one."""
    first, words = 0, ""
    for number, line in [*lines, (0, "")]:
        if words and (not line.strip() or _LIST_ITEM.match(line)):
            yield first, words
            words = ""
        if line.strip():
            first = first if words else number
            words += " " + _LIST_ITEM.sub("", line, count=1)


def of_page(text: str) -> Iterator[tuple[str, int, str]]:
    """Paragraphs of a Markdown page, without its code, tables, headings and directives."""
    lines: list[tuple[int, str]] = []
    fence = "---" if text.startswith("---\n") else ""
    for number, line in enumerate(text.splitlines(), 1):
        opens = re.match(r"\s*(`{3,}|~{3,})", line)
        if fence:
            if number > 1 and line.strip() == fence:
                fence = ""
            line = ""
        elif opens:
            fence, line = opens[1], ""
        elif re.match(r"\s*(#|\||:::|!\[|<!--|:\w+:|\[\w+\]: )", line):
            line = ""
        lines.append((number, line))
    for number, paragraph in in_paragraphs(lines):
        yield "docs", number, paragraph


def of_python(text: str, is_command: bool) -> Iterator[tuple[str, int, str]]:
    """Docstrings, comments, help and the messages of exceptions."""
    tree = ast.parse(text)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and (docstring := ast.get_docstring(node, clean=True)):
            is_help = is_command and not isinstance(node, ast.Module) and _is_click(node)
            first = node.body[0].lineno
            numbered = list(enumerate(docstring.splitlines(), first))
            for number, paragraph in in_paragraphs(numbered):
                yield "help" if is_help else "comment", number, paragraph
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for argument in node.exc.args:
                if message := _string(argument):
                    yield "error", argument.lineno, message
        elif isinstance(node, ast.keyword) and node.arg in ("help", "short_help", "epilog"):
            if message := _string(node.value):
                yield "help", node.value.lineno, message
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Option":
            for argument in node.args[4:5]:
                if message := _string(argument):
                    yield "help", argument.lineno, message
    comments: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#(!| noqa| type:| fmt:| pyright)", token.string):
            if comments and comments[-1][0] != token.start[0] - 1:
                comments.append((0, ""))
            comments.append((token.start[0], token.string.lstrip("# ")))
    for number, paragraph in in_paragraphs(comments):
        yield "comment", number, paragraph


def _is_click(node: ast.AST) -> bool:
    decorators = getattr(node, "decorator_list", [])
    return any("command" in ast.unparse(decorator) or "group" in ast.unparse(decorator) for decorator in decorators)


def _string(node: ast.AST) -> str:
    """The text of a string or an f-string, with `{}` for each value in it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_string(part) or "{}" for part in node.values)
    if isinstance(node, ast.BinOp):
        return _string(node.left) + _string(node.right)
    return ""


def of_rust(text: str) -> Iterator[tuple[str, int, str]]:
    """Comments and messages, without those of tests."""
    text = text.partition("#[cfg(test)]\nmod tests")[0]
    comments: list[tuple[int, str]] = []
    code: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        comment = re.search(r"(?:^|\s)//[/!]?(?:\s(.*)|$)", line)
        if comment:
            comments.append((number, comment[1] or ""))
        elif comments and comments[-1][1]:
            comments.append((0, ""))
        code.append(line[: comment.start()] if comment else line)
    for number, paragraph in in_paragraphs(comments):
        yield "comment", number, paragraph
    joined = "\n".join(code)
    for found in _RUST_STRING.finditer(joined):
        message = re.sub(r"\\\n\s*", "", found[1])
        if (
            "\n" not in message
            and not message.startswith("invariant: ")
            and not re.search(r"(expect|assert\w*!)\([^\"]*$", joined[: found.start()][-80:])
        ):
            yield "error", joined[: found.start()].count("\n") + 1, message


def of_file(path: Path) -> Iterator[Sentence]:
    """The sentences of a file of the checkout."""
    text = (ROOT / path).read_text()
    name = path.as_posix()
    if path.suffix == ".md":
        paragraphs = of_page(text)
    elif path.suffix in (".py", ".pyi"):
        paragraphs = of_python(text, "/cli/" in name)
    else:
        paragraphs = of_rust(text)
    for kind, line, paragraph in paragraphs:
        for sentence in sentences(paragraph):
            yield Sentence(kind, name, line, sentence)


def tracked() -> list[Path]:
    """The files with sentences that this checkout has, without tests."""
    listed = subprocess.run(["git", "ls-files", "-z", *_SOURCES], cwd=ROOT, check=True, capture_output=True, text=True)
    paths = sorted(Path(name) for name in listed.stdout.split("\0") if name)
    return [
        path
        for path in paths
        if path.suffix in (".md", ".py", ".pyi", ".rs") and "tests" not in path.parts and (ROOT / path).exists()
    ]


def chosen(seed: int, count: int) -> list[Sentence]:
    """`count` different sentences, as many of each kind; the same for the same seed and files."""
    generator = random.Random(seed)
    found = [sentence for path in tracked() for sentence in of_file(path)]
    picked: list[Sentence] = []
    for number, kind in enumerate(KINDS):
        of_kind = [sentence for sentence in found if sentence.kind == kind]
        share = count // len(KINDS) + (number < count % len(KINDS))
        picked += generator.sample(of_kind, min(share, len(of_kind)))
    return picked


def main() -> int:
    """Prints what was picked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--all", nargs="+", metavar="PATH", help="print all sentences of these files instead")
    arguments = parser.parse_args()
    if arguments.all:
        picked = [sentence for path in arguments.all for sentence in of_file(Path(path))]
    else:
        picked = chosen(arguments.seed, arguments.count)
    print("\n".join(map(str, picked)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
