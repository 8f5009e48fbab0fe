"""What a value is, as text: its types, contents, and which objects in it are the same."""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import struct
import sys
import types
from collections.abc import Callable
from typing import Any

# Longer texts and bytes are described by a hash.
_LONG = 64
_ANOTHER = " (another)"


def describe(value: Any) -> list[str]:
    """Lines that are equal for equal values, and only for those."""
    description = _Description()
    description.add("", value)
    return description.lines


def read_only_arrays(value: Any) -> list[str]:
    """Where in `value` arrays are that cannot be written to."""
    description = _Description()
    description.add("", value)
    return description.read_only


def describe_elsewhere(value: Any) -> list[str]:
    """Like `describe`, for a process with another `__main__`: whether classes are found there does not count."""
    return anywhere(describe(value))


def anywhere(lines: list[str]) -> list[str]:
    """A description without what depends on the process."""
    return [line.replace(_ANOTHER, "") for line in lines]


def describe_error(error: BaseException) -> list[str]:
    """The same for an exception, without what a process pool does not send: its cause, context and traceback."""
    description = _Description()
    description.add_error("", error)
    return description.lines


def repeats(array: Any) -> bool:
    """Whether an array shows the same items several times."""
    return any(stride == 0 and n > 1 for n, stride in zip(array.shape, array.strides, strict=True)) and array.size > 0


def difference(got: list[str], expected: list[str]) -> str:
    """The first lines in which two descriptions differ; '' if they do not."""
    if got == expected:
        return ""
    at = next((i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b), min(len(got), len(expected)))
    return f"line {at}:\n    got      {got[at : at + 3]}\n    expected {expected[at : at + 3]}"


def _digest(data: Any) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _array_digest(array: Any) -> str:
    """Of its items, without what lies between them."""
    if array.dtype.names is not None:
        return " ".join(_array_digest(array[name]) for name in array.dtype.names)
    if array.dtype.char in "gG":
        return _digest(" ".join(map(repr, array.reshape(-1))).encode())
    return _digest(array.tobytes())


def type_text(kind: type) -> str:
    """Its name, and whether it is the class that is found by that name here."""
    found: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    # cloudpickle knows only the name of a class that cannot be imported.
    return f"{kind.__module__}.{kind.__name__}" + ("" if found is kind else _ANOTHER)


class _Description:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.read_only: list[str] = []
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []

    def line(self, at: str, text: str) -> None:
        self.lines.append(f"{at}: {text}")

    def is_again(self, at: str, value: Any) -> bool:
        """Whether this very object has come before."""
        number = self._numbers.get(id(value))
        if number is not None:
            self.line(at, f"object {number} again")
            return True
        self._numbers[id(value)] = len(self._numbers)
        self._alive.append(value)
        return False

    def add(self, at: str, value: Any) -> None:
        kind = type(value)
        atom = _ATOMS.get(kind)
        if atom is not None:
            self.line(at, f"{kind.__name__} {atom(value)}")
            return
        if kind in (str, bytes):
            # Whether two of them are one object says nothing: nobody can change them.
            data = value.encode("utf-8", "surrogatepass") if kind is str else value
            text = repr(value) if len(data) <= _LONG else f"of {len(value)}: {_digest(data)}"
            self.line(at, f"{kind.__name__} {text}")
            return
        if isinstance(value, type):
            self.line(at, f"type {type_text(value)}")
            return
        if kind in (
            types.BuiltinFunctionType,
            types.MethodDescriptorType,
            types.ModuleType,
            types.WrapperDescriptorType,
        ):
            self.line(at, f"{kind.__name__} {value.__name__}")
            return
        if kind is tuple and not value:
            self.line(at, "()")
            return
        if isinstance(value, BaseException):
            self.add_error(at, value)
            return
        module = kind.__module__.partition(".")[0]
        if module == "numpy" and self.add_numpy_dtype(at, value):
            return
        if self.is_again(at, value):
            return
        for name, describe_it in _OF_MODULES.items():
            if any(base.__module__.partition(".")[0] == name for base in kind.__mro__) and describe_it(self, at, value):
                return
        if kind is types.FunctionType:
            self._add_function(at, value)
        elif isinstance(value, collections.deque):
            self.line(at, f"{type_text(kind)}, at most {value.maxlen}")
            self.add(at, list(value))
        elif kind is types.MappingProxyType:
            self.line(at, type_text(kind))
            self.add(at, value.copy())
        elif kind is types.MethodType:
            self.line(at, "method")
            self.add(at + ".func", value.__func__)
            self.add(at + ".self", value.__self__)
        elif isinstance(value, functools.partial):
            self.line(at, type_text(kind))
            self.add(at + ".func", value.func)
            self.add(at + ".args", value.args)
            self.add(at + ".keywords", value.keywords)
        elif module == "functools" and hasattr(value, "__wrapped__"):
            self.line(at, type_text(kind))
            self.add(at + ".__wrapped__", value.__wrapped__)
        else:
            self._add_object(at, value)

    def _add_object(self, at: str, value: Any) -> None:
        kind = type(value)
        self.line(at, type_text(kind))
        for base, contents in _CONTENTS:
            if isinstance(value, base):
                contents(self, at, value)
                break
        else:
            if kind.__module__ not in ("__main__", "kinds") and not hasattr(value, "__dict__"):
                self._add_opaque(at, value)
        for name, attribute in sorted(_attributes(value).items()):
            self.add(f"{at}.{name}", attribute)

    def _add_opaque(self, at: str, value: Any) -> None:
        if type(value).__repr__ is not object.__repr__:
            try:
                self.line(at, repr(value))
            except ValueError:
                # A fraction of long numbers, for which Python has a limit.
                self.add(at + " made of", value.__reduce__())
            return
        try:
            made_of = value.__reduce_ex__(4)
        except Exception:
            return
        self.add(at + " made of", made_of)

    def add_error(self, at: str, error: BaseException) -> None:
        if self.is_again(at, error):
            return
        self.line(at, type_text(type(error)))
        group = isinstance(error, BaseExceptionGroup)
        if group:
            self.line(at, f"group {error.message!r}")
            for i, member in enumerate(error.exceptions):
                self.add_error(f"{at}.exceptions[{i}]", member)
        else:
            self.add(at + ".args", error.args)
        for name in ERROR_FIELDS:
            if hasattr(error, name) and not isinstance(getattr(type(error), name, None), property):
                self.add(f"{at}.{name}", getattr(error, name))
        for name, attribute in sorted(_attributes(error).items()):
            self.add(f"{at}.{name}", attribute)

    def _add_function(self, at: str, function: types.FunctionType) -> None:
        self.line(at, f"function {function.__module__}.{function.__qualname__}, {function.__doc__!r}")
        self._add_code(at, function.__code__)
        self.add(at + ".__defaults__", function.__defaults__)
        self.add(at + ".__kwdefaults__", function.__kwdefaults__)
        self.add(at + ".__annotations__", function.__annotations__)
        self.add(at + ".__dict__", function.__dict__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                self.add(f"{at}.<{name}>", cell.cell_contents)
            except ValueError:
                self.line(f"{at}.<{name}>", "not assigned")

    def _add_code(self, at: str, code: types.CodeType) -> None:
        self.line(at, f"code {code.co_name}{code.co_varnames} {_digest(code.co_code)} {code.co_names}")
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._add_code(at, constant)

    # Contents of built-in containers ----------------------------------------------------------------

    def items(self, at: str, value: Any) -> None:
        base: Any = list if isinstance(value, list) else tuple
        for i, item in enumerate(base.__iter__(value)):
            self.add(f"{at}[{i}]", item)

    def pairs(self, at: str, value: Any) -> None:
        for i, (key, item) in enumerate(dict.items(value)):
            self.add(f"{at} key {i}", key)
            self.add(f"{at}[{i}]", item)

    def members(self, at: str, value: Any) -> None:
        texts = sorted("; ".join(describe(member)) for member in value)
        for text in texts:
            self.line(f"{at} member", text)

    # NumPy and its kin ------------------------------------------------------------------------------

    def add_numpy(self, at: str, value: Any) -> bool:
        import numpy as np

        if isinstance(value, type(np.ma.masked)):
            self.line(at, "masked" if value is np.ma.masked else "another masked")
            return True
        if isinstance(value, np.ma.MaskedArray):
            # Whether its mask is hard is something that NumPy's pickle forgets.
            self.line(at, type_text(type(value)))
            self.add(at + ".data", np.asarray(value.data))
            # NumPy's pickle makes an array of what says that nothing is masked.
            self.add(at + ".mask", np.ma.getmaskarray(value))
            # Its type depends on how often it was pickled.
            self.line(at, f"filled with {value.fill_value!s}")
            return True
        if isinstance(value, np.ndarray):
            order = f"C {value.flags.c_contiguous}, F {value.flags.f_contiguous}"
            if not value.flags.writeable and not repeats(value):
                self.read_only.append(at)
            self.line(at, f"{type_text(type(value))} {value.shape} {order}")
            self.add(at + ".dtype", value.dtype)
            if value.dtype.hasobject:
                for i, item in enumerate(value.reshape(-1).tolist()):
                    self.add(f"{at}[{i}]", item)
            else:
                self.line(at, _array_digest(value.view(np.ndarray)))
            attributes = {k: v for k, v in getattr(value, "__dict__", {}).items() if not k.startswith("_")}
            for name, attribute in sorted(attributes.items()):
                self.add(f"{at}.{name}", attribute)
            return True
        if isinstance(value, np.generic):
            self.line(at, f"scalar {type_text(type(value))}")
            self.add(at + ".dtype", value.dtype)
            self.add(at + ".item", value.item()) if value.dtype.hasobject else self.line(
                at, _array_digest(np.asarray(value))
            )
            return True
        return False

    def add_numpy_dtype(self, at: str, value: Any) -> bool:
        import numpy as np

        if isinstance(value, np.dtype):
            fields = value.fields and [(n, str(f[0]), *f[1:]) for n, f in value.fields.items()]
            text = f"dtype {value!r} {value.str} {value.itemsize} {value.isalignedstruct} {fields}"
            self.line(at, f"{text} {value.metadata}")
            return True
        return False

    def add_scipy(self, at: str, value: Any) -> bool:
        from scipy import sparse

        if not sparse.issparse(value):
            return False
        self.line(at, f"{type_text(type(value))} {value.shape}")
        parts = ("data", "indices", "indptr", "row", "col", "offsets", "coords")
        for name in parts:
            if hasattr(value, name):
                self.add(f"{at}.{name}", getattr(value, name))
        if value.format in ("dok", "lil"):
            self.add(at + ".dense", value.toarray())
        return True

    def add_pandas(self, at: str, value: Any) -> bool:
        import pandas as pd

        if isinstance(value, pd.DataFrame):
            self.line(at, f"{type_text(type(value))} {value.shape}")
            self.add(at + ".attrs", value.attrs)
            self.add(at + ".index", value.index)
            self.add(at + ".columns", value.columns)
            for i in range(value.shape[1]):
                self._add_column(f"{at}.{i}", value.iloc[:, i])
        elif isinstance(value, pd.Series):
            self.line(at, f"{type_text(type(value))} {value.name!r}")
            self.add(at + ".attrs", value.attrs)
            self.add(at + ".index", value.index)
            self._add_column(at, value)
        elif isinstance(value, pd.MultiIndex):
            self.line(at, f"{type_text(type(value))} {list(value.names)}")
            for i in range(value.nlevels):
                self.add(f"{at}.levels[{i}]", value.levels[i])
                self.line(f"{at}.codes[{i}]", str(value.codes[i].tolist()))
        elif isinstance(value, pd.Index):
            freq = getattr(value, "freq", None)
            self.line(at, f"{type_text(type(value))} {value.dtype} {value.names} {freq} {value.tolist()!r}")
        else:
            self.line(at, f"{type_text(type(value))} {value!r}")
        return True

    def _add_column(self, at: str, series: Any) -> None:
        self.line(at, f"{series.dtype} {getattr(series.dtype, 'categories', None)!r}")
        for i, item in enumerate(series.tolist()):
            self.add(f"{at}[{i}]", item)


_OF_MODULES: dict[str, Callable[[_Description, str, Any], bool]] = {
    "numpy": _Description.add_numpy,
    "scipy": _Description.add_scipy,
    "pandas": _Description.add_pandas,
}


def _bits(value: float) -> str:
    return struct.pack(">d", value).hex()


_ATOMS: dict[type, Callable[[Any], str]] = {
    type(None): repr,
    bool: repr,
    int: lambda value: (
        hex(value) if abs(value) < 1 << 256 else f"{value.bit_length()} bits {_digest(hex(value).encode())}"
    ),
    float: lambda value: f"{_bits(value)} {value}",
    complex: lambda value: f"{_bits(value.real)} {_bits(value.imag)}",
    type(Ellipsis): repr,
    type(NotImplemented): repr,
}
_ATOM_KINDS = (bool, int, float, complex, str, bytes)


def _base_atom(description: _Description, at: str, value: Any) -> None:
    kind = next(kind for kind in _ATOM_KINDS if isinstance(value, kind))
    description.add(at + " as " + kind.__name__, kind(value) if kind is not str else str.__str__(value))


_CONTENTS: tuple[tuple[Any, Callable[[_Description, str, Any], None]], ...] = (
    (_ATOM_KINDS, _base_atom),
    (bytearray, lambda description, at, value: description.line(at, f"{len(value)} {_digest(bytes(value))}")),
    ((list, tuple), _Description.items),
    (dict, _Description.pairs),
    ((set, frozenset), _Description.members),
)
#: What exceptions of Python and of `kinds.py` store outside their `__dict__`.
ERROR_FIELDS = (
    "errno", "strerror", "filename", "filename2", "name", "path", "obj", "encoding", "object", "start", "end", "reason",
    "lineno", "offset", "text", "msg", "print_file_and_line", "end_lineno", "end_offset", "value", "code",
)  # fmt: skip


def _attributes(value: Any) -> dict[str, Any]:
    """What an object stores in its `__dict__` and slots."""
    found: dict[str, Any] = {}
    for kind in type(value).__mro__:
        for name, slot in vars(kind).items():
            if isinstance(slot, types.MemberDescriptorType) and kind.__module__ in ("__main__", "kinds"):
                try:
                    found[name] = slot.__get__(value)
                except AttributeError:
                    found[name] = "<unset>"
    found.update(getattr(value, "__dict__", {}))
    if dataclasses.is_dataclass(value):
        found["<fields>"] = [field.name for field in dataclasses.fields(value)]
    return found
