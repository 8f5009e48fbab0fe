"""The project's rules that a machine can check. Each function returns what breaks one rule, as readable lines.

Run as a script it checks this checkout; `tests/rules/test_rules.py` does the same, and breaks each rule.
"""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Crate -> crates of this workspace it may use; its tests may use all but broadleaf-python.
CRATES = {
    "broadleaf-proto": set(),
    "broadleaf-core": {"broadleaf-proto"},
    "broadleaf-shm": {"broadleaf-proto"},
    "broadleaf-net": {"broadleaf-proto"},
    "broadleaf-node": {"broadleaf-proto", "broadleaf-core", "broadleaf-net", "broadleaf-shm"},
    "broadleaf-sim": {"broadleaf-proto", "broadleaf-core"},
    "broadleaf-python": {"broadleaf-proto", "broadleaf-net", "broadleaf-shm", "broadleaf-node"},
}
DEV = {"broadleaf-sim"}

# In crates/core and crates/proto these words mean an effect, a clock, randomness or an order that changes between runs.
IMPURE = re.compile(
    r"\b(?:tokio|async_std|std::(?:net|fs|thread|env|process|os)\b|Instant|SystemTime|HashMap|HashSet|"
    r"getrandom|thread_rng|rand::rng|OsRng|RandomState|async fn|\.await\b|println!|eprintln!)"
)
IMPURE_DEPENDENCIES = {"tokio", "tokio-util", "mio", "rustix", "libc", "rand", "getrandom", "rustls", "memmap2", "nix"}
UNSAFE = re.compile(r"\bunsafe\s*(?:\{|fn|impl|extern|trait)|allow\(unsafe_code\)|expect\(unsafe_code")

# Packages of python/broadleaf that may import `_native`, and those that may use only what `import broadleaf` offers.
NATIVE_USERS = {"client", "engine", "cluster"}
PUBLIC_API_USERS = {"cli", "dashboard", "bench", "plan", "notebook", "interop"}
# What they may import besides: errors, options, settings, the memory of a process, texts for figures and what waits for
# an import contain no machinery.
PUBLIC_MODULES = {"after_import", "errors", "options", "config", "private_files", "process_memory", "text"}
# A command is a thin face of one of these.
CLI_MODULES = PUBLIC_MODULES | {"cluster"} | PUBLIC_API_USERS
STRANGERS = [("engine", "client"), ("client", "engine")]
# What may import the laboratory, a package of its own that is used without Broadleaf.
LABORATORY_USERS = {"bench"}

FORBIDDEN_STEMS = {"utils", "util", "helpers", "helper", "misc", "common", "stuff"}
SOURCE_ROOTS = ("crates", "python", "lab", "benchmarks", "tests", "tools", "examples", "docs")
NOT_LOADED = [
    "numpy", "IPython", "ipykernel", "rich", "click", "asyncio", "ssl", "matplotlib", "pandas", "joblib", "dask",
    "concurrent.futures.process", "multiprocessing", "traitlets", "zmq", "psutil", "http", "email", "unittest",
]  # fmt: skip


def relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def sources(root: Path, *suffixes: str) -> Iterator[Path]:
    """The repository's own source files with one of the suffixes."""
    for top in SOURCE_ROOTS:
        for path in sorted((root / top).rglob("*")):
            inside = path.relative_to(root).parts
            if path.suffix in suffixes and path.is_file() and not {"target", "_build", "__pycache__"} & set(inside):
                yield path


def rust_code(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines without comments, up to the file's test module."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() == "#[cfg(test)]":
            return
        code = line.split("//")[0]
        if code.strip():
            yield number, code


def crate_dependencies(metadata: dict) -> list[str]:
    """Edges between the workspace's crates, from `cargo metadata --no-deps`, that the layout does not allow."""
    broken = []
    for package in metadata["packages"]:
        name = package["name"]
        if name not in CRATES:
            broken.append(f"{name}: not a crate of the layout")
            continue
        for dependency in package["dependencies"]:
            used, kind = dependency["name"], dependency["kind"]
            if used.startswith("broadleaf-"):
                allowed = CRATES[name] | (DEV | set(CRATES) - {"broadleaf-python"} if kind == "dev" else set())
                if used not in allowed:
                    broken.append(f"{name} uses {used}")
            elif name in {"broadleaf-core", "broadleaf-proto"} and kind != "dev" and used in IMPURE_DEPENDENCIES:
                broken.append(f"{name} uses {used}, which has effects")
    return broken


def cargo_metadata(root: Path) -> dict:
    command = ["cargo", "metadata", "--format-version", "1", "--no-deps", "--offline"]
    return json.loads(subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout)


def purity(root: Path) -> list[str]:
    """Effects, clocks and unordered maps in the crates that only decide."""
    return [
        f"{relative(path, root)}:{number}: {code.strip()}"
        for crate in ("core", "proto")
        for path in sorted((root / "crates" / crate / "src").rglob("*.rs"))
        for number, code in rust_code(path.read_text())
        if IMPURE.search(code)
    ]


def unsafe_code(root: Path) -> list[str]:
    """`unsafe` outside crates/shm and the buffer object, and `unsafe` without its reason."""
    broken = []
    for path in sources(root, ".rs"):
        name = relative(path, root)
        lines = path.read_text().splitlines()
        allowed = name.startswith("crates/shm/") or name == "crates/python/src/buffer.rs"
        for number, line in enumerate(lines, 1):
            code = line.split("//")[0]
            if not UNSAFE.search(code):
                continue
            if not allowed:
                broken.append(f"{name}:{number}: unsafe outside crates/shm and crates/python/src/buffer.rs")
            elif re.search(r"\bunsafe\s*(?:\{|impl)", code):
                above = "\n".join(lines[max(0, number - 12) : number])
                if "SAFETY" not in above:
                    broken.append(f"{name}:{number}: unsafe without a SAFETY comment")
    return broken


def file_names(root: Path) -> list[str]:
    return [
        f"{relative(path, root)}: says nothing about what is in it"
        for path in sources(root, ".rs", ".py", ".pyi")
        if path.stem.strip("_").lower() in FORBIDDEN_STEMS
    ]


def imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, absolute module) for every import in the tree, wherever it is."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            origin = ".".join(part for part in (base, node.module) if part)
            yield node.lineno, origin
            for alias in node.names:
                yield node.lineno, f"{origin}.{alias.name}"


def type_checking_only(tree: ast.Module) -> set[int]:
    """Lines inside `if TYPE_CHECKING:`, which import nothing at run time."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for inner in node.body:
                lines.update(range(inner.lineno, (inner.end_lineno or inner.lineno) + 1))
    return lines


def python_imports(root: Path) -> list[str]:
    """Imports between the parts of the Python package that the layout does not allow."""
    broken = []
    top = root / "python" / "broadleaf"
    for path in sorted(top.rglob("*.py")):
        inside = path.relative_to(top)
        part = inside.parts[0] if len(inside.parts) > 1 else ""
        is_package = path.name == "__init__.py"
        parts = inside.parent.parts if is_package else inside.with_suffix("").parts
        module = ".".join(("broadleaf", *parts))
        tree = ast.parse(path.read_text(), str(path))
        for_types = type_checking_only(tree)
        seen = set()
        for line, target in imports(tree, module, is_package):
            names = target.split(".")
            where = f"{relative(path, root)}:{line}"
            if names[0] == "broadleaf_lab" and part not in LABORATORY_USERS:
                seen.add(f"{where}: {part or path.stem} imports broadleaf_lab")
            if names[0] != "broadleaf" or len(names) < 2:
                continue
            other = names[1]
            if other == "_native" and part not in NATIVE_USERS:
                seen.add(f"{where}: only {', '.join(sorted(NATIVE_USERS))} import broadleaf._native")
            if (part, other) in STRANGERS and line not in for_types:
                seen.add(f"{where}: {part} imports {other}")
            # `python -m` of a package is a command of the command line.
            public = (
                CLI_MODULES if part == "cli" else PUBLIC_MODULES | ({"cli"} if inside.name == "__main__.py" else set())
            )
            outside = other not in public and other != part and is_module(top, other)
            if part in PUBLIC_API_USERS and outside and line not in for_types:
                seen.add(f"{where}: {part} uses broadleaf.{other}; it may use only what `import broadleaf` offers")
        broken += sorted(seen)
    return broken


def laboratory_imports(root: Path) -> list[str]:
    """Imports of Broadleaf in the laboratory, which works without it."""
    return [
        f"{relative(path, root)}:{line}: the laboratory imports {target}"
        for path in sorted((root / "lab" / "src").rglob("*.py"))
        for line, target in imports(ast.parse(path.read_text(), str(path)), path.stem, path.name == "__init__.py")
        if target.partition(".")[0] == "broadleaf"
    ]


def is_module(top: Path, name: str) -> bool:
    return (top / name).is_dir() or (top / f"{name}.py").is_file()


def loaded_by_import(python: str, modules: list[str]) -> list[str]:
    """Which of the modules a bare `import broadleaf` loads, in a fresh interpreter."""
    code = f"import sys, broadleaf; print(*[m for m in {modules!r} if m in sys.modules])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=50, check=True)
    return done.stdout.split()


def time_limits(root: Path) -> list[str]:
    """Every test needs a time limit: the default one, and no marker that removes it."""
    return [
        f"{relative(path, root)}: no default time limit for tests"
        for path in (root / "pyproject.toml", root / "lab" / "pyproject.toml")
        if not tomllib.loads(path.read_text())["tool"]["pytest"]["ini_options"].get("timeout", 0) > 0
    ]


def unlimited_tests(root: Path) -> list[str]:
    """Markers that remove a test's limit."""
    pattern = re.compile(r"mark\.timeout\(\s*(?:timeout\s*=\s*)?(?:0|None)\s*[,)]")
    return [
        f"{relative(path, root)}: a test without a time limit"
        for path in sources(root, ".py")
        if "tests" in path.relative_to(root).parts[:2]
        and path.name != "test_rules.py"
        and pattern.search(path.read_text())
    ]


def main() -> int:
    broken = [
        *crate_dependencies(cargo_metadata(ROOT)),
        *purity(ROOT),
        *unsafe_code(ROOT),
        *file_names(ROOT),
        *python_imports(ROOT),
        *laboratory_imports(ROOT),
        *time_limits(ROOT),
        *unlimited_tests(ROOT),
    ]
    print("\n".join(broken) or "all rules kept")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
