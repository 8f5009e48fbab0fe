"""Which modules another process would not find under their names."""

import importlib
import json
import sys
import types
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location, spec_from_loader

import pytest
from broadleaf.serialize.unfindable import unfindable_modules


@pytest.fixture
def folder(tmp_path):
    """A folder with modules and a package; what a test loads is unloaded."""
    (tmp_path / "alone.py").touch()
    (tmp_path / "some_package").mkdir()
    (tmp_path / "some_package" / "__init__.py").touch()
    (tmp_path / "some_package" / "part.py").touch()
    (tmp_path / "no_init").mkdir()
    (tmp_path / "no_init" / "portion.py").touch()
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def unfindable(folder):
    """Finds those that the test has loaded; of pytest's `conftest` modules, all but one are unfindable."""
    before = unfindable_modules()
    return lambda: unfindable_modules() - before


def load(name, path):
    spec = spec_from_file_location(name, path)
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)


def test_nothing_that_was_imported_is_unfindable(folder, monkeypatch, unfindable):
    monkeypatch.syspath_prepend(str(folder))
    for name in ("alone", "some_package", "some_package.part", "no_init.portion", "numpy.linalg", "xml.dom.minidom"):
        importlib.import_module(name)
    assert not unfindable()


def test_what_a_finder_of_the_user_s_finds(folder, monkeypatch, unfindable):
    class Finder:
        @staticmethod
        def find_spec(name, path, target=None):
            return PathFinder.find_spec(name, [str(folder)] if path is None else path)

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    importlib.import_module("alone")
    importlib.import_module("some_package.part")
    assert not unfindable()
    monkeypatch.undo()
    assert not unfindable(), "what has been looked at is not looked at again"


def test_a_file_under_its_own_name_in_a_folder_that_is_searched(folder, monkeypatch, unfindable):
    monkeypatch.syspath_prepend(str(folder))
    load("alone", folder / "alone.py")
    load("no_init.portion", folder / "no_init" / "portion.py")
    assert not unfindable()


def test_files_under_other_names_or_in_other_folders(folder, monkeypatch, unfindable):
    load("alone", folder / "alone.py")
    load("renamed", folder / "alone.py")
    load("some.dotted.name", folder / "alone.py")
    load("with-a-dash.py", folder / "alone.py")
    load("json.of_mine", folder / "alone.py")
    assert unfindable() == {"alone", "renamed", "some.dotted.name", "with-a-dash.py", "json.of_mine"}
    load("renamed", folder / "some_package" / "part.py")
    del sys.modules["some.dotted.name"]
    monkeypatch.syspath_prepend(str(folder))
    load("alone", folder / "alone.py")
    assert unfindable() == {"renamed", "with-a-dash.py", "json.of_mine"}


def test_a_file_behind_another_of_its_name(folder, monkeypatch, unfindable):
    (folder / "first").mkdir()
    (folder / "first" / "alone.py").touch()
    monkeypatch.setattr(sys, "path", [str(folder / "first"), str(folder), *sys.path])
    load("alone", folder / "alone.py")
    assert unfindable() == {"alone"}


def test_modules_made_in_memory(folder, unfindable):
    for name, module in (
        ("made", types.ModuleType("made")),
        ("specified", module_from_spec(spec_from_loader("specified", None))),
    ):
        sys.modules[name] = module
        exec("def f(): pass", module.__dict__)
    assert unfindable() == {"made", "specified"}


def test_what_others_make_when_they_are_imported(folder, unfindable):
    sys.modules["json.made_by_json"] = made = types.ModuleType("json.made_by_json")
    exec("def f(): pass", made.__dict__)
    sys.modules["compiled_part"] = types.ModuleType("compiled_part")  # no Python code ran in it
    sys.modules["another_name"] = json
    sys.modules["no_module"] = object()
    sys.modules["lazy"] = type("Lazy", (types.ModuleType,), {})("lazy")
    assert not unfindable()
