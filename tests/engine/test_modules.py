"""Search paths and modules that were sent, on the engine's side."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from broadleaf.serialize import preparation
from broadleaf.serialize.modules import PackedModule, explain_module, install_module, pack_module
from broadleaf.serialize.search_path import extend_search_path, missing_entries, search_path


@pytest.fixture(autouse=True)
def path_and_modules_stay() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def packed(text: str, name: str = "packed_one") -> PackedModule:
    return PackedModule(name, ((f"{name}.py", text.encode()),))


def test_the_path_is_extended_by_what_exists_and_is_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "/usr"])
    assert search_path() == [str(tmp_path), "/usr"]
    assert missing_entries(["b", "a", "b", "/usr"], sys.path) == ["b", "a"]
    extend_search_path(["/usr", str(tmp_path / "none"), str(tmp_path)])
    assert sys.path == ["", "/usr", str(tmp_path)]


def test_a_working_directory_that_is_gone_is_left_out(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setattr(sys, "path", ["", "/usr"])
    assert search_path() == ["/usr"]


def test_each_content_has_a_folder_and_the_last_two_stay(tmp_path):
    values = []
    for value in (1, 2, 3, 3, 1):
        install_module(packed(f"VALUE = {value}"), tmp_path)
        values.append(importlib.import_module("packed_one").VALUE)
    assert values == [1, 2, 3, 3, 1]
    assert len(list(tmp_path.iterdir())) == 2
    assert sum(entry.startswith(str(tmp_path)) for entry in sys.path) == 1
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_an_engine_that_has_a_module_keeps_it_when_the_next_controller_sends_it(tmp_path):
    sent = packed("VALUE = 1", "packed_kept")
    preparation.make(preparation.of_module(sent), tmp_path)
    loaded = importlib.import_module("packed_kept")
    preparation.make(preparation.of_module(sent, again=True), tmp_path)
    assert importlib.import_module("packed_kept") is loaded
    preparation.make(preparation.of_module(sent), tmp_path)
    assert importlib.import_module("packed_kept") is not loaded, "the user has sent it again"
    preparation.make(preparation.of_module(packed("VALUE = 2", "packed_kept"), again=True), tmp_path)
    assert importlib.import_module("packed_kept").VALUE == 2


def test_a_call_is_made_once_however_often_it_is_sent(tmp_path):
    calls = [preparation.of_call(_note_call) for _ in range(2)]
    for content in [*calls, *calls]:
        preparation.make(content, tmp_path)
    assert _calls == [1, 1]


_calls: list[int] = []


def _note_call() -> None:
    _calls.append(1)


def test_it_comes_ahead_of_another_of_its_name(tmp_path):
    (tmp_path / "packed_two.py").write_text("VALUE = 0")
    sys.path.insert(0, str(tmp_path))
    importlib.invalidate_caches()
    assert importlib.import_module("packed_two").VALUE == 0
    install_module(packed("VALUE = 1", "packed_two"), tmp_path / "sent")
    assert importlib.import_module("packed_two").VALUE == 1


def test_one_that_cannot_be_written_says_so_when_it_is_missed(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Not a directory"):
        preparation.make(preparation.of_module(packed("", "packed_three")), tmp_path / "file")
    error = ModuleNotFoundError("No module named 'packed_three'", name="packed_three")
    explain_module(error)
    assert "It was sent, but could not be written there: NotADirectoryError" in str(error)
    install_module(packed("", "packed_three"), tmp_path / "folder")
    assert importlib.import_module("packed_three")


def test_a_namespace_package_is_packed_from_all_its_parts(tmp_path):
    for part in ("a", "b"):
        folder = tmp_path / part / "packed_space"
        folder.mkdir(parents=True)
        (folder / f"{part}.py").write_text("")
        (folder / ".hidden").touch()
        sys.path.insert(0, str(tmp_path / part))
    importlib.invalidate_caches()
    module = importlib.import_module("packed_space.a")
    assert [path for path, _ in pack_module(module).files] == ["packed_space/a.py", "packed_space/b.py"]


def test_a_module_without_files_cannot_be_packed(tmp_path: Path):
    sys.modules["packed_nothing"] = type(sys)("packed_nothing")
    with pytest.raises(ValueError, match=r"'packed_nothing' has no files to send .*put it into a file"):
        pack_module("packed_nothing")


def test_a_path_among_the_search_path_does_not_hide_what_is_missing(tmp_path):
    sys.path[:] = ["/usr", tmp_path]  # Python leaves out what is no str
    error = ModuleNotFoundError("No module named 'lacks_this'", name="lacks_this")
    explain_module(error)
    assert f"these folders: /usr, {tmp_path}, Python's own" in str(error)
