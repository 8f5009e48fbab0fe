"""Clients whose controller is killed and started again: the same clients, views and results go on."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import broadleaf as ipp
import pytest
from waiting import until

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore::broadleaf.cluster.addresses.PlaintextWarning"),
]
ENGINES = 2


class Killable:
    """A cluster whose engines belong to a relay, and whose controller can be killed and started again."""

    def __init__(self, **options: object) -> None:
        settings: dict[str, Any] = {"journal": "on", "listen": "127.0.0.1:0", **options}
        self.cluster = ipp.Cluster(n=0, **settings)
        self.cluster.start_cluster_sync()
        self.clients: list[ipp.Client] = []
        self.relay: ipp.Relay | None = None
        try:
            file = self.cluster.relay_file
            self.relay = ipp.Relay(file, ENGINES, name="elsewhere", client_file=self.cluster.connection_file)
        except BaseException:
            self.close()
            raise

    def connect(self, route: str = "local", **arguments: Any) -> ipp.Client:
        """A client with all engines, through the controller's socket or over TCP."""
        connection = json.loads(Path(self.cluster.connection_file).read_text())
        if route == "far":
            connection |= {"unix_path": None, "transport": "tcp"}
        client = ipp.Client(connection, **arguments)
        self.clients.append(client)
        client.wait_for_engines(ENGINES, timeout=60)
        return client

    def kill(self) -> None:
        """Kills the controller, and waits until its fork server has ended, too."""
        state = json.loads(Path(self.cluster.cluster_file).read_text())["controller"]
        os.kill(state["node_pid"], signal.SIGKILL)
        assert until(lambda: not self.cluster.running), "the fork server has ended"
        for client in self.clients:
            assert until(lambda client=client: client.link_ends[-1].failure), "the client has noticed"

    def resume(self, in_another_process: bool = False) -> None:
        """Starts the controller again."""
        if in_another_process:
            command = ["start", "--resume", "--cluster-id", self.cluster.cluster_id]
            cli = "from broadleaf.cli import main; main()"
            subprocess.run([sys.executable, "-c", cli, *command], check=True, timeout=60, stdout=subprocess.DEVNULL)
            if (former := self.cluster._controller) is not None:
                former.release()  # this process has nothing to do with the next one
            self.cluster = ipp.Cluster.from_file(cluster_id=self.cluster.cluster_id)
        else:
            self.cluster.resume_controller_sync()

    def restart(self) -> None:
        self.kill()
        self.resume()

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.cluster.stop_cluster_sync()
        if self.relay is not None:
            self.relay.stop()


@pytest.fixture
def killable() -> Iterator[Callable[..., Killable]]:
    """Makes clusters whose controllers can be killed."""
    made: list[Killable] = []

    def make(**options: object) -> Killable:
        made.append(Killable(**options))
        return made[-1]

    try:
        yield make
    finally:
        for one in made:
            one.close()


def wait_for(path: str) -> None:
    """Returns once there is such a file."""
    import os
    import time

    while not os.path.exists(path):
        time.sleep(0.01)


def error_of(result: Any) -> str:
    """Why a result is lost."""
    with pytest.raises(ipp.LinkLost) as lost:
        result.get(timeout=30)
    assert lost.value.task_started is None
    return str(lost.value)


class Awaited:
    """Counts how often a client was connected again."""

    def __init__(self, client: ipp.Client) -> None:
        self.n = threading.Semaphore(0)
        client.on_reconnect(self.n.release)

    def wait(self) -> None:
        assert self.n.acquire(timeout=60), "the client is connected again"


@pytest.mark.parametrize(("route", "tls"), [("local", "on"), ("far", "on"), ("far", "off")])
def test_the_same_client_and_views_go_on(killable, tmp_path, route, tls):
    np = pytest.importorskip("numpy")
    made = killable(tls=tls)
    rc = made.connect(route)
    again = Awaited(rc)
    direct, first, balanced = rc[:], rc[0], rc.load_balanced_view()
    broadcast = rc.broadcast_view(coalescing=True)
    executor = rc.executor()
    limited = rc.load_balanced_view(timeout=0.2, retries=1, label="limited")

    def square(x: int) -> int:
        return x * x

    direct.push({"kept": 41}, block=True)
    processes = direct.apply_sync(os.getpid)
    assert balanced.map_sync(square, range(20)) == [i * i for i in range(20)]
    assert list(executor.map(square, range(3))) == [0, 1, 4]
    assert limited.apply_sync(square, 3) == 9
    arrived = first.apply_async(lambda: np.arange(400_000))
    small = first.apply_async(lambda: "small")
    arrived.wait(60)
    small.wait(60)
    id_before = arrived.msg_ids[0]
    gate = tmp_path / "gate"
    unresolved = [direct.apply_async(wait_for, str(gate)), balanced.map_async(wait_for, [str(gate)])]
    unread = direct.apply_async(abs, 1)
    assert until(lambda: all(rc.queue_status(engine)["tasks"] == 1 for engine in rc.ids))
    made.kill()
    for result in unresolved:
        assert re.search(r"resume_controller_sync.*on_reconnect", error_of(result))
    assert not rc.closed
    made.resume()
    again.wait()
    # What was running still occupies its engines.
    gate.touch()
    assert sorted(rc.ids) == [0, 1]
    assert direct["kept"] == [41] * ENGINES
    assert direct.apply_sync(os.getpid) == processes
    assert first.apply_sync(square, 7) == 49
    assert balanced.map_sync(square, range(200)) == [i * i for i in range(200)]
    assert list(executor.map(square, range(3))) == [0, 1, 4]
    assert broadcast.apply_sync(square, ipp.Reference("kept")) == [41 * 41] * ENGINES
    assert (arrived.get() == np.arange(400_000)).all()
    assert small.get() == "small"
    data = np.arange(300_000)
    rc.broadcast(data, "data")
    assert direct.apply_sync(lambda array: int(array.sum()), ipp.Reference("data")) == [int(data.sum())] * ENGINES
    assert (first["data"] == data).all()
    parts = direct.scatter("part", list(range(10)))
    parts.get(timeout=60)
    assert direct.gather("part").get(timeout=60) == list(range(10))
    with pytest.raises(ipp.TaskTimeout):
        limited.apply_sync(time.sleep, 60)
    late = balanced.apply_async(square, 2)
    assert late.get(timeout=60) == 4
    assert late.msg_ids[0] != id_before
    assert arrived.msg_ids == [id_before], "ids stay"
    assert rc.tasks.seq_of(id_before) == arrived.seq
    assert "connected to the one that was started in its place" in error_of(unread)
    assert rc.db_query({"msg_id": late.msg_ids[0]}, keys=["status"])[0]["status"] == "ok"


def test_asyncio_and_joblib_go_on(killable):
    made = killable()
    rc = made.connect()
    again = Awaited(rc)
    view = rc.load_balanced_view()

    async def several() -> list[int]:
        return list(await asyncio.gather(*(view.apply_async(pow, i, 2) for i in range(20))))

    assert asyncio.run(several()) == [i**2 for i in range(20)]
    joblib = pytest.importorskip("joblib")
    view.register_joblib_backend("broadleaf-restarted")
    parallel = joblib.Parallel(backend="broadleaf-restarted", n_jobs=-1)
    assert parallel(joblib.delayed(pow)(i, 2) for i in range(50)) == [i**2 for i in range(50)]
    made.restart()
    again.wait()
    assert asyncio.run(several()) == [i**2 for i in range(20)]
    assert parallel(joblib.delayed(pow)(i, 2) for i in range(50)) == [i**2 for i in range(50)]


@pytest.mark.parametrize("route", ["local", "far"])
def test_calls_made_meanwhile_wait(killable, route):
    made = killable()
    rc = made.connect(route)
    rc[:].push({"kept": 41}, block=True)
    made.kill()
    answers: list[Any] = []

    def call() -> None:
        answers.append(rc[:].apply_sync(abs, ipp.Reference("kept")))
        answers.append(len(rc.db_query({}, keys=["msg_id"])) > 0)

    threads = [threading.Thread(target=call), threading.Thread(target=lambda: rc.wait_for_engines(2, timeout=60))]
    for thread in threads:
        thread.start()
    with pytest.raises(TimeoutError):
        rc.wait_for_engines(2, timeout=0.2)
    with pytest.raises(TimeoutError, match="not started again"):
        rc.request("QueueStatus", timeout=0.2)
    assert not answers
    made.resume(in_another_process=True)
    for thread in threads:
        thread.join(60)
    assert answers == [[41] * ENGINES, True]


def test_ctrl_c_ends_a_call_that_waits(killable):
    made = killable()
    rc = made.connect()
    made.kill()
    waits = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    waits.start()
    with pytest.raises(KeyboardInterrupt):
        rc[0].apply_sync(abs, -1)
    waits.join()
    made.resume()
    assert rc[0].apply_sync(abs, -1) == 1


def test_it_may_happen_again(killable):
    made = killable()
    rc = made.connect()
    again = Awaited(rc)
    rc[:].push({"kept": 41}, block=True)
    view = rc.load_balanced_view()
    results = []
    for n in range(3):
        results.append(view.apply_async(abs, -n))
        results[-1].wait(60)
        made.restart()
        again.wait()
        assert rc[:]["kept"] == [41] * ENGINES
        assert view.map_sync(abs, range(-20, 0)) == list(range(20, 0, -1))
    assert [result.get() for result in results] == [0, 1, 2]
    ids = [result.msg_ids[0] for result in results]
    assert len(set(ids)) == 3
    assert len({re.sub(r"_\d+$", "", one) for one in ids}) == 3


def test_engines_have_modules_and_preparations_once(killable, tmp_path, monkeypatch):
    module = tmp_path / "sent_before.py"
    module.write_text("import os\nloads = []\ndef me():\n    loads.append(1)\n    return len(loads)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import sent_before  # type: ignore[import-not-found]

    made = killable()
    rc = made.connect()
    again = Awaited(rc)
    log = str(tmp_path / "joined")

    def joins() -> None:
        with open(log, "a") as file:
            print("joined", file=file)

    rc.ship_module(sent_before)
    rc.on_join(joins)
    assert rc[:].apply_sync(sent_before.me) == [1] * ENGINES
    made.restart()
    again.wait()
    assert rc[:].apply_sync(sent_before.me) == [2] * ENGINES, "the module is as it was"
    assert Path(log).read_text().split() == ["joined"] * ENGINES
    rc.cluster = made.cluster
    # An engine that joins the next controller gets both.
    other = ipp.Relay(made.cluster.relay_file, 1, name="later")
    try:
        rc.wait_for_engines(ENGINES + 1, timeout=60)
        assert rc[-1].apply_sync(sent_before.me) == 1
        assert Path(log).read_text().split() == ["joined"] * (ENGINES + 1)
    finally:
        other.stop()


def test_local_modules_are_shipped_to_the_next_controller(killable, tmp_path, monkeypatch):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "found_here_only.py").write_text("def twice(x):\n    return 2 * x\n")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    made = killable(ship_local_modules=True)
    import found_here_only  # type: ignore[import-not-found]

    rc = made.connect()
    again = Awaited(rc)
    assert rc[:].apply_sync(found_here_only.twice, 4) == [8] * ENGINES
    made.restart()
    again.wait()
    assert rc[:].apply_sync(found_here_only.twice, 4) == [8] * ENGINES


def test_without_a_journal_it_is_closed(killable):
    made = killable(journal="off")
    rc = made.connect()
    made.kill()
    assert until(lambda: rc.closed)
    with pytest.raises(ipp.LinkLost):
        rc[0].apply_sync(abs, -1)


def test_a_cluster_that_stops_is_not_awaited(killable):
    made = killable()
    rc = made.connect()
    made.cluster.stop_cluster_sync()
    assert until(lambda: rc.closed, 1.0)


def test_it_is_closed_if_nobody_comes(killable):
    made = killable(rejoin_timeout_s=1.5)
    rc = made.connect()
    view = rc.load_balanced_view()
    unresolved = view.apply_async(time.sleep, 2)
    made.kill()
    assert not rc.closed
    with pytest.raises(ipp.LinkLost):
        view.apply_sync(abs, -1)
    assert until(lambda: rc.closed)
    with pytest.raises(ipp.LinkLost):
        view.apply_sync(abs, -1)
    with pytest.raises(ipp.LinkLost, match="Restart the cluster"):
        unresolved.get()


def link_threads() -> list[str]:
    names = []
    for thread in os.listdir("/proc/self/task"):
        with suppress(FileNotFoundError):  # it has ended
            names.append(Path(f"/proc/self/task/{thread}/comm").read_text().strip())
    return [name for name in names if name.startswith("broadleaf")]


def test_a_client_that_is_closed_while_it_dials_leaves_nothing(killable):
    made = killable()
    before = len(link_threads())
    rc = made.connect()
    made.kill()

    def call() -> None:
        with pytest.raises(ipp.LinkLost):
            rc[0].apply_sync(abs, -1)

    waiting = threading.Thread(target=call)
    waiting.start()
    rc.close()
    assert rc.closed
    waiting.join(30)
    assert not waiting.is_alive()
    assert until(lambda: len(link_threads()) <= before), link_threads()
