"""Whether a pickle refers by name to something in `__main__`, where another process would find something else."""

from __future__ import annotations

import io
import pickle
from itertools import repeat
from typing import Any


class _NamesMainError(Exception):
    """The pickle names something in `__main__`."""


class _Placeholder(Exception):
    """Stands for everything a pickle names, so that reading it runs no other code. It is an exception, because those
    accept any arguments without a line of Python.
    """

    def __call__(self, *_: Any, **__: Any) -> _Placeholder:
        return self

    def __setstate__(self, _: Any) -> None:
        pass

    def __setitem__(self, _: Any, __: Any) -> None:
        pass

    def extend(self, _: Any) -> None:
        """Accepts what a pickle appends to a list type."""


class _NameReader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Called for each name once."""
        if module == "__main__":
            raise _NamesMainError
        return _Placeholder


def names_main(data: bytes) -> bool:
    """Whether `data`, a plain pickle, names anything of `__main__`.

    The text alone proves nothing: scikit-learn sends Python's warning filters with each call, and they contain it.
    """
    if b"__main__" not in data:
        return False
    try:
        _NameReader(io.BytesIO(data), buffers=repeat(b"")).load()
    except Exception:
        # Also if a placeholder does not work: pickling by value is always correct.
        return True
    return False
