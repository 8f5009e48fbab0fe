"""Imports without cycles: which modules of a package import each other.

Run as a script it checks this checkout.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (Path("python/broadleaf"), Path("lab/src/broadleaf_lab"))


def modules(root: Path) -> dict[str, Path]:
    """Name -> file of every module of the packages."""
    found = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            inside = path.relative_to(root / package.parent).with_suffix("").parts
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
    parts = cycles(parts_graph(graph, "broadleaf_lab"))
    return broken + [f"parts of the laboratory need each other: {', '.join(group)}" for group in parts]


def main() -> int:
    broken = import_cycles(ROOT)
    print("\n".join(broken) or "imports go in no cycle")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
