"""Which module of Broadleaf, or which names, a module path of IPython Parallel stands for."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
from functools import partial
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any

_ERRORS = "broadleaf.compat.error"
_CANNING = "broadleaf.compat.canning"
_COMMANDS = "broadleaf.cli"
_SERIALIZE = {
    _CANNING: "can can_map uncan uncan_map serialize_object deserialize_object pack_apply_message unpack_apply_message",
    "broadleaf": "PrePickled Reference use_cloudpickle use_dill use_pickle",
}

# Either the module for which the path is another name, or where the names of the module come from.
PATHS: dict[str, str | dict[str, str]] = {
    "broadleaf.apps": {},
    "broadleaf.apps.ipclusterapp": f"{_COMMANDS}.ipcluster",
    "broadleaf.apps.ipcontrollerapp": f"{_COMMANDS}.ipcontroller",
    "broadleaf.apps.ipengineapp": f"{_COMMANDS}.ipengine",
    "broadleaf.apps.launcher": "broadleaf.compat.launchers",
    "broadleaf.client._joblib": {"broadleaf.compat.joblib": "IPythonParallelBackend"},
    "broadleaf.client.asyncresult": {"broadleaf": "AsyncResult AsyncMapResult AsyncHubResult"},
    "broadleaf.client.futures": {"broadleaf.compat.values": "MessageFuture multi_future"},
    "broadleaf.client.magics": {"broadleaf.notebook.magics": "ParallelMagics"},
    "broadleaf.client.map": {"broadleaf.compat.values": "Map RoundRobinMap mappable"},
    "broadleaf.client.remotefunction": {"broadleaf": "RemoteFunction ParallelFunction remote parallel"},
    "broadleaf.client.view": {
        "broadleaf": "BroadcastView DirectView LazyMapIterator LoadBalancedView ViewExecutor",
        "broadleaf.client.views.base": "View",
    },
    "broadleaf.cluster.__main__": f"{_COMMANDS}.ipcluster",
    "broadleaf.cluster.app": f"{_COMMANDS}.ipcluster",
    "broadleaf.cluster.launcher": "broadleaf.compat.launchers",
    # A path of Broadleaf itself, which its guide named before.
    "broadleaf.cluster.reports": {},
    "broadleaf.cluster.reports.doctor": "broadleaf.cluster.doctor",
    "broadleaf.controller": {},
    "broadleaf.controller.__main__": f"{_COMMANDS}.ipcontroller",
    "broadleaf.controller.app": f"{_COMMANDS}.ipcontroller",
    "broadleaf.controller.dependency": {"broadleaf": "Dependency depend dependent interactive require"},
    "broadleaf.engine.app": f"{_COMMANDS}.ipengine",
    "broadleaf.engine.datapub": "broadleaf.datapub",
    "broadleaf.error": _ERRORS,
    "broadleaf.joblib": "broadleaf.compat.joblib",
    "broadleaf.serialize.canning": _CANNING,
    "broadleaf.serialize.codeutil": "broadleaf.compat.canning",
    "broadleaf.serialize.serialize": _SERIALIZE,
    "broadleaf.util": {
        "broadleaf": "interactive",
        "broadleaf.compat.values": "disambiguate_ip_address disambiguate_url ip_for_host is_ip is_url "
        "select_random_ports split_url validate_url validate_url_container "
        "compare_datetimes ensure_timezone extract_dates utc utcnow Namespace ReverseDict int_keys",
    },
    "broadleaf._version": {"broadleaf": "__version__ version_info"},
}

# Names that a package of Broadleaf also has in IPython Parallel, in addition to those above.
_NAMES: dict[str, dict[str, str]] = {
    "broadleaf": {**_SERIALIZE, _ERRORS: "IPythonError KernelError"},
    "broadleaf.client": {"broadleaf": "Client"},
    "broadleaf.cluster": {"broadleaf.compat.profiles": "clean_cluster_files"},
    "broadleaf.serialize": _SERIALIZE,
}


def find_spec(path: str) -> ModuleSpec | None:
    """How to load the module with this path; None if IPython Parallel has none either."""
    stands_for = PATHS.get(path)
    if stands_for is None:
        return None
    loader = _Alias(stands_for) if isinstance(stands_for, str) else _Collection(stands_for)
    is_package = any(other.startswith(f"{path}.") for other in PATHS)
    return importlib.util.spec_from_loader(path, loader, is_package=is_package)


def find_attribute(module: str, name: str) -> Any:
    """An attribute of IPython Parallel's module with this path. Raises `AttributeError`."""
    if f"{module}.{name}" in PATHS:
        return importlib.import_module(f"{module}.{name}")
    for source, names in _NAMES.get(module, {}).items():
        if source != module and name in names.split():
            return getattr(importlib.import_module(source), name)
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


class _Alias(importlib.abc.InspectLoader):
    """Gives a module a second name; it remains one module."""

    def __init__(self, real: str) -> None:
        self._real = real
        self._own_spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._real)
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own_spec

    def get_code(self, fullname: str) -> CodeType | None:
        """For `python -m`."""
        return self._own_loader().get_code(self._real)

    def get_source(self, fullname: str) -> str | None:
        """For tracebacks and `inspect`."""
        return self._own_loader().get_source(self._real)

    def _own_loader(self) -> importlib.abc.InspectLoader:
        spec = importlib.util.find_spec(self._real)
        if spec is None or not isinstance(spec.loader, importlib.abc.InspectLoader):
            raise ImportError(f"{self._real} has no source", name=self._real)
        return spec.loader


class _Collection(importlib.abc.Loader):
    """Makes a module from names that are defined elsewhere."""

    def __init__(self, sources: dict[str, str]) -> None:
        self._sources = sources

    def exec_module(self, module: ModuleType) -> None:
        names: list[str] = []
        for source, listed in self._sources.items():
            origin = importlib.import_module(source)
            for name in listed.split():
                setattr(module, name, getattr(origin, name))
                names.append(name)
        module.__doc__ = f"Names that IPython Parallel has in this module: {', '.join(names) or 'none'}."
        module.__dict__["__all__"] = names
        module.__dict__["__getattr__"] = partial(find_attribute, module.__name__)
