"""Modules do not import each other in cycles."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load_checks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("import_cycles", ROOT / "tools" / "import_cycles.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


checks = load_checks()
PACKAGES = {"broadleaf_lab": "lab/src"}
"""Where a package is whose name begins the name of a file; other files are in that of Broadleaf."""


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / PACKAGES.get(name.partition("/")[0], "python/broadleaf") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_imports_go_in_no_cycle():
    assert checks.import_cycles(ROOT) == []


@pytest.mark.parametrize("imported", ["import broadleaf.a", "from broadleaf import a", "from .a import X"])
def test_modules_that_import_each_other_are_noticed(tmp_path, imported):
    root = write(tmp_path, {"__init__.py": "", "a.py": "from broadleaf.b import Y", "b.py": imported})
    assert checks.import_cycles(root) == ["imports go in a cycle: broadleaf.a, broadleaf.b"]


@pytest.mark.parametrize(
    "later",
    ["def f():\n    import broadleaf.a", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .a import X"],
)
def test_an_import_that_does_not_run_at_once_closes_no_cycle(tmp_path, later):
    root = write(tmp_path, {"__init__.py": "", "a.py": "from broadleaf.b import Y", "b.py": later})
    assert checks.import_cycles(root) == []


def test_a_part_of_the_laboratory_does_not_need_those_above_it_even_later(tmp_path):
    above = "from broadleaf_lab.run.table import Row"
    lab = "broadleaf_lab"
    root = write(tmp_path, {f"{lab}/__init__.py": "", f"{lab}/run/table.py": "", f"{lab}/analysis/frame.py": above})
    assert checks.import_cycles(root) == []
    write(root, {f"{lab}/run/single.py": "def f():\n    from broadleaf_lab.analysis import frame"})
    expected = "parts of the laboratory need each other: broadleaf_lab.analysis, broadleaf_lab.run"
    assert checks.import_cycles(root) == [expected]


@pytest.mark.parametrize("package", ["client", "cluster"])
def test_modules_of_the_client_or_the_cluster_do_not_need_each_other_even_later(tmp_path, package):
    later = f"def f():\n    from broadleaf.{package}.a import X"
    files = {f"{package}/__init__.py": "", f"{package}/a.py": f"from broadleaf.{package}.b import Y"}
    root = write(tmp_path, {**files, f"{package}/b.py": "", "compat.py": later})
    assert checks.import_cycles(root) == []
    write(root, {f"{package}/b.py": later})
    expected = f"functions import each other's modules: broadleaf.{package}.a, broadleaf.{package}.b"
    assert checks.import_cycles(root) == [expected]
