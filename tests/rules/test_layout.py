"""`ls` explains the sources: short folders, a page that says what each entry is, and imports without cycles."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load_layout() -> ModuleType:
    spec = importlib.util.spec_from_file_location("layout", ROOT / "tools" / "layout.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


layout = load_layout()


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / "python" / "broadleaf" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_no_folder_has_more_than_a_dozen_entries():
    assert layout.folder_sizes(ROOT) == []


def test_a_folder_with_thirteen_entries_is_noticed(tmp_path):
    root = write(tmp_path, {"client/__init__.py": "", **{f"client/part{n}.py": "" for n in range(11)}})
    write(root, {"client/views/__init__.py": "", "client/__pycache__/part0.pyc": ""})
    assert layout.folder_sizes(root) == []
    write(root, {"client/options.toml": ""})
    assert layout.folder_sizes(root) == ["python/broadleaf/client: 13 entries, the limit is 12"]


def test_a_folder_that_holds_only_compiled_files_is_no_entry(tmp_path):
    root = write(tmp_path, {f"client/part{n}.py": "" for n in range(12)})
    write(root, {"client/gone/__pycache__/part.pyc": ""})
    assert layout.folder_sizes(root) == []
    assert "gone/" not in layout.pictured(root)["python/broadleaf/client"]


def test_the_page_has_a_line_for_each_entry():
    assert layout.page_differences(ROOT) == []


def test_an_entry_missing_on_the_page_or_on_the_disk_is_noticed(tmp_path):
    root = write(tmp_path, {"units.py": '"""Units as people read them.\n\nMore of them."""', "plan/__init__.py": ""})
    page = root / layout.PAGE
    page.parent.mkdir(parents=True)
    page.write_text("## `python/broadleaf`\n\n- `plan/`: Plans.\n- `gone.py`: It was here.\n- `plan/`: Plans.\n")
    assert layout.page_differences(root) == [
        "docs/internals/layout.md: no line for python/broadleaf/units.py",
        "docs/internals/layout.md: python/broadleaf/gone.py is not there",
    ]
    page.write_text(layout.written(root))
    assert layout.page_differences(root) == []
    assert "- `plan/`: Plans.\n- `units.py`: Units as people read them.\n" in page.read_text()


def test_a_line_without_a_meaning_is_noticed(tmp_path):
    root = write(tmp_path, {"units.py": ""})
    page = root / layout.PAGE
    page.parent.mkdir(parents=True)
    page.write_text(layout.written(root))
    assert layout.page_differences(root) == ["docs/internals/layout.md: python/broadleaf/units.py has no meaning"]


def test_imports_go_in_no_cycle():
    assert layout.import_cycles(ROOT) == []


@pytest.mark.parametrize("imported", ["import broadleaf.a", "from broadleaf import a", "from .a import X"])
def test_modules_that_import_each_other_are_noticed(tmp_path, imported):
    root = write(tmp_path, {"__init__.py": "", "a.py": "from broadleaf.b import Y", "b.py": imported})
    assert layout.import_cycles(root) == ["imports go in a cycle: broadleaf.a, broadleaf.b"]


@pytest.mark.parametrize(
    "later",
    ["def f():\n    import broadleaf.a", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .a import X"],
)
def test_an_import_that_does_not_run_at_once_closes_no_cycle(tmp_path, later):
    root = write(tmp_path, {"__init__.py": "", "a.py": "from broadleaf.b import Y", "b.py": later})
    assert layout.import_cycles(root) == []


def test_a_part_of_the_laboratory_does_not_need_those_above_it_even_later(tmp_path):
    above = "from broadleaf.lab.run.table import Row"
    root = write(tmp_path, {"lab/__init__.py": "", "lab/run/table.py": "", "lab/analysis/frame.py": above})
    assert layout.import_cycles(root) == []
    write(root, {"lab/run/single.py": "def f():\n    from broadleaf.lab.analysis import frame"})
    expected = "parts of the laboratory need each other: broadleaf.lab.analysis, broadleaf.lab.run"
    assert layout.import_cycles(root) == [expected]


@pytest.mark.parametrize("package", ["client", "cluster"])
def test_modules_of_the_client_or_the_cluster_do_not_need_each_other_even_later(tmp_path, package):
    later = f"def f():\n    from broadleaf.{package}.a import X"
    files = {f"{package}/__init__.py": "", f"{package}/a.py": f"from broadleaf.{package}.b import Y"}
    root = write(tmp_path, {**files, f"{package}/b.py": "", "compat.py": later})
    assert layout.import_cycles(root) == []
    write(root, {f"{package}/b.py": later})
    expected = f"functions import each other's modules: broadleaf.{package}.a, broadleaf.{package}.b"
    assert layout.import_cycles(root) == [expected]
