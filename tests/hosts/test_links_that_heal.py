"""Links that break between processes on different hosts, and go on. `tests/attack/links.py` does so for longer, and
under more loads.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

import broadleaf
import pytest
from bed.network import HostedCluster, wait_until
from far_clients import FarClients

pytestmark = pytest.mark.timeout(180)


def states(cluster: HostedCluster) -> Counter[str]:
    return Counter(engine["state"] for engine in cluster.cluster.status_sync()["engines"])


def begin(cluster: HostedCluster, log: Path, n_tasks: int = 1500, gate: Path | None = None):
    """Tasks that leave a line each, and that are running. From the 200th on, they wait for the file `gate`."""
    name, waits_for = str(log), str(gate or log)

    def work(i: int) -> int:
        import os
        import time

        while i >= 200 and not os.path.exists(waits_for):
            time.sleep(0.002)
        descriptor = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{i}\n".encode())
        os.close(descriptor)
        time.sleep(0.002)
        return i * i

    result = cluster.client.load_balanced_view().map_async(work, range(n_tasks), chunksize=1)
    wait_until(lambda: result.progress > 50, 60, "tasks run")
    return result


def expect_once(result, log: Path) -> None:
    values = result.get(timeout=60)
    assert values == [i * i for i in range(len(values))]
    ran = Counter(int(line) for line in log.read_text().splitlines())
    assert ran == Counter(range(len(values))), "every task ran once"


def test_a_host_whose_link_is_cut_for_a_while_keeps_everything(hosted, tmp_path):
    cluster = hosted(2, 2, rate_mbit=None, host_timeout_s=2)
    host = cluster.network.hosts[1]
    view = cluster.client[:]
    view.push({"kept": 41}, block=True)
    pids = view.apply_sync(os.getpid)
    result = begin(cluster, tmp_path / "ran", gate=tmp_path / "gate")
    cluster.network.cut(host)
    wait_until(lambda: states(cluster)["away"] == 2, 30, "the host is away")
    done = result.progress
    (tmp_path / "gate").touch()
    wait_until(lambda: result.progress > done + 50, 30, "engines of the other host take what was not sent to this one")
    cluster.network.join(host)
    expect_once(result, tmp_path / "ran")
    assert view.apply_sync(os.getpid) == pids
    assert view["kept"] == [41] * 4
    assert states(cluster) == {"up": 4}


def test_a_connection_that_is_reset_is_made_again(hosted, tmp_path):
    cluster = hosted(1, 2, rate_mbit=None)
    pids = cluster.client[:].apply_sync(os.getpid)
    result = begin(cluster, tmp_path / "ran")
    for _ in range(3):
        cluster.network.execute(cluster.network.hosts[1].namespace, ["ss", "-K", "-t", "state", "established"])
        assert cluster.client[0].apply_async(os.getpid).get(timeout=30) == pids[0]
    expect_once(result, tmp_path / "ran")
    assert cluster.client[:].apply_sync(os.getpid) == pids


def test_a_host_that_stays_away_is_lost_once_its_time_is_over(hosted):
    cluster = hosted(2, 1, rate_mbit=None, host_timeout_s=1, rejoin_timeout_s=4)
    host = cluster.network.hosts[1]
    here, there = cluster.engines_of(host), cluster.engines_of(cluster.network.hosts[2])
    lost = cluster.client[here[0]].apply_async(time.sleep, 100)
    cut_at = time.monotonic()
    cluster.network.cut(host)
    with pytest.raises(broadleaf.EngineError) as caught:
        lost.get(timeout=30)
    took_s = time.monotonic() - cut_at
    assert 3 < took_s < 8
    assert caught.value.certificate.cause == "host_gone"
    assert cluster.client.ids == there
    # Its relay ends by itself: it cannot know better.
    assert cluster.relays[host.index].wait(30) is not None
    cluster.network.join(host)
    assert cluster.client[there[0]].apply_sync(int) == 0


def test_a_relay_that_was_given_up_does_not_come_back(hosted):
    cluster = hosted(1, 1, rate_mbit=None, host_timeout_s=1, rejoin_timeout_s=3)
    host = cluster.network.hosts[1]
    cluster.network.signal(host, signal.SIGSTOP)
    wait_until(lambda: not cluster.client.ids, 30, "the host is lost")
    cluster.network.signal(host, signal.SIGCONT)
    assert cluster.relays[host.index].wait(30) is not None
    assert cluster.client.ids == []


def test_a_relay_that_is_replaced_while_it_is_silent_makes_room(hosted):
    cluster = hosted(1, 1, rate_mbit=None, host_timeout_s=1, rejoin_timeout_s=60)
    host = cluster.network.hosts[1]
    [before] = cluster.client[:].apply_sync(os.getpid)
    cluster.network.signal(host, signal.SIGSTOP)
    wait_until(lambda: states(cluster)["away"] == 1, 30, "the host is away")
    former = cluster.relays.pop(host.index)
    cluster.start_relay(host)
    wait_until(lambda: [pid for _, _, pid, _ in cluster.client.link.engines()] not in ([], [before]), 60, "it came")
    assert cluster.client[:].apply_sync(os.getpid) != [before]
    cluster.network.signal(host, signal.SIGCONT)
    assert former.wait(30) is not None


def test_data_that_was_on_its_way_goes_on_where_it_was(hosted):
    import numpy as np

    cluster = hosted(2, 1, rate_mbit=100, host_timeout_s=2, broadcast_topology="chain")
    data = np.random.default_rng(1).integers(0, 1 << 62, 4 << 20)
    host = cluster.network.hosts[1]
    had = cluster.network.received_bytes(host)
    result = cluster.client[:].apply_async(lambda array: int(array.sum()), data)
    wait_until(lambda: cluster.network.received_bytes(host) - had > data.nbytes // 4, 60, "a quarter of it")
    cluster.network.cut(host)
    wait_until(lambda: states(cluster)["away"] == 1, 30, "the host is away")
    cluster.network.join(host)
    assert result.get(timeout=60) == [int(data.sum())] * 2
    received = cluster.network.received_bytes(host) - had
    assert received < 1.4 * data.nbytes, f"{received / data.nbytes:.2f} times the data"


def test_data_is_awaited_while_the_controller_is_stopped(hosted):
    import numpy as np

    cluster = hosted(2, 1, rate_mbit=100)
    data = np.random.default_rng(1).integers(0, 1 << 62, 4 << 20)
    host = cluster.network.hosts[1]
    had = cluster.network.received_bytes(host)
    result = cluster.client[:].apply_async(lambda array: int(array.sum()), data)
    wait_until(lambda: cluster.network.received_bytes(host) - had > data.nbytes // 4, 60, "a quarter of it")
    pid = json.loads(Path(cluster.cluster.connection_file).read_text())["pid"]
    os.kill(pid, signal.SIGSTOP)
    time.sleep(14)  # longer than a host waits for data from one that is not away
    os.kill(pid, signal.SIGCONT)
    assert result.get(timeout=60) == [int(data.sum())] * 2
    assert states(cluster) == {"up": 2}


def n_clients(cluster: FarClients) -> int:
    """Without the one that asks."""
    return cluster.cluster.status_sync()["controller"]["clients"] - 1


_FAR = """
reconnected = []
rc.on_reconnect(lambda: reconnected.append(1))
rc[:].push({"kept": 41}, block=True)
def work(i):
    import time
    time.sleep(0.003)
    return i * i
result = rc.load_balanced_view().map_async(work, range(2000), chunksize=1)
until(lambda: result.progress > 50)
print("began", flush=True)
sys.stdin.readline()
later = rc[0].apply_async(lambda: kept + 1)
print("submitted", flush=True)
sys.stdin.readline()
print(later.get(timeout=60), result.get(timeout=60) == [i * i for i in range(2000)], flush=True)
until(lambda: reconnected)
print(len(rc[0].apply_sync(make, 3 << 20)), len(reconnected), flush=True)
"""


@pytest.mark.parametrize("fault", ["cut", "reset"])
@pytest.mark.parametrize("tls", ["on", "off"])
def test_a_far_client_goes_on_after_its_connection_broke(far, fault, tls):
    cluster = far(tls=tls)
    program = cluster.start(_FAR)
    assert program.stdout.readline() == "began\n"
    if fault == "cut":
        cluster.network.cut(cluster.host)
    else:
        cluster.network.execute(cluster.host.namespace, ["ss", "-K", "-t", "state", "established"])
    print(file=program.stdin, flush=True)
    assert program.stdout.readline() == "submitted\n", "a call is taken although there is no connection"
    if fault == "cut":
        time.sleep(6)  # The system finds out in four seconds.
        cluster.network.join(cluster.host)
    print(file=program.stdin, flush=True)
    assert program.stdout.readline() == "42 True\n"
    assert program.stdout.readline() == f"{3 << 20} 1\n"
    assert program.wait(30) == 0


def test_a_far_client_that_gets_another_address_goes_on(far):
    cluster = far()
    program = cluster.start(_FAR)
    assert program.stdout.readline() == "began\n"
    cluster.network.move(cluster.host)
    print(file=program.stdin, flush=True)
    assert program.stdout.readline() == "submitted\n", "a call is taken although there is no connection"
    print(file=program.stdin, flush=True)
    assert program.stdout.readline() == "42 True\n"
    assert program.stdout.readline() == f"{3 << 20} 1\n"
    assert program.wait(30) == 0


@pytest.mark.parametrize("lost_client", ["cancel", "finish"])
def test_a_far_client_that_does_not_come_back_leaves_what_the_option_says(far, lost_client, tmp_path):
    cluster = far(host_timeout_s=1, rejoin_timeout_s=3, lost_client=lost_client)
    log = tmp_path / "ran"
    program = cluster.start(f"""
def work(i):
    import time
    time.sleep(0.02)
    with open({str(log)!r}, "a") as file:
        print(i, file=file)
result = rc.load_balanced_view().map_async(work, range(2500), chunksize=1)
until(lambda: result.progress > 10)
print("began", flush=True)
try:
    result.get(timeout=60)
except ipp.LinkLost:
    print("lost", flush=True)
""")
    assert program.stdout.readline() == "began\n"
    cluster.network.cut(cluster.host)
    assert program.stdout.readline() == "lost\n"
    wait_until(lambda: n_clients(cluster) == 0, 60, "the client is given up")
    wait_until(lambda: cluster.cluster.status_sync()["controller"]["live"] == 0, 60, "no task is left")
    n_ran = len(log.read_text().splitlines())
    assert n_ran == 2500 if lost_client == "finish" else n_ran < 2000


def test_a_far_client_that_is_killed_is_gone_at_once(far):
    cluster = far()
    program = cluster.start("print(rc[0].apply_sync(int), flush=True)\nsys.stdin.readline()")
    assert program.stdout.readline() == "0\n"
    assert n_clients(cluster) == 1
    program.kill()
    program.wait()
    wait_until(lambda: n_clients(cluster) == 0, 5, "it is gone")
