"""A remote error says where it was raised, wherever it is shown."""

import asyncio
import concurrent.futures
import linecache
import logging
import os
import re
import subprocess
import sys
import traceback

import broadleaf as ipp
import pytest
from broadleaf import error

SCRIPT = """
import broadleaf as ipp

def helper(x):
    return 10 / x

def task(x):
    return helper(x)

if __name__ == "__main__":
    with ipp.Cluster(n=1) as rc:
        {call}
"""


def divide(x):
    return 10 / x


def shown(exception):
    return "".join(traceback.format_exception(exception))


def run(code, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(code)
    environment = os.environ | {"BROADLEAF_DIR": str(tmp_path / "state")}
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=50,
        cwd=tmp_path,
        env=environment,
    )
    return done.stdout + done.stderr


def test_an_uncaught_error_of_a_script(tmp_path):
    text = run(SCRIPT.format(call="rc[0].apply_sync(task, 0)"), tmp_path)
    remote = text.partition("Remote traceback, engine 0:\n")[2]
    assert 'script.py", line 8, in task\n      return helper(x)\n' in remote
    assert 'script.py", line 5, in helper\n      return 10 / x\n             ~~~^~~\n' in remote
    assert remote.endswith("  ZeroDivisionError: division by zero\n")
    assert text.count("in helper") == 1
    assert os.path.join("broadleaf", "serialize") not in text
    assert text.count("broadleaf/client/") == 2


def test_an_uncaught_error_of_a_future(tmp_path):
    text = run(SCRIPT.format(call="rc.executor().submit(task, 0).result()"), tmp_path)
    assert text.endswith("\nZeroDivisionError: division by zero\n")
    assert text.count("in helper\n      return 10 / x") == 1


def test_pytest_shows_it_without_our_frames(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import broadleaf as ipp\n"
        "def task(x):\n    return 10 / x\n"
        "def test_it():\n    with ipp.Cluster(n=2) as rc:\n        rc[:].map_sync(task, [1, 0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"],
        capture_output=True, text=True, timeout=50, cwd=tmp_path,
        # With CI set, pytest repeats whole messages in its summary.
        env=os.environ | {"BROADLEAF_DIR": str(tmp_path / "state"), "CI": "", "BUILD_NUMBER": ""},
    )  # fmt: skip
    assert done.stdout.count("return 10 / x") == 1
    assert "item 1 = 0" in done.stdout
    assert "map_results.py" not in done.stdout


CELLS = """
import sys
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance(colors={colors!r})
shell.run_cell("import broadleaf as ipp; rc = ipp.Cluster(n=2).start_and_connect_sync()")
shell.run_cell("def task(x):\\n    y = x\\n    return 10 / y", store_history=True)
for cell in ("rc[0].apply_sync(task, 0)", "rc[:].apply_sync(task, 0)", "rc.executor().submit(task, 0).result()"):
    shell.run_cell(cell, store_history=True)
    print("-" * 20, "next")
shell.run_cell("rc.cluster.stop_cluster_sync()")
"""


def test_ipython_shows_it_once_with_the_source_of_the_cell(tmp_path):
    pytest.importorskip("IPython")
    one, several, future = run(CELLS.format(colors="nocolor"), tmp_path).split("next")[:3]
    for text in (one, several, future):
        # The executor's task may run on either.
        assert len(re.findall(f"Remote traceback, engine {'[01]' if text is future else 0}", text)) == 1
        assert text.count('File "Cell In[1]", line 3, in task\n      return 10 / y\n             ~~~^~~\n') == 1
        assert "broadleaf/client" not in text
        assert "(task, 0)" in text
        assert "direct cause" not in text
    assert "and 1 more on engine 1" in several


def test_ipython_shows_it_in_colour(tmp_path):
    pytest.importorskip("IPython")
    remote = run(CELLS.format(colors="linux"), tmp_path).partition("Remote traceback")[2].partition("next")[0]
    assert "\x1b[" in remote.partition("ZeroDivisionError")[0]


def test_logging_and_futures(rc, caplog):
    ar = rc[0].apply_async(divide, 0)
    try:
        ar.get()
    except ipp.RemoteError:
        logging.getLogger("broadleaf.test").exception("failed")
    assert caplog.text.count("return 10 / x") == 1
    assert shown(ar.exception()).count("return 10 / x") == 1
    assert shown(ar.split()[0].exception()).count("return 10 / x") == 1
    future = rc.executor().submit(divide, 0)
    assert concurrent.futures.wait([future], timeout=20).done == {future}
    assert shown(future.exception()).count("return 10 / x") == 1


async def test_asyncio_shows_it(rc):
    ar = rc.load_balanced_view().apply_async(divide, 0)
    (result,) = await asyncio.gather(ar, return_exceptions=True)
    assert type(result) is ZeroDivisionError
    assert shown(result).count("return 10 / x") == 1


@pytest.mark.parametrize("items", [7, 5000])
def test_the_item_of_a_map(rc, dview, lview, items):
    sequence = list(range(items, -1, -1))
    expected = f"item {items} = 0"
    for view in (dview, lview):
        with pytest.raises(ZeroDivisionError, match=expected) as caught:
            view.map_sync(divide, sequence)
        (one,) = caught.value.exceptions
        assert (one.item_index, one.item_repr) == (items, "0")
        assert f", {expected}:" in one.__notes__[0]
        last = view.map_sync(divide, sequence, return_exceptions=True)[-1]
        assert (last.item_index, last.item_repr) == (items, "0")
        with pytest.raises(ZeroDivisionError, match=expected):
            list(view.map_async(divide, sequence))
        with pytest.raises(ZeroDivisionError, match=expected):
            view.map_async(divide, sequence).split()[-1].get()


def test_the_item_of_several_sequences(lview):
    for chunksize in (1, 3):
        with pytest.raises(ZeroDivisionError, match=r"item 4 = \(4, 0\)"):
            lview.map_sync(divmod, range(5), [1, 1, 1, 1, 0], chunksize=chunksize)


@pytest.mark.parametrize("ordered", [True, False])
def test_the_item_of_a_lazy_map(lview, ordered):
    values = lview.imap(divide, iter([2, 1, 0, 5]), ordered=ordered)
    got, failures = [], []
    for _ in range(4):
        try:
            got.append(next(values))
        except ZeroDivisionError as exception:
            failures.append(exception)
    assert sorted(got) == [2, 5, 10]
    (failure,) = failures
    assert str(failure).endswith("(item 2 = 0)")
    assert "item 2 = 0" in shown(failure)
    values = lview.imap(divide, [0], ordered=ordered, return_exceptions=True)
    assert next(values).item_index == 0


def test_a_call_that_is_no_map_has_no_item(rc):
    assert rc[0].apply_async(divide, 0).exception().item_index is None


def test_failures_alike_on_all_engines(dview):
    with pytest.raises(ipp.CompositeError) as caught:
        dview.apply_sync(divide, 0)
    assert shown(caught.value).count("return 10 / x") == 1
    assert "and 3 more on engines 1-3" in shown(caught.value)


def test_operations_have_no_frames_of_ours(rc):
    with pytest.raises(NameError) as caught:
        rc[0].pull("no_such_name", block=True)
    assert "File" not in caught.value.traceback
    with pytest.raises(ZeroDivisionError) as caught:
        rc[0].execute("def g():\n    return 1 / 0\ng()", block=True)
    assert "    return 1 / 0\n" in caught.value.traceback
    assert "operations.py" not in caught.value.traceback
    with pytest.raises(ZeroDivisionError) as caught:
        rc[0].execute("import asyncio\nawait asyncio.sleep(0)\n1 / 0", block=True)
    assert caught.value.traceback.splitlines()[1].endswith("in <module>")


def test_source_that_only_the_client_has(rc):
    source = "def cell(x):\n    y = x\n    return 10 / y\n"
    namespace = {"__name__": "__main__"}
    exec(compile(source, "<cell 3>", "exec"), namespace)
    linecache.cache["<cell 3>"] = (len(source), None, source.splitlines(True), "<cell 3>")
    try:
        with pytest.raises(ZeroDivisionError) as caught:
            rc[0].apply_sync(namespace["cell"], 0)
    finally:
        del linecache.cache["<cell 3>"]
    assert 'File "<cell 3>", line 3, in cell\n    return 10 / y\n           ~~~^~~' in caught.value.traceback


def test_a_frozen_exception_has_its_traceback(rc):
    def fail():
        class Frozen(Exception):
            def __setattr__(self, name, value):
                raise TypeError("frozen")

        raise Frozen

    with pytest.raises(ipp.RemoteError) as caught:
        rc[0].apply_sync(fail)
    assert "in fail" in caught.value.traceback
    assert isinstance(caught.value.as_original().__cause__, error.RemoteTraceback)
