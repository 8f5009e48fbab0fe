"""What the wheel holds: what users run, and nothing that needs root, a namespace or another library to measure."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

from benchmarks.environments import PEERS

ROOT = Path(__file__).resolve().parents[2]
# Broadleaf works on Dask's and Ray's hosts, in ranks and under joblib; the others it is only compared with.
COMPARED_WITH = {"ipyparallel", "loky", "parsl"}
# Ways into a namespace.
NAMESPACES = re.compile(r"[\"']unshare[\"']|\bnetns\b|\bnsenter\b|\bCLONE_NEW")


def files_of_the_wheel() -> list[Path]:
    """What maturin packs besides the native module: the files of `python/` that git does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "python"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return [path for name in listed if name and (path := ROOT / name).exists()]


def libraries(module: Path) -> set[str]:
    """The top-level names of what a module imports, wherever the import stands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text(), str(module))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def broken(files: list[Path]) -> list[str]:
    """What a wheel of these files must not hold, as readable lines."""
    lines = []
    for path in files:
        if path.suffix != ".py":
            continue
        imported = libraries(path)
        peers = imported & (COMPARED_WITH | (set(PEERS) if "bench" in path.parts else set()) - {"joblib"})
        lines += [f"{path.name}: imports {name}, which Broadleaf is compared with" for name in sorted(peers)]
        lines += [f"{path.name}: imports {name}" for name in sorted(imported & {"benchmarks", "bed", "tests"})]
        if NAMESPACES.search(path.read_text()):
            lines.append(f"{path.name}: enters a namespace")
    return lines


def test_the_wheel_holds_one_package():
    files = files_of_the_wheel()
    assert {path.relative_to(ROOT).parts[1] for path in files} == {"broadleaf"}
    assert ROOT / "python/broadleaf/bench/runner.py" in files


def test_the_wheel_has_no_peers_and_no_namespaces():
    assert broken(files_of_the_wheel()) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def f():\n    import parsl", "imports parsl"),
        ("from ray import get", "imports ray"),
        ("from benchmarks.environments import PEERS", "imports benchmarks"),
        ("command = ['ip', 'netns', 'list']", "enters a namespace"),
    ],
)
def test_what_does_not_belong_there_is_noticed(tmp_path, text, said):
    module = tmp_path / "bench" / "module.py"
    module.parent.mkdir()
    module.write_text(text + "\n")
    (line,) = broken([module])
    assert said in line
