"""What a function changes in its engine's process is gone when the next task runs."""

import logging
import sys
import warnings

import broadleaf as ipp
import pytest

ROUTES = {
    "apply": lambda rc, f: rc[[0]].apply_sync(f),
    "one engine": lambda rc, f: rc[0].apply_sync(f),
    "balanced": lambda rc, f: rc.load_balanced_view(0).apply_sync(f),
    "map": lambda rc, f: rc.load_balanced_view(0).map_sync(lambda _, f=f: f(), [0], chunksize=1),
    "chunks": lambda rc, f: rc[0].map_sync(lambda _, f=f: f(), [0, 1]),
    "executor": lambda rc, f: rc.load_balanced_view(0).executor.submit(f).result(20),
    "broadcast": lambda rc, f: rc.broadcast_view([0]).apply_sync(f),
}


@ipp.interactive
def replace_streams():
    import io
    import sys

    sys.stdout, sys.stderr, sys.stdin = io.StringIO(), io.StringIO(), io.StringIO("left behind")


@ipp.interactive
def close_streams():
    import sys

    for stream in (sys.stdout, sys.stderr, sys.stdin):
        stream.close()


@ipp.interactive
def close_buffers():
    import sys

    sys.stdout.buffer.close()
    sys.stderr.buffer.close()


@ipp.interactive
def fail_with_other_streams():
    import io
    import sys

    sys.stdout = io.StringIO()
    sys.stdin = None
    raise ValueError("after it has replaced them")


@ipp.interactive
def use_streams():
    import sys

    print("to standard output")
    print("to standard error", file=sys.stderr)
    with sys.stdout, sys.stderr:
        pass
    return sys.stdin.read(), sys.stdout.closed, sys.stderr.closed


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("change", [replace_streams, close_streams, close_buffers, fail_with_other_streams])
def test_streams_are_whole_again(rc, route, change):
    try:
        ROUTES[route](rc, change)
    except ipp.RemoteError as error:
        assert "after it has replaced them" in str(error)  # noqa: PT017
    except ValueError as error:
        assert str(error) == "after it has replaced them"  # noqa: PT017
    result = rc[0].apply_async(use_streams)
    assert result.get(20) == ("", False, False)
    assert result.stdout == "to standard output\n"
    assert result.stderr == "to standard error\n"


@ipp.interactive
def set_filters():
    import warnings

    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message="mine")


@ipp.interactive
def reset_filters():
    import warnings

    warnings.resetwarnings()


@ipp.interactive
def reorder_filters():
    import warnings

    warnings.filters.reverse()
    warnings.filters.append(warnings.filters.pop(0))


@ipp.interactive
def replace_filters():
    import warnings

    warnings.filters = [("error", None, Warning, None, 0)]


@ipp.interactive
def filters():
    import warnings

    return [(action, category) for action, _, category, _, _ in warnings.filters]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("change", [set_filters, reset_filters, replace_filters, reorder_filters])
def test_filters_of_warnings_are_as_before(rc, route, change):
    before = rc[0].apply_sync(filters)
    assert before
    ROUTES[route](rc, change)
    assert rc[0].apply_sync(filters) == before
    text = f"after {change.__name__} by {route}"
    result = rc[0].apply_async(lambda text: warnings.warn(text, stacklevel=1), text)
    assert result.get(20) is None
    assert text in result.stderr


def test_what_a_module_sets_when_it_is_imported_stays(rc, tmp_path):
    (tmp_path / "sets_filters.py").write_text(
        "import logging, warnings\n"
        "warnings.filterwarnings('ignore', message='of this module')\n"
        "logging.getLogger('sets_filters').setLevel(logging.ERROR)\n"
    )

    def import_it(folder):
        import sys
        import warnings

        warnings.simplefilter("error")
        sys.path.insert(0, folder)
        import sets_filters  # noqa: F401

    def found():
        return (
            any(rule[1] is not None and rule[1].pattern == "of this module" for rule in warnings.filters),
            ("error", None, Warning, None, 0) in warnings.filters,
            logging.getLogger("sets_filters").level,
        )

    rc[1].apply_sync(import_it, str(tmp_path))
    assert rc[1].apply_sync(found) == (True, False, logging.ERROR)


@ipp.interactive
def set_levels():
    import logging

    logging.basicConfig(level=logging.DEBUG)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    logging.getLogger("made by a task").setLevel(logging.CRITICAL)
    logging.disable(logging.WARNING)


@ipp.interactive
def levels():
    import logging

    loggers = (logging.root, logging.getLogger("asyncio"), logging.getLogger("made by a task"))
    return [logger.level for logger in loggers], logging.root.manager.disable, len(logging.root.handlers)


@pytest.mark.parametrize("route", ROUTES)
def test_levels_of_loggers_are_as_before(rc, route):
    before = rc[0].apply_sync(levels)
    assert before == ([logging.WARNING, 0, 0], 0, 0)
    for _ in range(2):
        ROUTES[route](rc, set_levels)
        assert rc[0].apply_sync(levels) == before


def test_every_task_can_configure_logging(rc):
    @ipp.interactive
    def log():
        import logging

        logging.basicConfig(level=logging.DEBUG)
        logging.debug("seen")

    for _ in range(3):
        result = rc[0].apply_async(log)
        result.get(20)
        assert result.stderr == "DEBUG:root:seen\n"


def test_what_is_executed_stays(rc):
    before = rc[2].apply_sync(filters), rc[2].apply_sync(levels)
    rc[2].execute("import io, sys; ours = sys.stdout; sys.stdout = io.StringIO()", block=True)
    rc[2].execute("import warnings; warnings.simplefilter('error')", block=True)
    rc[2].execute("import logging; logging.getLogger().setLevel(7)", block=True)
    rc[2].execute("print('kept')", block=True)
    rc[2].apply_sync(set_filters)
    rc[2].apply_sync(set_levels)
    assert rc[2].apply_sync(filters)[0] == ("error", Warning)
    assert rc[2].apply_sync(levels)[0][0] == 7
    assert rc[2].apply_sync(lambda: sys.stdout.getvalue()) == "kept\n"
    rc[2].execute("sys.stdout = ours; warnings.filters.pop(0); warnings.resetwarnings()", block=True)
    rc[2].execute("logging.getLogger().setLevel(logging.WARNING)", block=True)
    rc[2].execute("warnings.simplefilter('default')", block=True)
    assert rc[2].apply_sync(levels) == before[1]


def test_a_task_on_top_of_another_does_not_share_them(rc):
    @ipp.interactive
    def outer():
        import contextlib
        import io
        import logging
        import warnings

        import broadleaf

        view = broadleaf.Client().load_balanced_view([3])
        logging.getLogger().setLevel(logging.CRITICAL)
        with contextlib.redirect_stdout(io.StringIO()) as text, warnings.catch_warnings():
            warnings.simplefilter("error")
            print("mine")
            inside = view.apply_sync(levels), view.apply_sync(filters), view.apply_sync(print, "the other's")
            print("mine again")
            own = filters()[0]
        return text.getvalue(), inside[:2], own, logging.getLogger().level

    outer.__globals__.update(levels=levels, filters=filters)
    before = rc[3].apply_sync(levels), rc[3].apply_sync(filters)
    text, inside, own, level = rc[3].apply_async(outer).get(30)
    assert text == "mine\nmine again\n"
    assert inside == before
    assert own == ("error", Warning)
    assert level == logging.CRITICAL
    assert (rc[3].apply_sync(levels), rc[3].apply_sync(filters)) == before
