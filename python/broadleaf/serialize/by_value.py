"""Pickling by value: functions without an importable name, and whatever `__main__` defines.

A function of `__main__` (also one marked `@interactive`) travels as code and sees the engine's namespace as its
globals. The globals that it refers to and that exist here travel with it as fills (see `namespace`). What a module
defines that was loaded from a path has the module's own globals (see `reduce_unfindable`), classes keep their slots
(see `reduce_class`), and caches and the like have a module of their own (`wrapped`). Everything else is left to
cloudpickle.
"""

from __future__ import annotations

import dis
import importlib
import io
import marshal
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import Enum
from types import BuiltinFunctionType, CodeType, FunctionType, MemberDescriptorType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet, ref

from broadleaf.after_import import imported
from broadleaf.errors import SerializationError
from broadleaf.serialize import PROTOCOL, picklers
from broadleaf.serialize.namespace import (
    current_namespace,
    fill,
    function_globals,
    note_brought,
    note_left_out,
    token_of,
)
from broadleaf.serialize.picklers import INBAND_BUFFER_BYTES, keep_out_of_band, reducers
from broadleaf.serialize.snapshot import Snapshot, function_key, is_importable, is_package, sent_code, single
from broadleaf.serialize.unfindable import (
    advice_on,
    is_binary,
    is_not_by_name,
    modules_not_by_name,
    refuse_unfindable_names,
    registered_by_value,
    shipped_modules,
    unfindable_modules,
)
from broadleaf.serialize.wrapped import reduce_wrapped

# Classes by value: with their slots, and sent again without losing what tasks have set in them.
#
# cloudpickle makes a class once in each process, and finds it again by a number. What it leaves out is added here:
# slots, attributes that were deleted since, and that a class is not changed by its own copy that comes back.


# Classes that were defined here, as far as they were sent. No pickle changes them.
_own: WeakSet[type] = WeakSet()
# The attribute of a class from elsewhere that holds its `_Record`. A weak dictionary would keep the class alive,
# because what was sent refers to it.
_RECORD = "__broadleaf_record__"


def reduce_class(kind: type, reduced: Any) -> Any:
    """How to pickle a class, given how cloudpickle reduces it by value."""
    make, made_of, (attributes, slot_state), *_, set_state = reduced
    if _RECORD in vars(kind):
        attributes = {name: value for name, value in attributes.items() if name != _RECORD}
    else:
        _own.add(kind)
    if not issubclass(kind, Enum):
        constructor, name, bases, body, *rest = made_of
        body = {**body, "__qualname__": kind.__qualname__}
        names = _slot_names(kind)
        # What makes a NamedTuple sets its slots, and refuses others.
        if names is not None and NamedTuple not in getattr(kind, "__orig_bases__", ()):
            body["__slots__"] = names
            attributes = {key: value for key, value in attributes.items() if key not in names}
            # Made by `copyreg` when an object was pickled.
            attributes.pop("__slotnames__", None)
            if not isinstance(vars(kind)["__slots__"], str | tuple | list | dict | set | frozenset):
                # An iterator, which is used up.
                attributes["__slots__"] = tuple(names)
        made_of = (constructor, name, bases, body, *rest)
    return make, made_of, (set_state, attributes, slot_state), None, None, set_class_state


# `Py_TPFLAGS_IMMUTABLETYPE`, which no class has that a `class` statement made.
_IMMUTABLE = 1 << 8
# Where types of the interpreter have a name that is not their own.
_OTHER_NAMES_IN = ("types", "_collections_abc")


def reduce_compiled(kind: type) -> Any:
    """How to pickle a compiled type that its own name does not lead to, such as that of locks. It has no value that
    could be sent.

    Raises `pickle.PicklingError` if it is not found under another name.
    """
    for module in (kind.__module__, *_OTHER_NAMES_IN):
        for name, value in list(vars(sys.modules.get(module, object)).items()):
            if value is kind:
                return _by_name, (module, name)
    raise pickle.PicklingError(f"Can't pickle {kind!r}: it is a compiled type that no name leads to")


def _slot_names(kind: type) -> list[str] | None:
    """The names of the slots that the class itself has, as they are stored; None if it has a `__dict__` by default."""
    own = vars(kind)
    if "__slots__" not in own:
        return None
    names = [name for name, slot in own.items() if isinstance(slot, MemberDescriptorType)]
    return names + [name for name in ("__dict__", "__weakref__") if name in own]


class _Sent:
    """The attributes of a class as they were sent."""

    __slots__ = ("attributes", "set_state", "slot_state", "tokens")

    def __init__(self, set_state: Callable[[type, Any], Any], attributes: dict[str, Any], slot_state: Any) -> None:
        self.set_state = set_state
        self.attributes = attributes
        self.slot_state = slot_state
        self.tokens: dict[str, Any] = {name: token_of(value) for name, value in attributes.items()}

    def is_like(self, other: _Sent) -> bool:
        return None not in self.tokens.values() and self.tokens == other.tokens


class _Record:
    """A class from elsewhere, and how it was sent last."""

    __slots__ = ("_kind", "sent")

    def __init__(self, kind: type) -> None:
        self._kind = ref(kind)
        self.sent: _Sent | None = None

    def apply(self, sent: _Sent) -> None:
        """Makes the class what was sent. Only what was sent otherwise before is replaced: a task may have set the
        rest."""
        kind, before = self._kind(), {} if self.sent is None else self.sent.tokens
        if kind is None:
            return
        for name in before.keys() - sent.tokens.keys():
            try:
                delattr(kind, name)
            except (AttributeError, TypeError):
                # Deleted by a task, or set by the metaclass.
                continue
        changed = {
            name: value
            for name, value in sent.attributes.items()
            if name not in before or sent.tokens[name] is None or sent.tokens[name] != before[name]
        }
        sent.set_state(kind, (changed, sent.slot_state))
        self.sent = sent


def set_class_state(kind: type, state: tuple[Callable[[type, Any], Any], dict[str, Any], Any]) -> None:
    """Gives a class from elsewhere its attributes, or those that have changed since it came last."""
    if kind in _own:
        return
    record: _Record | None = vars(kind).get(_RECORD)
    if record is None:
        record = _Record(kind)
        type.__setattr__(kind, _RECORD, record)
    sent = _Sent(*state)
    if record.sent is not None and sent.is_like(record.sent):
        sent = record.sent
    else:
        record.apply(sent)
    note_brought(record, sent)


# What unfindable modules define, pickled by value: functions, classes, and the modules themselves.
#
# Where the receiver has loaded a module of that name itself, as a client has that gets its own class back, the
# receiver's is taken, as plain pickle would. So classes keep their identity, and a module's state is not overwritten.


DEFINED = (FunctionType, type, BuiltinFunctionType)
"""The types of what a module defines."""
# What says where a module came from; the receiver's importers would not find it there.
_OWN_TO_PROCESS = ("__builtins__", "__cached__", "__loader__", "__spec__")
_MISSING = object()


def reduce_unfindable(pickler: Any, obj: Any, unfindable: frozenset[str], shipped: frozenset[str]) -> Any:
    """How to pickle what an unfindable module defines, in the form of `__reduce__`; NotImplemented for anything else.

    It is pickled by name if its module was shipped. Plain pickle could not: it imports the packages that the name
    mentions, which need not exist here.

    Raises `SerializationError` if it has no value that could be sent, as in an extension module.
    """
    module, name = getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
    if module not in unfindable or not isinstance(name, str) or _named(module, name) is not obj:
        return NotImplemented
    if module in shipped:
        return _by_name, (module, name)
    if isinstance(obj, BuiltinFunctionType) or is_binary(module):
        raise _no_value(module, name)
    from cloudpickle import cloudpickle

    if isinstance(obj, type):
        reduced = reduce_class(obj, cloudpickle._dynamic_class_reduce(obj))
    else:
        reduced = pickler._dynamic_function_reduce(obj)
    make, arguments, state, *_, set_state = reduced
    return _named_or_made, (module, name, make, arguments), (module, name, set_state, state), None, None, _complete


def _no_value(module: str, name: str) -> SerializationError:
    why = f"{name!r} is compiled, and engines would not find its module {module!r}, which was loaded from a path"
    return SerializationError(f"{module}.{name}", why)


def _by_name(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        if not hasattr(found, part):
            # In the words of pickle, which the advice on such errors knows.
            raise AttributeError(f"Can't get attribute {name!r} on {sys.modules[module]!r}")
        found = getattr(found, part)
    return found


def _named(module: str, name: str) -> Any:
    """What this process has under that name, if it has the module at all."""
    found: Any = sys.modules.get(module, _MISSING)
    for part in name.split("."):
        if found is _MISSING:
            break
        found = getattr(found, part, _MISSING)
    return found


def _named_or_made(module: str, name: str, make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    found = _named(module, name)
    return make(*arguments) if found is _MISSING else found


def _complete(obj: Any, state: tuple[str, str, Callable[..., Any], Any]) -> None:
    module, name, set_state, own_state = state
    if _named(module, name) is not obj:
        set_state(obj, own_state)


def reduce_module(pickler: Any, module: ModuleType, unfindable: frozenset[str], shipped: frozenset[str]) -> Any:
    """How to pickle a module that travels by value, or whose file was sent, in the form of `__reduce__`; NotImplemented
    for any other.

    Entries that cannot be pickled are left out once a first attempt has failed.
    """
    name = module.__name__
    if sys.modules.get(name) is module and not is_not_by_name(name, modules_not_by_name()):
        return NotImplemented
    if name in shipped and name not in registered_by_value():
        return importlib.import_module, (name,)
    entries = {entry: value for entry, value in vars(module).items() if entry not in _OWN_TO_PROCESS}
    make = _module_or_made if name in unfindable else _made_module
    return make, (name,), pickler.without_faults(entries), None, None, _complete_module


def _module_or_made(name: str) -> ModuleType:
    return sys.modules.get(name) or _made_module(name)


def _made_module(name: str) -> ModuleType:
    import builtins

    made = ModuleType(name)
    made.__dict__["__builtins__"] = builtins
    return made


def _complete_module(module: ModuleType, state: tuple[dict[str, Any], dict[str, str]]) -> None:
    if sys.modules.get(module.__name__) is module:
        return
    entries, left_out = state
    module.__dict__.update(entries)
    if left_out and "__getattr__" not in entries:
        module.__dict__["__getattr__"] = _LeftOut(module.__name__, left_out)


class _LeftOut:
    """The `__getattr__` of a module from which something could not be sent: it says what, and why."""

    def __init__(self, module: str, reasons: dict[str, str]) -> None:
        self._module = module
        self._reasons = reasons

    def __call__(self, name: str) -> Any:
        text = f"module {self._module!r} has no attribute {name!r}"
        if name in self._reasons:
            text += f" here, and your session's value cannot be pickled ({self._reasons[name]})"
        raise AttributeError(text, name=name)


# Generators of random numbers among what is sent: those of the process stay where they are.


# Where the functions `random.random`, `numpy.random.normal` and so on have their generator.
_PROCESS_GENERATORS = (("random", "_inst"), ("numpy.random.mtrand", "_rand"))


def reduce_generator(obj: Any) -> Any:
    """How to pickle a generator of the process: every process has its own of that name. None for anything else."""
    for module, name in _PROCESS_GENERATORS:
        if obj is getattr(sys.modules.get(module), name, None):
            return _of_process, (module, name)
    return None


def _of_process(module: str, name: str) -> Any:
    from importlib import import_module

    return getattr(import_module(module), name)


def kind_of_generator(obj: Any) -> str | None:
    """The name of the type that an object has as a generator of random numbers; None if it is none."""
    numpy_random = imported("numpy.random", "RandomState")
    if numpy_random is not None:
        if isinstance(obj, numpy_random.Generator):
            return "Generator"
        if isinstance(obj, numpy_random.RandomState | numpy_random.BitGenerator):
            return "RandomState"
    random = imported("random", "SystemRandom")
    if random is not None and isinstance(obj, random.Random) and not isinstance(obj, random.SystemRandom):
        return "Random"
    return None


# Submodules that a function reaches through the name of their package.
#
# `import urllib.error` binds `urllib` only. Another process that imports `urllib` need not have its submodule.


_used_names: WeakKeyDictionary[CodeType, frozenset[str]] = WeakKeyDictionary()


class _WithSubmodules:
    """Pickles as the fills of a function whose packages need these submodules."""

    __slots__ = ("_fills", "_names")

    def __init__(self, names: list[str], fills: dict[str, Any]) -> None:
        self._names = names
        self._fills = fills

    def __reduce__(self) -> tuple[Any, ...]:
        return with_submodules, (self._names, self._fills)


def with_submodules(names: list[str], fills: dict[str, Any]) -> dict[str, Any]:
    """Imports modules, those that can be imported here, and returns `fills`."""
    for name in names:
        # Whatever uses it will miss it. The function may also mean something else by its name.
        with suppress(Exception):
            importlib.import_module(name)
    return fills


def _submodules(function: FunctionType, values: Iterable[Any]) -> list[str]:
    """The loaded submodules that code of `function` may reach through packages among `values`."""
    used = used_names(function.__code__)
    by_value = modules_not_by_name()
    return [
        name
        for value in values
        if is_package(value)
        for name in _loaded_within(value.__name__, used)
        if not is_not_by_name(name, by_value)
    ]


def _loaded_within(package: str, used: frozenset[str]) -> Iterator[str]:
    for name in used:
        inner = f"{package}.{name}"
        if type(sys.modules.get(inner)) is ModuleType:
            yield inner
            yield from _loaded_within(inner, used)


def used_names(code: CodeType) -> frozenset[str]:
    """The names of globals and attributes in `code` and the code nested in it."""
    names = _used_names.get(code)
    if names is None:
        nested = [used_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
        names = _used_names[code] = frozenset(code.co_names).union(*nested)
    return names


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
    if picklers.dill_is_on():
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
            if obj.__module__ == "__main__" and _sees_main(obj) and not picklers.brings_globals():
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
            if type(reduced) is not tuple or len(reduced) != 6:
                # It is pickled by name, or one of Python's own.
                return reduced
            return reduce_compiled(obj) if obj.__flags__ & _IMMUTABLE else reduce_class(obj, reduced)
        # Functions are then pickled by name.
        if reduced is NotImplemented and self._with_dill and not isinstance(obj, FunctionType):
            return picklers.reduce_with_dill(obj, self.dispatch_table)
        return reduced

    def _reduce_interactive(self, function: FunctionType) -> Any:
        names = global_names(function.__code__)
        if self._snapshot is not None:
            self._snapshot.add_function(function, names)
        key = function_key(function)
        cells = _cell_contents(function)
        fills, left_out = self._fills(function, names)
        seen = (*fills.values(), *(value for _, value in cells), *_default_values(function))
        submodules = _submodules(function, seen)
        state = (
            key,
            function.__qualname__,
            function.__defaults__,
            function.__kwdefaults__,
            cells,
            function.__dict__,
            function.__annotations__,
            function.__doc__,
            _WithSubmodules(submodules, fills) if submodules else fills,
            left_out,
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


def _default_values(function: FunctionType) -> Iterator[Any]:
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()


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
