"""The project's rules that a machine can check. Each function returns what breaks one rule, as readable lines.

`test_rules.py` beside it checks this checkout, and breaks each rule.
"""

import ast
import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Crate -> crates of this workspace it may use; its tests may use all but broadleaf-python.
CRATES = {
    "broadleaf-proto": set(),
    "broadleaf-core": {"broadleaf-proto"},
    "broadleaf-client": {"broadleaf-proto"},
    "broadleaf-engine": {"broadleaf-proto", "broadleaf-core"},
    "broadleaf-shm": {"broadleaf-proto"},
    "broadleaf-net": {"broadleaf-proto"},
    "broadleaf-node": {"broadleaf-proto", "broadleaf-core", "broadleaf-net", "broadleaf-shm"},
    "broadleaf-sim": {"broadleaf-proto", "broadleaf-core", "broadleaf-client", "broadleaf-engine"},
    "broadleaf-python": {
        "broadleaf-proto",
        "broadleaf-client",
        "broadleaf-engine",
        "broadleaf-net",
        "broadleaf-shm",
        "broadleaf-node",
    },
}
DEV = {"broadleaf-sim"}

# The crates that only decide. There these words mean an effect, a clock, randomness or an order that changes between
# runs.
PURE = ("proto", "core", "client", "engine")
IMPURE = re.compile(
    r"\b(?:tokio|async_std|std::(?:net|fs|thread|env|process|os)\b|Instant|SystemTime|HashMap|HashSet|"
    r"getrandom|thread_rng|rand::rng|OsRng|RandomState|async fn|\.await\b|println!|eprintln!)"
)
IMPURE_DEPENDENCIES = {"tokio", "tokio-util", "mio", "rustix", "libc", "rand", "getrandom", "rustls", "memmap2", "nix"}
UNSAFE = re.compile(r"\bunsafe\s*(?:\{|fn|impl|extern|trait)|allow\(unsafe_code\)|expect\(unsafe_code")

# Packages of python/broadleaf that may import `_native`, and those that use what `import broadleaf` offers.
NATIVE_USERS = {"client", "engine", "cluster", "mpi", "state"}
PUBLIC_API_USERS = {"bench"}

FORBIDDEN_STEMS = {"utils", "util", "helpers", "helper", "misc", "common", "stuff"}
SOURCE_ROOTS = ("crates", "python", "lab", "benchmarks", "tests", "examples", "docs")
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
            # The gate keeps whole trees in a hidden folder.
            is_made = any(part in {"target", "_build", "__pycache__"} or part.startswith(".") for part in inside)
            if path.suffix in suffixes and path.is_file() and not is_made:
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
            elif name.removeprefix("broadleaf-") in PURE and kind != "dev" and used in IMPURE_DEPENDENCIES:
                broken.append(f"{name} uses {used}, which has effects")
    return broken


def cargo_metadata(root: Path) -> dict:
    command = ["cargo", "metadata", "--format-version", "1", "--no-deps", "--offline"]
    return json.loads(subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout)


def purity(root: Path) -> list[str]:
    """Effects, clocks and unordered maps in the crates that only decide."""
    return [
        f"{relative(path, root)}:{number}: {code.strip()}"
        for crate in PURE
        for path in sorted((root / "crates" / crate / "src").rglob("*.rs"))
        for number, code in rust_code(path.read_text())
        if IMPURE.search(code)
    ]


def shared_fields(root: Path) -> list[str]:
    """Fields in the crates that only decide that every file of the crate may change: a component's state is its own."""
    field = re.compile(r"\s*pub\(crate\) \w+:")
    return [
        f"{relative(path, root)}:{number}: {code.strip()}"
        for crate in PURE
        for path in sorted((root / "crates" / crate / "src").rglob("*.rs"))
        for number, code in rust_code(path.read_text())
        if field.match(code)
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


def merge_markers(root: Path) -> list[str]:
    """Where a merge was committed before somebody decided it."""
    pattern = re.compile("^(?:<{7}|>{7}) ", re.MULTILINE)
    return [
        f"{relative(path, root)}: has both sides of a merge"
        for path in sources(root, ".md", ".py", ".pyi", ".rs", ".toml", ".js", ".css", ".html")
        if pattern.search(path.read_text(errors="replace"))
    ]


def root_imports(root: Path) -> list[str]:
    """Imports of the root of the Python package in what is below it, but for the native module where it is used."""
    broken = []
    top = root / "python" / "broadleaf"
    for path in sorted(top.rglob("*.py")):
        inside = path.relative_to(top)
        part = inside.parts[0] if len(inside.parts) > 1 else inside.stem
        if part in PUBLIC_API_USERS or inside == Path("__init__.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text(), str(path))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module == "broadleaf":
                names = [f"broadleaf.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            for name in names:
                if name == "broadleaf._native":
                    wrong = part not in NATIVE_USERS
                else:
                    head, _, first = name.partition(".")
                    wrong = head == "broadleaf" and not is_module(top, first.partition(".")[0])
                if wrong:
                    broken.append(f"{relative(path, root)}:{node.lineno}: imports {name}")
    return broken


def is_module(top: Path, name: str) -> bool:
    return bool(name) and ((top / name).is_dir() or (top / f"{name}.py").is_file())


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
