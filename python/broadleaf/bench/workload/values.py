"""The values of the benchmark of sizes: of several kinds, of about as many bytes as wanted when they are pickled."""

import pickle
from collections.abc import Callable
from functools import lru_cache
from typing import Any


def _array(size_bytes: int) -> Any:
    import numpy as np

    return np.random.default_rng(0).random(size_bytes // 8)


def _bytes(size_bytes: int) -> bytes:
    import numpy as np

    return np.random.default_rng(0).bytes(size_bytes)


def _str(size_bytes: int) -> str:
    return ("text of a document, " * (size_bytes // 20 + 1))[:size_bytes]


def _dicts(size_bytes: int) -> list[dict[str, Any]]:
    """Each takes about 30 bytes: 300 kB are 10,000."""
    return [{"id": i, "name": f"item number {i}"} for i in range(size_bytes // 30)]


def _forest(size_bytes: int) -> Any:
    """Grown on noise, so that a tree has about as many leaves as it was given samples."""
    import numpy as np
    from sklearn.ensemble import RandomForestClassifier

    bytes_per_sample, samples_of_large = 36, 1000
    trees = max(1, round(size_bytes / bytes_per_sample / samples_of_large))
    samples = (size_bytes - 1500) // bytes_per_sample // trees
    rng = np.random.default_rng(0)
    return RandomForestClassifier(trees, random_state=0).fit(rng.random((samples, 4)), rng.integers(0, 2, samples))


def _frame(size_bytes: int) -> Any:
    """A column of numbers, and one of objects, which is no buffer for the pickler."""
    import numpy as np
    import pandas as pd

    rows = max(1, (size_bytes - 800) // 27)
    words = pd.Series([f"item number {i}" for i in range(rows)], dtype=object)
    return pd.DataFrame({"id": np.arange(rows), "name": words})


_MAKERS: dict[str, Callable[[int], Any]] = {
    "array": _array,
    "bytes": _bytes,
    "str": _str,
    "list of dicts": _dicts,
    "forest": _forest,
    "frame": _frame,
}


# The measurements of one kind and size follow one another.
@lru_cache(maxsize=1)
def _pickled(kind: str, size_bytes: int) -> bytes:
    return pickle.dumps(_MAKERS[kind](size_bytes), 5)


def several(kind: str, size_bytes: int, n: int) -> list[Any]:
    """n values of a kind that share no memory, of about this size each."""
    return [pickle.loads(_pickled(kind, size_bytes)) for _ in range(n)]


def renewed(value: Any, number: int) -> Any:
    """The value with new contents, as a program would send it next: the same object if that can be changed."""
    if isinstance(value, bytes):
        return number.to_bytes(8, "little") + value[8:]
    if isinstance(value, str):
        return f"{number:08}" + value[8:]
    if isinstance(value, list):
        value[0]["id"] = number
    elif hasattr(value, "estimators_"):
        value.random_state = number
    elif hasattr(value, "iat"):
        value.iat[0, 0] = number
    else:
        value[0] = number
    return value


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal, whatever their kind."""
    if type(a) is not type(b):
        return False
    if hasattr(a, "estimators_"):
        pairs = zip(a.estimators_, b.estimators_, strict=True)
        return a.random_state == b.random_state and all(same(x.tree_.threshold, y.tree_.threshold) for x, y in pairs)
    if hasattr(a, "equals"):
        return bool(a.equals(b))
    if hasattr(a, "dtype"):
        return a.shape == b.shape and bool((a == b).all())
    return bool(a == b)
