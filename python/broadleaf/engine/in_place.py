"""Values in the namespace that get new contents and stay the same objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from broadleaf.engine import namespace
from broadleaf.errors import InPlaceMismatch
from broadleaf.serialize.values import arrays_of, form_of

Replace = Callable[[Any, Any], bool]


def check_fit(names: namespace.Namespace, forms: Mapping[str, Any]) -> None:
    """Raises `InPlaceMismatch` unless every name refers to a writable value of its form."""
    for name, form in forms.items():
        value = namespace.lookup(names, name)
        found = form_of(value, name)
        if found != form:
            raise InPlaceMismatch(f"{name} is {_describe(found)} here and cannot take {_describe(form)}")
        for array in arrays_of(value):
            if not array.flags.writeable:
                raise InPlaceMismatch(f"{name} is read-only here: push it again, or in mode 'private'")


def overwrite(names: namespace.Namespace, values: Mapping[str, Any], replace: Replace) -> None:
    """Overwrites every name's value with the pushed contents; all are checked before the first is touched. `replace`
    maps received bytes over others without copying them; if it cannot, they are copied.
    """
    check_fit(names, {name: form_of(value, name) for name, value in values.items()})
    for name, value in values.items():
        for destination, source in zip(arrays_of(namespace.lookup(names, name)), arrays_of(value), strict=True):
            if not (destination.nbytes and replace(_bytes_of(destination), _bytes_of(source))):
                destination[...] = source


def _bytes_of(array: Any) -> Any:
    import numpy as np

    # In memory order, so that no copy is made of a Fortran-ordered one.
    flat = np.asarray(array).ravel(order="K")
    return flat.view(np.uint8)


def _describe(form: Any) -> str:
    kind, *rest = form
    if len(rest) == 3:
        shape, dtype, order = rest
        return f"{kind} {shape} of {dtype} in {order} order"
    return f"{kind} {rest[0]}"
