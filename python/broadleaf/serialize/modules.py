"""The user's own modules on engines: how they are sent, and the error for one that is missing or outdated."""

import importlib
import importlib.util
import os
import re
import sys
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, SourcelessFileLoader
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from broadleaf.private_files import make_private, open_private

if TYPE_CHECKING:
    # A rank that starts does not need it.
    from pathlib import Path

# Modules sent by value: packed from a client's files, unpacked into a folder that engines of one host share.


# Larger modules belong on the hosts: every engine that starts receives what was sent.
MAX_MODULE_BYTES = 32 * 1024 * 1024
_SKIPPED_FOLDERS = {"__pycache__", "node_modules"}


class PackedModule(NamedTuple):
    """A top-level module or package, as its files."""

    name: str
    files: tuple[tuple[str, bytes], ...]
    """Paths below an entry of the search path, with slashes, and their contents."""

    @property
    def digest(self) -> str:
        """Distinguishes contents."""
        import hashlib

        sha = hashlib.sha256()
        for path, content in self.files:
            sha.update(f"{path}\0{len(content)}\0".encode())
            sha.update(content)
        return sha.hexdigest()[:16]


def pack_module(module: ModuleType | str) -> PackedModule:
    """The files of a module, or of the whole package it is part of.

    Modules that were loaded from a path are placed where their names say, whatever their files are called.

    Raises `ImportError` if the name cannot be found, and `ValueError` if the module has no files or is too large.
    """
    full_name = module if isinstance(module, str) else module.__name__
    if full_name == "__main__":
        raise ValueError(
            "__main__ is sent with each function that needs it; only modules that it imports can be shipped"
        )
    name = full_name.partition(".")[0]
    if name == "broadleaf" or name in sys.stdlib_module_names:
        raise ValueError(f"every engine has its own {name!r}: it is part of Python or of Broadleaf")
    if not name or os.sep in full_name or "\0" in full_name:
        raise ValueError(f"module {full_name!r} has a name that no file can have: load it under another name")
    loaded = {n: _spec_of(m) for n, m in list(sys.modules.items()) if n == name or n.startswith(f"{name}.")}
    if not isinstance(module, str):
        loaded.setdefault(full_name, _spec_of(module))
    is_known = bool(loaded)
    top = loaded.pop(name, None) or _find_spec(name)
    if top is None and not is_known:
        raise ModuleNotFoundError(
            f"module {name!r} was not found here, so it cannot be sent; if you loaded it from a path, give the module "
            "itself instead of its name",
            name=name,
        )
    files: list[tuple[str, bytes]] = []
    total_bytes = 0
    for inside, path in _files_of(name, top, loaded).items():
        content = path.read_bytes()
        total_bytes += len(content)
        if total_bytes > MAX_MODULE_BYTES:
            raise ValueError(
                f"module {name!r} has more than {MAX_MODULE_BYTES >> 20} MiB of files: install it on the hosts instead"
            )
        files.append((inside, content))
    if not files:
        origin = top.origin if top is not None and top.origin else "memory"
        raise ValueError(f"module {name!r} has no files to send (it comes from {origin}): put it into a file")
    return PackedModule(name, tuple(sorted(files)))


def _spec_of(module: Any) -> ModuleSpec | None:
    spec = getattr(module, "__spec__", None)
    return spec if isinstance(spec, ModuleSpec) else None


def _find_spec(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ValueError:  # loaded, but without a spec
        return None


def _files_of(name: str, top: ModuleSpec | None, loaded: dict[str, ModuleSpec | None]) -> "dict[str, Path]":
    """Files of a top-level module, and of the modules in it that were `loaded`, by their paths below an entry of the
    search path."""
    from pathlib import Path

    found: dict[str, Path] = {}
    # Of two portions of a namespace package with the same file, the first one's is imported.
    for location in (top.submodule_search_locations or ()) if top is not None else ():
        for folder, subfolders, names in os.walk(location):
            subfolders[:] = [n for n in subfolders if n not in _SKIPPED_FOLDERS and not n.startswith(".")]
            for file in names:
                if not file.endswith(".pyc") and not file.startswith("."):
                    path = Path(folder, file)
                    found.setdefault(f"{name}/{path.relative_to(location).as_posix()}", path)
    packages = {name.rpartition(".")[0] for name in loaded}
    for module, spec in {name: top, **loaded}.items():
        if spec is None or not spec.has_location or not spec.origin:
            continue
        place = Path(spec.origin)
        # A submodule's file is there already if it was imported from its package.
        if place not in found.values():
            found[_inside(module, spec, module in packages)] = place
    return {inside: path for inside, path in found.items() if path.is_file()}


def _inside(module: str, spec: ModuleSpec, is_package: bool) -> str:
    """Where an import of `module` looks for its file."""
    suffix = next((s for s in EXTENSION_SUFFIXES if str(spec.origin).endswith(s)), None)
    if suffix is None:
        suffix = ".pyc" if isinstance(spec.loader, SourcelessFileLoader) else ".py"
    place = module.replace(".", "/")
    is_package = is_package or spec.submodule_search_locations is not None
    return f"{place}/__init__{suffix}" if is_package else place + suffix


# Folders that this engine has imported each module from, the latest last.
_folders: dict[str, list[str]] = {}
_faults: dict[str, str] = {}


def fault_of_module(name: str) -> str | None:
    """Why a module that was sent could not be installed here, or None."""
    return _faults.get(name)


def install_module(module: PackedModule, parent: "Path") -> None:
    """Makes this process import the module from the sent files, ahead of any other of its name."""
    try:
        folder = str(_unpack(module, parent))
    except OSError as error:
        _faults[module.name] = f"{type(error).__name__}: {error}"
        raise
    _faults.pop(module.name, None)
    folders = _folders.setdefault(module.name, [])
    if folders[-1:] == [folder] and folder in sys.path:
        _forget(module.name)
        return
    sys.path[:] = [folder, *(entry for entry in sys.path if entry not in folders)]
    folders.append(folder)
    _forget(module.name)
    import shutil

    # Another engine of the host may still import from the previous one, but not from an earlier one.
    for old in folders[:-2]:
        shutil.rmtree(old, ignore_errors=True)
    del folders[:-2]


def is_installed(module: PackedModule) -> bool:
    """Whether this process imports the module from these very files."""
    folders = _folders.get(module.name, [])
    return bool(folders) and os.path.basename(folders[-1]) == _folder_name(module) and folders[-1] in sys.path


def _folder_name(module: PackedModule) -> str:
    return f"{module.name}-{module.digest}"


def _forget(name: str) -> None:
    """Makes the module be imported again."""
    for loaded in list(sys.modules):
        if loaded == name or loaded.startswith(f"{name}."):
            del sys.modules[loaded]
    importlib.invalidate_caches()


def _unpack(module: PackedModule, parent: "Path") -> "Path":
    """The folder with the module's files. Engines of a host write it once, and see all of it or nothing."""
    import shutil

    folder = parent / _folder_name(module)
    if folder.is_dir():
        return folder
    unfinished = parent / f".{folder.name}-{os.getpid()}"
    try:
        for inside, content in module.files:
            path = unfinished / inside
            make_private(path.parent)
            with os.fdopen(open_private(path, os.O_WRONLY), "wb") as file:
                file.write(content)
        os.rename(unfinished, folder)
    except OSError:
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


# The error for a module that is missing, or older than the one that a pickle was made with.


# Maximum number of search path entries in a message.
_SHOWN_ENTRIES = 8
_NO_ATTRIBUTE = r"Can't get attribute '(?P<name>[^']+)' on <module '(?P<module>[^']+)'"
_engine = ""


def name_engine(engine_id: int) -> None:
    """Makes messages say that they come from this engine."""
    global _engine
    import socket

    _engine = f"engine {engine_id} on {socket.gethostname()}"


def explain_module(error: BaseException) -> bool:
    """Completes the message of an error caused by a missing or outdated module; returns whether it is one."""
    if isinstance(error, ModuleNotFoundError):
        if error.name and str(error) == f"No module named {error.name!r}":
            error.msg = _not_found(error.name)
            error.args = (error.msg,)
        return True
    match = re.match(_NO_ATTRIBUTE, str(error)) if isinstance(error, AttributeError) else None
    if match is not None:
        error.args = (_outdated(match["module"], match["name"]),)
    return match is not None


def _not_found(name: str) -> str:

    top = name.partition(".")[0]
    where = _engine or "this process"
    text = f"No module named {name!r} on {where}."
    if (found := _place_of(top)) is not None:
        return f"{text} The {top!r} it has is {found}.{_advice(top)}"
    if (why := fault_of_module(top)) is not None:
        return f"{text} It was sent, but could not be written there: {why}."
    return f"{text} It looked in these folders: {_searched()}.{_advice(top)}"


def _outdated(module: str, name: str) -> str:
    where = _engine or "this process"
    found = _place_of(module.partition(".")[0])
    text = f"Module {module!r} on {where} has no {name!r}; it was imported from {found or 'a file that is gone'}."
    if not _engine:
        return f"{text} If you have changed it since, reload it."
    return (
        f"{text} If you have changed it since, send it again with client.ship_module({module.partition('.')[0]!r}), "
        "or restart the engines with cluster.restart_engines_sync()."
    )


def _advice(name: str) -> str:
    if not _engine:
        return " Install it here, or add its folder to sys.path, and run the task again."
    return (
        f" If it is yours, client.ship_module({name!r}) sends it to the engines; if it is a package you installed, "
        "install it on the engines' host too."
    )


def _place_of(top: str) -> str | None:
    """The location of the top-level module that this process has or would import."""
    module = sys.modules.get(top)
    try:
        spec = importlib.util.find_spec(top) if module is None else getattr(module, "__spec__", None)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None if module is None else getattr(module, "__file__", None)
    return spec.origin or ", ".join(spec.submodule_search_locations or ()) or None


def _searched() -> str:
    """The search path in words: the user's folders, and the number of Python's own."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    installed = {version, f"{version.replace('.', '')}.zip", "site-packages", "dist-packages"}
    own = [entry for entry in map(str, sys.path) if installed.isdisjoint(entry.split(os.sep))]
    shown = own[:_SHOWN_ENTRIES]
    if len(own) > len(shown):
        shown.append(f"{len(own) - len(shown)} more folders")
    return ", ".join([*shown, f"Python's own {len(sys.path) - len(own)}"])
