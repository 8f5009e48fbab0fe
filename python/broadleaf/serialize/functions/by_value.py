"""Pickling by value: functions without an importable name, and whatever `__main__` defines.

A function of `__main__` (also one marked `@interactive`) travels as code and sees the engine's namespace as its
globals. The globals that it refers to and that exist here travel with it as fills (see `namespace`). What a module
defines that was loaded from a path has the module's own globals (see `path_loaded`). Classes have a module of their own
(`classes`), and so have caches and the like (`wrapped`). Everything else is left to cloudpickle.
"""

from __future__ import annotations

import dis
import io
import marshal
import pickle
import sys
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from broadleaf.serialize import PROTOCOL, asked_for
from broadleaf.serialize.advice import advice_on
from broadleaf.serialize.buffers import INBAND_BUFFER_BYTES, keep_out_of_band
from broadleaf.serialize.functions.classes import reduce_class
from broadleaf.serialize.functions.kept import function_key, sent_code, single
from broadleaf.serialize.functions.namespace import current_namespace, fill, function_globals, note_left_out
from broadleaf.serialize.functions.path_loaded import DEFINED, reduce_module, reduce_unfindable
from broadleaf.serialize.functions.random_numbers import kind_of_generator, reduce_generator
from broadleaf.serialize.functions.snapshot import Snapshot, is_importable
from broadleaf.serialize.functions.wrapped import reduce_wrapped
from broadleaf.serialize.names_by_value import refuse_unfindable_names
from broadleaf.serialize.reducers import reducers
from broadleaf.serialize.unfindable import shipped_modules, unfindable_modules

# Globals of `__main__` that are about the process that has them, not the program.
INTERPRETERS_NAMES = frozenset(
    {
        "__annotate__", "__annotations__", "__builtins__", "__cached__", "__conditional_annotations__", "__debug__",
        "__loader__", "__name__", "__package__", "__path__", "__spec__",
    }
)  # fmt: skip
_GLOBAL_OPS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_global_names: WeakKeyDictionary[CodeType, tuple[str, ...]] = WeakKeyDictionary()


def dumps_by_value(
    value: Any,
    buffers: list[pickle.PickleBuffer] | None = None,
    snapshot: Snapshot | None = None,
    min_bytes: int = INBAND_BUFFER_BYTES,
    generators: list[Any] | None = None,
) -> bytes:
    """Pickles `value`. Globals that cannot be pickled are left out: the engine may have its own.

    `buffers` receives the out-of-band buffers from `min_bytes` on; without it all are in band. `snapshot` records
    what went into the pickle, and `generators` receives the generators of random numbers in it. Raises whatever
    pickling raises.
    """
    on_buffer = None if buffers is None else keep_out_of_band(buffers, min_bytes)
    # Finding out which objects are at fault costs a trial for each, so it is not done the first time.
    attempts: list[tuple[frozenset[int] | None, bool]] = [(None, False), (frozenset(), False)]
    if asked_for.is_on():
        attempts[1:] = [(None, True), (frozenset(), True)]
    stream = io.BytesIO()
    for trying, with_dill in attempts:
        if buffers is not None:
            buffers.clear()
        stream = io.BytesIO()
        pickler = ValuePickler(stream, on_buffer, snapshot, trying, with_dill)
        try:
            pickler.dump(value)
        except Exception:
            if trying is not None:
                raise
        else:
            if generators is not None:
                generators += pickler.generators
            break
    return stream.getvalue()


def global_names(code: CodeType) -> tuple[str, ...]:
    """The global names that `code` and the code nested in it load."""
    names = _global_names.get(code)
    if names is None:
        found = {i.argval: None for i in dis.get_instructions(code) if i.opname in _GLOBAL_OPS}
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                found.update(dict.fromkeys(global_names(constant)))
        names = _global_names[code] = tuple(found)
    return names


if TYPE_CHECKING:
    # cloudpickle's class is one, but has no type annotations.
    from pickle import Pickler as _Pickler
else:
    from cloudpickle import Pickler as _Pickler


class ValuePickler(_Pickler):
    """Pickles functions of `__main__` so that they use the engine's namespace, and everything else as cloudpickle
    does."""

    def __init__(
        self,
        stream: io.BytesIO,
        buffer_callback: Any = None,
        snapshot: Snapshot | None = None,
        trying: frozenset[int] | None = None,
        with_dill: bool = False,
    ) -> None:
        super().__init__(stream, protocol=PROTOCOL, buffer_callback=buffer_callback)
        self._stream = stream
        self._snapshot = snapshot
        # If not None, globals are tried one by one; these are being tried further up.
        self._trying = trying
        self._with_dill = with_dill
        self.generators: list[Any] = []
        """The generators of random numbers that were pickled with their state."""
        self._reducers = reducers()
        self._unfindable = unfindable_modules()
        self._shipped = shipped_modules()

    def dump(self, obj: Any) -> None:
        """Pickles an object. Raises whatever pickling raises."""
        super().dump(obj)
        if self._unfindable:
            refuse_unfindable_names(self._stream.getvalue())

    def reducer_override(self, obj: Any) -> Any:
        """How to pickle an object that is not of a basic type."""
        reducer = self._reducers.get(type(obj))
        if reducer is not None:
            return reducer(obj)
        if kind_of_generator(obj) is not None:
            process_s = reduce_generator(obj)
            if process_s is not None:
                return process_s
            self.generators.append(obj)
        wrapped = reduce_wrapped(obj)
        if wrapped is not None:
            if self._snapshot is not None:
                self._snapshot.complete = False
            return wrapped
        if type(obj) is FunctionType:
            if obj.__module__ == "__main__" and _sees_main(obj) and not asked_for.brings_globals():
                return self._reduce_interactive(obj)
            if self._snapshot is not None and not is_importable(obj) and obj.__module__ not in self._shipped:
                self._snapshot.add_function(obj, global_names(obj.__code__))
        reduced: Any = NotImplemented
        if type(obj) is ModuleType:
            reduced = reduce_module(self, obj, self._unfindable, self._shipped)
        elif self._unfindable and isinstance(obj, DEFINED):
            reduced = reduce_unfindable(self, obj, self._unfindable, self._shipped)
        if reduced is not NotImplemented:
            return reduced
        reduced = super().reducer_override(obj)
        if isinstance(obj, type):
            # Else it is pickled by name, or one of Python's own.
            return reduce_class(obj, reduced) if type(reduced) is tuple and len(reduced) == 6 else reduced
        # Functions are then pickled by name.
        if reduced is NotImplemented and self._with_dill and not isinstance(obj, FunctionType):
            return asked_for.reduce(obj, self.dispatch_table)
        return reduced

    def _reduce_interactive(self, function: FunctionType) -> Any:
        names = global_names(function.__code__)
        if self._snapshot is not None:
            self._snapshot.add_function(function, names)
        key = function_key(function)
        state = (
            key,
            function.__qualname__,
            function.__defaults__,
            function.__kwdefaults__,
            _cell_contents(function),
            function.__dict__,
            function.__annotations__,
            function.__doc__,
            *self._fills(function, names),
        )
        made_of = (sent_code(function.__code__)[0], function.__name__, key)
        return make_function, made_of, state, None, None, set_function_state

    def _fills(self, function: FunctionType, names: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, str]]:
        """The globals that are sent with it, and why others are not."""
        known = function.__globals__
        return self.without_faults({n: known[n] for n in names if n in known and n not in INTERPRETERS_NAMES})

    def without_faults(self, values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Those of the named `values` that can be pickled, and why others cannot; at the first attempt all of them."""
        left_out: dict[str, str] = {}
        if self._trying is None:
            return values, left_out
        for name, value in list(values.items()):
            fault = self._fault(value, self._trying)
            if fault is not None:
                del values[name]
                left_out[name] = f"{type(value).__name__}: {fault}{advice_on(value)}"
        return values, left_out

    def _fault(self, value: Any, trying: frozenset[int]) -> Exception | None:
        """Why `value` cannot be pickled."""
        if id(value) in trying:
            return None
        try:
            ValuePickler(io.BytesIO(), trying=trying | {id(value)}, with_dill=self._with_dill).dump(value)
        except Exception as error:
            return error
        return None


def _sees_main(function: FunctionType) -> bool:
    """Whether the globals of a function of `__main__` are the user's variables. What attrs generates has a copy of
    them, with more names, which mean something else in each class."""
    known = function.__globals__
    main = sys.modules["__main__"].__dict__
    return known is main or (known.get("__name__") == "__main__" and "__loader__" not in known)


def _cell_contents(function: FunctionType) -> list[tuple[int, Any]]:
    contents = []
    for i, cell in enumerate(function.__closure__ or ()):
        try:
            contents.append((i, cell.cell_contents))
        except ValueError:
            # Not assigned yet in the enclosing function, so it is empty there too.
            continue
    return contents


def make_function(code_bytes: bytes, name: str, key: bytes | None) -> FunctionType:
    """Rebuilds a function of `__main__` without its state, which may refer to the function; or finds the one that is
    kept under `key`."""
    from types import CellType

    if key is not None and current_namespace() is not None:
        known = single.find(key)
        if known is not None:
            return known  # type: ignore[no-any-return]
    code = marshal.loads(code_bytes)
    closure = tuple(CellType() for _ in code.co_freevars)
    return FunctionType(code, function_globals(), name, None, closure or None)


def set_function_state(function: FunctionType, state: tuple[Any, ...]) -> None:
    """Gives a function from `make_function` its defaults, closure and attributes, unless it has them from an earlier
    call, and fills its globals."""
    key, qualname, defaults, kwdefaults, cells, attributes, annotations, doc, fills, left_out = state
    known = current_namespace()
    if key is None or known is None or single.find(key) is not function:
        function.__module__ = "__main__"
        function.__qualname__ = qualname
        function.__defaults__ = defaults
        function.__kwdefaults__ = kwdefaults
        function.__dict__.update(attributes)
        for i, value in cells:
            function.__closure__[i].cell_contents = value  # type: ignore[index]
        if key is not None and known is not None:
            single.keep(key, function)
    function.__annotations__ = annotations
    function.__doc__ = doc
    if fills:
        fill(function.__globals__, fills)
    if left_out:
        note_left_out(left_out)
