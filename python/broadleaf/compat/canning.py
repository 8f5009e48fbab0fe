"""Objects prepared for plain pickle ("canned"), and messages of buffers made from them.

Broadleaf sends its own tasks differently. This is for programs that send objects over connections of their own, as
IPython Parallel's examples do between engines.
"""

from __future__ import annotations

import copy
import copyreg
import functools
import marshal
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CellType, CodeType, FunctionType
from typing import Any

from broadleaf.serialize import PROTOCOL
from broadleaf.serialize.decorators import dependent, provide, provide_in
from broadleaf.serialize.namespace import Reference
from broadleaf.serialize.values import PrePickled

# Lets code objects be pickled, as soon as this is imported.


def code_ctor(marshalled: bytes) -> CodeType:
    """The code object that `reduce_code` described; the Python must be of the same version."""
    code: CodeType = marshal.loads(marshalled)
    return code


def reduce_code(code: CodeType) -> tuple[Callable[[bytes], CodeType], tuple[bytes]]:
    """How a code object is pickled."""
    return code_ctor, (marshal.dumps(code),)


copyreg.pickle(CodeType, reduce_code)


# Lets code objects be pickled.

Globals = dict[str, Any] | None
MAX_BYTES = 1024
"""Buffers above this size travel beside the pickle."""
MAX_ITEMS = 64
"""Containers with more items are pickled whole."""
sequence_types: tuple[type, ...] = (list, tuple, set)


class CannedObject:
    """A copy of an object whose attributes `keys` are canned; `hook(object, globals)` is called as it is restored."""

    buffers: list[Any]

    def __init__(
        self, obj: Any, keys: Sequence[str] = (), hook: Callable[[Any, dict[str, Any]], object] | None = None
    ) -> None:
        self.keys: list[str] = list(keys)
        self.obj: Any = copy.copy(obj)
        self.hook: Any = can(hook)
        for key in self.keys:
            setattr(self.obj, key, can(getattr(obj, key)))
        self.buffers = []

    def get_object(self, g: Globals = None) -> Any:
        """Restores the object; functions in it get `g` as their globals."""
        g = {} if g is None else g
        for key in self.keys:
            setattr(self.obj, key, uncan(getattr(self.obj, key), g))
        if self.hook is not None:
            self.hook = uncan(self.hook, g)
            self.hook(self.obj, g)
        return self.obj


class CannedCell(CannedObject):
    """A variable that a function has captured."""

    def __init__(self, cell: CellType) -> None:
        self.cell_contents: Any = can(cell.cell_contents)
        self.buffers: list[Any] = []

    def get_object(self, g: Globals = None) -> CellType:
        return CellType(uncan(self.cell_contents, g))


class CannedFunction(CannedObject):
    """A function, represented by its code. A function of a module gets that module's globals; one of `__main__` gets
    those where it is restored.
    """

    def __init__(self, function: FunctionType) -> None:
        self.code: CodeType = function.__code__
        self.defaults: list[Any] | None = (
            None if function.__defaults__ is None else [can(value) for value in function.__defaults__]
        )
        self.kwdefaults: Any = can_dict(function.__kwdefaults__)
        self.annotations: Any = can_dict(function.__annotations__)
        self.closure: list[Any] | None = (
            None if function.__closure__ is None else [can(cell) for cell in function.__closure__]
        )
        self.module: str = function.__module__ or "__main__"
        self.__name__: str = function.__name__
        self.buffers: list[Any] = []

    def get_object(self, g: Globals = None) -> FunctionType:
        if not self.module.startswith("__"):
            __import__(self.module)
            g = sys.modules[self.module].__dict__
        g = {} if g is None else g
        defaults = None if self.defaults is None else tuple(uncan(value, g) for value in self.defaults)
        closure = None if self.closure is None else tuple(uncan(cell, g) for cell in self.closure)
        function = FunctionType(self.code, g, self.__name__, defaults, closure)
        function.__kwdefaults__ = uncan_dict(self.kwdefaults, g)
        function.__annotations__ = uncan_dict(self.annotations, g)
        return function


class CannedPartial(CannedObject):
    """A `functools.partial`. The buffers of its arguments belong to it."""

    def __init__(self, partial: functools.partial[Any]) -> None:
        self.func: Any = can(partial.func)
        self.args: list[Any] = [can(value) for value in partial.args]
        self.keywords: dict[str, Any] = {key: can(value) for key, value in partial.keywords.items()}
        self.buffers: list[Any] = []
        self._counts: list[int] = []
        for value in self._canned():
            self._counts.append(len(value.buffers))
            self.buffers += value.buffers
            value.buffers = []

    def _canned(self) -> list[CannedObject]:
        return [value for value in [*self.args, *self.keywords.values()] if isinstance(value, CannedObject)]

    def get_object(self, g: Globals = None) -> functools.partial[Any]:
        buffers = iter(self.buffers)
        if self.buffers:
            for value, count in zip(self._canned(), self._counts, strict=True):
                value.buffers = [next(buffers) for _ in range(count)]
        arguments = [uncan(value, g) for value in self.args]
        return functools.partial(uncan(self.func, g), *arguments, **uncan_dict(self.keywords, g))


class CannedClass(CannedObject):
    """A class, represented by its attributes and bases."""

    def __init__(self, cls: type) -> None:
        self.name: str = cls.__name__
        # A class keeps its functions' code; attributes that Python creates for every class are omitted.
        made_anew = ("__weakref__", "__dict__", "__static_attributes__", "__firstlineno__")
        self._canned_dict = {key: can(value) for key, value in vars(cls).items() if key not in made_anew}
        self.bases: list[Any] = [can(base) for base in cls.__bases__]
        self.buffers: list[Any] = []

    def get_object(self, g: Globals = None) -> type:
        return type(self.name, tuple(uncan(base, g) for base in self.bases), uncan_dict(self._canned_dict, g))


class CannedArray(CannedObject):
    """A numpy array, represented by its memory; an array of objects, by its pickle."""

    def __init__(self, array: Any) -> None:
        import numpy

        self.shape: Any = array.shape
        self.dtype: Any = array.dtype.descr if array.dtype.fields else array.dtype.str
        self.pickled: Any = array.size == 0 or array.dtype.hasobject
        if self.pickled:
            self.buffers = [pickle.dumps(array, PROTOCOL)]
        else:
            self.buffers: list[Any] = [numpy.ascontiguousarray(array).data]

    def get_object(self, g: Globals = None) -> Any:
        import numpy

        if self.pickled:
            return pickle.loads(self.buffers[0])
        return numpy.frombuffer(self.buffers[0], dtype=self.dtype).reshape(self.shape)


class CannedBytes(CannedObject):
    """Bytes that travel as a buffer."""

    def __init__(self, data: Any) -> None:
        self.buffers: list[Any] = [data]

    def get_object(self, g: Globals = None) -> Any:
        return bytes(self.buffers[0])


class CannedMemoryView(CannedBytes):
    """A memoryview that travels as a buffer."""

    def get_object(self, g: Globals = None) -> memoryview:
        return memoryview(self.buffers[0])


CannedBuffer = CannedMemoryView


def can(obj: Any) -> Any:
    """`obj` in a form that plain pickle accepts. Objects without an entry in `can_map` stay unchanged."""
    canner = can_map.get(type(obj))
    if canner is None and type(obj).__module__ == "numpy" and type(obj).__name__ == "ndarray":
        canner = CannedArray
    return obj if canner is None else canner(obj)


def can_class(obj: type) -> Any:
    """Classes of `__main__` by value, all others unchanged."""
    return CannedClass(obj) if obj.__module__ == "__main__" else obj


def can_dependent(obj: dependent) -> CannedObject:
    """A function with a condition, which is checked where it is restored."""
    return CannedObject(obj, keys=("f", "df"), hook=_check_in)


def _check_in(function: dependent, g: dict[str, Any]) -> None:
    """Checks the condition; what `@require` provides is set in `g`."""
    if getattr(function.df, "__code__", None) == provide.__code__:
        provide_in(g, *function.dargs)
    else:
        function.check_dependency()


def can_dict(obj: Any) -> Any:
    """A dict with canned values; anything else unchanged."""
    return {key: can(value) for key, value in obj.items()} if type(obj) is dict else obj


def can_sequence(obj: Any) -> Any:
    """A list, tuple or set with canned items; anything else unchanged."""
    return type(obj)(can(item) for item in obj) if type(obj) in sequence_types else obj


def uncan(obj: Any, g: Globals = None) -> Any:
    """Restores what was passed to `can`; functions get `g` as their globals, and references are looked up there."""
    for kind, restore in uncan_map.items():
        if isinstance(obj, kind):
            return restore(obj, g)
    return obj


def uncan_dict(obj: Any, g: Globals = None) -> Any:
    """`can_dict` undone."""
    return {key: uncan(value, g) for key, value in obj.items()} if type(obj) is dict else obj


def uncan_sequence(obj: Any, g: Globals = None) -> Any:
    """`can_sequence` undone."""
    return type(obj)(uncan(item, g) for item in obj) if type(obj) in sequence_types else obj


can_map: dict[type, Callable[[Any], Any]] = {
    FunctionType: CannedFunction,
    functools.partial: CannedPartial,
    bytes: CannedBytes,
    memoryview: CannedMemoryView,
    CellType: CannedCell,
    type: can_class,
    dependent: can_dependent,
}
"""How objects of exactly this type are canned. A program may add to it."""

uncan_map: dict[type, Callable[[Any, Globals], Any]] = {
    CannedObject: lambda obj, g: obj.get_object(g),
    Reference: lambda obj, g: eval(obj.name, {} if g is None else g),
    dict: uncan_dict,
}
"""How objects of these types and those derived from them are restored."""


def serialize_object(
    obj: Any, buffer_threshold: int = MAX_BYTES, item_threshold: int = MAX_ITEMS
) -> list[bytes | memoryview]:
    """A pickle of `obj`, followed by the buffers in it that are larger than `buffer_threshold` bytes."""
    if isinstance(obj, PrePickled):
        obj = obj.load()
    if type(obj) in sequence_types and len(obj) < item_threshold:
        canned = can_sequence(obj)
        parts = list(canned)
    elif type(obj) is dict and len(obj) < item_threshold:
        canned = can_dict(obj)
        parts = list(canned.values())
    else:
        canned = can(obj)
        parts = [canned]
    buffers: list[Any] = []
    for part in parts:
        buffers += _take_buffers(part, buffer_threshold)
    return [pickle.dumps(canned, PROTOCOL), *buffers]


def _take_buffers(part: Any, threshold: int) -> Iterable[Any]:
    """The large buffers of a canned object, each replaced there by None."""
    if not isinstance(part, CannedObject):
        return
    for i, buffer in enumerate(part.buffers):
        if memoryview(buffer).nbytes > threshold:
            part.buffers[i] = None
            yield buffer
        elif isinstance(buffer, memoryview):
            part.buffers[i] = buffer.tobytes()


def _give_buffers(part: Any, buffers: list[Any]) -> None:
    if isinstance(part, CannedObject):
        part.buffers = [buffers.pop(0) if buffer is None else buffer for buffer in part.buffers]


def deserialize_object(buffers: Iterable[Any], g: Globals = None) -> tuple[Any, list[Any]]:
    """The object at the start of `buffers`, and the remaining buffers that do not belong to it."""
    left = list(buffers)
    canned = pickle.loads(left.pop(0))
    if type(canned) in sequence_types and len(canned) < MAX_ITEMS:
        parts, restore = list(canned), uncan_sequence
    elif type(canned) is dict and len(canned) < MAX_ITEMS:
        parts, restore = list(canned.values()), uncan_dict
    else:
        parts, restore = [canned], uncan
    for part in parts:
        _give_buffers(part, left)
    return restore(canned, g), left


def pack_apply_message(
    f: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    buffer_threshold: int = MAX_BYTES,
    item_threshold: int = MAX_ITEMS,
) -> list[bytes | memoryview]:
    """Buffers of a function and its arguments, for `unpack_apply_message`."""
    names = sorted(kwargs)
    values = [*args, *(kwargs[name] for name in names)]
    info = {"nargs": len(args), "kw_keys": names}
    message = [*serialize_object(f), pickle.dumps(info, PROTOCOL)]
    for value in values:
        message += serialize_object(value, buffer_threshold, item_threshold)
    return message


def unpack_apply_message(
    bufs: Iterable[Any], g: Globals = None, copy: bool = True
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The function and the arguments of `pack_apply_message`; `g` are the globals for what belonged to `__main__`."""
    function, left = deserialize_object(bufs, g)
    info = pickle.loads(left.pop(0))
    values = []
    for _ in range(info["nargs"] + len(info["kw_keys"])):
        value, left = deserialize_object(left, g)
        values.append(value)
    n_args = info["nargs"]
    return function, tuple(values[:n_args]), dict(zip(info["kw_keys"], values[n_args:], strict=True))
