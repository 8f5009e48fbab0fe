"""Progress, and what objects look like in a notebook."""

from __future__ import annotations

import io
import os
import re
import sys
import threading
import time

import broadleaf as ipp
import pytest
from waiting import until


class Terminal(io.StringIO):
    """Standard error of a terminal. After each write it calls `on_write`."""

    def __init__(self):
        super().__init__()
        self.on_write = lambda: None

    def isatty(self):
        return True

    def write(self, text):
        n_written = super().write(text)
        self.on_write()
        return n_written


@pytest.fixture
def on_terminal(monkeypatch):
    """A function that replaces standard error with a terminal, in the test itself: pytest changes it before."""

    def replace():
        written = Terminal()
        monkeypatch.setattr(sys, "stderr", written)
        return written

    return replace


def last_line(terminal):
    """What a terminal shows at the end."""
    return [line for line in re.split(r"[\r\n]", terminal.getvalue()) if line.strip(" \x1b[AK")][-1]


@pytest.mark.parametrize("with_tqdm", [True, False])
def test_a_bar_counts_items_with_rate_and_remaining_time(rc, on_terminal, monkeypatch, tmp_path, with_tqdm):
    """Each quarter of the items starts when the bar shows that the previous ones are done."""
    terminal = on_terminal()
    directory = str(tmp_path)

    def counts():
        return [int(count) for count in re.findall(r"(\d+)/100", terminal.getvalue())]

    def start_items():
        for shown in counts()[-1:]:
            (tmp_path / str(shown // 25)).touch()

    def wait_for_quarter(item):
        while not os.path.exists(f"{directory}/{item // 25}"):
            time.sleep(0.002)

    if with_tqdm:
        pytest.importorskip("tqdm")
    else:
        monkeypatch.setitem(sys.modules, "tqdm.std", None)
    lview = rc.load_balanced_view()
    terminal.on_write = start_items
    lview.map_async(wait_for_quarter, range(100), chunksize=25).wait_interactive(interval=0.01)
    shown = terminal.getvalue()
    assert "100/100" in last_line(terminal)
    assert "tasks/s" in shown
    assert counts() == sorted(counts())
    assert set(counts()) >= {0, 25, 50, 75, 100}
    assert ("<" in shown) if with_tqdm else ("s left" in shown)


def test_one_task_a_broadcast_and_nothing(rc, on_terminal):
    terminal = on_terminal()
    rc[0].apply_async(abs, -1).wait_interactive()
    assert "1/1" in last_line(terminal)
    rc.broadcast_view().apply_async(abs, -1).wait_interactive()
    assert "4/4" in last_line(terminal)
    before = terminal.getvalue()
    assert rc.wait_interactive() is True
    assert terminal.getvalue() == before, "nothing is left to wait for"


def test_everything_that_a_client_waits_for(rc, on_terminal, gate):
    terminal = on_terminal()
    lview = rc.load_balanced_view()
    mapped = lview.map_async(gate.task(), range(20), chunksize=2)
    for _ in range(5):
        lview.apply_async(gate.task())  # the test does not hold its result
    terminal.on_write = gate.open
    assert rc.wait_interactive(interval=0.01) is True
    assert mapped.ready()
    assert "25/25" in last_line(terminal)


def test_results_that_are_gone_can_be_waited_for(rc, on_terminal, gate):
    """The result is dropped while its task runs; its id alone used to be a `KeyError`."""
    on_terminal().on_write = gate.open
    rc.load_balanced_view().apply_async(gate.task())
    assert rc.wait_interactive(interval=0.01)
    assert rc.outstanding == set()


def test_a_timeout(rc, on_terminal, gate):
    on_terminal()
    busy = rc[0].apply_async(gate.task())
    busy.wait_interactive(interval=0.01, timeout=0.05)
    assert rc.wait_interactive(interval=0.01, timeout=0.05) is False
    busy.abort()
    busy.wait(20)


def test_a_cell_that_takes_long_has_a_bar_and_a_short_one_has_none(px, rc, on_terminal, gate):
    terminal = on_terminal()
    px.run_cell_magic("px", "--progress-after 60", "1")
    assert terminal.getvalue() == ""
    rc[:]["wait_at_gate"] = gate.task()
    terminal.on_write = gate.open
    px.run_cell_magic("px", "--progress-after 0", "wait_at_gate()")
    assert "4/4" in last_line(terminal)


@pytest.mark.parametrize("options", ["--progress-after -1", "--progress-after 0"])
def test_a_cell_that_takes_long_has_no_bar_where_none_is_wanted(px, rc, on_terminal, monkeypatch, gate, options):
    """Either because its option says so, or because standard error is a file."""
    terminal = on_terminal()
    if options.endswith(" 0"):
        monkeypatch.setattr(terminal, "isatty", lambda: False)
    rc[:]["wait_at_gate"] = gate.task()
    opening = threading.Thread(target=lambda: (gate.wait_for_tasks(4), gate.open()))
    opening.start()
    px.run_cell_magic("px", options, "wait_at_gate()")
    opening.join()
    assert terminal.getvalue() == ""


def test_progress_from_within_a_task(rc):
    def wait_inside():
        inner = ipp.get_client().load_balanced_view().map_async(abs, range(10))
        inner.wait_interactive(interval=0.01)
        return inner.get()

    ar = rc[0].apply_async(wait_inside)
    assert ar.get(20) == list(range(10))
    assert "10/10" in ar.stderr


# What objects look like -------------------------------------------------------------------------


def test_a_look_answers_what_it_is_doing(rc, cluster, tmp_path):
    go_on = tmp_path / "go"

    def wait_for(path):
        while not path.exists():
            time.sleep(0.01)

    busy = rc[:2].apply_async(wait_for, go_on)
    until(lambda: all(rc.queue_status([0, 1])[engine]["tasks"] for engine in (0, 1)))
    rows = {name: rows_of(thing._repr_html_()) for name, thing in
            {"cluster": cluster, "client": rc, "view": rc[:], "balanced": rc.load_balanced_view()}.items()}  # fmt: skip
    for name, found in rows.items():
        assert [row[:2] for row in found] == [["0", "busy"], ["1", "busy"], ["2", "idle"], ["3", "idle"]], name
        assert all("MB" in row[5] for row in found), name
    assert [row[0] for row in rows_of(rc[3]._repr_html_())] == ["3"]
    assert "0 of 2" in busy._repr_html_()
    go_on.touch()
    busy.get(20)
    assert "2 of 2" in busy._repr_html_()


def rows_of(html):
    """The rows of the table in a block of HTML, as texts."""
    rows = re.findall(r"<tr>(.*?)</tr>", html.partition("<tbody>")[2])
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows]


def test_failures_are_grouped_and_escaped(rc):
    ar = rc[:].execute("raise ValueError('<b>' if engine_id else 'zero')", block=False)
    ar.wait(20)
    html = ar._repr_html_()
    assert "ValueError: &lt;b&gt;" in html
    assert "<td" in html
    assert [row[1:] for row in rows_of(html)] == [["1", "engine 0"], ["3", "engines 1-3"]]


def test_dead_engines_and_closed_clients():
    cluster = ipp.Cluster(n=2)
    assert "not started" in cluster._repr_html_()
    with cluster as client:
        view = client[:]
        with pytest.raises(ipp.EngineError):
            client[1].apply_sync(os._exit, 3)
        until(lambda: client.ids == [0])
        assert rows_of(view._repr_html_())[1][1] == "gone: exit 3"
        assert rows_of(client._repr_html_())[1][1] == "gone: exit 3"
    for thing in (client, view, cluster):
        assert re.search("closed|stopped", thing._repr_html_())


def test_a_look_at_a_cluster(cluster):
    html = cluster._repr_html_()
    facts = dict(re.findall(r"(\w+) <b>([^<]*)</b>", html))
    assert facts["engines"] == "4"
    assert "running" in html
    assert "restarts" not in html, "a column in which no engine has anything"


def test_many_engines_are_not_all_listed():
    from broadleaf.tables import engine_table

    engine = {"state": "up", "up": True, "outstanding": 0, "queued": 0, "completed": 0, "busy_ns": 0}
    engine |= {"last_death": None, "pid": 1, "restarts": 0}
    html = engine_table({"engines": [engine | {"engine": number} for number in range(1000)]}, {})
    assert "and 984 more engines" in html
    assert len(html) < 20_000


def test_cards_show_the_latest_errors_and_lead_to_the_dashboard():
    with ipp.Cluster(n=1) as client:

        def read(name):
            raise OSError(f"{name} is <truncated>")

        view = client.load_balanced_view()
        result = view.map_async(read, ["a.png", "b.png"], chunksize=2)
        result.wait()
        cards = {"client": client, "cluster": client.cluster, "view": view, "result": result}
        for name, card in cards.items():
            html = card._repr_html_()
            assert "cluster.dashboard" in html
            assert "<truncated>" not in html
            assert ("OSError: a.png is &lt;truncated&gt;" in html) == (name != "view")
        for card in (client, client.cluster):
            (row,) = [row for row in rows_of(card._repr_html_()) if row and row[0].startswith("OSError")]
            assert row[1:5] == ["read", "2", "&#x27;a.png&#x27;", "engine 0"]
        url = client.cluster.dashboard.url
        for card in cards.values():
            assert f'href="{url}"' in card._repr_html_()
