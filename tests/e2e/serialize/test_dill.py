"""`use_dill`: what pickle and cloudpickle cannot do goes through dill, and nothing else."""

import broadleaf as ipp
import numpy as np
import pytest

pytest.importorskip("dill")


@pytest.fixture
def view(rc, tmp_path):
    (tmp_path / "text").write_bytes(b"some text")
    view = rc[0]
    view.use_dill().get(20)
    yield view
    view.use_pickle().get(20)


@pytest.fixture
def file(tmp_path, view):
    with open(tmp_path / "text", "rb") as file:
        yield file


def test_an_argument(view, file):
    assert view.apply_sync(lambda f: f.read(), file) == b"some text"
    assert view.apply_sync(lambda fs, n: fs["file"].read(n), {"file": file, "beside": lambda: 1}, n=4) == b"some"


def test_a_file_that_is_written_to(view, tmp_path):
    with open(tmp_path / "out", "a") as out:
        view.apply_sync(lambda f: f.write("from the engine") and f.close(), out)
    assert (tmp_path / "out").read_text() == "from the engine"


def test_a_result(view, tmp_path):
    opened = view.apply_sync(open, str(tmp_path / "text"), "rb")
    with opened:
        assert opened.read() == b"some text"


def test_a_function_that_has_it(view, file):
    def read(f=file):
        return f.read()

    assert view.apply_sync(lambda: file.read()) == b"some text", "a variable around it"
    assert view.apply_sync(read) == b"some text", "a default"
    assert view.apply_sync(file.read) == b"some text", "its method"
    assert view.map_sync(lambda n: file.read(n), [4]) == [b"some"]

    @ipp.interactive
    def read_global():
        return a_file.read()  # noqa: F821

    read_global.__globals__["a_file"] = file
    try:
        assert view.apply_sync(read_global) == b"some text", "a global"
    finally:
        del read_global.__globals__["a_file"]


def test_what_goes_along_stays_out_of_band(rc, view, file):
    array = np.arange(100_000.0)
    copied = rc.counters()["copied_bytes"]
    assert view.apply_sync(lambda f, a: (f.read(), float(a.sum())), file, array) == (b"some text", float(array.sum()))
    assert rc.counters()["copied_bytes"] - copied >= array.nbytes, "shared memory carried it"


def test_what_dill_cannot_do_either_is_a_clear_error(view):
    with pytest.raises(ipp.SerializationError, match="argument 1"):
        view.apply_sync(abs, (n for n in range(3)))


def test_without_dill_it_is_refused(rc, view, file):
    view.use_pickle().get(20)
    with pytest.raises(ipp.SerializationError, match="argument 1"):
        view.apply_sync(len, file)
