"""`ipyparallel`, answered by Broadleaf: in the test process, its subprocesses and the engines, by PYTHONPATH.

`ipyparallel` is the module `broadleaf`, and `ipyparallel.x.y` is `broadleaf.x.y`: the same module under two names. A
missing name fails to import, as it would for a user who writes `broadleaf` for `ipyparallel` everywhere.
"""

import importlib
import importlib.abc
import importlib.util
import sys

import broadleaf


class _Alias(importlib.abc.Loader):
    """Gives a module a second name, and leaves its own spec alone."""

    def __init__(self, real):
        self.real = real

    def create_module(self, spec):
        module = importlib.import_module(self.real)
        self.own_spec = module.__spec__
        return module

    def exec_module(self, module):
        module.__spec__ = self.own_spec

    def get_code(self, fullname):  # for `python -m`
        return importlib.util.find_spec(self.real).loader.get_code(self.real)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if not fullname.startswith("ipyparallel."):
            return None
        real = "broadleaf" + fullname.removeprefix("ipyparallel")
        try:
            found = importlib.util.find_spec(real)
        except ModuleNotFoundError:
            return None
        if found is None:
            return None
        is_package = found.submodule_search_locations is not None
        return importlib.util.spec_from_loader(fullname, _Alias(real), is_package=is_package)


sys.meta_path.insert(0, _Finder())
sys.modules["ipyparallel"] = broadleaf
