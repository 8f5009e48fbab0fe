"""What pages are sent, for simulated clusters."""

from __future__ import annotations

import asyncio
import json
import linecache
import os
import socket
from types import SimpleNamespace

import pytest
from broadleaf.cli.top import Look as TopLook
from broadleaf.dashboard import feed as feed_module
from broadleaf.dashboard.feed import Feed, interval_s
from broadleaf.dashboard.frames import (
    HISTORY_TASKS,
    Frames,
    Look,
    Progress,
    past_throughput,
    split_events,
)
from broadleaf.errors.kinds import error_rows, error_sentence
from simulated_cluster import SimulatedCluster

NOTHING = {
    "next": 0,
    "recorded": 0,
    "events": [],
    "names": {},
    "functions": [],
    "failures": [],
    "transfers": [],
    "hosts": [],
}


def status(cluster: SimulatedCluster, **changed: object) -> dict:
    told = cluster.status()
    engine = told["engines"][0] | changed
    return told | {"engines": [engine, *told["engines"][1:]]}


def test_rates_are_those_of_top() -> None:
    assert TopLook is Look
    cluster = SimulatedCluster(2, idle=True)
    frames = Frames()
    before = Look(10.0, status(cluster, busy_ns=0))
    frames.add(before, 1000, NOTHING, [])
    now = Look(12.0, status(cluster, busy_ns=1_000_000_000))
    now.status["controller"]["resolved"] |= {"ok": 90, "error": 10}
    now.status["links"]["bytes_in"] = 3_000
    frame = frames.add(now, 3000, NOTHING, [])
    rates = now.since(before)
    assert (rates.tasks_per_s, rates.bytes_per_s, rates.busy_percent) == (50, 1500, 25)
    assert frame["point"] == [3000, 50, 5, 1500, 25, 0, 0]
    assert frame["points"] == [frame["point"]]
    assert frame["engines"]["busy_percent"] == [50, 0]


def test_a_task_that_runs_counts_for_as_long_as_it_has_run() -> None:
    cluster = SimulatedCluster(2, idle=True)
    running = [{"function": "f", "for_ns": seconds * 1_000_000_000} for seconds in (3, 4)]
    before = Look(10.0, status(cluster, busy_ns=0, running=running[0]))
    assert Look(11.0, status(cluster, busy_ns=0, running=running[1])).busy_shares(before) == {0: 1.0, 1: 0.0}
    # It has ended meanwhile, and nothing else was begun.
    assert Look(12.0, status(cluster, busy_ns=3_500_000_000)).busy_shares(before) == {0: 0.25, 1: 0.0}


def test_this_host_tells_how_busy_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "node01")
    cluster = SimulatedCluster(100, idle=True)
    frames = Frames()
    first = frames.add(Look(1.0, cluster.status()), 1000, NOTHING, [])["hosts"]
    second = frames.add(Look(1.5, cluster.status()), 1500, NOTHING, [])["hosts"]
    assert [host["name"] for host in first if "cores" in host] == ["node01"]
    (here,) = [host for host in second if "cores" in host]
    assert here["cores"] == os.cpu_count()
    assert 0 < here["free_bytes"] < here["total_bytes"]
    assert (first[1]["cpu_percent"], first[1]["in_bytes_per_s"]) == (None, None), "nothing is known of the time before"
    assert here["in_bytes_per_s"] >= 0
    assert here["out_bytes_per_s"] >= 0


def measured(at_s: float, busy_ticks: int, in_bytes: int) -> dict:
    return {
        "name": "node01", "ago_ns": 0, "at_ns": int(at_s * 1e9), "cores": 8, "busy_ticks": busy_ticks,
        "all_ticks": int(800 * at_s), "free_bytes": 3_000, "total_bytes": 8_000, "in_bytes": in_bytes, "out_bytes": 0,
        "engines": {"50": 700, "51": 300},
    }  # fmt: skip


def test_other_hosts_are_as_busy_as_their_relays_tell() -> None:
    cluster = SimulatedCluster(100, idle=True)
    frames = Frames()

    def row(at_s: float, told: list[dict], is_after_gap: bool = False) -> dict:
        news = NOTHING | {"hosts": told}
        frame = frames.add(Look(at_s, cluster.status()), at_s * 1000, news, [], is_after_gap)
        return next(host for host in frame["hosts"] if host["name"] == "node01")

    assert "cpu_percent" not in row(1.0, [])
    first = row(2.0, [measured(11.0, 100, 5_000)])
    assert (first["cores"], first["free_bytes"], first["cpu_percent"], first["memory_bytes"]) == (8, 3_000, None, 1_000)
    second = row(3.0, [measured(13.0, 900, 9_000)])
    assert (second["cpu_percent"], second["in_bytes_per_s"]) == (50, 2_000)
    # It has not answered, or what it told is from before a time that nobody watched.
    assert row(4.0, [measured(13.0, 900, 9_000)])["cpu_percent"] is None
    assert "cpu_percent" not in row(90.0, [measured(14.0, 900, 9_000)], is_after_gap=True)
    assert row(91.0, [measured(99.0, 900, 9_000)])["cpu_percent"] is None, "no mean over that time"


def test_a_thousand_engines_are_a_small_frame() -> None:
    cluster = SimulatedCluster(1000, dead=(3, 640), past_s=3)
    frames = Frames()
    frames.add(Look(1.0, cluster.status()), 1000, cluster.watch(0, 20_000), [])
    frame = frames.add(Look(2.0, cluster.status()), 2000, cluster.watch(1, 2_000), [])
    assert {len(column) for column in frame["engines"].values()} == {1000}
    assert (frame["cluster"]["up"], frame["cluster"]["engines"]) == (998, 1000)
    assert [death["engine"] for death in frame["deaths"]] == [3, 640]
    assert "memory ran out" in frame["deaths"][0]["reason"]
    hosts = {host["name"]: (host["engines"], host["up"]) for host in frame["hosts"]}
    assert len(hosts) == 20
    assert (hosts["node00"], hosts["node01"], hosts["node12"]) == ((50, 49), (50, 50), (50, 49))
    assert len(json.dumps(frame, separators=(",", ":"))) < 250_000


def function(tag: int, tasks: int, unfinished: int) -> dict:
    return {"name": f"f{tag}", "tag": tag, "tasks": tasks, "errors": 0, "total_ns": tasks, "unfinished": unfinished}


def test_progress_is_that_since_a_function_had_no_unfinished_tasks() -> None:
    progress = Progress()
    assert progress.rows([function(1, 0, 100)], 10.0) == [
        {"name": "f1", "done": 0, "total": 100, "failed": 0, "per_s": None, "left_s": None}
    ]
    (row,) = progress.rows([function(1, 20, 80)], 12.0)
    assert (row["done"], row["total"], row["per_s"], row["left_s"]) == (20, 100, 10, 8)
    assert progress.rows([function(1, 100, 0)], 14.0) == []
    # A second map of the function, and one of another.
    rows = progress.rows([function(1, 110, 90), function(2, 0, 300)], 16.0)
    assert [(row["name"], row["done"], row["total"]) for row in rows] == [("f2", 0, 300), ("f1", 10, 100)]


def test_the_rate_of_a_function_is_that_of_the_last_seconds() -> None:
    progress = Progress()
    for second in range(60):
        (row,) = progress.rows([function(1, second if second < 40 else 40 + 5 * (second - 40), 1000)], float(second))
    assert row["per_s"] == 5


def failure(text: str) -> dict:
    at_ns = 1_700_000_000_000_000_000
    counts = {"tasks": 2, "items": 5, "engine": 3}
    return {"function": "f", "tag": 9, **counts, "first_ns": at_ns, "last_ns": at_ns, "text": text}


def test_errors_are_described_as_far_as_engines_describe_them() -> None:
    now_s = 1_700_000_004.0
    told = {
        "ename": "ValueError",
        "evalue": "no",
        "item": "3",
        "item_index": 1,
        "file": "/a.py",
        "line": 7,
        "source": "f(x)",
    }
    (row,) = error_rows([failure(json.dumps(told))], now_s)
    assert {name: row[name] for name in told} == told
    assert (row["items"], row["tasks"], row["engine"], row["ago_s"]) == (5, 2, 3, 4)
    assert error_sentence(row) == "ValueError: no in f, 5 times, first for 3, last on engine 3\n  /a.py, line 7: f(x)"
    # What is no description, or one with values of other kinds, does no harm.
    for text in ("", "[1]", "{", json.dumps({"ename": 3, "line": "x", "item_index": "a", "traceback": None})):
        (row,) = error_rows([failure(text)], now_s)
        assert (row["ename"], row["line"], row["item_index"], row["traceback"]) == ("error", 0, None, "")
        assert error_sentence(row) == "error in f, 5 times, last on engine 3"


def test_of_a_cell_only_its_session_knows_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    file = "/tmp/ipykernel_7/123.py"
    trace = (
        f'Traceback (most recent call last):\n  File "{file}", line 2, in f\n  File "/a.py", line 1, in g\nValueError'
    )
    told = {"ename": "ValueError", "file": file, "line": 2, "source": "", "traceback": trace}
    (row,) = error_rows([failure(json.dumps(told))], 0.0)
    assert (row["source"], row["traceback"]) == ("", trace)
    monkeypatch.setitem(linecache.cache, file, (9, None, ["def f():\n", "    g(1)\n"], file))
    monkeypatch.setitem(linecache.cache, "/a.py", (9, 12.5, ["no cell\n"], "/a.py"))
    (row,) = error_rows([failure(json.dumps(told))], 0.0)
    assert row["source"] == "g(1)"
    assert row["traceback"] == trace.replace("in f\n", "in f\n    g(1)\n")
    shells = pytest.importorskip("IPython")
    shell = SimpleNamespace(
        compile=SimpleNamespace(format_code_name=lambda name: ("Cell", "In[3]") if name == file else None)
    )
    monkeypatch.setattr(shells, "get_ipython", lambda: shell)
    (row,) = error_rows([failure(json.dumps(told))], 0.0)
    assert row["file"] == "Cell In[3]"
    assert 'File "Cell In[3]", line 2, in f\n    g(1)\n  File "/a.py", line 1' in row["traceback"]


def test_tasks_and_other_events_are_told_apart() -> None:
    start_ns = 1_700_000_000_000_000_000
    news = NOTHING | {
        "names": {"7": "work"},
        "events": [
            ["engine_up", start_ns, 0, 3, 4711, 0],
            ["task", start_ns, start_ns + 2_500_000, 3, 0, 7, [4_000_000, 1_500, 17, 4096]],
            ["failed_task", start_ns, start_ns + 1_000, 2, 0, 8],
            # A clock that went backwards.
            ["task", start_ns, start_ns - 5, 1, 0, 7],
        ],
    }
    tasks, lines = split_events(news)
    start_ms = start_ns / 1e6
    assert [task[:5] for task in tasks] == [
        [3, start_ms, 2.5, "work", 0],
        [2, start_ms, 0.001, "", 1],
        [1, start_ms, 0.0, "work", 0],
    ]
    assert [task[5:] for task in tasks] == [[4.0, 0.002, 17, 4096], [None] * 4, [None] * 4]
    assert lines == [[start_ms, "engine 3 came up (pid 4711)"]]


def test_throughput_before_the_first_look_is_that_of_the_tasks() -> None:
    # Engine, start and length in ms, name, whether it failed; the second from 1,000 s on may lack some.
    tasks = [[0, 1_000_000 + at, 100, "f", int(at == 1_500)] for at in (0, 1_000, 1_500, 1_950, 3_000)]
    points = past_throughput(tasks, 1_004_200)
    assert [point[:3] for point in points] == [[1_002_000, 2, 1], [1_003_000, 1, 0], [1_004_000, 1, 0]]
    assert past_throughput([], 1_004_200) == []


def ended(at_s: float, failed: bool = False) -> list:
    """The event of a task that ended then."""
    return ["failed_task" if failed else "task", round(at_s * 1e9) - 1_000_000, round(at_s * 1e9), 0, 0, 1]


def watched(frames: Frames, at_s: float, done: int, events: list, recorded: int, *, is_after_gap: bool = False) -> dict:
    """The frame of an update at a time at which so many tasks were done."""
    told = SimulatedCluster(1, idle=True).status()
    told["controller"]["resolved"] |= {"ok": done}
    news = NOTHING | {"events": events, "recorded": recorded}
    return frames.add(Look(at_s, told), at_s * 1e3, news, [], is_after_gap)


def test_a_time_that_nobody_watched_is_told_by_its_events() -> None:
    frames = Frames()
    watched(frames, 1000.0, 0, [], 0)
    watched(frames, 1001.0, 50, [], 50)
    # Ten seconds in which no page was open; 40 tasks ended in them, and nothing was asked.
    events = [ended(1003.5 + i / 100) for i in range(30)] + [ended(1007.2 + i / 100, i == 0) for i in range(10)]
    frame = watched(frames, 1011.0, 90, events, 40, is_after_gap=True)
    points = {point[0]: point[1:] for point in frame["points"]}
    # The line of what was sampled before ends.
    assert points.pop(1_001_001) == [None] * 6
    last = points.pop(1_011_000)
    assert last == [None, None, None, None, 0, 0], "the mean of ten seconds is no figure of now"
    assert list(points) == [1_000 * second for second in range(1003, 1012) if second * 1000 != 1_011_000]
    assert {time: figures[0] for time, figures in points.items() if figures[0]} == {1_004_000: 30, 1_008_000: 10}
    assert [figures[1] for time, figures in points.items() if time == 1_008_000] == [1]
    assert all(figures[2:] == [None] * 4 for figures in points.values()), "only tasks are known"
    times = [point[0] for point in frames.history()["series"]]
    assert times == sorted(times)
    # Rates go on from there.
    assert watched(frames, 1012.0, 95, [], 5)["point"][1] == 5


def test_nothing_is_drawn_where_events_are_lost() -> None:
    frames = Frames()
    watched(frames, 1000.0, 0, [], 0)
    watched(frames, 1001.0, 0, [], 0)
    # The ring has lost all but those of the last seconds, of which the first may be incomplete.
    frame = watched(frames, 1020.0, 900, [ended(1017.5 + i / 100) for i in range(100)], 900, is_after_gap=True)
    assert [point[:2] for point in frame["points"]] == [
        [1_001_001, None], [1_019_000, 50], [1_020_000, 0], [1_020_000, None],
    ]  # fmt: skip


class Clock:
    """The times that a feed reads."""

    def __init__(self) -> None:
        self.monotonic_s = 100.0
        self.wall_s = 1_700_000_000.0

    def monotonic(self) -> float:
        return self.monotonic_s

    def time(self) -> float:
        return self.wall_s

    def pass_s(self, seconds: float, asleep_s: float = 0.0) -> None:
        self.monotonic_s += seconds
        self.wall_s += seconds + asleep_s


@pytest.mark.parametrize(("awake_s", "asleep_s"), [(60.0, 0.0), (1.0, 3600.0)])
def test_a_feed_knows_that_it_did_not_ask(monkeypatch: pytest.MonkeyPatch, awake_s: float, asleep_s: float) -> None:
    """No page was open, or the machine slept."""
    clock = Clock()
    monkeypatch.setattr(feed_module, "time", clock)
    feed = Feed(SimulatedCluster(2, idle=True), 1.0, 0.01)
    asked = []
    for seconds, sleep in ((0.0, 0.0), (1.0, 0.0), (1.2, 0.0), (awake_s, asleep_s), (1.0, 0.0)):
        clock.pass_s(seconds, sleep)
        asked.append(feed._look()["points"])
    # Those after the first and after the gap have no rates, and a line ends before the gap.
    assert [points[-1][1] is None for points in asked] == [True, False, False, True, False]
    assert [any(point[1:] == [None] * 6 for point in points) for points in asked] == [False] * 3 + [True, False]


def test_what_is_remembered_is_bounded() -> None:
    frames = Frames()
    event = ["task", 10**18, 10**18 + 5, 0, 0, 1]
    for at_s in range(1, 14):
        news = NOTHING | {"events": [event] * 2_000, "recorded": 2_500}
        frame = frames.add(Look(at_s, SimulatedCluster(1, idle=True).status()), at_s * 1e3, news, ["line"] * 90)
    assert frame["untold"] == 500
    history = frames.history()
    assert len(history["tasks"]["engine"]) == HISTORY_TASKS
    assert len(history["lines"]) == 500


def test_looks_are_further_apart_where_answers_take_long() -> None:
    assert interval_s(1.0, 0.01, []) == 1.0
    assert interval_s(1.0, 0.01, [0.001, 0.5]) == 1.0
    # Other work came first in all but the shortest.
    assert interval_s(1.0, 0.01, [0.3, 0.02, 0.1]) == 2.0
    assert interval_s(1.0, 0.01, [5.0]) == 10.0


@pytest.mark.timeout(120)
def test_a_page_that_reads_slowly_gets_the_history_anew() -> None:
    cluster = SimulatedCluster(1, idle=True)

    async def read_slowly() -> tuple[list[str], list[str], int]:
        feed = Feed(cluster, 0.001, 1.0)
        looking = asyncio.create_task(feed.run())
        stream = feed.stream()
        assert (await anext(stream)).startswith("event: history")
        while cluster.n_looks < 30:
            await asyncio.sleep(0.01)
        read = [await anext(stream) for _ in range(12)]
        feed.close()
        rest = [event async for event in stream]
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        return [event.split("\n")[0] for event in read], rest, feed.n_watchers

    kinds, rest, n_watchers = asyncio.run(read_slowly())
    assert kinds[0] == "event: history"
    assert "event: look" in kinds
    assert len(rest) <= 8
    assert (n_watchers, cluster.n_connected) == (0, 0)
