"""Module paths and names of IPython Parallel under `broadleaf`."""

import importlib
import subprocess
import sys

import broadleaf as ipp
import pytest
from broadleaf import extensions
from broadleaf.compat.paths import PATHS


@pytest.mark.parametrize("path", PATHS)
def test_each_path_is_a_module_with_the_names_it_lists(path):
    module = importlib.import_module(path)
    assert sys.modules[path] is module
    stands_for = PATHS[path]
    if isinstance(stands_for, str):
        assert module is importlib.import_module(stands_for)
        assert module.__name__ == stands_for
        assert module.__spec__.name == stands_for
    else:
        names = [name for listed in stands_for.values() for name in listed.split()]
        assert all(hasattr(module, name) for name in names)
        assert module.__all__ == names


def test_names_are_the_same_objects_wherever_they_are_found():
    from broadleaf.client.view import DirectView, LazyMapIterator
    from broadleaf.controller.dependency import depend
    from broadleaf.error import CompositeError
    from broadleaf.serialize import Reference, can, serialize_object
    from broadleaf.util import interactive

    assert (DirectView, LazyMapIterator) == (ipp.DirectView, ipp.LazyMapIterator)
    assert (depend, CompositeError, Reference) == (ipp.depend, ipp.CompositeError, ipp.Reference)
    assert interactive is ipp.interactive
    assert (can, serialize_object) == (ipp.can, ipp.serialize_object)


def test_paths_are_attributes_as_well():
    code = (
        "import broadleaf as ipp\n"
        "ipp.client.view.ViewExecutor, ipp.client.asyncresult.AsyncResult\n"
        "ipp.cluster.launcher.SGEEngineSetLauncher, ipp.error.RemoteError, ipp.util.interactive\n"
        "ipp.serialize.canning.can_map, ipp.controller.dependency.require, ipp.apps.ipclusterapp\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=50)


def test_star_import_of_a_path():
    names: dict = {}
    exec("from broadleaf.client.asyncresult import *", names)
    assert names["AsyncHubResult"] is ipp.AsyncHubResult


@pytest.mark.parametrize("path", ["broadleaf.nothing", "broadleaf.client.nothing", "broadleaf.util.nothing"])
def test_a_path_that_neither_has_is_not_found(path):
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(path)
    assert not hasattr(ipp, "nothing")


def test_nothing_of_it_is_loaded_before_it_is_asked_for():
    code = """
import sys
import broadleaf as ipp
with ipp.Cluster(n=1) as rc:
    assert rc[:].apply_sync(lambda: [name for name in sys.modules if "compat" in name and "broadleaf" in name]) == [[]]
    rc.load_balanced_view().map_sync(abs, range(3))
assert not [name for name in sys.modules if name.startswith("broadleaf.compat")]
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=50)


@pytest.mark.parametrize("module", ["cluster", "controller", "engine"])
def test_python_dash_m_is_the_command_of_that_name(module):
    done = subprocess.run(
        [sys.executable, "-m", f"broadleaf.{module}", "--version"],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    assert done.stdout.strip() == ipp.__version__


@pytest.mark.parametrize("name", extensions._offered)
def test_each_extension_is_where_the_root_says(name):
    assert callable(extensions.extension(name))


@pytest.mark.parametrize("name", [*ipp._HOMES, *ipp.__all__])
def test_each_public_name_has_a_home(name):
    assert hasattr(ipp, name)
