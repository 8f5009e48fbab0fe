"""The rules of the layout: folders that `ls` explains, a page that says what each entry is, imports without cycles.

Run as a script it checks this checkout. With `--write` it updates `docs/internals/layout.md`: existing lines stay,
entries that are gone are removed, and a new entry gets the first sentence of its own documentation.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("python/broadleaf")
PAGE = Path("docs/internals/layout.md")
MAX_ENTRIES = 12
# The root has a folder for each part and a module for each public path, so its size is that of the public interface.
MAX_ROOT_ENTRIES = 24
# Made by the build, or by running the code.
_NOT_SOURCE = re.compile(r"__pycache__|.*\.so|\..*")
# What makes a folder a package or a module, and says what it is.
_FOLDERS_OWN = ("__init__.py", "mod.rs", "lib.rs")
_HEADER = """\
# Layout

The content of each folder. `tests/rules/test_layout.py` fails if an entry is missing here or on disk;
`python tools/layout.py --write` adds and removes lines.
"""


def entries(folder: Path) -> list[Path]:
    """What `ls` shows of a folder of sources, without the file that makes it a package or a module."""
    return sorted(
        (path for path in folder.iterdir() if not _NOT_SOURCE.fullmatch(path.name) and path.name not in _FOLDERS_OWN),
        key=lambda path: path.name,
    )


def python_folders(root: Path) -> Iterator[Path]:
    """The Python package and every folder in it."""
    waiting = [root / PACKAGE]
    while waiting:
        folder = waiting.pop(0)
        inside = entries(folder)
        # A folder with nothing tracked by git contains at most compiled files of modules that are gone.
        if inside or (folder / "__init__.py").exists():
            yield folder
            waiting[:0] = [path for path in inside if path.is_dir()]


def rust_folders(root: Path) -> Iterator[Path]:
    """The sources of every crate, and every folder in them that has any."""
    waiting = sorted(path / "src" for path in (root / "crates").glob("*") if (path / "src").is_dir())
    while waiting:
        folder = waiting.pop(0)
        if any(folder.glob("*.rs")):
            yield folder
            waiting[:0] = [path for path in entries(folder) if path.is_dir()]


def folder_sizes(root: Path) -> list[str]:
    """Folders of sources with more entries than a reader takes in at once."""
    broken = []
    for folder in (*python_folders(root), *rust_folders(root)):
        limit = MAX_ROOT_ENTRIES if folder == root / PACKAGE else MAX_ENTRIES
        count = sum(not path.is_dir() or path in set(python_folders_of(path)) for path in entries(folder))
        if count > limit:
            broken.append(f"{folder.relative_to(root).as_posix()}: {count} entries, the limit is {limit}")
    return broken


def python_folders_of(folder: Path) -> Iterator[Path]:
    """The folder itself if there is anything in it."""
    if entries(folder) or (folder / "__init__.py").exists():
        yield folder


# The page


def pictured(root: Path) -> dict[str, list[str]]:
    """Folder -> its entries, in the order of the page; the name of a folder ends in a slash."""
    folders = [*python_folders(root)]
    crates = root / "crates"
    if crates.is_dir():
        folders += [crates, *rust_folders(root)]
    return {
        folder.relative_to(root).as_posix(): [
            path.name + "/" * path.is_dir()
            for path in entries(folder)
            if not path.is_dir() or list(python_folders_of(path))
        ]
        for folder in folders
    }


def described(page: str) -> dict[str, dict[str, str]]:
    """Folder -> entry -> meaning, as the page has them."""
    found: dict[str, dict[str, str]] = {}
    inside: dict[str, str] = {}
    for line in page.splitlines():
        if heading := re.fullmatch(r"## `(.+)`", line):
            inside = found.setdefault(heading[1], {})
        elif item := re.fullmatch(r"- `([^`]+)`: (.*)", line):
            inside[item[1]] = item[2]
    return found


def page_differences(root: Path) -> list[str]:
    """Entries without a line on the page, lines without an entry, and lines that say nothing."""
    page = root / PAGE
    said = described(page.read_text(encoding="utf-8") if page.exists() else "")
    there = pictured(root)
    broken = []
    for folder in sorted({*said, *there}):
        lines, names = said.get(folder, {}), there.get(folder, [])
        broken += [f"{PAGE}: no line for {folder}/{name}" for name in names if name not in lines]
        broken += [f"{PAGE}: {folder}/{name} is not there" for name in lines if name not in names]
        broken += [f"{PAGE}: {folder}/{name} has no meaning" for name, text in lines.items() if not text.strip()]
    return broken


def first_sentence(path: Path) -> str:
    """What a file or package says about itself, up to the first full stop."""
    if path.is_dir():
        path = next((path / name for name in (*_FOLDERS_OWN, "src/lib.rs") if (path / name).exists()), path)
        if path.is_dir():
            path = path.with_suffix(".rs")
    if not path.exists():
        return ""
    text = ""
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    elif path.suffix == ".rs":
        lines = [line[3:].strip() for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("//!")]
        text = "\n".join(lines)
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s+(?=[A-Z`])", paragraph)[0]


def written(root: Path) -> str:
    """The page as it should be."""
    page = root / PAGE
    said = described(page.read_text(encoding="utf-8") if page.exists() else "")
    parts = [_HEADER]
    for folder, names in pictured(root).items():
        kept = said.get(folder, {})
        lines = [f"- `{name}`: {kept.get(name) or first_sentence(root / folder / name)}" for name in names]
        if lines:
            parts.append(f"## `{folder}`\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


# Cycles of imports


def modules(root: Path) -> dict[str, Path]:
    """Name -> file of every module of the package."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        inside = path.relative_to(root / "python").with_suffix("").parts
        found[".".join(inside[:-1] if inside[-1] == "__init__" else inside)] = path
    return found


def _import_statements(tree: ast.AST, deferred: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports that run when the module is imported; with `deferred`, also those that run when a function is called.

    Code under `if TYPE_CHECKING:` never runs, and is not counted.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield from _import_statements(ast.Module([other], []), deferred)
        elif deferred or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _import_statements(node, deferred)


def import_graph(root: Path, deferred: bool = False) -> dict[str, set[str]]:
    """Module -> the modules of the package that it imports. Importing a package above one's own does not count."""
    known = modules(root)
    graph: dict[str, set[str]] = {}
    for module, path in known.items():
        package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
        used = graph[module] = set()
        for node in _import_statements(ast.parse(path.read_text(encoding="utf-8"), str(path)), deferred):
            if isinstance(node, ast.Import):
                used |= {alias.name for alias in node.names} & known.keys()
                continue
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *filter(None, [node.module])])
            for alias in node.names:
                used |= {name for name in (f"{origin}.{alias.name}", origin) if name in known and name != module}
                # The name is a module of the package: the package itself is only on the way to it.
                if f"{origin}.{alias.name}" in known:
                    used.discard(origin)
    return graph


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that can all reach each other (Tarjan's strongly connected components)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in graph:
        if node not in number:
            visit(node)
    return found


def parts_graph(graph: dict[str, set[str]], package: str) -> dict[str, set[str]]:
    """The graph of imports between the parts of one package: its folders, and the modules beside them."""
    depth = package.count(".") + 2
    inside = f"{package}."
    merged: dict[str, set[str]] = {}
    for module, used in graph.items():
        if module.startswith(inside):
            part = ".".join(module.split(".")[:depth])
            parts = {".".join(other.split(".")[:depth]) for other in used if other.startswith(inside)}
            merged.setdefault(part, set()).update(parts - {part})
    return merged


def within(graph: dict[str, set[str]], package: str) -> dict[str, set[str]]:
    """The modules of one package, and what they import of each other."""
    inside = {module for module in graph if f"{module}.".startswith(f"{package}.")}
    return {module: graph[module] & inside for module in sorted(inside)}


def import_cycles(root: Path) -> list[str]:
    """Modules that import each other when they are imported.

    An import inside a function runs later, so a cycle cannot make it fail. Within the client and the cluster, and
    between the parts of the laboratory, it counts anyway, so that each can be read without those above it.
    """
    broken = [f"imports go in a cycle: {', '.join(group)}" for group in cycles(import_graph(root))]
    graph = import_graph(root, deferred=True)
    for package in ("broadleaf.client", "broadleaf.cluster"):
        groups = cycles(within(graph, package))
        broken += [f"functions import each other's modules: {', '.join(group)}" for group in groups]
    parts = cycles(parts_graph(graph, "broadleaf.lab"))
    return broken + [f"parts of the laboratory need each other: {', '.join(group)}" for group in parts]


def all_rules(root: Path) -> list[str]:
    """What breaks any of these rules, as readable lines."""
    return [*folder_sizes(root), *page_differences(root), *import_cycles(root)]


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check the layout of the sources, and the page that explains it.")
    parser.add_argument("--write", action="store_true", help=f"bring {PAGE} up to date first")
    if parser.parse_args(None if arguments is None else [*arguments]).write:
        (ROOT / PAGE).write_text(written(ROOT), encoding="utf-8")
    broken = all_rules(ROOT)
    print("\n".join(broken) or "the layout is kept")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
