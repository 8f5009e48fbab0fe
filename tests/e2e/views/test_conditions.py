"""`@require` and `@depend` apply to whatever calls the function: maps, partials, remote and parallel functions."""

import functools

import broadleaf as ipp
import pytest


@ipp.interactive
def is_engine(wanted):
    return engine_id == wanted  # noqa: F821


@ipp.interactive
def where(_):
    return engine_id  # noqa: F821


@ipp.interactive
def has_json(_):
    return "json" in globals() and len(json.dumps([1]))  # noqa: F821


CALLS = {
    "apply": lambda view, f: [view.apply_sync(f, 0)],
    "partial": lambda view, f: [view.apply_sync(functools.partial(f, 0))],
    "map": lambda view, f: view.map_sync(f, range(8)),
    "kept exceptions": lambda view, f: view.map_sync(f, range(8), return_exceptions=True),
    "imap": lambda view, f: list(view.imap(f, range(8))),
    "remote": lambda view, f: [view.remote(block=True)(f)(0)],
    "parallel": lambda view, f: [view.parallel(block=True)(f)(range(8))],
    "parallel map": lambda view, f: view.parallel(block=True)(f).map(range(8)),
    "submit": lambda view, f: [view.executor.submit(f, 0).result(20)],
    "executor map": lambda view, f: list(view.executor.map(f, range(8))),
}
CHUNKS = {
    "map of chunks": lambda view, f: view.map_sync(f, range(8), chunksize=3),
    "imap of chunks": lambda view, f: list(view.imap(f, range(8), chunksize=3)),
    "starmap": lambda view, f: view.starmap(f, [(n,) for n in range(8)], chunksize=3, block=True),
    "executor map of chunks": lambda view, f: list(view.executor.map(f, range(8), chunksize=3)),
}


@pytest.mark.parametrize("way", [*CALLS, *CHUNKS])
def test_a_balanced_task_runs_where_its_condition_holds(rc, lview, way):
    function = ipp.depend(is_engine, 2)(where)
    values = {**CALLS, **CHUNKS}[way](lview, function)
    assert set(_flat(values)) == {2}


@pytest.mark.parametrize("way", CALLS)
def test_an_engine_that_does_not_meet_it_refuses(rc, way):
    function = ipp.depend(is_engine, 2)(where)
    assert set(_flat(CALLS[way](rc[[2]], function))) == {2}
    if way == "kept exceptions":
        assert all(isinstance(value, ipp.error.ImpossibleDependency) for value in CALLS[way](rc[[1]], function))
        return
    with pytest.raises(ipp.RemoteError, match="condition"):
        CALLS[way](rc[[1]], function)


@pytest.mark.parametrize("way", CALLS)
def test_what_is_required_is_there(rc, way):
    assert set(_flat(CALLS[way](rc[[0]], ipp.require("json")(has_json)))) == {3}


@pytest.mark.parametrize("way", [*CALLS, *CHUNKS])
def test_a_module_that_is_missing_is_named(rc, lview, way):
    function = ipp.require("nosuch_module")(where)
    for view in (lview, rc[[1]]) if way in CALLS else (lview,):
        try:
            values = {**CALLS, **CHUNKS}[way](view, function)
        except ipp.ImpossibleDependency as error:
            values = [error]
        except ipp.CompositeError as error:
            values = error.exceptions
        for error in values:
            assert isinstance(error, ipp.ImpossibleDependency)
            assert "@require('nosuch_module')" in str(error)
            assert "No module named 'nosuch_module' on engine" in str(error)
            # What to do about it, which `test_missing_modules` tries.
            assert "client.ship_module('nosuch_module')" in str(error)


def test_the_reason_of_an_import_that_fails_is_told(rc, tmp_path):
    (tmp_path / "broken_module.py").write_text("raise ImportError('needs a license')\n")
    rc[:].apply_sync(lambda folder: __import__("sys").path.insert(0, folder), str(tmp_path))
    with pytest.raises(ipp.ImpossibleDependency, match=r"@require\('broken_module'\).* needs a license"):
        rc.load_balanced_view().apply_sync(ipp.require("broken_module")(where), 0)


def test_a_condition_is_named(rc):
    with pytest.raises(ipp.ImpossibleDependency, match="engine 1: @depend: is_engine returned False"):
        rc[1].apply_sync(ipp.depend(is_engine, 2)(where), 0)


def test_every_one_of_several_conditions_must_hold(rc):
    both = ipp.depend(is_engine, 1)(ipp.require("json")(has_json))
    assert rc[[1]].map_sync(both, range(2)) == [3] * 2
    never = ipp.require("json")(ipp.depend(is_engine, 1)(where))
    with pytest.raises(ipp.RemoteError, match="condition"):
        rc[[0]].map_sync(never, range(2))


def test_a_function_of_the_engines_namespace(rc):
    rc[:]["conditional"] = ipp.depend(is_engine, 2)(where)
    assert rc[2].apply_sync(ipp.Reference("conditional"), 0) == 2
    with pytest.raises(ipp.RemoteError, match="condition"):
        rc[1].apply_sync(ipp.Reference("conditional"), 0)


def _flat(values):
    for value in values:
        yield from _flat(value) if isinstance(value, list) else (value,)
