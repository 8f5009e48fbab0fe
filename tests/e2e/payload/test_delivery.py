"""What engines get of arrays: every kind bit by bit, isolated or shared as the mode says, one copy per host."""

import gc
import os
from pathlib import Path

import broadleaf as ipp
import numpy as np
import pytest
from bed.network import wait_until
from broadleaf import error

pytestmark = pytest.mark.timeout(60)
LARGE = 300_000


def evaluate(expression: str):
    return eval(expression, __import__("__main__").__dict__)


def on_engines(view, expression: str):
    """The value of an expression in the namespace of each engine."""
    return view.apply_sync(evaluate, expression)


@pytest.fixture
def view(rc):
    return rc.broadcast_view(coalescing=True)


def kinds() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    base = rng.random((600, 500))
    record = np.dtype([("id", "<i4"), ("name", "S7"), ("at", "f8", (3,))])
    records = np.zeros(20_000, record)
    records["id"] = np.arange(20_000)
    records["at"] = 0.5
    return {
        "float64": base,
        "fortran": np.asfortranarray(base),
        "big-endian": base.astype(">f8"),
        "complex": base + 1j,
        "bool": base > 0.5,
        "float16": base.astype("f2"),
        "bytes": np.full(20_000, b"abcdefg"),
        "text": np.full(20_000, "grüße"),
        "dates": np.arange("1970-01-01", "2200-01-01", dtype="M8[D]"),
        "structured": records,
        "zero-dimensional": np.array(3.5),
        "empty": np.empty((0, 7)),
        "empty-large": np.empty((10_000_000, 0)),
        "strided": base[::2, ::3],
        "reversed": base[::-1],
        "transposed": np.transpose(rng.random((40, 50, 60)), (1, 2, 0)),
        "masked": np.ma.masked_greater(base, 0.9),
        "objects": np.array([{"a": i} for i in range(1000)], dtype=object),
        "subclass": records.view(np.recarray),
    }


@pytest.mark.parametrize("name", list(kinds()))
@pytest.mark.parametrize("mode", ["private", "readonly"])
def test_every_kind_arrives_bit_by_bit(view, name, mode):
    array = kinds()[name]
    view.push({"x": array}, mode=mode, block=True)
    for back in view["x"]:
        assert type(back) is type(array)
        assert back.dtype == array.dtype
        assert back.shape == array.shape
        assert back.tobytes() == array.tobytes() if name != "objects" else back.tolist() == array.tolist()
        if name == "masked":
            assert (back.mask == array.mask).all()
    assert on_engines(view, "x.flags.writeable") == [mode == "private" or array.dtype.hasobject] * 4


def test_an_array_sent_twice_is_one_array(view):
    array = np.arange(LARGE)
    call = view.apply_sync(lambda *arrays: [a is arrays[0] for a in arrays], array, array, array.copy(), array[:])
    assert call == [[True, True, False, False]] * 4
    view.push({"both": {"a": array, "b": array}, "alone": array[::-1]}, block=True)
    assert on_engines(view, "both['a'] is both['b']") == [True] * 4
    assert all((back == array[::-1]).all() for back in view["alone"])


def test_many_arrays_keep_their_order(view):
    arrays = [np.full(n % 7, n, dtype) for n in range(40) for dtype in ("i2", ">f8", "F")]
    for n in (5, len(arrays)):
        for back in view.apply_sync(lambda *args, **kwargs: (args, kwargs), *arrays[:n], last=arrays[-1]):
            found = [*back[0], back[1]["last"]]
            assert [a.tolist() for a in found] == [a.tolist() for a in [*arrays[:n], arrays[-1]]]
            assert [a.dtype for a in found] == [a.dtype for a in [*arrays[:n], arrays[-1]]]


def test_texts_of_every_length(view):
    arrays = {f"x{n}": np.full(3, "ü" * n) for n in range(1, 100)}
    for name, array in arrays.items():
        view.push({name: array}, block=True)
    for name, array in arrays.items():
        assert all((back == array).all() and back.dtype == array.dtype for back in view[name])


def test_results_that_are_arrays_and_what_holds_them(view):
    results = view.apply_sync(lambda: (np.asfortranarray(np.ones((3, 2))), {"large": np.arange(LARGE), "n": 1}))
    for array, held in results:
        assert array.flags.f_contiguous
        assert array.flags.writeable
        assert (array == 1).all()
        assert held["n"] == 1
        assert (held["large"] == np.arange(LARGE)).all()


def test_a_small_array_that_cannot_be_written_arrives_as_a_large_one_does(view):
    for n in (3, LARGE):
        array = np.arange(n)
        array.flags.writeable = False
        view.push({"x": array}, block=True)
        assert on_engines(view, "x.flags.writeable") == [True] * 4


def test_memory_order_survives(view):
    base = np.arange(LARGE, dtype=float).reshape(600, 500)
    view.push({"c": base, "f": np.asfortranarray(base)}, block=True)
    found = on_engines(view, "(c.flags.c_contiguous, f.flags.f_contiguous, f.flags.c_contiguous)")
    assert found == [(True, True, False)] * 4


def test_an_array_that_is_not_contiguous_is_copied_once_more_but_not_into_the_pickle(rc, view):
    array = np.random.default_rng(0).random((2000, 1000))[:, ::2]
    before = rc.counters()
    view.push({"x": array}, block=True)
    after = rc.counters()
    assert after["bytes_out"] - before["bytes_out"] < 10_000
    assert after["copied_bytes"] - before["copied_bytes"] == array.nbytes
    assert all((back == array).all() for back in view["x"])


def test_nested_values_share_one_message(view):
    value = {"a": np.arange(LARGE), "b": [np.ones(LARGE), {"c": np.zeros(LARGE, "i2")}], "text": "t"}
    view.push({"value": value}, block=True)
    for back in view["value"]:
        assert (back["a"] == value["a"]).all()
        assert (back["b"][0] == 1).all()
        assert back["b"][1]["c"].dtype == np.dtype("i2")
        assert back["text"] == "t"


def test_what_an_engine_writes_is_its_own(rc, view):
    array = np.arange(LARGE, dtype=float)
    view.push({"x": array}, block=True)
    rc[1].execute("x[0] = -1; x[-1] = -1; x[150_000] = -1", block=True)
    assert on_engines(view, "(x[0], x[150_000], x[-1])") == [
        (-1, -1, -1) if engine == 1 else (0, 150_000, LARGE - 1) for engine in range(4)
    ]
    assert (array == np.arange(LARGE)).all()
    view.push({"y": array}, block=True)
    assert all((back == array).all() for back in view["y"])


def test_what_the_client_writes_after_a_push_is_its_own(view):
    array = np.zeros(LARGE)
    view.push({"x": array})
    array[:] = 1
    assert on_engines(view, "float(x.sum())") == [0.0] * 4


def test_a_fork_of_an_engine_writes_for_itself(view):
    view.push({"x": np.zeros(LARGE)}, block=True)

    @ipp.interactive
    def write_in_a_fork():
        import os

        child = os.fork()
        if child == 0:
            x[:] = 7  # noqa: F821
            os._exit(0)
        os.waitpid(child, 0)
        return float(x.sum())  # noqa: F821

    assert view.apply_sync(write_in_a_fork) == [0.0] * 4


def test_a_kept_view_never_changes(rc, view):
    view.push({"kept": np.full(100_000, 7.0)}, block=True)
    view.execute("part = kept[10:50_000:3]", block=True)
    for round in range(1000):
        view.push({"x": np.full(100_000, float(round))})
    assert on_engines(view, "(float(part.min()), float(part.max()))") == [(7.0, 7.0)] * 4
    assert on_engines(view, "float(x[5])") == [999.0] * 4


def test_readonly_arrays_cannot_be_written(view):
    view.push({"x": np.zeros(LARGE)}, mode="readonly", block=True)
    with pytest.raises(error.CompositeError, match="read-only"):
        view.execute("x[0] = 1", block=True)


@pytest.mark.parametrize("items", [3, LARGE])
def test_shared_arrays_are_one_array(rc, view, items):
    view.push({"x": np.zeros(items)}, mode="shared", block=True)
    rc[2].execute("x[1] = 42", block=True)
    assert on_engines(view, "float(x[1])") == [42.0] * 4
    back = rc[0]["x"]
    rc[3].execute("x[1] = 43", block=True)
    assert back[1] == 42, "a result is a copy, not the window"


def test_a_view_can_have_a_mode(rc):
    view = rc.broadcast_view(coalescing=True, mode="readonly")
    assert view.apply_sync(lambda array: array.flags.writeable, np.zeros(LARGE)) == [False] * 4
    with pytest.raises(ValueError, match="sideways"):
        view.mode = "sideways"
    with pytest.raises(ValueError, match="sideways"):
        view.push({"x": 1}, mode="sideways")


def test_broadcast_by_name(rc, view):
    rc.broadcast(np.arange(LARGE, dtype=float), "x")
    rc.broadcast("word", "word", targets=[1, 2])
    assert on_engines(view, "int(x[-1])") == [LARGE - 1] * 4
    assert rc[[1, 2]]["word"] == ["word"] * 2
    view.broadcast(np.ones(LARGE), "x", mode="inplace", block=True)
    assert on_engines(view, "float(x[-1])") == [1.0] * 4


# In place ---------------------------------------------------------------------------------------


def where(name="x"):
    array = __import__("__main__").__dict__[name]
    return array.ctypes.data, id(array)


def test_in_place_keeps_object_address_and_views(rc, view):
    view.push({"x": np.zeros((600, 500))}, block=True)
    view.execute("before = x; column = x[:, 3]", block=True)
    places = view.apply_sync(where)
    for round in range(5):
        new = np.full((600, 500), float(round))
        copies = rc.counters()["copies"]
        view.push({"x": new}, mode="inplace", block=True)
        assert rc.counters()["copies"] - copies == 1
        assert view.apply_sync(where) == places
        assert (
            on_engines(view, "(before is x, float(column.sum()), float(x.sum()))")
            == [(True, 600.0 * round, 300_000.0 * round)] * 4
        )


def test_in_place_stays_private(rc, view):
    view.push({"x": np.zeros(LARGE)}, block=True)
    view.push({"x": np.ones(LARGE)}, mode="inplace", block=True)
    rc[0].execute("x[0] = 5", block=True)
    assert on_engines(view, "float(x[0])") == [5.0, 1.0, 1.0, 1.0]
    view.push({"x": np.full(LARGE, 2.0)}, mode="inplace", block=True)
    assert on_engines(view, "float(x[0])") == [2.0] * 4


def test_in_place_into_the_engines_own_array(view):
    view.execute("import numpy as np; x = np.asfortranarray(np.zeros((600, 500))); base = np.zeros((1200, 500))",
                 block=True)  # fmt: skip
    view.execute("y = base[300:900]", block=True)
    places = view.apply_sync(where)
    view.push({"x": np.asfortranarray(np.ones((600, 500))), "y": np.ones((600, 500))}, mode="inplace", block=True)
    assert view.apply_sync(where) == places
    assert on_engines(view, "(float(x.sum()), float(base.sum()))") == [(300_000.0, 300_000.0)] * 4


@pytest.mark.parametrize(
    ("new", "what"),
    [
        (np.zeros(LARGE + 1), "shape"),
        (np.zeros(LARGE, "f4"), "dtype"),
        (np.zeros((2, LARGE // 2)).T, "order"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_in_place_of_another_form_is_refused_before_a_byte_moves(rc, view, new, what):
    here = np.zeros((LARGE // 2, 2)) if what == "order" else np.zeros(LARGE)
    view.push({"x": here}, block=True)
    copied = rc.counters()["copied_bytes"]
    with pytest.raises(error.CompositeError, match="InPlaceMismatch: x is ndarray"):
        view.push({"x": new}, mode="inplace", block=True)
    assert rc.counters()["copied_bytes"] == copied
    assert on_engines(view, "float(x.sum())") == [0.0] * 4


def test_in_place_refuses_what_it_cannot_do(rc, view):
    view.push({"x": np.zeros(LARGE), "small": np.zeros(3), "word": "w"}, block=True)
    with pytest.raises(error.InPlaceMismatch, match="str"):
        view.push({"word": "v"}, mode="inplace")
    with pytest.raises(error.InPlaceMismatch, match="objects"):
        view.push({"x": np.array([{}])}, mode="inplace")
    with pytest.raises(error.InPlaceMismatch, match="contiguous"):
        view.push({"x": np.zeros(2 * LARGE)[::2]}, mode="inplace")
    with pytest.raises(error.CompositeError, match="NameError"):
        view.push({"unknown": np.zeros(LARGE)}, mode="inplace", block=True)
    view.push({"fixed": np.zeros(LARGE)}, mode="readonly", block=True)
    with pytest.raises(error.CompositeError, match="read-only"):
        view.push({"fixed": np.ones(LARGE)}, mode="inplace", block=True)
    # One that does not fit leaves the others unchanged.
    with pytest.raises(error.CompositeError, match="small"):
        view.push({"x": np.ones(LARGE), "small": np.zeros(4)}, mode="inplace", block=True)
    assert on_engines(view, "float(x.sum())") == [0.0] * 4


def test_in_place_of_what_an_engine_has_changed_meanwhile(rc, view):
    view.push({"x": np.zeros(LARGE)}, block=True)
    view.push({"x": np.ones(LARGE)}, mode="inplace", block=True)
    rc[1].execute("x = np.zeros(4) if 'np' in globals() else [0]", block=True)
    with pytest.raises(error.CompositeError, match="InPlaceMismatch") as caught:
        view.push({"x": np.full(LARGE, 2.0)}, mode="inplace", block=True)
    assert len(caught.value.elist) == 1


# Born shared ------------------------------------------------------------------------------------


def test_an_array_born_shared_is_sent_without_a_copy(rc, view):
    array = ipp.zeros((600, 500))
    array[:] = 3
    copied = rc.counters()["copied_bytes"]
    view.push({"x": array}, block=True)
    assert rc.counters()["copied_bytes"] == copied
    assert on_engines(view, "(float(x.sum()), x.shape)") == [(900_000.0, (600, 500))] * 4


def test_after_it_was_sent_both_sides_write_for_themselves(rc, view):
    array = ipp.empty(LARGE)
    array[:] = 1
    address = array.ctypes.data
    view.push({"x": array}, block=True)
    array[0] = 2
    rc[0].execute("x[1] = 3", block=True)
    assert on_engines(view, "(float(x[0]), float(x[1]))") == [(1.0, 3.0)] + [(1.0, 1.0)] * 3
    assert (array[0], array[1]) == (2, 1)
    copied = rc.counters()["copied_bytes"]
    view.push({"y": array}, block=True)
    assert rc.counters()["copied_bytes"] - copied == array.nbytes, "written to: one copy"
    view.push({"z": array}, block=True)
    assert rc.counters()["copied_bytes"] - copied == array.nbytes, "not written to since: none"
    assert on_engines(view, "(float(y[0]), float(z[0]), float(x[0]))") == [(2.0, 2.0, 1.0)] * 4
    assert array.ctypes.data == address


def test_born_shared_and_shared_is_a_window_with_the_client(rc, view):
    array = ipp.zeros(8)
    view.push({"x": array}, mode="shared", block=True)
    array[0] = 5
    rc[3].execute("x[1] = 6", block=True)
    assert on_engines(view, "(float(x[0]), float(x[1]))") == [(5.0, 6.0)] * 4
    assert array[1] == 6
    view.push({"y": array}, mode="private", block=True)
    array[0] = 7
    assert on_engines(view, "float(y[0])") == [5.0] * 4


def test_arrays_born_on_engines_come_back_without_a_copy(rc):
    def make():
        import sys

        import broadleaf

        array = broadleaf.zeros(300_000)
        array[:] = 4
        sys.kept = array
        return array

    def copied():
        import sys

        return sys.stdout._engine.counters()["copied_bytes"]

    before = rc[0].apply_sync(copied)
    assert float(rc[0].apply_sync(make).sum()) == 1_200_000.0
    assert rc[0].apply_sync(copied) == before


def test_parts_orders_and_kinds_born_shared(rc, view):
    fortran = ipp.asarray(np.arange(LARGE).reshape(600, 500), order="F")
    assert fortran.flags.f_contiguous
    assert ipp.asarray(fortran, order="F") is fortran
    copied = rc.counters()["copied_bytes"]
    view.push({"x": fortran, "part": fortran[:, 100:400]}, block=True)
    assert rc.counters()["copied_bytes"] == copied
    assert (
        on_engines(view, "(int(x.sum()), int(part.sum()))")
        == [(int(fortran.sum()), int(fortran[:, 100:400].sum()))] * 4
    )
    assert ipp.empty((0, 3)).shape == (0, 3)
    assert ipp.zeros(5, "i4").tolist() == [0] * 5
    with pytest.raises(ValueError, match="objects"):
        ipp.empty(3, object)
    with pytest.raises(ValueError, match="negative"):
        ipp.empty(-1)


def open_segments() -> int:
    return sum(
        os.readlink(path).startswith("/memfd:broadleaf")
        for path in Path("/proc/self/fd").iterdir()
        if path.is_symlink()
    )


def test_memory_of_arrays_born_shared_is_used_again(rc, view):
    view.push({"x": 0}, block=True)
    before = open_segments()
    for round in range(20):
        array = ipp.empty(LARGE)
        array[:] = round
        view.push({"x": array}, block=True)
        del array
    gc.collect()
    assert on_engines(view, "float(x[7])") == [19.0] * 4
    assert open_segments() - before < 6


# One copy a host --------------------------------------------------------------------------------


def proportional_kib() -> int:
    """This process's share of all memory that it has mapped, KiB."""
    fields = dict(
        line.split(":", 1) for line in Path("/proc/self/smaps_rollup").read_text().splitlines() if ":" in line
    )
    return int(fields["Pss"].split()[0])


@pytest.mark.parametrize("mode", ["private", "readonly"])
def test_mapping_copies_no_page(rc, view, mode):
    view.push({"x": np.zeros(10)}, block=True)
    before = sum(view.apply_sync(proportional_kib)) + proportional_kib()
    array = np.ones(8_000_000)
    view.push({"x": array}, mode=mode, block=True)
    assert on_engines(view, "float(x.sum())") == [8_000_000.0] * 4
    after = sum(view.apply_sync(proportional_kib)) + proportional_kib()
    grown = (after - before) * 1024 - array.nbytes
    assert grown < 1.2 * array.nbytes


def mapped(maps: str) -> set[str]:
    """The inodes of the segments in the text of `/proc/PID/maps`."""
    return {line.split()[4] for line in maps.splitlines() if "/memfd:broadleaf" in line}


@pytest.fixture
def dropping(rc):
    """The first engine, which has just dropped an array that it had read; its process; the segment's inode."""
    view = rc[0]
    maps = Path(f"/proc/{view.apply_sync(os.getpid)}/maps")
    before = mapped(maps.read_text())
    view.push({"array": np.ones(LARGE)})
    assert on_engines(view, "array.sum()") == LARGE
    (inode,) = mapped(maps.read_text()) - before
    view.push({"array": None}, block=True)
    return view, maps, inode


def test_what_an_engine_dropped_is_unmapped_before_its_next_task(dropping):
    view, _, inode = dropping
    assert inode not in mapped(on_engines(view, "open('/proc/self/maps').read()"))


def test_what_an_engine_dropped_is_unmapped_when_it_has_nothing_to_do(dropping):
    _, maps, inode = dropping
    wait_until(lambda: inode not in mapped(maps.read_text()), 20, "the array is unmapped")


def test_what_an_engine_dropped_is_given_back_with_the_reply(rc):
    view = rc[0]
    array = np.ones(LARGE)
    for _ in range(3):
        view.push({"array": array}, block=True)
    held = rc.counters()["segments"]
    for _ in range(20):
        array += 1
        view.push({"array": array}, block=True)
    assert rc.counters()["segments"] <= held, "spare ones may have been given back meanwhile"
