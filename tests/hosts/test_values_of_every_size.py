"""Values of every size go to engines of other hosts, and come back to clients of other hosts, as they are."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.timeout(180)

# Around the sizes from which values travel differently: on one host, between hosts, and from far clients.
SIZES = [1, 16_384, 16_385, 40_000, 65_536, 65_537, 300_000, 1 << 20, (1 << 20) + 1, 5_000_000]
MAKE = {
    "bytes": lambda n: b"x" * n,
    "text": lambda n: "é" * (n // 2),
    "array": lambda n: np.arange(max(1, n // 8)),
    "ints": lambda n: [i * 40_503 % 2**33 for i in range(n // 8)],
    "Nones": lambda n: [None] * n,
    "dicts": lambda n: [{"a": i, "b": "t"} for i in range(n // 12)],
    "many arrays": lambda n: [np.full(2500, i, float) for i in range(min(n // 20_000, 100))],
}


def same(a, b) -> bool:
    if isinstance(a, np.ndarray):
        return bool(np.array_equal(a, b))
    if type(a) is not type(b):
        return False
    if isinstance(a, list) and a and isinstance(a[0], np.ndarray):
        return len(a) == len(b) and all(map(same, a, b))
    # Millions of items: compared by the interpreter's own loops.
    return bool(a == b) and (not isinstance(a, list) or list(map(type, a)) == list(map(type, b)))


@pytest.mark.parametrize("kind", MAKE)
def test_values_go_to_a_relays_engines_and_back(hosted, kind):
    rc = hosted(3, engines=2, rate_mbit=None).client
    everyone, balanced = rc[:], rc.load_balanced_view()
    for n in SIZES:
        value = MAKE[kind](n)
        assert all(same(back, value) for back in everyone.apply_sync(lambda x: x, value)), n
        assert all(same(back, value) for back in everyone.apply_sync(lambda value=value: value)), n
        assert all(same(back, value) for back in balanced.map_sync(lambda x: x, [value] * 5)), n
        assert all(same(back, value) for back in rc.broadcast_view(coalescing=True).apply_sync(lambda x: x, value)), n
        everyone.push({"pushed": value}, block=True)
        assert all(same(back, value) for back in everyone.pull("pushed", block=True)), n
    parts = everyone.apply_sync(lambda a, b: (a, b), b"y" * 20_000, "z" * 70_000)
    assert parts == [(b"y" * 20_000, "z" * 70_000)] * len(everyone)


def test_values_come_from_a_far_client_and_go_back(far):
    program = f"""
SIZES = {SIZES}
for n in SIZES:
    dicts = [dict(a=i, b="t") for i in range(n // 12)]
    ints = [i * 40_503 % 2**33 for i in range(n // 8)]
    numbers = ints, [i / 3 for i in ints], range(n)
    for value in (b"x" * n, "é" * (n // 2), dicts, *numbers, [bytes([i]) * 9000 for i in range(min(n // 9000, 200))]):
        assert rc[:].apply_sync(lambda x: x, value) == [value] * 2, n
        assert rc[0].apply_sync(lambda: value) == value, n
        assert rc.load_balanced_view().map_sync(lambda x: x, [value] * 3) == [value] * 3, n
    array = np.arange(max(1, n // 8))
    assert all(np.array_equal(back, array) for back in rc[:].apply_sync(lambda x: x, array)), n
print("all the same")
"""
    assert far().run(program) == "all the same\n"


def test_values_beside_an_error_come_from_a_relays_engines_and_to_a_far_client(hosted, far):
    """The items of a chunk of which one raises come with its error, in any number and size."""
    rc = hosted(3, engines=2, rate_mbit=None).client

    def make(n):
        import numpy as np

        return np.arange(n) if n != 7 else 1 // 0

    for n_bytes in SIZES:
        items = [7, *[max(1, n_bytes // 8)] * 9]
        for values in (
            rc[:].map_async(make, items * len(rc)).get(60, return_exceptions=True),
            rc.load_balanced_view().map_async(make, items * 3, chunksize=10).get(60, return_exceptions=True),
        ):
            for n, value in zip(items * len(rc), values, strict=False):
                assert isinstance(value, ZeroDivisionError) if n == 7 else same(value, np.arange(n))
    program = f"""
def make_or_fail(n):
    import numpy as np
    return np.arange(n) if n != 7 else 1 // 0
for n_bytes in {SIZES}:
    items = [7, *[max(1, n_bytes // 8)] * 9]
    values = rc[0].map_async(make_or_fail, items).get(60, return_exceptions=True)
    assert isinstance(values[0], ZeroDivisionError)
    assert all(np.array_equal(value, np.arange(n)) for n, value in zip(items[1:], values[1:])), n_bytes
print("all the same")
"""
    assert far().run(program) == "all the same\n"
