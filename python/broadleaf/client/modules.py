"""What a client tells engines about its modules: where it looks for them, and which ones it sends."""

from __future__ import annotations

import json
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from broadleaf import requests
from broadleaf.serialize.search_path import missing_entries, search_path, working_directory
from broadleaf.serialize.unfindable import unfindable_modules

if TYPE_CHECKING:
    from broadleaf.serialize.modules import PackedModule

# Maximum number of entries that a client reports.
_MAX_ENTRIES = 1000


class LocalModules:
    """See the module. `known` are the entries that engines have had since their cluster started; `note_shipped` is told
    of unfindable modules once engines find them. `former` is what an earlier controller of the cluster was told: the
    next one is told the same, and engines that did it do not do it again."""

    def __init__(
        self,
        link: Any,
        known: Iterable[str],
        ships_local: bool,
        note_shipped: Callable[[frozenset[str]], None],
        former: LocalModules | None = None,
    ) -> None:
        self._link = link
        self._note_shipped = note_shipped
        self._known = set(known)
        # What the user has asked for: modules by name, and calls.
        self._shipped: dict[str, PackedModule] = {} if former is None else dict(former._shipped)
        self._calls: list[bytes] = [] if former is None else list(former._calls)
        self._tells_again = former is not None
        self._told: list[str] = []
        self._path: list[str] = []
        self._local = _LoadedModules() if ships_local else None
        self._lock = threading.RLock()

    def tell_again(self) -> None:
        """Tells the controller everything that the one before was told. Never waits."""
        self.update()
        for packed in self._shipped.values():
            self._post(self._of_module(packed))
        for n, content in enumerate(self._calls, 1):
            self._post(_Preparation(f"call {n}", content))
        self._tells_again = False

    def update(self) -> None:
        """Tells engines what is new; costs almost nothing if nothing is. Never waits."""
        path = search_path()
        if path != self._path:
            self._tell_path(path)
        if self._local is not None:
            self.ship_local()

    def _tell_path(self, path: list[str]) -> None:
        with self._lock:
            new = missing_entries(path, [*self._known, *self._told])
            if new:
                from broadleaf.serialize.preparation import of_search_path

                self._told = [*self._told, *new][:_MAX_ENTRIES]
                self._post(_Preparation("search path", of_search_path(self._told)))
            # Set last, so that no other thread takes it for sent too early.
            self._path = path

    def ship_local(self) -> None:
        """Sends the local modules that were imported or reloaded since the last call."""
        if self._local is None:
            return
        from broadleaf.serialize.modules import pack_module

        with self._lock:
            for name in self._local.changed():
                try:
                    packed = pack_module(name)
                    preparation = self._of_module(packed)
                except (ImportError, ValueError, OSError) as error:
                    warnings.warn(f"ship_local_modules does not send {name!r}: {error}", stacklevel=2)
                else:
                    self._post(preparation)
                    self._note_unfindable(packed.name)

    def ship(self, module: ModuleType | str) -> None:
        """Sends a module; see `Client.ship_module`."""
        from broadleaf.serialize.modules import pack_module

        packed = pack_module(module)
        self._send(self._of_module(packed))
        self._shipped[packed.name] = packed
        self._note_unfindable(packed.name)

    def call(self, function: Callable[[], object]) -> None:
        """Makes engines call a function; see `Client.on_join`."""
        from broadleaf.serialize.preparation import of_call

        content = of_call(function)
        with self._lock:
            self._calls.append(content)
            name = f"call {len(self._calls)}"
        self._send(_Preparation(name, content))

    def _of_module(self, packed: PackedModule) -> _Preparation:
        from broadleaf.serialize.preparation import of_module

        return _Preparation(f"module {packed.name}", of_module(packed, self._tells_again), reload=True)

    def _note_unfindable(self, top: str) -> None:
        """Notes that engines find the loaded modules of this top-level name, among them unfindable ones."""
        names = {name for name in unfindable_modules() if name.partition(".")[0] == top}
        self._note_shipped(frozenset(names))

    def _send(self, preparation: _Preparation) -> None:
        requests.send(self._link, preparation.request(), 60.0, preparation.content)

    def _post(self, preparation: _Preparation) -> None:
        self._link.post(json.dumps(preparation.request()), preparation.content)


class _Preparation(NamedTuple):
    """What engines are to do first."""

    name: str
    content: bytes
    reload: bool = False

    def request(self) -> dict[str, Any]:
        """The request that has engines do it."""
        return requests.preparation(self.name, self.reload)


class _LoadedModules:
    """The local modules of this process, and which of them are new."""

    def __init__(self) -> None:
        self._seen: dict[str, ModuleSpec] = {}
        self._installed = _installed_folders()

    def changed(self) -> list[str]:
        """Top-level names of the local modules that were imported or reloaded since the last call.

        A module is local if it is below the working directory or the script's folder and was not installed there.
        """
        roots = _local_folders()
        changed: dict[str, None] = {}
        for name, module in list(sys.modules.items()):
            spec, file = getattr(module, "__spec__", None), getattr(module, "__file__", None)
            # A reload gives a module a new spec.
            if not isinstance(spec, ModuleSpec) or not isinstance(file, str) or self._seen.get(name) is spec:
                continue
            self._seen[name] = spec
            top = name.partition(".")[0]
            if name != "__main__" and top != "broadleaf" and self._is_local(file, roots):
                changed[top] = None
        return list(changed)

    def _is_local(self, file: str, roots: tuple[str, ...]) -> bool:
        path = os.path.realpath(file)
        return path.startswith(roots) and not path.startswith(self._installed)


def _local_folders() -> tuple[str, ...]:
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    folders = (working_directory(), os.path.dirname(os.path.abspath(script)) if isinstance(script, str) else None)
    return tuple({os.path.join(os.path.realpath(folder), "") for folder in folders if folder})


def _installed_folders() -> tuple[str, ...]:
    import site
    import sysconfig

    paths = sysconfig.get_paths()
    folders = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages()]
    return tuple({os.path.join(os.path.realpath(folder), "") for folder in folders})
