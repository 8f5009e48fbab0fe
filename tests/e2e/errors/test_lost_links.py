"""What results say whose connection was lost before they arrived."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import broadleaf as ipp
import pytest
from waiting import until

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def cluster():
    cluster = ipp.Cluster(n=2)
    cluster.start_cluster_sync()
    yield cluster
    cluster.stop_cluster_sync()


@pytest.fixture
def client(cluster):
    with cluster.connect_client_sync() as client:
        client.wait_for_engines(2, timeout=30)
        yield client


def controller_of(cluster: ipp.Cluster) -> int:
    return cluster.to_dict()["controller"]["node_pid"]


def test_results_of_a_closed_client(client):
    one = client[0].apply_async(time.sleep, 30)
    several = client[:].apply_async(time.sleep, 30)
    client.close()
    for result in (one, several):
        with pytest.raises(
            ipp.LinkLost, match=r"^the client was closed before .* Whether this task .* not known"
        ) as lost:
            result.get(timeout=5)
        assert (lost.value.certificate, lost.value.task_started) == (None, None)
        assert "engine -1" not in str(lost.value)


def test_a_controller_that_was_killed(cluster, client):
    pid = controller_of(cluster)
    quiet = client[0].apply_async(time.sleep, 30)
    loud = client[1].apply_async(lambda: print("I run") or __import__("time").sleep(30))
    assert until(lambda: "I run" in loud.stdout)
    os.kill(pid, signal.SIGKILL)
    assert cluster.wait_stopped(20)
    with pytest.raises(ipp.LinkLost) as lost:
        quiet.get(timeout=20)
    assert str(lost.value) == (
        f"the controller (pid {pid}, this host) was ended by signal 9 (SIGKILL), and its engines with it, before this "
        "result arrived. Whether this task had started is not known. Restart the cluster, open a new "
        f"Client, and resubmit the missing tasks. Its log is {cluster.log_path()}."
    )
    certificate = lost.value.certificate
    assert (certificate.pid, certificate.cause, certificate.code) == (pid, "signal", 9)
    with pytest.raises(ipp.LinkLost, match=r"This task had started\.") as lost:
        loud.get(timeout=20)
    assert lost.value.task_started
    assert isinstance(loud.exception(), ipp.LinkLost)


def test_a_wait_that_begins_while_results_end_as_lost(cluster, client):
    view = client.load_balanced_view()
    results = [view.apply_async(time.sleep, 30) for _ in range(20_000)]  # these take milliseconds to end

    def seen_by_short_waits() -> ipp.LinkLost:
        while True:
            try:
                results[10_000].get(timeout=0.0005)
            except ipp.TimeoutError:
                continue
            except ipp.LinkLost as error:
                return error

    with ThreadPoolExecutor(3) as threads:
        seen = [threads.submit(seen_by_short_waits) for _ in range(3)]
        os.kill(controller_of(cluster), signal.SIGKILL)
        assert [one.result(20).certificate is not None for one in seen] == [True] * 3


def test_a_controller_of_another_process_that_was_killed(cluster):
    with ipp.Client(cluster.connection_file) as client:
        client.wait_for_engines(2, timeout=30)
        result = client[:].apply_async(time.sleep, 30)
        os.kill(controller_of(cluster), signal.SIGKILL)
        assert cluster.wait_stopped(20)
        with pytest.raises(ipp.LinkLost, match=r"^the controller \(pid \d+, this host\) has ended"):
            result.get(timeout=20)


def test_a_cluster_that_was_stopped(cluster, client):
    result = client[0].apply_async(signal.pause)
    code = "import broadleaf, sys; broadleaf.Cluster.from_file(sys.argv[1]).stop_cluster_sync()"
    subprocess.run([sys.executable, "-c", code, cluster.cluster_file], check=True, timeout=30)
    with pytest.raises((ipp.LinkLost, ipp.EngineError, ipp.TaskAborted), match=r"stopped|aborted"):
        result.get(timeout=20)


async def test_one_that_is_awaited(cluster, client):
    result = client[0].apply_async(time.sleep, 30)
    os.kill(controller_of(cluster), signal.SIGKILL)
    with pytest.raises(ipp.LinkLost, match=r"^the controller"):
        await result
