"""Files of a crate that use each other: by the names that they use, or by calls of methods of one type.

A type may have its methods in several files, which then need no `use` to call each other. Here such a call counts as
one.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from rules import rust_code

Module = tuple[str, ...]

USE = re.compile(r"\b(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);")
PATH = re.compile(r"\b(?:crate|self|super)(?:::\w+)+")
IMPL = re.compile(r"^impl(?:<[^>]*>)? (\w+)(?:<[^>]*>)? \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
METHOD = re.compile(r"\bfn (\w+)")
CALL = re.compile(r"\b(?:self|this|Self)\s*(?:\.|::)\s*(\w+)\s*\(")


class Crate:
    """The files of one crate, and which uses which."""

    def __init__(self, top: Path) -> None:
        self.files = {self.module(path.relative_to(top)): path for path in sorted(top.rglob("*.rs"))}
        self.code = {module: code_of(path) for module, path in self.files.items()}
        self.exported = {
            (module, name.split("::")[-1]): self.from_root(module, name)
            for module, code in self.code.items()
            for public, tree in USE.findall(code)
            if public
            for name in expanded(tree)
        }

    @staticmethod
    def module(path: Path) -> Module:
        parts = path.with_suffix("").parts
        return parts[:-1] if parts[-1] in ("lib", "mod") else parts

    def from_root(self, module: Module, name: str) -> Module:
        """A path as names from the crate's root; one that begins with a name begins in the module, as in `pub use`."""
        parts = name.split("::")
        if parts[0] == "crate":
            return tuple(parts[1:])
        while parts and parts[0] in ("self", "super"):
            module = module if parts.pop(0) == "self" else module[:-1]
        return (*module, *parts)

    def file_of(self, name: Module) -> Module:
        """The module whose file defines what a path names."""
        end = 0
        for _ in range(len(self.exported) + 1):
            end = max(n for n in range(len(name) + 1) if name[:n] in self.files)
            exported = self.exported.get((name[:end], name[end])) if end < len(name) else None
            if exported is None:
                break
            name = exported + name[end + 1 :]
        return name[:end]

    def named(self, module: Module) -> Iterator[Module]:
        code = self.code[module]
        trees = [tree for public, tree in USE.findall(code) if not public]
        names = [name for tree in trees for name in expanded(tree) if PATH.match(name)]
        for name in names + PATH.findall(USE.sub("", code)):
            yield self.file_of(self.from_root(module, name))

    def called(self) -> Iterator[tuple[Module, Module]]:
        """For each type, which file calls a method that another file defines."""
        defined: dict[str, dict[str, Module]] = defaultdict(dict)
        calls = []
        for module, code in self.code.items():
            for name, body in IMPL.findall(code):
                defined[name].update(dict.fromkeys(METHOD.findall(body), module))
                calls += [(module, name, method) for method in CALL.findall(body)]
        for module, name, method in calls:
            if method in defined[name]:
                yield module, defined[name][method]

    def circles(self) -> list[list[str]]:
        uses = {module: {used for used in self.named(module) if used != module} for module in self.files}
        for module, used in self.called():
            uses[module] |= {used} - {module}
        reached = {module: reachable(uses, module) for module in uses}
        found = {
            frozenset(other for other in reached[module] if module in reached[other])
            for module in uses
            if module in reached[module]
        }
        return sorted(sorted(str(self.files[module]) for module in circle) for circle in found)


def code_of(path: Path) -> str:
    return "\n".join(line for _, line in rust_code(path.read_text()))


def expanded(tree: str) -> list[str]:
    """The paths that a `use` names."""
    tree = " ".join(tree.split())
    head, brace, inside = tree.partition("{")
    if not brace:
        return [tree.split(" as ")[0].strip().removesuffix("::self")]
    parts, depth = [""], 0
    for character in inside.rstrip().removesuffix("}"):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [path for part in parts if part.strip() for path in expanded(head + part.strip())]


def reachable(uses: dict[Module, set[Module]], start: Module) -> set[Module]:
    seen: set[Module] = set()
    left = list(uses[start])
    while left:
        module = left.pop()
        if module not in seen:
            seen.add(module)
            left += uses[module]
    return seen


def circles(root: Path, crate: str) -> list[str]:
    """Groups of files of a crate that use each other, as readable lines."""
    top = root / "crates" / crate / "src"
    circles = [[Path(name).relative_to(top).as_posix() for name in circle] for circle in Crate(top).circles()]
    return [f"{crate}: {', '.join(circle)} use each other" for circle in circles]
