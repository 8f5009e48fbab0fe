"""Objects canned for plain pickle, and messages made from them."""

import functools
import pickle

import broadleaf as ipp
import numpy as np
import pytest
from broadleaf.serialize import (
    can,
    deserialize_object,
    pack_apply_message,
    serialize_object,
    uncan,
    unpack_apply_message,
)
from broadleaf.serialize.canning import CannedArray, CannedClass, CannedPartial, can_map


def there_and_back(obj, namespace=None):
    buffers = [bytes(buffer) for buffer in serialize_object(obj)]
    restored, left = deserialize_object(buffers, namespace)
    assert left == []
    return restored


@pytest.mark.parametrize(
    "obj",
    ["text", {"a": "b", "n": 10}, [1, 2, "hi"], (b"123", "x"), {"r": range(3), "d": {1: b"x"}}, b"x" * 5000, {1, 2}],
)
def test_plain_objects(obj):
    assert there_and_back(obj) == obj


def test_large_buffers_travel_beside_the_pickle():
    array = np.arange(1000.0)
    message = serialize_object({"a": array, "small": np.arange(3), "b": b"y" * 2000})
    assert [memoryview(part).nbytes for part in message[1:]] == [8000, 2000]
    restored, _ = deserialize_object(message)
    assert (restored["a"] == array).all()
    assert (restored["small"] == [0, 1, 2]).all()
    assert isinstance(pickle.loads(serialize_object([array])[0])[0], CannedArray)


@pytest.mark.parametrize(
    "array", [np.zeros((0, 3)), np.array([{}, None]), np.array([(1, 2.5)], "i4,f8"), np.array(5.0)]
)
def test_arrays_of_every_kind(array):
    restored = there_and_back(array)
    assert restored.dtype == array.dtype
    assert restored.shape == array.shape
    assert restored.tolist() == array.tolist()


def test_functions_get_the_globals_they_are_restored_in():
    @ipp.interactive
    def scaled(x, by: int = 2, *, plus=1):
        return factor * x * by + plus  # noqa: F821

    restored = there_and_back(scaled, {"factor": 10})
    assert restored(3) == 61
    assert restored.__annotations__ == {"by": int}
    offset = 7
    assert there_and_back(lambda x: x + offset)(1) == 8


def test_a_function_of_a_module_keeps_that_modules_globals():
    # As for an engine that has the module: the receiver's globals are not used.
    assert there_and_back(functools.wraps, {"WRAPPER_ASSIGNMENTS": ()})(len) is not None


def test_partials_share_their_buffers():
    partial = functools.partial(max, b"a" * 2000, key=len)
    canned = can(partial)
    assert isinstance(canned, CannedPartial)
    assert len(canned.buffers) == 1
    assert uncan(pickle.loads(pickle.dumps(canned)))(b"b") == b"a" * 2000


def test_classes_of_main_travel_by_value():
    @ipp.interactive
    class Base:
        a = 5

    @ipp.interactive
    class Derived(Base):
        def b(self):
            return self.a + 1

    assert isinstance(can(Derived), CannedClass)
    assert there_and_back({"D": Derived})["D"]().b() == 6


def test_messages_of_calls():
    message = pack_apply_message(sorted, ([3, 1, 2],), {"reverse": True, "key": abs})
    function, args, kwargs = unpack_apply_message(message)
    assert function(*args, **kwargs) == [3, 2, 1]


def test_requirements_are_met_where_the_function_is_restored():
    @ipp.require("base64", answer=42)
    @ipp.interactive
    def encode():
        return base64.b64encode(b"x"), answer  # noqa: F821

    namespace: dict = {}
    assert uncan(can(encode), namespace)() == (b"eA==", 42)
    assert namespace["answer"] == 42

    @ipp.depend(lambda: False)
    def never():
        return None

    with pytest.raises(ipp.UnmetDependency):
        uncan(can(never), {})


def test_references_and_prepickled_objects():
    assert uncan(ipp.Reference("a + 1"), {"a": 1}) == 2
    assert there_and_back(ipp.PrePickled([1, 2])) == [1, 2]


def test_a_program_may_add_types():
    can_map[complex] = lambda number: ("complex", number.real, number.imag)
    try:
        assert can(1 + 2j) == ("complex", 1.0, 2.0)
    finally:
        del can_map[complex]
