"""Data and rich displays that tasks publish, as the client reads them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import broadleaf as ipp
import pytest
from waiting import until, until_shown


@ipp.interactive
def publish_twice():
    from broadleaf.datapub import publish_data

    publish_data({"a": 1, "b": [2]})
    publish_data({"b": 3, "engine": engine_id})  # noqa: F821


def test_published_data_is_there_by_engine(rc, dview):
    ar = dview.apply_async(publish_twice)
    ar.get(20)
    assert ar.data == [{"a": 1, "b": 3, "engine": i} for i in rc.ids]
    assert rc[0].apply_async(abs, -1).data == {}


def test_published_data_is_there_while_the_task_runs(rc, tmp_path):
    def publish_and_wait(path):
        import os

        from broadleaf.datapub import publish_data

        for i in range(3):
            publish_data({"i": i})
        while not os.path.exists(path):
            time.sleep(0.01)

    go = tmp_path / "go"
    ar = rc[0].apply_async(publish_and_wait, str(go))
    assert until(lambda: ar.data == {"i": 2})
    assert not ar.ready()
    go.touch()
    ar.get(20)


def test_arrays_are_published_as_arrays(rc):
    numpy = pytest.importorskip("numpy")

    def publish(n):
        import numpy
        from broadleaf.datapub import publish_data

        publish_data({"x": numpy.arange(n), "f": lambda: 3})

    ar = rc[1].apply_async(publish, 100_000)
    ar.get(20)
    assert (ar.data["x"] == numpy.arange(100_000)).all()
    ar.data["x"][0] = 1
    assert ar.data["f"]() == 3


def test_what_cannot_be_published_says_so(rc):
    def publish(what):
        from broadleaf.datapub import publish_data

        publish_data(what)

    with pytest.raises(ipp.RemoteError, match="publish_data takes a dict"):
        rc[0].apply_sync(publish, [1])
    with pytest.raises(RuntimeError, match="can only be published from a task"):
        publish({"a": 1})
    with pytest.raises(ipp.RemoteError, match="lock"):
        rc[0].apply_sync(lambda: __import__("broadleaf").datapub.publish_data({"l": __import__("threading").Lock()}))


CLIENT_THAT_STOPS = """
import json, os, sys, time
from broadleaf import Client

def flood(go_on, over):
    from broadleaf.datapub import publish_data
    while not os.path.exists(go_on):
        time.sleep(0.005)
    for i in range(100):
        publish_data({f"x{i}": b"x" * (1 << 20)})
    open(over, "w").close()

with Client(sys.argv[1]) as client:
    result = client[0].apply_async(flood, *sys.argv[2:])
    client.wait([result], 0.1)
    print("sent", flush=True)
    result.get(60)
    print(json.dumps([len(result.data), result.stderr]))
"""


def test_data_that_its_client_does_not_read_is_dropped_and_said(tmp_path):
    go_on, over = tmp_path / "go", tmp_path / "over"
    with ipp.Cluster(n=1, congestion_bytes=8 << 20) as rc:
        pid = rc.cluster.status_sync()["pid"]
        command = [sys.executable, "-c", CLIENT_THAT_STOPS, str(rc.cluster.connection_file), str(go_on), str(over)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout.readline() == "sent\n"
            os.kill(child.pid, signal.SIGSTOP)
            try:
                go_on.touch()
                assert until(over.exists)
                statm = Path(f"/proc/{pid}/statm").read_text()
            finally:
                os.kill(child.pid, signal.SIGCONT)
            n_arrived, stderr = json.loads(child.stdout.read())
    assert int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE") < 64 << 20, "the node keeps what nobody reads"
    notices = re.findall(r"^\[broadleaf: displays or published data were dropped here \((\d+) messages\)", stderr, re.M)
    assert notices
    assert n_arrived + sum(map(int, notices)) == 100


class Rich:
    def _repr_html_(self):
        return "<b>rich</b>"

    def __repr__(self):
        return "plain"


def test_displays_reach_the_client_in_order(rc, dview, capsys):
    pytest.importorskip("IPython")
    dview["rich"] = Rich()
    code = "from IPython.display import display, HTML\ndisplay(1, rich)\nprint('said')\ndisplay(HTML('<i>x</i>'))"
    ar = dview.execute(code, block=True)
    for outputs in ar.outputs:
        assert [output["data"].get("text/plain") for output in outputs][:2] == ["1", "plain"]
        assert outputs[1]["data"]["text/html"] == "<b>rich</b>"
        assert outputs[2]["data"]["text/html"] == "<i>x</i>"
    assert ar.stdout == ["said\n"] * 4
    ar.display_outputs()
    shown = capsys.readouterr().out
    assert shown.count("[output:") == 4
    assert shown.count("plain") == 4


def test_displays_of_functions_and_of_the_bare_name(rc):
    pytest.importorskip("IPython")

    def show(x):
        from IPython.display import display

        display({"text/plain": "raw", "text/html": "<p>"}, raw=True, metadata={"m": 1})
        return x

    ar = rc[0].apply_async(show, 5)
    assert ar.get(20) == 5
    assert ar.outputs == [{"data": {"text/plain": "raw", "text/html": "<p>"}, "metadata": {"m": 1}}]
    ar = rc[1].execute("display([1, 2])", block=True)
    assert ar.outputs[0]["data"]["text/plain"] == "[1, 2]"


def test_an_updated_display_takes_the_place_of_the_first(rc):
    pytest.importorskip("IPython")
    ar = rc[0].execute("h = display('first', display_id=True)\ndisplay('other')\nh.update('second')", block=True)
    assert [output["data"]["text/plain"] for output in ar.outputs] == ["'second'", "'other'"]


def test_displays_are_shown_while_output_is_streamed(rc, capsys, gate):
    pytest.importorskip("IPython")
    rc[0]["held"] = gate.task()
    ar = rc[0].execute("display('before')\nheld()\ndisplay('after')", block=False)
    with ar.stream_output():
        shown = until_shown("'before'", ar, capsys)
        gate.open()
        ar.get(20)
    shown += capsys.readouterr().out
    assert shown.count("'before'") == 1
    assert shown.count("'after'") == 1
