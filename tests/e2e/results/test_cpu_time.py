"""The processor time of tasks, which unlike their duration does not grow when engines share cores."""

import time

import broadleaf as ipp
import pytest

BURNT_S = 0.1


@ipp.interactive
def burn(_=None):
    """Takes `BURNT_S` of processor time, however long that is."""
    import time

    began_s = time.process_time()
    while time.process_time() - began_s < 0.1:
        pass


@ipp.interactive
def burn_in_threads(n):
    import hashlib
    import threading
    import time

    data = bytes(1 << 20)

    def work():
        while time.thread_time() < 0.1:
            hashlib.sha256(data)

    threads = [threading.Thread(target=work) for _ in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


ROUTES = {
    "balanced": lambda rc: rc.load_balanced_view().apply_async(burn),
    "each": lambda rc: rc[:].apply_async(burn),
    "map": lambda rc: rc.load_balanced_view().map_async(burn, range(4), chunksize=1),
    "chunks": lambda rc: rc[:].map_async(burn, range(8)),
    "coalesced": lambda rc: rc.broadcast_view(coalescing=True).apply_async(burn),
    "executed": lambda rc: rc[:].execute("burn()"),
    "failed": lambda rc: rc[0].apply_async(lambda: (burn(), 1 // 0)),
    "coroutine": lambda rc: rc[0].apply_async(_burn_later),
    "joined": lambda rc: ipp.AsyncResult.join(rc[0].apply_async(burn), rc[1].apply_async(burn)),
}
N_BURNS = {"balanced": 1, "each": 4, "map": 4, "chunks": 8, "coalesced": 4, "executed": 4, "failed": 1, "coroutine": 1}


@ipp.interactive
async def _burn_later():
    burn()


@pytest.mark.parametrize("route", ROUTES)
def test_what_was_computed_is_counted(rc, route):
    rc[:].push({"burn": burn}, block=True)
    ROUTES[route](rc).wait(60)  # Engines import what the route needs.
    result = ROUTES[route](rc)
    with pytest.raises(TimeoutError):
        _ = result.cpu_time
    result.wait(60)
    wanted_s = N_BURNS.get(route, 2) * BURNT_S
    # The readings of the two clocks are a moment apart.
    assert wanted_s - 0.002 <= result.cpu_time
    assert result.cpu_time <= 1.5 * wanted_s
    assert sum(part.cpu_time for part in result.split()) == pytest.approx(result.cpu_time)


def test_waiting_is_not_counted(rc):
    result = rc[:].apply_async(time.sleep, 0.2)
    result.get(20)
    assert result.serial_time >= 0.8
    assert result.cpu_time < 0.2


def test_all_threads_are_counted(rc):
    result = rc[0].apply_async(burn_in_threads, 3)
    result.get(20)
    assert result.cpu_time >= 0.3 - 0.01


def test_short_tasks_count_with_their_duration(lview):
    result = lview.map_async(abs, range(-2000, 0), chunksize=1)
    result.get(20)
    assert 0 < result.cpu_time <= result.serial_time + 0.1


def test_long_tasks_after_many_short_ones(rc):
    short = rc[0].map_async(abs, range(-3000, 0))
    results = [rc[0].apply_async(burn if i % 10 == 9 else abs, -1) for i in range(30)]
    for result in results:
        result.get(30)
    short.get(30)
    for i, result in enumerate(results):
        assert (result.cpu_time >= BURNT_S - 0.002) == (i % 10 == 9)


def test_a_task_that_runs_on_top_of_another_counts_once(rc):
    @ipp.interactive
    def outer():
        import broadleaf

        inner = broadleaf.Client().load_balanced_view([2]).apply_async(burn)
        inner.get()
        return inner.cpu_time

    outer.__globals__["burn"] = burn
    rc[2].apply_sync(outer)
    result = rc[2].apply_async(outer)
    inner_s = result.get(30)
    assert inner_s >= BURNT_S - 0.002
    assert result.cpu_time < inner_s


def test_other_clients_learn_it(rc, cluster):
    result = rc[0].apply_async(burn)
    result.get(20)
    with cluster.connect_client_sync() as other:
        again = other.get_result(result.msg_ids)
        again.wait(20)
        assert again.cpu_time == result.cpu_time >= BURNT_S - 0.002
