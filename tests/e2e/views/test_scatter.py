"""Tables, series and sparse matrices are scattered by rows and gathered into one of their kind."""

import broadleaf as ipp
import numpy as np
import pytest

pandas = pytest.importorskip("pandas")
pyarrow = pytest.importorskip("pyarrow")
sparse = pytest.importorskip("scipy.sparse")

N_ROWS = 11


def frame():
    columns = {"a": np.arange(N_ROWS), "b": [f"row {i}" for i in range(N_ROWS)]}
    return pandas.DataFrame(columns, index=[f"i{i}" for i in range(N_ROWS)])


def matrix(kind):
    dense = np.arange(N_ROWS * 3).reshape(N_ROWS, 3) % 4
    return getattr(sparse, kind)(dense)


def is_same(a, b):
    if hasattr(a, "toarray"):
        return (a.toarray() == b.toarray()).all()
    return a.equals(b)


VALUES = {
    "DataFrame": frame,
    "Series": lambda: frame()["b"],
    "Index": lambda: frame().index,
    "csr_matrix": lambda: matrix("csr_matrix"),
    "csc_array": lambda: matrix("csc_array"),
    "coo_matrix": lambda: matrix("coo_matrix"),
    "dia_array": lambda: matrix("dia_array"),
    "Table": lambda: pyarrow.Table.from_pandas(frame()),
    "RecordBatch": lambda: pyarrow.RecordBatch.from_pandas(frame()),
    "Array": lambda: pyarrow.array(range(N_ROWS)),
    "ChunkedArray": lambda: pyarrow.chunked_array([[1, 2, 3], [4], list(range(7))]),
}


@pytest.mark.parametrize("dist", ["b", "r"])
@pytest.mark.parametrize("kind", VALUES)
def test_rows_are_scattered_and_gathered(rc, dview, kind, dist):
    value = VALUES[kind]()
    dview.scatter("part", value, dist=dist, block=True)
    rows = dview.apply_sync(ipp.interactive(lambda: part.shape[0] if hasattr(part, "shape") else len(part)))  # noqa: F821
    assert rows == [3, 3, 3, 2]
    whole = dview.gather("part", dist=dist, block=True)
    if kind not in ("coo_matrix", "dia_array"):
        assert type(whole) is type(value)
    assert is_same(whole, value)


def test_a_part_has_its_own_rows_only(rc, dview):
    dview.scatter("part", frame(), block=True)
    described = ipp.interactive(lambda: (type(part).__name__, list(part.index)))  # noqa: F821
    assert rc[1].apply_sync(described) == ("DataFrame", ["i3", "i4", "i5"])
    dview.scatter("part", frame()["a"], block=True)
    assert rc[3].apply_sync(ipp.interactive(lambda: (type(part).__name__, part.tolist()))) == ("Series", [9, 10])  # noqa: F821


def test_fewer_rows_than_engines(rc, dview):
    few = frame().iloc[:2]
    dview.scatter("part", few, block=True)
    assert dview.apply_sync(ipp.interactive(lambda: len(part))) == [1, 1, 0, 0]  # noqa: F821
    assert dview.gather("part", block=True).equals(few)
    dview.scatter("part", frame()["a"].iloc[:4], flatten=True, block=True)
    assert dview["part"] == [0, 1, 2, 3]


def test_an_arrow_part_takes_no_more_than_its_rows(rc, dview):
    table = pyarrow.table({"x": np.arange(1_000_000)})
    before = rc.counters()["copied_bytes"]
    dview.scatter("part", table, block=True)
    assert rc.counters()["copied_bytes"] - before < 1.2 * table.nbytes
    assert dview.apply_sync(ipp.interactive(lambda: int(part["x"][0].as_py()))) == [0, 250_000, 500_000, 750_000]  # noqa: F821


@pytest.mark.parametrize("make_view", [lambda rc: rc[:], lambda rc: rc.load_balanced_view()])
def test_parallel_functions_get_rows(rc, make_view):
    @make_view(rc).parallel(block=True)
    def doubled(part):
        return part.assign(a=2 * part["a"])

    doubled.chunksize = 3
    expected = frame().assign(a=2 * np.arange(N_ROWS))
    assert doubled(frame()).equals(expected)


def test_a_map_goes_over_what_python_iterates_over(rc, dview):
    assert dview.map_sync(str, frame()) == ["a", "b"]
    assert dview.map_sync(abs, frame()["a"]) == list(range(N_ROWS))
    assert rc.load_balanced_view().map_sync(str, frame()) == ["a", "b"]


def masked():
    return np.ma.masked_array(np.arange(N_ROWS) * 1.5, np.arange(N_ROWS) % 3 == 0, fill_value=-1.0)


class Tagged(np.ndarray):
    """An array with an attribute."""

    def __array_finalize__(self, other):
        self.tag = getattr(other, "tag", None)

    def __reduce__(self):
        return tagged, (np.asarray(self), self.tag)


def tagged(data=None, tag="t"):
    made = (np.arange(N_ROWS) if data is None else data).view(Tagged)
    made.tag = tag
    return made


ARRAYS = {
    "masked": masked,
    "masked in two dimensions": lambda: np.ma.masked_less(np.arange(2 * N_ROWS).reshape(-1, 2), 7),
    "masked, all valid": lambda: np.ma.masked_array(np.arange(N_ROWS)),
    "matrix": lambda: np.arange(2 * N_ROWS).reshape(-1, 2).view(np.matrix),
    "records": lambda: np.rec.array([(i, str(i)) for i in range(N_ROWS)], dtype=[("a", "i4"), ("b", "U3")]),
    "tagged": tagged,
    "objects": lambda: np.array([None, "a", [1]] * 3 + [1, 2], object),
    "text": lambda: np.array([f"{i:o}" for i in range(N_ROWS)]),
}


@pytest.mark.parametrize("dist", ["b", "r"])
@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_of_all_kinds_are_gathered_as_what_they_were(rc, dview, kind, dist):
    array = ARRAYS[kind]()
    dview.scatter("part", array, dist, block=True)
    gathered = dview.gather("part", dist, block=True)
    echoed = dview.parallel(dist=dist, block=True)(lambda part: part)(array)
    for found in (gathered, echoed):
        assert type(found) is type(array)
        assert (found.dtype, found.tolist()) == (array.dtype, array.tolist())
        assert getattr(found, "tag", None) == getattr(array, "tag", None)
        if kind.startswith("masked"):
            assert found.fill_value == array.fill_value


@pytest.mark.parametrize("dist", ["b", "r"])
def test_parts_of_several_types_are_gathered_as_one_that_holds_all(rc, dview, dist):
    rc[0].push({"part": np.array([1, 2])}, block=True)
    rc[1].push({"part": np.array([2.5])}, block=True)
    assert sorted(rc[:2].gather("part", dist, block=True).tolist()) == [1.0, 2.0, 2.5]
    rc[0].push({"part": np.array(["a", "b"])}, block=True)
    rc[1].push({"part": np.array(["longer"])}, block=True)
    assert sorted(rc[:2].gather("part", dist, block=True).tolist()) == ["a", "b", "longer"]
    # Masks are kept where only a later part has one.
    rc[1].push({"part": np.ma.masked_array(["longer"], [True])}, block=True)
    assert rc[:2].gather("part", dist, block=True).mask.sum() == 1


@pytest.mark.parametrize("dist", ["b", "r"])
def test_arrays_without_axes_are_gathered_as_a_list(rc, dview, dist):
    dview.push({"part": np.array(5)}, block=True)
    assert dview.gather("part", dist, block=True) == [5] * len(dview)
