"""`%px` and related magics in a session of IPython."""

from __future__ import annotations

import re
import time
from types import SimpleNamespace

import broadleaf as ipp
import pytest
from broadleaf.serialize.namespace import evaluate
from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, magics_class
from IPython.utils.capture import capture_output
from waiting import until


def run(ip, cell):
    """Runs a cell; returns what it wrote to standard output and standard error, and what it raised."""
    with capture_output(display=False) as captured:
        done = ip.run_cell(cell, store_history=True)
    return captured.stdout, captured.stderr, done.error_before_exec or done.error_in_exec


def test_a_line_runs_on_all_engines(px, rc):
    assert run(px, "%px x = 7") == ("", "", None)
    assert rc[:]["x"] == [7] * 4
    out, _, _ = run(px, "%px x + engine_id")
    assert [line.split(": ")[1] for line in out.splitlines()] == ["7", "8", "9", "10"]
    assert all(re.match(r"Out\[\d+:\d+\]: ", line) for line in out.splitlines())


def test_braces_belong_to_the_engines(px, rc):
    px.user_ns["x"] = "here"
    rc[:]["x"] = "there"
    run(px, "%px y = f'{x}'")
    px.user_ns["name"] = "kept"
    run(px, "%%px -o {name}\nz = f'{x}'")
    assert rc[0]["y"] == rc[0]["z"] == "there"
    assert isinstance(px.user_ns["kept"], ipp.AsyncResult)


def test_output_is_shown_as_it_comes_and_in_order_per_engine(px, rc):
    out, err, _ = run(
        px, "%%px\nimport sys\nfor i in range(50): print('line', i)\nprint('wrong', file=sys.stderr)\nengine_id"
    )
    for engine in range(4):
        own = [part for part in re.split(r"(?=^\[stdout:|^Out)", out, flags=re.M) if f"[stdout:{engine}]" in part]
        assert re.findall(r"line (\d+)", "".join(own)) == [str(i) for i in range(50)]
    assert sorted(err.splitlines()) == [f"[stderr:{engine}] wrong" for engine in range(4)]
    assert out.count("Out[") == 4


def test_lines_that_engines_print_alike_are_grouped_when_asked(px):
    expected = ["[stdout:0-3] begin", "[stdout:0-1] low", "[stdout:2-3] high", "[stdout:0-3]", "middle", "end"]
    code = "print('begin')\nprint('low' if engine_id < 2 else 'high')\nprint('middle')\nprint('end')"
    for how in ("--stream", "--no-stream"):
        out, _, _ = run(px, f"%%px --group-outputs=lines {how}\n{code}")
        assert out.splitlines() == expected


def test_errors_are_grouped_by_traceback_each_with_its_engines(px):
    out, err, error = run(px, "%%px\nprint('before')\nif engine_id == 2: int('x')\n1 / 0")
    assert isinstance(error, ipp.AlreadyDisplayedError)
    assert "\n".join(error._render_traceback_()) == "4 errors"
    assert out.count("before") == 4
    assert err.count("ValueError: invalid literal") == 1
    assert "1 / 0" in err
    named = re.findall(r"^\[([\d, -]+):execute\](?: ZeroDivisionError: .*)?$", err, flags=re.M)
    engines = sorted(engine for label in named for engine in expanded(label))
    assert engines == [0, 1, 2, 3]


def test_one_error_is_one(px):
    _, err, error = run(px, "%%px\nif engine_id == 2: 1 / 0")
    assert (str(error), repr(error)) == ("1 error", "<AlreadyDisplayedError(1 error)>")
    assert err.count("ZeroDivisionError: division by zero") == 1


def expanded(label):
    """Engines of a label such as `0-1, 3`."""
    for part in label.split(", "):
        low, _, high = part.partition("-")
        yield from range(int(low), int(high or low) + 1)


def test_errors_without_stream_are_one_composite_error_after_the_output(px):
    out, _, error = run(px, "%%px --no-stream\nprint('before')\n1 / 0")
    assert isinstance(error, ipp.CompositeError)
    assert len(error.elist) == 4
    assert out.count("] before\n") == 4


def test_the_error_of_one_engine_is_raised_as_itself(px, rc):
    rc.activate(1, "_one")
    error = run(px, "%px_one 1/0")[2]
    assert isinstance(error, ZeroDivisionError)
    assert isinstance(error, ipp.RemoteError)


@pytest.mark.parametrize(("grouping", "labels"), [
    ("engine", ["stdout:0", "Out", "stdout:1", "Out", "stdout:2", "Out", "stdout:3", "Out"]),
    ("type", ["stdout:0", "stdout:1", "stdout:2", "stdout:3", "Out", "Out", "Out", "Out"]),
])  # fmt: skip
def test_grouped_output(px, grouping, labels):
    out, _, _ = run(px, f"%%px --no-stream --group-outputs={grouping}\nprint('said')\n5")
    assert re.findall(r"^\[?(stdout:\d|Out)", out, flags=re.M) == labels


def test_the_letters_for_groupings(px):
    assert re.findall(r"^\[?(stdout:\d|Out)", run(px, "%%px -e\nprint('x')\n5")[0], flags=re.M)[1] == "Out"
    assert re.findall(r"^\[?(stdout:\d|Out)", run(px, "%%px -r\nprint('x')\n5")[0], flags=re.M)[1] == "stdout:1"


@pytest.mark.parametrize(("text", "engines"), [
    ("all", [0, 1, 2, 3]), ("2", [2]), ("-1", [3]), ("::2", [0, 2]), ("1:3", [1, 2]), ("0,3", [0, 3]),
    ("[1]", [1]), ("range(2)", [0, 1]),
])  # fmt: skip
def test_targets(px, rc, text, engines):
    run(px, f"%%px --targets {text}\nhit = True")
    assert [engine for engine in rc.ids if rc[engine].apply_sync(evaluate, "'hit' in globals()")] == engines
    assert px.find_cell_magic("px").__self__.view.targets == "all"


@pytest.mark.parametrize("text", ["nobody", "__import__('os')", "9.5", "7"])
def test_targets_that_are_none_are_a_usage_error_or_no_such_engine(px, text):
    _, _, error = run(px, f"%%px -t {text}\n1")
    assert isinstance(error, UsageError | IndexError)


def test_without_block_the_result_comes_at_once_and_pxresult_shows_it(px, rc):
    out, _, _ = run(px, "ar = get_ipython().run_cell_magic('px', '--noblock', 'print(engine_id); 5')")
    assert out == ""
    assert isinstance(px.user_ns["ar"], ipp.AsyncResult)
    out, _, _ = run(px, "%pxresult")
    assert out.count("[stdout:") == 4
    assert out.count(": 5") == 4
    run(px, "%pxresult -o again")
    assert px.user_ns["again"] is px.user_ns["ar"]


def test_pxresult_before_any_result(px):
    assert "there is no result yet" in str(run(px, "%pxresult")[2])


def test_after_a_cell_that_raises_those_started_meanwhile_do_not_run(px, rc, gate):
    rc[:]["wait_at_gate"] = gate.task()
    run(px, "%pxconfig --noblock")
    for line in ("wait_at_gate(); b = 10", "b / 0", "b *= 2"):
        run(px, f"%px {line}")
    gate.open()
    with pytest.raises(ipp.CompositeError, match="TaskAborted: not run"):
        px.find_cell_magic("px").__self__.last_result.get(20)
    assert rc[0]["b"] == 10
    run(px, "%px b *= 3")
    assert until(lambda: rc[0]["b"] == 30)


def test_pxconfig(px, rc):
    view = rc.activate(-1, "_last")
    assert view.targets == 3
    run(px, "%pxconfig_last -t ::2 --noblock --verbose")
    assert view.targets == [0, 2]
    assert view.block is False
    assert run(px, "%px_last 1")[0].startswith("Async parallel execution on engine(s): [0, 2]\n")
    rc.wait(timeout=20)
    run(px, "%pxconfig_last --block --no-verbose --no-stream --progress-after -1 --signal-on-interrupt 0")
    magics = px.find_cell_magic("px_last").__self__
    assert (magics.stream_output, magics.progress_after, magics.signal_on_interrupt) == (False, -1, 0)
    assert run(px, "%px_last 1")[0].count("Out[") == 2


def test_local_runs_the_cell_here_too(px, rc):
    out, _, _ = run(px, "%%px --local\nq = 5\nprint('said')")
    assert px.user_ns["q"] == 5
    assert rc[:]["q"] == [5] * 4
    assert out.count("said") == 5


def test_several_clients_at_once(px, rc, cluster):
    with cluster.connect_client_sync() as other:
        other.wait_for_engines(4, timeout=20)
        other.activate([0, 1], "_other")
        run(px, "%px_other x = 1")
        run(px, "%px y = 2")
        assert rc[[0, 1]].pull(["x", "y"], block=True) == [[1, 2]] * 2
        assert run(px, "%pxresult_other")[2] is None


def test_a_client_made_in_a_session_gives_it_its_magics(ip, cluster):
    assert ip.find_cell_magic("px") is None
    with cluster.connect_client_sync() as first:
        assert ip.find_cell_magic("px").__self__.view.client is first
        with cluster.connect_client_sync():
            assert ip.find_cell_magic("px").__self__.view.client is first
    with cluster.connect_client_sync() as third:
        assert ip.find_cell_magic("px").__self__.view.client is third, "the first one's were closed with it"


def test_start_and_connect_can_activate(px):
    other = ipp.Cluster(n=1)
    try:
        with other.start_and_connect_sync():
            assert px.find_cell_magic("px").__self__.view.client.cluster is not other
        with other.start_and_connect_sync(activate=True) as client:
            assert px.find_cell_magic("px").__self__.view.client is client
        # Those of a client that is closed would be taken.
        with other.start_and_connect_sync(activate=False) as last:
            assert px.find_cell_magic("px").__self__.view.client not in (last, None)
        with other.start_and_connect_sync() as taker:
            assert px.find_cell_magic("px").__self__.view.client is taker
    finally:
        other.stop_cluster_sync()


def test_magics_of_another_package_make_way(ip, cluster):
    @magics_class
    class Others(Magics):
        view = SimpleNamespace(client=object())

        @cell_magic
        def px(self, line, cell):
            """Another package's."""

    ip.register_magics(Others)
    with cluster.connect_client_sync() as client:
        assert ip.find_cell_magic("px").__self__.view.client is client


def test_a_client_in_a_task_leaves_the_engine_s_shell_alone(rc):
    code = "get_ipython()\nimport broadleaf\nwith broadleaf.Client(): pass\nfound = get_ipython().find_cell_magic('px')"
    rc[0].execute(code, block=True)
    assert rc[0]["found"] is None


def test_outside_ipython_activate_warns(rc):
    with pytest.warns(UserWarning, match="only in IPython and Jupyter"):
        rc[:].activate()


def test_autopx(px, rc):
    assert run(px, "%autopx")[0] == "%autopx enabled\n"
    run(px, "a = engine_id\nb = a * 2")
    assert "b" not in px.user_ns
    assert run(px, "b")[0].count("Out[") == 4
    assert "ZeroDivisionError" in run(px, "1/0")[1]
    # A cell is complete when it is complete, even if all of it is for engines.
    assert px.check_complete("for i in range(3):")[0] == "incomplete"
    assert px.check_complete("x = 1")[0] == "complete"
    assert run(px, "%autopx")[0] == "%autopx disabled\n"
    run(px, "here = 1")
    assert px.user_ns["here"] == 1
    assert rc[:]["b"] == [0, 2, 4, 6]


def test_help_about_engines_names(px, rc):
    rc[:]["only_there"] = 5
    out, _, _ = run(px, "%px only_there?")
    assert out.count("Type:") == 4
    assert out.count("int") >= 4
    assert "len(obj, /)" in run(px, "%%px -t 0\nlen?")[0]


def test_completion_of_engines_names(px, rc, monkeypatch):
    monkeypatch.setattr("broadleaf.notebook.magics._TIMEOUT_S", 30.0)
    provisional = pytest.importorskip("IPython.core.completer").provisionalcompleter
    rc[:]["only_there"] = {"key": 1}

    def completed(text):
        with provisional():
            found = list(px.Completer.completions(text, len(text)))
        return {text[: one.start] + one.text for one in found}

    assert "%px only_there" in completed("%px only_th")
    assert "%%px --noblock\nx = only_there.values" in completed("%%px --noblock\nx = only_there.val")
    assert not any("only_there" in text for text in completed("only_th"))


def test_completion_does_not_wait_for_busy_engines(px, rc):
    busy = rc[:].apply_async(time.sleep, 30)
    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        rc[:].complete("x", 1, timeout=0.05)
    assert time.monotonic() - begun < 20
    busy.abort()
    busy.wait(20)


def test_a_plain_line_costs_one_message_and_no_ipython_on_engines():
    with ipp.Cluster(n=4, preload=[]) as client:
        view = client[:]
        view.execute("x = 1", silent=False, block=True)
        before = client.counters()
        view.execute("x = 2", silent=False, block=True)
        after = client.counters()
        assert after["writes"] - before["writes"] == 1
        assert after["bytes_out"] - before["bytes_out"] < 400
        has_ipython = "import sys\nprint('IPy' 'thon' in sys.modules)"
        assert view.execute(has_ipython, block=True).stdout == ["False\n"] * 4


def test_a_variable_of_the_session_that_engines_lack(px, rc):
    px.user_ns["rc"] = rc
    run(px, "x = 5")
    for cell in ("%px print(x)", "%%px\nx + 1", "%%px --targets 0\nx", "%%px --no-stream\nx"):
        out, _, error = run(px, cell)
        assert isinstance(error, ipp.RemoteError)
        assert "'x' is a variable of this session, not of the engines. To push it to them: rc[:].push({'x': x})" in out
    run(px, "rc[:].push({'x': x}, block=True)")
    assert run(px, "%px x")[2] is None
    # Neither what nobody has, nor another error.
    assert "of this session" not in run(px, "%px nobody_has_this")[0]
    assert "of this session" not in run(px, "%px 1 / 0")[0]


def test_the_start_cell_run_again_stops_its_earlier_cluster(ip):
    start = "import broadleaf as ipp\ncluster = ipp.Cluster(n=1)\nrc = cluster.start_and_connect_sync()"
    try:
        assert run(ip, start) == ("", "", None)
        first, clients = ip.user_ns["cluster"], [ip.user_ns["rc"]]
        # Another cell leaves it alone.
        run(ip, "other = ipp.Cluster(n=0)\nother.start_cluster_sync()")
        assert first.running
        out, _, error = run(ip, start)
        assert error is None
        assert out == f"stopped cluster {first.cluster_id!r}, which an earlier run of this cell had started\n"
        assert not first.running
        assert ip.user_ns["cluster"].running
        assert ip.user_ns["other"].running
        assert run(ip, "%px engine_id")[2] is None
    finally:
        for client in (*clients, ip.user_ns["rc"]):
            client.close()
        run(ip, "cluster.stop_cluster_sync(); other.stop_cluster_sync()")


def test_clusters_that_one_run_of_a_cell_starts_are_kept(ip):
    start = "import broadleaf as ipp\nboth = [ipp.Cluster(n=0).start_cluster_sync() for _ in range(2)]"
    try:
        assert run(ip, start) == ("", "", None)
        assert [cluster.running for cluster in ip.user_ns["both"]] == [True, True]
        assert run(ip, start)[0].count("stopped cluster") == 2
    finally:
        run(ip, "for cluster in both: cluster.stop_cluster_sync()")
