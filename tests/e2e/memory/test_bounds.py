"""Nothing grows without bound: not the client, not the controller, whatever is submitted."""

import gc
import json
import operator
import os
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import broadleaf as ipp
import pytest
from waiting import until

FLAT_BYTES = 20 * 1024 * 1024


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def node_status(client: ipp.Client) -> dict[str, Any]:
    return json.loads(json.loads(client.link.request('"Status"'))["Text"])


def node_pid(client: ipp.Client) -> int:
    return int(node_status(client)["pid"])


@pytest.fixture(scope="module")
def client() -> Iterator[ipp.Client]:
    with ipp.Cluster(n=2) as client:
        yield client


def test_calls_leave_no_names_in_the_interpreters_cache(client: ipp.Client) -> None:
    # It keeps each string by which an attribute of a class was looked up: a new one for each call adds up to thousands.
    view = client[:]
    tracemalloc.start()
    try:
        for n in (10, 500):
            before = tracemalloc.take_snapshot()
            for _ in range(n):
                view.apply_sync(len, [complex(1)])
            gc.collect()
            after = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    ours = [tracemalloc.Filter(True, f"{Path(ipp.__file__).parent}/client/*")]
    grown = after.filter_traces(ours).compare_to(before.filter_traces(ours), "lineno")
    assert sum(difference.count_diff for difference in grown) < 100, grown[:5]


@pytest.mark.timeout(120)
def test_a_queued_task_takes_few_bytes_of_client_and_controller() -> None:
    n = 100_000
    with ipp.Cluster(n=1) as client:
        view = client.load_balanced_view()
        [result.get() for result in [view.apply_async(operator.neg, 1) for _ in range(1_000)]]
        pids = (os.getpid(), node_pid(client))
        gate = view.apply_async(time.sleep, 60)
        before = [resident_bytes(pid) for pid in pids]
        queued = [view.apply_async(operator.neg, 1) for _ in range(n)]
        assert until(lambda: node_status(client)["controller"]["live"] == n + 1)
        of_client, of_controller = ((resident_bytes(pid) - was) / n for pid, was in zip(pids, before, strict=True))
        gate.abort()
        del queued
    assert of_client <= 500
    assert of_controller <= 350


@pytest.mark.timeout(240)
def test_memory_is_flat_over_consumed_tasks(client: ipp.Client) -> None:
    view = client.load_balanced_view()
    pids = (os.getpid(), node_pid(client))

    def consume(n: int) -> None:
        for _ in range(0, n, 5_000):
            results = [view.apply_async(operator.neg, 1) for _ in range(5_000)]
            assert all(r.get() == -1 for r in results)

    consume(50_000)  # buffers and caches reach their size
    before = [resident_bytes(pid) for pid in pids]
    consume(200_000)
    after = [resident_bytes(pid) for pid in pids]
    assert [b - a < FLAT_BYTES for a, b in zip(before, after, strict=True)] == [True, True], (before, after)


def test_imap_of_an_endless_generator_looks_a_bounded_way_ahead(client: ipp.Client) -> None:
    taken = 0

    def endless() -> Iterator[int]:
        nonlocal taken
        while True:
            yield taken
            taken += 1

    results = client.load_balanced_view().imap(operator.neg, endless())
    for i in range(10_000):
        assert next(results) == -i
    results.cancel()
    assert taken < 11_000


@ipp.interactive
def wait_for(path: str) -> None:
    import os
    import time

    while not os.path.exists(path):
        time.sleep(0.01)


def test_a_submitter_that_does_not_read_is_slowed_down(tmp_path: Path) -> None:
    with ipp.Cluster(n=1, max_outstanding_tasks=1_000) as client:
        view = client.load_balanced_view()
        gate = tmp_path / "open"
        view.apply_async(wait_for, str(gate))
        results: list[ipp.AsyncResult] = []
        submitter = threading.Thread(
            target=lambda: results.extend(view.apply_async(operator.neg, i) for i in range(20_000))
        )
        submitter.start()
        assert until(lambda: client.link.counters()["throttled"]), "nobody was slowed down"
        assert client.link.outstanding() <= 1_000
        gate.touch()
        submitter.join(timeout=60)
        assert [r.get() for r in results] == [-i for i in range(20_000)]


def test_results_nobody_keeps_are_freed(client: ipp.Client) -> None:
    view = client.load_balanced_view()
    before = resident_bytes(os.getpid())
    for _ in range(40):
        view.apply_async(bytes, 4_000_000)
        client.wait()
    assert client.wait(timeout=20)
    assert resident_bytes(os.getpid()) - before < 3 * FLAT_BYTES


def test_a_task_larger_than_the_bound_alone_is_let_in() -> None:
    with ipp.Cluster(n=1, max_outstanding_bytes=1_000_000) as client:
        view = client.load_balanced_view()
        assert view.apply_sync(len, b"x" * 3_000_000) == 3_000_000


def test_waiting_costs_no_processor_time(client: ipp.Client) -> None:
    view = client.load_balanced_view()
    result = view.apply_async(time.sleep, 1)
    before = time.process_time()
    result.get()
    assert time.process_time() - before < 0.2
