"""Whether a pickle names what `__main__` defines, by which another process would find something else."""

from __future__ import annotations

import io
import pickle
import sys
from typing import Any

from broadleaf.serialize import PROTOCOL


class _NamesMainError(Exception):
    """Something of `__main__` would be named."""


class _Finder(pickle.Pickler):
    def __init__(self) -> None:
        super().__init__(io.BytesIO(), PROTOCOL, buffer_callback=lambda buffer: False)
        self._array_type: Any = getattr(sys.modules.get("numpy"), "ndarray", None)

    def reducer_override(self, value: Any) -> Any:
        """Looks at what is not of a basic type, and leaves out what holds nothing but numbers."""
        if getattr(value, "__module__", None) == "__main__":
            raise _NamesMainError
        if type(value) is self._array_type and not value.dtype.hasobject:
            return list, ()
        return NotImplemented


def names_main(value: Any, data: bytes) -> bool:
    """Whether `data`, the plain pickle of `value`, names anything of `__main__`.

    The text alone proves nothing: scikit-learn sends Python's filters of warnings with each call, and these hold it.
    """
    if b"__main__" not in data:
        return False
    try:
        _Finder().dump(value)
    except Exception:
        # Also where its pickle fails this time: the careful way says why.
        return True
    return False
