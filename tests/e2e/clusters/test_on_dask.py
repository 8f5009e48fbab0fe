"""Engines on the workers of a Dask cluster, which continues with its own tasks."""

from __future__ import annotations

import subprocess
import sys

import pytest
from processes import processes_with
from waiting import until

pytest.importorskip("distributed")

pytestmark = [pytest.mark.sites, pytest.mark.timeout(180)]

# In a process of its own: Dask's scheduler and its event loop stay in the client's, and its workers import the program.
PROGRAM = """
import json, os, signal, sys
from distributed import Client, LocalCluster
import broadleaf as ipp
from refusals import refused
from waiting import until

{functions}

if __name__ == "__main__":
    local = LocalCluster(n_workers=2, threads_per_worker=2, processes=True, dashboard_address=None, host="127.0.0.1")
    with local, Client(local) as dask:
        workers = list(dask.scheduler_info()["workers"])
        body(dask, workers)
        assert dask.submit(abs, -5, pure=False).result() == 5, "Dask goes on"
        print("done", local.scheduler_address)
"""


def run(functions: str, tmp_path) -> str:
    """The standard error of a program that uses Dask's cluster in `body(dask, workers)`."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(functions=functions))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=160,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "BROADLEAF_DIR": str(tmp_path / "state"),
             "PYTHONPATH": ":".join(path for path in sys.path if path.endswith("tests")), "ON_DASK": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.startswith("done"), done.stdout
    assert until(lambda: not processes_with(ON_DASK=str(tmp_path))), "something is left"
    return done.stderr


def test_engines_on_two_workers_and_engines_as_workers(tmp_path):
    run(
        """
def body(dask, workers):
    with ipp.Cluster(engines=ipp.OnDask(dask, workers=workers)) as rc:
        assert rc.ids == [0, 1, 2, 3], "one for each thread"
        assert len(set(rc[:].apply_sync(hash, "leaf"))) == 1, "engines of all workers have the same hashes"
        assert rc.load_balanced_view().map_sync(abs, range(-100, 0)) == list(range(100, 0, -1))
        assert sum(dask.gather(dask.map(abs, range(-100, 0)))) == 5050
        assert len(set(dask.run(os.getpid).values()) - set(rc[:].apply_sync(os.getppid))) == 2
        other = rc.become_dask()
        assert other.gather(other.map(abs, [-1, -2, -3])) == [1, 2, 3]
        other.close()
        rc.stop_dask()
        assert rc[:].apply_sync(abs, -1) == [1] * 4
""",
        tmp_path,
    )


def test_a_worker_that_is_killed_takes_its_engines_and_no_others(tmp_path):
    said = run(
        """
def body(dask, workers):
    with ipp.Cluster(engines=ipp.OnDask(dask, workers=workers, engines_per_host=1)) as rc:
        running = rc[0].apply_async(lambda: __import__("time").sleep(600))
        ((_, _, _, host), _) = rc.link.engines()
        (block,) = [block for block in rc.cluster.blocks() if host.endswith(block.id)]
        target = block.facts["target"]
        os.kill(dask.run(os.getpid)[target], signal.SIGKILL)
        try:
            running.get(30)
        except ipp.EngineError as error:
            assert error.certificate.cause == "host_gone", error
        assert rc.ids == [1]
        assert rc[1].apply_sync(abs, -1) == 1
        assert until(lambda: sorted(block.state for block in rc.cluster.blocks()) == ["failed", "running"])
        assert block.reason == f"the worker {target} has left Dask"
""",
        tmp_path,
    )
    assert "private_key" not in said


def test_a_worker_that_is_killed_is_replaced_by_another_of_its_host(tmp_path):
    run(
        """
def body(dask, workers):
    with ipp.Cluster(engines="dask", client=dask.scheduler.address) as rc:
        assert rc.ids == [0, 1, 2, 3], "one relay for the threads of all workers of the host"
        before = rc.link.engines()
        busy = dask.processing().items()
        target = next(worker for worker, tasks in busy if any("broadleaf" in str(task) for task in tasks))
        os.kill(dask.run(os.getpid)[target], signal.SIGKILL)
        assert until(lambda: not {uuid for _, uuid, *_ in before} & {uuid for _, uuid, *_ in rc.link.engines()})
        rc.wait_for_engines(4, timeout=30)
        assert rc.ids == [0, 1, 2, 3], "the same ids"
        assert rc[:].apply_sync(abs, -1) == [1] * 4
""",
        tmp_path,
    )


def test_a_worker_that_retires_stops_its_engines(tmp_path):
    run(
        """
def body(dask, workers):
    with ipp.Cluster(engines=ipp.OnDask(dask, workers=workers[:1])) as rc:
        dask.retire_workers(workers[:1])
        assert until(lambda: rc.ids == [])
        assert until(lambda: rc.cluster.blocks()[0].is_over), rc.cluster.blocks()
""",
        tmp_path,
    )


def test_nothing_is_left_whoever_ends_first(tmp_path):
    run(
        """
def body(dask, workers):
    cluster = ipp.Cluster(engines=ipp.OnDask(dask.scheduler.address, workers=workers), detached=True)
    rc = cluster.start_and_connect_sync()
    again = ipp.Cluster.from_file(cluster.cluster_file)
    assert [block.state for block in again.blocks()] == ["running"] * 2
    again.stop_cluster_sync()
    assert until(lambda: not any("broadleaf" in str(t) for tasks in dask.processing().values() for t in tasks))
    other = ipp.Cluster(engines=ipp.OnDask(dask, workers=workers[:1]))
    other.start_and_connect_sync()
    other._controller.release()  # as the end of this process would
    ipp.Cluster(engines=ipp.OnDask(dask, workers=workers[1:])).start_and_connect_sync()  # Dask ends before it
""",
        tmp_path,
    )


def test_refusals_name_their_cause_in_time(tmp_path):
    run(
        """
def body(dask, workers):
    for options, cause in [
        ({"client": dask, "workers": ["tcp://127.0.0.1:1"]}, "Dask has no worker tcp://127.0.0.1:1; known: tcp://"),
        ({"client": "tcp://127.0.0.1:1"}, "Dask's scheduler at tcp://127.0.0.1:1 cannot be reached"),
        ({}, "no Dask scheduler is specified: pass a client or the scheduler's address"),
    ]:
        with refused(cause):
            ipp.Cluster(engines=ipp.OnDask(**options)).start_and_connect_sync()
""",
        tmp_path,
    )
