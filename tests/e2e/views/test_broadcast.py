"""Broadcast views: one message to all, replies together, every ending kept."""

import itertools
import os
import time

import broadleaf as ipp
import numpy as np
import pytest
from broadleaf import error
from waiting import until

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(params=[True, False], ids=["coalescing", "each"])
def bview(request, rc):
    """A broadcast view of all engines, with replies together and each by itself."""
    return rc.broadcast_view(coalescing=request.param)


def test_flags_and_names(rc):
    view = rc.broadcast_view(is_coalescing=True)
    assert isinstance(view, ipp.BroadcastView)
    assert view.is_coalescing
    view.is_coalescing = False
    assert not view.is_coalescing
    assert not rc.broadcast_view().is_coalescing
    assert rc.broadcast_view([2, 0], coalescing=True).targets == [2, 0]
    with pytest.raises(KeyError, match="colour"):
        view.set_flags(colour=1)


def test_calls_and_variables(bview):
    assert bview.apply_sync(lambda x, y=1: x + y, 2, y=3) == [5] * 4
    assert len(set(bview.apply_sync(os.getpid))) == 4
    bview.push({"a": [1, 2]}, block=True)
    assert bview["a"] == [[1, 2]] * 4
    bview.execute("b = a + [engine_id]", block=True)
    assert bview.pull("b", block=True) == [[1, 2, engine] for engine in range(4)]
    bview.scatter("part", range(8), block=True)
    assert bview.gather("part", block=True) == list(range(8))
    assert bview.map_sync(lambda x: x * x, range(10)) == [x * x for x in range(10)]


@pytest.mark.parametrize("ends", [[0, 4], [0, 1, 4], [0, 3, 4], [0, 1, 3, 4]])
def test_equal_values_in_a_row_and_others_each_in_its_place(rc, ends):
    wanted = [start for start, end in itertools.pairwise(ends) for _ in range(end - start)]
    rc[:].scatter("start", wanted, flatten=True, block=True)
    result = rc.broadcast_view(coalescing=True).apply_async(ipp.interactive(lambda: start))  # noqa: F821
    assert result.get() == wanted
    assert [result.result_dict[engine] for engine in rc.ids] == wanted


def test_values_come_in_target_order_whatever_the_order_of_replies(rc, tmp_path):
    view = rc.broadcast_view([3, 0, 2], coalescing=True)

    @ipp.interactive
    def last_first(ended):
        import os
        import time

        while engine_id < 3 and not os.path.exists(f"{ended}/{2 if engine_id == 0 else 3}"):  # noqa: F821
            time.sleep(0.002)
        open(f"{ended}/{engine_id}", "x").close()  # noqa: F821
        return engine_id  # noqa: F821

    result = view.apply_async(last_first, str(tmp_path))
    assert result.get() == [3, 0, 2]
    assert result.get_dict() == {3: 3, 0: 0, 2: 2}
    assert result.engine_id == [3, 0, 2]
    assert all(started < completed for started, completed in zip(result.started, result.completed, strict=True))


def test_equal_values_are_not_one_object_unless_nobody_can_tell(rc):
    view = rc.broadcast_view(coalescing=True)
    for nested, values in ((False, [1]), (False, [1, "a"]), (True, [1])):
        found = view.apply_sync(lambda values, nested: (values,) if nested else values, values, nested)
        lists = [lists for (lists,) in found] if nested else found
        lists[0].append(2)
        assert lists == [[*values, 2], values, values, values]
    assert view.apply_sync(lambda: "same") == ["same"] * 4


def test_one_message_out_and_one_back_whatever_the_number_of_engines(rc):
    def frames(targets):
        view = rc.broadcast_view(targets, coalescing=True)
        view.apply_sync(noop)
        before = rc.counters()
        view.apply_sync(noop)
        return {key: rc.counters()[key] - before[key] for key in ("frames_in", "frames_out", "bytes_out")}

    assert frames([1]) == frames([0, 1, 2, 3])
    assert frames([0, 1, 2, 3])["frames_in"] == 1


def noop():
    return None


def test_every_error_is_kept_with_the_values_of_the_others(bview):
    @ipp.interactive
    def odd():
        if engine_id % 2:  # noqa: F821
            raise ValueError(f"engine {engine_id}")  # noqa: F821
        return engine_id  # noqa: F821

    result = bview.apply_async(odd)
    with pytest.raises(error.CompositeError) as caught:
        result.get()
    assert [entry[1] for entry in caught.value.elist] == ["engine 1", "engine 3"]
    values = result.get(return_exceptions=True)
    assert values[::2] == [0, 2]
    assert [e.ename for e in values[1::2]] == ["ValueError"] * 2
    assert result.status == ["ok", "error", "ok", "error"]


def test_an_abort_ends_each_part(bview):
    result = bview.apply_async(time.sleep, 60)
    result.abort()
    assert result.wait(20)
    assert result.status == ["aborted"] * 4


def test_output_belongs_to_its_part(bview):
    result = bview.apply_async(ipp.interactive(lambda: print(f"from {engine_id}")))  # noqa: F821
    result.get()
    assert result.wait_for_output(10)
    assert result.stdout == [f"from {engine}\n" for engine in range(4)]


def test_callbacks_and_iteration(bview):
    done = []
    result = bview.apply_async(ipp.interactive(lambda: engine_id))  # noqa: F821
    result.add_done_callback(done.append)
    assert list(result) == [0, 1, 2, 3]
    result.wait(10)
    assert until(lambda: done)
    assert done == [result]


def test_shown_to_status_and_history(rc):
    view = rc.broadcast_view(coalescing=True, label="fill")
    result = view.apply_async(time.sleep, 60)
    try:
        assert len(view.outstanding) == 4
        assert set(result.msg_ids) <= set(rc.history)
        with rc.cluster.connect_client_sync() as other:
            if not until(lambda: sum(tasks["running"] + tasks["queue"] for tasks in _queues(other)) == 4, 20):
                # A request to the controller also sends what was not sent yet, so these arrive in this order.
                pytest.fail(f"{rc.counters()}, {_queues(other)}, {rc.explain(result)}, {_queues(other)}")
        assert result.label == "fill" or set(result["label"]) == {"fill"}
    finally:
        result.abort()
        assert result.wait(20)
    assert not view.outstanding


def _queues(client):
    status = client.queue_status(verbose=False)
    return [
        {"running": tasks.get("tasks", 0), "queue": tasks.get("queue", 0)}
        for engine, tasks in status.items()
        if isinstance(engine, int)
    ]


@pytest.mark.parametrize("coalescing", [True, False])
def test_the_living_keep_their_values_when_one_dies(coalescing):
    with ipp.Cluster(n=4) as client:
        client.wait_for_engines(4, timeout=30)
        view = client.broadcast_view(coalescing=coalescing)
        view.push({"x": np.ones(200_000)}, block=True)

        @ipp.interactive
        def die_or_sum():
            import os
            import signal

            if engine_id == 2:  # noqa: F821
                os.kill(os.getpid(), signal.SIGKILL)
            return float(x.sum())  # noqa: F821

        values = view.apply_async(die_or_sum).get(timeout=20, return_exceptions=True)
        assert [v for v in values if isinstance(v, float)] == [200_000.0] * 3
        assert isinstance(values[2], error.EngineError)
        assert values[2].certificate.cause


def test_a_closed_client_ends_what_it_waited_for():
    with ipp.Cluster(n=2) as client:
        client.wait_for_engines(2, timeout=30)
        result = client.broadcast_view(coalescing=True).apply_async(time.sleep, 60)
        client.close()
        assert result.status == ["lost"] * 2


def test_large_values_come_back_by_themselves(rc):
    view = rc.broadcast_view(coalescing=True)
    arrays = view.apply_sync(ipp.interactive(lambda: __import__("numpy").full(100_000, engine_id)))  # noqa: F821
    assert [int(array.sum()) for array in arrays] == [0, 100_000, 200_000, 300_000]
    texts = view.apply_sync(ipp.interactive(lambda: bytes([engine_id]) * 9_000_000))  # noqa: F821
    assert [text[:1] for text in texts] == [b"\0", b"\1", b"\2", b"\3"]
