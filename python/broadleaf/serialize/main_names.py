"""Whether a pickle names what `__main__` defines, by which another process would find something else."""

from __future__ import annotations

import io
import pickle
from itertools import repeat
from typing import Any


class _NamesMainError(Exception):
    """Something of `__main__` is named."""


class _Placeholder(Exception):
    """Stands for everything a pickle names, so that reading it runs no code but this.

    An exception, because these are made of any arguments without a line of Python.
    """

    def __call__(self, *_: Any, **__: Any) -> _Placeholder:
        return self

    def __setstate__(self, _: Any) -> None:
        pass

    def __setitem__(self, _: Any, __: Any) -> None:
        pass

    def extend(self, _: Any) -> None:
        """Takes what a pickle adds to a kind of list."""


class _NameReader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Called for each name once."""
        if module == "__main__":
            raise _NamesMainError
        return _Placeholder


def names_main(data: bytes) -> bool:
    """Whether `data`, a plain pickle, names anything of `__main__`.

    The text alone proves nothing: scikit-learn sends Python's filters of warnings with each call, and these hold it.
    """
    if b"__main__" not in data:
        return False
    try:
        _NameReader(io.BytesIO(data), buffers=repeat(b"")).load()
    except Exception:
        # Also where a placeholder does not do: by value is always right.
        return True
    return False
