"""A controller that is killed and started again between processes on different hosts."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from pathlib import Path

import broadleaf as ipp
import pytest
from bed.network import HostedCluster, wait_until
from broadleaf.cluster.steward import StewardProcess

pytestmark = pytest.mark.timeout(180)


def controller_pid(cluster: HostedCluster) -> int:
    return int(json.loads(Path(cluster.cluster.connection_file).read_text())["pid"])


def kill_controller(cluster: HostedCluster) -> None:
    """With its steward, which would start it again."""
    if cluster.cluster.settings["journal"] != "off":
        steward = StewardProcess(cluster.cluster.cluster_dir)
        wait_until(lambda: steward.pid() is not None, 20, "the steward looks after it")
        pid = steward.pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: steward.pid() is None, 20, "the steward has ended")
    fork_server = json.loads(Path(cluster.cluster.cluster_file).read_text())["controller"]["fork_server_pid"]
    os.kill(controller_pid(cluster), signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{fork_server}").exists(), 20, "the fork server has ended, too")


def resume(cluster: HostedCluster) -> ipp.Client:
    start = cluster.network.start(
        cluster.network.hosts[0], "start", "--resume", "--cluster-id", cluster.cluster_id, stdout=-1, text=True
    )
    said, _ = start.communicate(timeout=60)
    assert start.returncode == 0, said
    assert "runs again" in said
    cluster.cluster = ipp.Cluster.from_file(cluster_id=cluster.cluster_id)
    cluster.client = cluster.cluster.connect_client_sync()
    return cluster.client


def processes(client: ipp.Client) -> dict[int, tuple[int, str]]:
    return {engine: (pid, host) for engine, _, pid, host in client.link.engines()}


@pytest.mark.parametrize("tls", ["on", "off"])
@pytest.mark.parametrize("journal", ["on", "sync"])
def test_hosts_come_back_with_their_engines_and_variables(hosted, tls, journal):
    cluster = hosted(2, 2, rate_mbit=None, journal=journal, tls=tls)
    view = cluster.client[:]
    view.push({"kept": 41}, block=True)
    view.execute("import os\nmine = os.getpid()", block=True)
    before, mine = processes(cluster.client), view["mine"]
    kill_controller(cluster)
    client = resume(cluster)
    assert client.ids == [0, 1, 2, 3]
    view = client[:]
    assert view["kept"] == [41] * 4
    assert processes(client) == before
    assert view["mine"] == mine == [pid for pid, _ in before.values()]


def test_the_steward_starts_it_again_and_clients_go_on(hosted):
    cluster = hosted(2, 1, rate_mbit=None, journal="on")
    client = cluster.client
    view, again = client[:], threading.Semaphore(0)
    client.on_reconnect(again.release)
    view.push({"kept": 41}, block=True)
    before = processes(client)
    for _ in range(2):
        # The client may be faster than the file that says where the controller is.
        wait_until(Path(cluster.cluster.connection_file).exists, 30, "the controller is started")
        os.kill(controller_pid(cluster), signal.SIGKILL)
        assert again.acquire(timeout=60)
        assert view["kept"] == [41, 41]
        assert client.load_balanced_view().map_sync(abs, range(-50, 0)) == list(range(50, 0, -1))
    assert processes(client) == before


def test_it_may_happen_again(hosted):
    cluster = hosted(2, 1, rate_mbit=None, journal="on")
    cluster.client[:].push({"kept": 41}, block=True)
    before = processes(cluster.client)
    for _ in range(3):
        kill_controller(cluster)
        client = resume(cluster)
        assert client[:]["kept"] == [41, 41]
        assert client.load_balanced_view().map_sync(abs, range(-50, 0)) == list(range(50, 0, -1))
    assert processes(client) == before


def test_running_tasks_go_on_and_tasks_that_wait_never_run(hosted, tmp_path):
    cluster = hosted(1, 1, rate_mbit=None, journal="on")
    log = tmp_path / "ran"

    def work(i: int, path: str) -> None:
        import time
        from pathlib import Path

        with Path(path).open("a") as file:
            print(i, "begins", file=file)
        until = time.monotonic() + 60
        while i == 0 and not Path(path).with_name("go").exists() and time.monotonic() < until:
            time.sleep(0.01)
        with Path(path).open("a") as file:
            print(i, "ends", file=file)

    results = [cluster.client[0].apply_async(work, i, str(log)) for i in range(5)]
    wait_until(lambda: log.exists() and "begins" in log.read_text(), 30, "the first one runs")
    kill_controller(cluster)
    for result in results:
        with pytest.raises(ipp.BroadleafError):
            result.get(timeout=30)
    client = resume(cluster)
    later = client[0].apply_async(work, 9, str(log))
    wait_until(lambda: cluster.cluster.status_sync()["engines"][0]["state"] == "up", 60, "the host is back")
    assert not later.ready(), "the engine is occupied"
    (tmp_path / "go").touch()
    later.get(timeout=60)
    assert log.read_text().splitlines() == ["0 begins", "0 ends", "9 begins", "9 ends"]


def test_no_task_runs_twice(hosted, tmp_path):
    cluster = hosted(2, 2, rate_mbit=None, journal="on")
    name = str(tmp_path / "ran")

    def work(i: int) -> int:
        import os
        import time

        descriptor = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{i}\n".encode())
        os.close(descriptor)
        time.sleep(0.001)
        return i * i

    result = cluster.client.load_balanced_view().map_async(work, range(5000), chunksize=1)
    wait_until(lambda: result.progress > 50, 60, "tasks run")
    kill_controller(cluster)
    with pytest.raises(ipp.BroadleafError):
        result.get(timeout=30)
    client = resume(cluster)
    again = client.load_balanced_view().map_async(work, range(5000, 7000), chunksize=1)
    assert again.get(timeout=60) == [i * i for i in range(5000, 7000)]
    ran = Counter(map(int, (tmp_path / "ran").read_text().split()))
    assert max(ran.values()) == 1
    assert sum(i >= 5000 for i in ran) == 2000


def test_a_host_that_does_not_come_back_is_lost_in_time(hosted):
    cluster = hosted(2, 1, rate_mbit=None, journal="on", host_timeout_s=1, rejoin_timeout_s=20)
    gone = cluster.engines_of(cluster.network.hosts[1])
    kill_controller(cluster)
    cluster.network.signal(cluster.network.hosts[1], signal.SIGKILL)
    client = resume(cluster)
    waits = client[gone[0]].apply_async(int)
    stays = client[[engine for engine in client.ids if engine not in gone]]
    assert stays.apply(int).get(timeout=30) == [0]
    with pytest.raises(ipp.EngineError, match="host"):
        waits.get(timeout=60)


def test_large_arguments_reach_hosts_that_are_back(hosted):
    np = pytest.importorskip("numpy")
    cluster = hosted(2, 1, rate_mbit=None, journal="on")
    data = np.arange(1_000_000)
    view = cluster.client[:]
    view.push({"first": data}, block=True)
    kill_controller(cluster)
    client = resume(cluster)
    view = client[:]
    sums = view.apply(lambda array: int(array.sum()), data * 2)
    assert sums.get(timeout=60) == [2 * int(data.sum())] * 2
    assert all((one == data).all() for one in view["first"])


def test_what_cannot_be_resumed_is_said(hosted):
    cluster = hosted(1, 1, rate_mbit=None)
    with pytest.raises(ipp.ClusterStateError, match="is running"):
        cluster.cluster.resume_controller_sync()
    kill_controller(cluster)
    with pytest.raises(ipp.ClusterStateError, match="journal=on"):
        cluster.cluster.resume_controller_sync()
