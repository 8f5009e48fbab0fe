"""A payload with too many bytes is refused before it is pickled, which would take seconds."""

from pathlib import Path

import broadleaf as ipp
import pytest

MIB = 1 << 20
pytestmark = pytest.mark.timeout(180)


class Wire:
    """Leaves a mark when it is pickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        self.mark.touch()
        return str, ()


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_arguments_above_the_pool(tmp_path: Path, kind: type):
    mark = tmp_path / "pickled"
    large = kind(65 * MIB)
    with ipp.Cluster(n=1, pool_max_bytes=64 * MIB) as client:
        for arguments in ((Wire(mark), large), ([Wire(mark), large],), ({"a": Wire(mark), "b": large},)):
            with pytest.raises(MemoryError, match="shared memory pool is full"):
                client[0].apply_async(max, *arguments)
        with pytest.raises(MemoryError, match="shared memory pool is full"):
            client[0].apply_async(max, Wire(mark), key=large)
        assert not mark.exists()
        # The same bytes many times are pickled once.
        part = kind(20 * MIB)
        assert client[0].apply_async(len, [Wire(mark), *[part] * 8]).get(timeout=60) == 9
        assert mark.exists()


def test_a_value_above_the_pool(tmp_path: Path):
    mark = tmp_path / "pickled"

    def value(wire: object) -> object:
        return [wire, bytes(65 << 20)]

    with ipp.Cluster(n=1, pool_max_bytes=64 * MIB) as client:
        with pytest.raises(ipp.RemoteError, match="shared memory pool is full"):
            client[0].apply_async(value, OnEngine(mark)).get(timeout=60)
        assert not mark.exists()


class OnEngine:
    """Arrives as a `Wire`."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return Wire, (self.mark,)
