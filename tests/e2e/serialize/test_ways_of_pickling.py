"""`use_cloudpickle`, and the errors for globals and values that only dill can send."""

from __future__ import annotations

import broadleaf as ipp
import pytest


@pytest.fixture
def views(rc):
    views = [rc[:], rc.broadcast_view(), rc.broadcast_view(is_coalescing=True)]
    yield views
    views[0].use_pickle().get(20)


def function_of_main():
    """A function of `__main__` that needs a global."""

    @ipp.interactive
    def get():
        return where_it_is_from  # noqa: F821

    return get


@pytest.fixture
def session_value(monkeypatch):
    def give(value):
        monkeypatch.setitem(function_of_main().__globals__, "where_it_is_from", value)

    return give


def test_cloudpickle_brings_the_session_s_globals(rc, views, session_value):
    get = function_of_main()
    for view in views:
        rc[:].push({"where_it_is_from": "engine"}, block=True)
        session_value("session")
        assert view.apply_sync(get) == ["engine"] * 4
        view.use_cloudpickle().get(20)
        assert view.apply_sync(get) == ["session"] * 4
        session_value("session, changed")
        assert view.apply_sync(get) == ["session, changed"] * 4
        assert rc[:]["where_it_is_from"] == ["engine"] * 4
        view.use_pickle().get(20)
        assert view.apply_sync(get) == ["engine"] * 4


def test_a_global_that_cannot_be_sent_is_explained(rc, session_value, tmp_path):
    get = function_of_main()
    with open(tmp_path / "file", "wb") as file:
        session_value(file)
        why = r"your session's value cannot be pickled \(BufferedWriter: .*use_dill\(\)"
        with pytest.raises(ipp.RemoteError, match=why):
            rc[0].apply_sync(get)
        # What the engine has still works.
        rc[0].push({"where_it_is_from": "engine"}, block=True)
        assert rc[0].apply_sync(get) == "engine"


def test_an_error_about_any_other_name_is_left_as_it_is(rc):
    with pytest.raises(ipp.RemoteError, match=r"name 'nowhere' is not defined$"):
        rc[0].apply_sync(ipp.interactive(lambda: nowhere))  # noqa: F821


@pytest.mark.parametrize("mode", ["wb", "w"])
def test_an_open_file_is_said_to_need_dill(rc, tmp_path, mode):
    with open(tmp_path / "file", mode) as file:
        for send in (
            lambda: rc[0].apply_sync(len, file),
            lambda: rc[0].apply_sync(len, {"inside": [file]}),
            lambda: rc[0].push({"file": file}, block=True),
            lambda: rc[0].apply_sync(file.read),
            lambda: rc[0].apply_sync(lambda: file.name),
        ):
            with pytest.raises(ipp.SerializationError, match=r"client\[:\]\.use_dill\(\) has dill send it"):
                send()
    with pytest.raises(ipp.RemoteError, match=r"client\[:\]\.use_dill\(\) has dill send it"):
        rc[0].apply_sync(open, str(tmp_path / "file"), mode)
