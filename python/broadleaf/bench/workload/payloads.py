"""The broadcast values: of a given form, new ones for every round, and the checksum that receivers answer with."""

from typing import Any


def make(payload: str) -> Any:
    """`array N` (N x N doubles), `csc DENSITY` (10,000 x 10,000)."""
    import numpy as np

    kind, _, argument = payload.partition(" ")
    rng = np.random.default_rng(0)
    if kind == "array":
        return rng.random((int(argument), int(argument)))
    from scipy import sparse

    # Built from its three arrays: SciPy's own generator needs minutes and twice the memory at density 0.6.
    n, density = 10_000, float(argument)
    per_column = int(n * density)
    indices: Any = (np.arange(per_column, dtype=np.int32)[None, :] * (n // per_column)).repeat(n, axis=0).ravel()
    indptr: Any = np.arange(n + 1, dtype=np.int32) * per_column
    return sparse.csc_matrix((rng.random(n * per_column), indices, indptr), shape=(n, n))


def expected_bytes(payload: str) -> int:
    """What `n_bytes` of the value of a form is, without making it."""
    kind, _, argument = payload.partition(" ")
    if kind == "array":
        return 8 * int(argument) ** 2
    n = 10_000
    return n * int(n * float(argument)) * 12 + 4 * (n + 1)


def renew(value: Any, round: int) -> None:
    """Gives the value new contents, as a program does between two broadcasts."""
    numbers = value.data if hasattr(value, "indptr") else value
    numbers += round + 1


def n_bytes(value: Any) -> int:
    if hasattr(value, "indptr"):
        return int(value.data.nbytes + value.indices.nbytes + value.indptr.nbytes)
    return int(value.nbytes)


def checksum(value: Any) -> float:
    """A checksum that changes with every part of the value that `renew` changes."""
    numbers = value.data if hasattr(value, "indptr") else value
    return float(numbers.sum())
