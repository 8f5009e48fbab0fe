"""The dashboard of a running cluster."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import broadleaf as ipp
import pytest
from broadleaf.dashboard import jupyter
from broadleaf.dashboard.server import Dashboard
from event_stream import EventStream, ask, token_of
from simulated_cluster import SimulatedCluster
from waiting import until

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def url(cluster: ipp.Cluster) -> Iterator[str]:
    dashboard = Dashboard(cluster, interval_s=0.1, max_share=1.0)
    yield dashboard.url
    dashboard.close()


def square(x: int) -> int:
    return x * x


def cube(x: int) -> int:
    return x**3


def fail_on_seven(x: int) -> int:
    if x == 7:
        raise ValueError(x)
    return x


def wait_for(path: str) -> None:
    import os
    import time

    while not os.path.exists(path):
        time.sleep(0.01)


def named(frame: dict, name: str) -> dict:
    return next((f for f in frame["functions"] if f["name"] == name), {"tasks": 0})


def tasks_of(frames: list[dict], name: str) -> list[tuple[int, int]]:
    """(engine, whether it failed) of each task of a function that frames report."""
    columns = [frame["tasks"] for frame in frames]
    return [
        (engine, failed)
        for c in columns
        for engine, failed, n in zip(c["engine"], c["failed"], c["name"], strict=True)
        if c["names"][n] == name
    ]


def test_what_ran_is_told(rc: ipp.Client, url: str) -> None:
    view = rc.load_balanced_view()
    frames: list[dict] = []
    with EventStream(url) as stream:
        stream.until(lambda frame: frame["cluster"]["up"] == 4)
        assert sum(view.map_sync(cube, range(200), chunksize=1)) == sum(x**3 for x in range(200))
        with pytest.raises(ipp.CompositeError):
            view.map_sync(fail_on_seven, range(20), chunksize=1)

        completed = sum(engine["completed"] for engine in rc.cluster.status_sync()["engines"])

        def is_all(kind: str, frame: dict) -> bool:
            # A page that has not read for long gets everything again.
            frames[:] = [frame] if kind == "history" else [*frames, frame]
            tasks = [len(tasks_of(frames, name)) for name in ("cube", "fail_on_seven")]
            # The table of engines may be from before the last tasks.
            return kind == "look" and tasks == [200, 20] and sum(frame["engines"]["completed"]) == completed

        event = stream.next()
        while event is not None and not is_all(*event):
            event = stream.next()
        assert event is not None
        last = event[1]
    assert named(last, "cube")["tasks"] == 200
    assert sorted(failed for _, failed in tasks_of(frames, "fail_on_seven")) == [0] * 19 + [1]
    assert {engine for engine, _ in tasks_of(frames, "cube")} <= {0, 1, 2, 3}
    assert (named(last, "fail_on_seven")["tasks"], named(last, "fail_on_seven")["errors"]) == (20, 1)
    assert 0 < named(last, "cube")["max_ns"] <= named(last, "cube")["total_ns"]
    engines = last["engines"]
    assert (engines["id"], engines["state"]) == ([0, 1, 2, 3], ["up"] * 4)
    assert engines["pid"] == [pid for _, _, pid, _ in sorted(rc.link.engines())]
    assert all(memory > 1_000_000 for memory in engines["memory_bytes"])
    assert sum(engines["completed"]) == sum(engine["completed"] for engine in rc.cluster.status_sync()["engines"])
    host = last["hosts"][0]
    assert (len(last["hosts"]), host["engines"], host["up"]) == (1, 4, 4)
    assert last["cluster"]["resolved"]["ok"] >= 219
    assert last["transfers"] == []


def test_a_task_is_told_from_its_receipt_to_its_value(rc: ipp.Client, url: str) -> None:
    def hold(block: bytes) -> bytes:
        import time

        time.sleep(0.3)
        return block * 2

    rc.load_balanced_view(targets=[0]).map_sync(hold, [b"a" * 1_000, b"b" * 300_000], chunksize=1)
    with EventStream(url) as stream:
        frame = stream.until(lambda frame: "hold" in frame["tasks"]["names"])
    tasks = frame["tasks"]
    of_hold = [i for i, name in enumerate(tasks["name"]) if tasks["names"][name] == "hold"]
    first, second = sorted(of_hold, key=lambda i: tasks["start"][i])
    for i, n in ((first, 1_000), (second, 300_000)):
        assert n <= tasks["in"][i] < n + 1_000
        assert 2 * n <= tasks["out"][i] < 2 * n + 1_000
        # Here all clocks are one.
        assert tasks["received"][i] >= tasks["sent"][i] > 0
    # The second came before the first had ended.
    came = [tasks["start"][i] - tasks["received"][i] for i in (first, second)]
    assert abs(came[1] - came[0]) < tasks["ms"][first]


def test_a_page_that_comes_later_is_told_what_was(rc: ipp.Client, url: str) -> None:
    rc[:].apply_sync(square, 3)
    with EventStream(url) as stream:
        # Those of the first answer's events, or of the answer after these tasks.
        frames = []

        def has_come(frame: dict) -> bool:
            frames.append(frame)
            return named(frame, "square")["tasks"] > 0 and len(tasks_of(frames, "square")) > 0

        if not tasks_of([(stream.next() or ("", {}))[1]], "square"):
            stream.until(has_come)
    with EventStream(url) as stream:
        kind, history = stream.next() or ("", {})
    assert kind == "history"
    assert history["cluster"] == rc.cluster.cluster_id
    assert history["look"]["cluster"]["up"] == 4
    assert len(history["series"]) > 0
    assert len(tasks_of([history], "square")) > 0
    assert any("came up" in text for _, text in history["lines"])


def test_what_runs_is_told_by_name(rc: ipp.Client, url: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    result = rc[2].apply_async(wait_for, str(go))
    with EventStream(url) as stream:
        frame = stream.until(lambda frame: frame["engines"]["task"][2] is not None)
        assert frame["engines"]["task"] == [None, None, "wait_for", None]
        assert frame["engines"]["for_ms"][2] >= 0
        assert frame["cluster"]["running"] == 1
        longer = stream.until(lambda later: later["engines"]["for_ms"][2] > frame["engines"]["for_ms"][2])
        assert longer["engines"]["task"][2] == "wait_for"
        go.touch()
        result.get(timeout=60)
        stream.until(lambda frame: frame["engines"]["task"] == [None] * 4)


def test_a_queue_is_told(rc: ipp.Client, url: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    results = [rc.load_balanced_view().apply_async(wait_for, str(go)) for _ in range(50)]
    with EventStream(url) as stream:

        def all_are_there(frame: dict) -> bool:
            # Engines have received some of the fifty; the others wait.
            queued = frame["cluster"]["waiting"] + sum(frame["engines"]["outstanding"])
            return queued == 50 and frame["cluster"]["running"] == 4

        frame = stream.until(all_are_there)
        assert frame["point"][5] == frame["cluster"]["waiting"] > 0
        go.touch()
        assert rc.wait(results, timeout=60)
        stream.until(lambda f: f["cluster"]["waiting"] + sum(f["engines"]["outstanding"]) == 0)


def test_a_death_is_told_with_its_certificate() -> None:
    with ipp.Cluster(n=2) as rc:
        cluster = rc.cluster
        result = rc[1].apply_async(os.kill, 0, 0)
        result.get(timeout=60)
        pid = rc[1].apply_sync(os.getpid)
        with Dashboard(cluster, interval_s=0.1, max_share=1.0) as dashboard, EventStream(dashboard.url) as stream:
            assert stream.until(bool)["deaths"] == []
            os.kill(pid, signal.SIGKILL)
            frame = stream.until(lambda frame: frame["deaths"])
            death = frame["deaths"][0]
            assert (death["engine"], death["pid"], death["asked_for"]) == (1, pid, False)
            assert death["reason"] == "was ended by signal 9 (SIGKILL)"
            assert frame["engines"]["state"][1] != "up"
            assert frame["cluster"]["up"] == 1
            cluster.restart_engines_sync(1)
            frame = stream.until(lambda frame: frame["cluster"]["up"] == 2)
            assert frame["engines"]["restarts"] == [0, 1]
            assert frame["deaths"][0]["state"] == "up"


def test_broadcasts_are_told_as_they_travel() -> None:
    np = pytest.importorskip("numpy")
    cluster = ipp.Cluster(n=1, listen="127.0.0.1:0")
    cluster.start_cluster_sync()
    relays = [ipp.Relay(cluster.relay_file, 1, name=f"host{i}") for i in range(2)]
    try:
        with cluster.connect_client_sync() as rc, Dashboard(cluster, interval_s=0.1, max_share=1.0) as dashboard:
            rc.wait_for_engines(3, timeout=60)
            data = np.arange(500_000.0)
            rc[:].push({"a": data}, block=True)
            with EventStream(dashboard.url) as stream:
                frame = stream.until(lambda frame: any(t["len_bytes"] >= data.nbytes for t in frame["transfers"]))
                names = {host["name"]: host["host"] for host in frame["hosts"]}
                transfer = next(t for t in frame["transfers"] if t["len_bytes"] >= data.nbytes)
                origin, *stops = transfer["stops"]
                assert (origin["host"], origin["parent"]) == (0, 0)
                assert sorted(stop["host"] for stop in stops) == sorted((names["host0"], names["host1"]))
                assert all(stop["have_bytes"] == transfer["len_bytes"] and stop["took_ns"] > 0 for stop in stops)
                assert not any(stop["gone"] for stop in stops)
                before = [0]
                for stop in stops:
                    assert stop["parent"] in before
                    before.append(stop["host"])
            # It is reported even when nobody needs it any more.
            rc[:].clear(block=True)
            with EventStream(dashboard.url) as stream:
                frame = stream.until(bool)
                assert transfer["object"] in [t["object"] for t in frame["transfers"]]
    finally:
        cluster.stop_cluster_sync()
        for relay in relays:
            relay.wait(30)
            relay.stop()


def test_a_cluster_that_stops_is_told() -> None:
    cluster = ipp.Cluster(n=1)
    cluster.start_cluster_sync()
    with Dashboard(cluster, interval_s=0.1, max_share=1.0) as dashboard, EventStream(dashboard.url) as stream:
        stream.until(bool)
        cluster.stop_cluster_sync()
        assert "clos" in (why := stream.until(bool, "lost")["why"]) or "stopped" in why


def test_the_dashboard_of_a_cluster_ends_with_it() -> None:
    cluster = ipp.Cluster(n=1)
    cluster.start_cluster_sync()
    dashboard = cluster.dashboard
    assert cluster.dashboard is dashboard
    assert not dashboard.running, "it is not served before somebody asks for its address"
    url = dashboard.url
    assert url in repr(dashboard)
    shown = dashboard._repr_html_()
    assert f'href="{url}"' in shown
    port = urlsplit(url).port
    assert f"ssh -L {port}:127.0.0.1:{port} {socket.gethostname()}" in shown, "for a notebook on another machine"
    stream = EventStream(url)
    stream.until(bool)
    cluster.stop_cluster_sync()
    assert not dashboard.running
    while stream.next() is not None:
        pass
    stream.close()
    with pytest.raises(ConnectionRefusedError):
        ask(url, "/")


def test_nothing_is_asked_of_a_cluster_that_nobody_watches() -> None:
    cluster = SimulatedCluster(1, idle=True)
    with Dashboard(cluster, interval_s=0.01, max_share=1.0) as dashboard:
        assert ask(dashboard.url, f"/?token={token_of(dashboard.url)}")[0] == 200
        assert cluster.n_looks == 0
        with EventStream(dashboard.url) as stream:
            stream.until(bool)
            assert cluster.n_connected == 1
        assert until(lambda: cluster.n_connected == 0, 60), "the connection to the cluster is given up"
        looks = cluster.n_looks
        with EventStream(dashboard.url) as stream:
            assert (stream.next() or ("",))[0] == "history"
            stream.until(bool)
        assert cluster.n_looks > looks


def test_nothing_is_left_behind(cluster: ipp.Cluster) -> None:
    def held() -> tuple[int, list[str]]:
        return len(os.listdir("/proc/self/fd")), sorted(thread.name for thread in threading.enumerate())

    def round_trip() -> None:
        dashboard = Dashboard(cluster, interval_s=0.05, max_share=1.0)
        streams = [EventStream(dashboard.url) for _ in range(5)]
        for stream in streams:
            stream.until(bool)
        # Some leave before the end, some remain.
        for stream in streams[:2]:
            stream.close()
        dashboard.close()
        dashboard.close()
        for stream in streams[2:]:
            while stream.next() is not None:
                pass
            stream.close()
        assert not dashboard.running

    round_trip()
    before = held()
    for _ in range(10):
        round_trip()

    def is_clean() -> bool:
        descriptors, threads = held()
        # Fewer if the dashboard of other tests has closed its connection meanwhile.
        return descriptors <= before[0] and threads == before[1]

    assert until(is_clean, 30), f"{before} before, {held()} now"


def test_the_command_prints_the_address_and_ends_by_ctrl_c(cluster: ipp.Cluster) -> None:
    command = [sys.executable, "-m", "broadleaf", "dashboard", "--cluster-id", cluster.cluster_id, "--interval", "0.1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32,}", url)
        with EventStream(url) as stream:
            assert stream.until(bool)["engines"]["id"] == [0, 1, 2, 3]
            process.send_signal(signal.SIGINT)
            while stream.next() is not None:
                pass
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.communicate()


def test_jupyter_server_proxy_starts_the_command_that_there_is(cluster: ipp.Cluster, tmp_path: Path) -> None:
    asked = jupyter.server()
    path = tmp_path / "proxy.sock"
    command = [word.format(unix_socket=path) for word in asked["command"]]
    assert asked["unix_socket"] is True
    process = subprocess.Popen([*command, "--cluster-id", cluster.cluster_id], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == f"unix:{path}"
        assert b"<title>Broadleaf</title>" in ask(f"unix:{path}", "/")[2]
        # The page finds its parts below whatever address the proxy gives it.
        assert not re.search(rb'(?:src|href)="/', ask(f"unix:{path}", "/")[2])
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert not path.exists()


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pages", "doors"):
        monkeypatch.delitem(sys.modules, f"broadleaf.dashboard.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "tornado.httpserver", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'broadleaf\[dashboard\]'"):
        Dashboard(SimulatedCluster(1)).start()
