"""What the client relies on: of the native module, and of the fake that stands in for it in the tests beside this."""

from __future__ import annotations

import json
import os
import pickle
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import fake_native
import pytest
from broadleaf.client.task_options import TaskOptions
from broadleaf.errors import UnmetDependency
from native_sides import Connected, Failed, Hooks, Side, started
from waiting import until

OK, ERROR, CANCELLED, REFUSED, LOST = 0, 1, 2, 4, 5
UNRESOLVED = -1
LARGE_BYTES = 1_000_000


@pytest.fixture(scope="module", params=["fake", "native"])
def side(request: pytest.FixtureRequest) -> Iterator[Side]:
    """A module with a cluster that the tests of this file share."""
    with started(request.param) as running:
        yield running


@pytest.fixture
def connected(side: Side) -> Iterator[Connected]:
    """A link of the test's own."""
    connected = side.connect()
    yield connected
    connected.link.close()


def settled(pending: Any) -> Any:
    """The same request, once all its parts are resolved."""
    assert pending.wait_all_done(30.0)
    return pending


# The link -----------------------------------------------------------------------------------------


def test_a_link_knows_the_engines(connected):
    link = connected.link
    assert not link.closed
    assert isinstance(link.client_id, int)
    assert [type(field) for field in link.engines()[0]] == [int, str, int, str]
    assert [engine[0] for engine in link.engines()] == [0, 1]
    assert len({engine[1] for engine in link.engines()}) == 2
    assert link.wait_for_engines(2, 0.0)
    assert not link.wait_for_engines(3, 0.05)
    assert link.max_outstanding_tasks > 1000
    assert link.max_outstanding_bytes > 1 << 20
    assert link.engines_version == link.engines_version
    assert link.frees_engine() is False
    assert all(isinstance(count, int) for count in link.counters().values())


def test_the_same_options_have_the_same_number(connected):
    define = connected.link.define_options
    one, other = TaskOptions(label="one").to_json(), TaskOptions(label="other").to_json()
    assert define(one) == define(one) != define(other)
    with pytest.raises(ValueError):
        define("no JSON")


def test_a_refused_connection_has_a_kind_and_a_message(side):
    if side.native is fake_native:
        text = json.dumps({"refuse": "identity"})
    else:
        text = json.dumps({**json.loads(side.connection), "cluster_id": "another"})
    with pytest.raises(side.native.ConnectionRefused) as refused:
        side.native.Link(text, Hooks(), 10.0, "refused")
    kind, message = refused.value.args
    assert kind == "identity"
    assert message


def test_a_closed_link(side, gate):
    connected = side.connect()
    submit = connected.submitter()
    pending = submit(gate.task(), (), {})
    gate.wait_for_tasks()
    link = connected.link
    link.close()
    link.close()
    assert link.closed
    closed = side.native.LinkClosed
    for call in (
        lambda: submit(abs, (1,), {}),
        lambda: submit.many(abs, [(1,)], 1),
        lambda: link.define_options(TaskOptions(label="new").to_json()),
        lambda: link.request('"Status"'),
        lambda: link.wait_for_engines(1, 1.0),
    ):
        with pytest.raises(closed):
            call()
    assert settled(pending).status(0) == LOST
    assert pending.failure(0).args == (LOST, b"", -1, 0)


# A request ----------------------------------------------------------------------------------------


def test_a_call_returns(connected):
    pending = settled(connected.balanced(divmod, 7, 2))
    assert isinstance(pending, connected.native.Pending)
    assert pending.value(0) == (3, 1)
    assert pending.value(0) is pending.value(0)
    assert pending.values() == pending.returned() == [(3, 1)]
    assert pending.get_single(1.0) == (3, 1)
    assert (pending.status(0), pending.failure(0), pending.n_failed()) == (OK, None, 0)
    assert (len(pending), pending.n_parts, pending.n_done()) == (1, 1, 1)
    assert pending.all_done()
    assert pending.part_done(0)
    assert pending.completed_part(0) == 0
    assert (pending.function, pending.origin, pending.link) == (divmod, connected.origin, connected.link)
    started_ns, completed_ns, received_ns, engine = pending.times(0)
    assert pending.submitted_ns <= started_ns <= completed_ns <= received_ns
    assert engine in (0, 1)
    assert 0 <= pending.cpu_ns(0) <= completed_ns - started_ns


def test_keyword_arguments_arrive(connected):
    assert settled(connected.balanced(sorted, [1, 3, 2], reverse=True)).value(0) == [3, 2, 1]


def test_a_function_is_sent_with_what_it_captured(connected):
    n = 5
    assert settled(connected.balanced(lambda x: x + n, 1)).value(0) == 6
    n = 6
    assert settled(connected.balanced(lambda x: x + n, 1)).value(0) == 7


def test_one_call_on_each_target_in_their_order(connected):
    pending = settled(connected.submitter((1, 0))(abs, (-2,), {}))
    assert pending.values() == [2, 2]
    assert [pending.times(part)[3] for part in range(2)] == [1, 0]


def test_many_calls_are_the_parts_of_one_request(connected):
    pending = settled(connected.submitter().many(abs, ((-n,) for n in range(60)), 50))
    assert pending.values() == list(range(50))
    assert sorted(pending.completed_part(rank) for rank in range(50)) == list(range(50))
    with pytest.raises(ValueError):
        connected.submitter().many(abs, [], 0)


def test_each_call_has_its_own_options(connected):
    numbers = [connected.link.define_options(TaskOptions("Each", (engine,)).to_json()) for engine in (0, 1)]
    pending = settled(connected.submitter((0, 1)).each(abs, [(-1,), (-2,)], numbers))
    assert pending.values() == [1, 2]
    assert [pending.times(part)[3] for part in range(2)] == [0, 1]
    with pytest.raises(ValueError, match="0 of 2 calls"):
        connected.submitter((0, 1)).each(abs, [], numbers)


def test_numbers_of_tasks_follow_each_other(connected):
    histories = (connected.native.History(3), connected.native.History(100))
    submit = connected.submitter(histories=histories)
    first = submit(abs, (1,), {})
    second = submit.many(abs, [(1,)] * 4, 4)
    third = submit(abs, (1,), {})
    assert (second.seq, third.seq) == (first.seq + 1, first.seq + 5)
    assert histories[1].seqs() == list(range(first.seq, first.seq + 6))
    assert histories[0].seqs() == histories[1].seqs()[-3:]
    assert (len(histories[0]), len(histories[1])) == (3, 6)
    assert histories[1].select([first.seq, third.seq + 1]) == [first.seq]
    histories[1].record(900, 2)
    assert histories[1].seqs()[-2:] == [900, 901]
    histories[1].clear()
    assert (len(histories[1]), histories[1].seqs()) == (0, [])
    settled(third)


@pytest.mark.parametrize("make", [bytes, bytearray])
def test_large_arguments_and_values_arrive(connected, make):
    data = make(b"x") * LARGE_BYTES
    assert settled(connected.balanced(lambda b: (type(b), len(b), b[-1:]), data)).value(0) == (make, LARGE_BYTES, b"x")
    assert settled(connected.balanced(lambda b: b + b, data)).value(0) == data + data


def test_buffers_are_the_callers_again_once_the_call_has_returned(connected, gate):
    before = connected.on(0, gate.task())
    gate.wait_for_tasks()
    data = bytearray(LARGE_BYTES)
    pending = connected.on(0, lambda b: (bytes(memoryview(b)[:1]), memoryview(b).readonly), pickle.PickleBuffer(data))
    data[:] = b"y" * LARGE_BYTES
    gate.open()
    assert settled(pending).value(0) == (b"\0", False)
    settled(before)


# Errors -------------------------------------------------------------------------------------------


def test_an_error_is_decoded_once_and_raised(connected):
    pending = settled(connected.on(1, divmod, 1, 0))
    assert (pending.status(0), pending.n_failed(), pending.n_done()) == (ERROR, 1, 1)
    failure = pending.failure(0)
    status, payload, engine, part = failure.args
    assert (status, engine, part) == (ERROR, 1, 0)
    assert payload
    assert pending.failure(0) is failure
    for call in (lambda: pending.value(0), lambda: pending.get_single(1.0)):
        with pytest.raises(Failed) as raised:
            call()
        assert raised.value is failure
    assert pending.values() is None
    assert pending.returned() is None


def test_one_part_that_raises_leaves_the_others_alone(connected):
    pending = settled(connected.submitter().many(divmod, [(1, 1), (1, 0), (2, 1)], 3))
    assert [pending.status(part) for part in range(3)] == [OK, ERROR, OK]
    assert pending.failure(1).args[3] == 1
    assert (pending.value(0), pending.value(2)) == ((1, 0), (2, 0))
    assert pending.n_failed() == 1
    assert pending.values() is None


def test_a_target_that_is_not_there_refuses(connected):
    pending = settled(connected.submitter((0, 7))(abs, (-1,), {}))
    assert [pending.status(part) for part in range(2)] == [OK, REFUSED]
    status, payload, engine, part = pending.failure(1).args
    assert (status, json.loads(payload), engine, part) == (REFUSED, {"NoSuchEngine": 7}, -1, 1)


def test_an_unmet_condition_moves_a_task_to_another_engine(connected, tmp_path):
    def only_the_second():
        tried = os.path.join(where, "tried")
        if not os.path.exists(tried):
            open(tried, "x").close()
            raise UnmetDependency
        return "met"

    where = str(tmp_path)
    assert settled(connected.balanced(only_the_second)).value(0) == "met"

    def none():
        raise UnmetDependency("no fuel")

    pending = settled(connected.balanced(none))
    assert pending.status(0) == REFUSED
    assert json.loads(pending.failure(0).args[1])["UnmetEverywhere"] in ("engine 0: no fuel", "engine 1: no fuel")


# Waiting ------------------------------------------------------------------------------------------


def test_waits_end_with_their_time_or_the_task(connected, gate):
    pending = connected.on(0, gate.task(), "value")
    gate.wait_for_tasks()
    assert not pending.all_done()
    assert not pending.part_done(0)
    assert (pending.n_done(), pending.status(0), pending.times(0)[1:]) == (0, UNRESOLVED, (0, 0, -1))
    assert not pending.wait_all_done(0.01)
    assert not pending.wait_part(0, 0.01)
    assert not pending.wait_count(1, 0.01)
    with pytest.raises(TimeoutError):
        pending.get_single(0.01)
    link = connected.link
    assert not link.wait_all(0.01)
    assert not link.wait_tasks([pending.seq], 0.01)
    assert not link.wait_for(pending.all_done, 0.01)
    assert (link.outstanding(), link.outstanding_seqs()) == (1, [pending.seq])
    other = settled(connected.on(1, abs, 1))
    assert link.wait_tasks([other.seq], 10.0)
    gate.open()
    assert link.wait_for(pending.all_done, 10.0)
    assert pending.wait_part(0, None)
    assert pending.wait_count(1, None)
    assert pending.get_single(None) == "value"
    assert link.wait_all(10.0)
    assert (link.outstanding(), link.outstanding_seqs()) == (0, [])


def test_parts_are_counted_in_the_order_of_their_ends(connected, gate):
    numbers = [connected.link.define_options(TaskOptions("Each", (engine,)).to_json()) for engine in (0, 1)]
    task = gate.task()

    def held(wait):
        return task() if wait else None

    pending = connected.submitter((0, 1)).each(held, [(True,), (False,)], numbers)
    assert pending.wait_count(1, 10.0)
    assert pending.completed_part(0) == 1
    assert not pending.all_done()
    gate.open()
    settled(pending)
    assert pending.completed_part(1) == 0


def test_callbacks_come_once_each_however_late(connected, gate):
    calls: list[str] = []
    pending = connected.on(0, gate.task())
    for name in ("first", "second"):
        pending.on_done(lambda name=name: calls.append(name))
    assert calls == []
    gate.open()
    settled(pending)
    assert until(lambda: len(calls) == 2)
    assert sorted(calls) == ["first", "second"]
    pending.on_done(lambda: calls.append("at once"))
    assert calls[2:] == ["at once"]


def test_a_thread_that_waits_is_woken_by_the_end(connected, gate):
    pending = connected.on(0, gate.task(), 3)
    values: list[int] = []
    thread = threading.Thread(target=lambda: values.append(pending.get_single(30.0)))
    thread.start()
    gate.open()
    thread.join(30)
    assert values == [3]


# Cancelling ---------------------------------------------------------------------------------------


def test_running_and_queued_tasks_are_cancelled(connected, gate):
    running = connected.on(0, gate.task())
    gate.wait_for_tasks()
    queued = connected.on(0, abs, 1)
    assert connected.request({"Cancel": [queued.seq]}) == "Done"
    assert settled(queued).failure(0).args[0] == CANCELLED
    assert not running.all_done()
    assert connected.request({"Cancel": [running.seq, queued.seq, 10**6]}) == "Done"
    assert settled(running).status(0) == CANCELLED
    assert settled(connected.on(0, abs, -1)).value(0) == 1


def test_an_abandoned_part_is_cancelled_while_its_task_goes_on(connected, gate):
    calls: list[str] = []
    pending = connected.on(0, gate.task())
    pending.on_done(lambda: calls.append("done"))
    gate.wait_for_tasks()
    pending.abandon([0])
    assert pending.all_done()
    assert pending.status(0) == CANCELLED
    assert until(lambda: calls == ["done"])
    assert connected.link.outstanding_seqs() == [pending.seq]
    gate.open()
    assert connected.link.wait_all(10.0)
    assert pending.status(0) == CANCELLED


# Dependencies -------------------------------------------------------------------------------------


def test_a_task_starts_after_those_it_depends_on(connected, gate):
    first = connected.on(0, gate.task())
    submit = connected.submitter()
    after = submit(abs, (-1,), {}, [first.seq])
    beside = settled(submit(abs, (-2,), {}))
    follower = submit(abs, (-3,), {}, [], [beside.seq])
    assert settled(follower).times(0)[3] == beside.times(0)[3]
    assert not after.all_done()
    gate.open()
    assert settled(after).value(0) == 1
    assert after.times(0)[0] >= first.times(0)[0]


@pytest.mark.parametrize("how", ["after", "follow"])
def test_a_task_that_depends_on_a_failed_one_is_refused(connected, how):
    failed = settled(connected.balanced(divmod, 1, 0))
    pending = settled(connected.submitter()(abs, (1,), {}, **{how: [failed.seq]}))
    assert pending.status(0) == REFUSED
    assert json.loads(pending.failure(0).args[1]) == "ImpossibleDependency"


# The controller's answers -------------------------------------------------------------------------


def test_queues_and_records_say_what_runs(connected, gate):
    running = connected.on(0, gate.task())
    gate.wait_for_tasks()
    queued = connected.on(0, abs, 1)

    def row() -> list[int]:
        [row] = [row for row in connected.request("QueueStatus")["Queues"] if row[0] == 0]
        return row

    assert until(lambda: row()[1:3] == [1, 1]), row()
    completed = row()[3]
    names = [[connected.link.client_id, pending.seq] for pending in (running, queued)]
    records = connected.request({"Records": names})["Records"]["records"]
    told = {record["seq"]: record for record in records}
    assert {seq: record["is_running"] for seq, record in told.items()} == {running.seq: True, queued.seq: False}
    assert all(record["status"] is None for record in records)
    assert set(told[running.seq]) >= {"client", "seq", "engine", "label", "submitted_ns", "has_result", "can_run_again"}
    assert isinstance(connected.request({"Explain": queued.seq})["Text"], str)
    gate.open()
    settled(queued)
    assert until(lambda: row()[1:] == [0, 0, completed + 2]), row()


def test_status_is_text_and_requests_that_make_no_sense_raise(connected):
    assert isinstance(json.loads(connected.request("Status")["Text"]), dict)
    for text in ('"NoSuchRequest"', "no JSON"):
        with pytest.raises(ValueError):
            connected.link.request(text)


# Output -------------------------------------------------------------------------------------------


def test_a_silent_task_has_written_nothing(connected):
    pending = settled(connected.balanced(abs, 1))
    assert pending.text_since(0, 1, 0) == ("", 0)
    assert pending.messages(0) == []
    assert pending.written_parts() == []


# Death: each side's cluster is one of its own -----------------------------------------------------


@pytest.mark.parametrize("name", ["fake", "native"])
def test_an_engine_dies(name):
    with started(name) as own:
        connected = own.connect()
        link = connected.link
        with closing(link):
            version = link.engines_version
            pending = settled(connected.on(1, _raise_fake_death if name == "fake" else _kill_itself))
            assert pending.status(0) == LOST
            _, payload, engine, _ = pending.failure(0).args
            certificate = json.loads(payload)
            assert (certificate["engine"], engine, certificate["task_started"]) == (1, 1, True)
            assert set(certificate["cause"]) == {"Signal"}
            assert set(certificate) >= {"uuid", "pid", "host", "last_output"}
            assert until(lambda: [e[0] for e in link.engines()] == [0])
            assert link.engines_version != version
            n_deaths, [death] = link.deaths_after(0)
            assert json.loads(death)["engine"] == n_deaths == 1
            assert link.deaths_after(1) == (1, [])
            assert until(lambda: "engine_down" in [kind for kind, _ in connected.hooks.events])
            [body] = [body for kind, body in connected.hooks.events if kind == "engine_down"]
            assert body["engine"] == 1
            assert settled(connected.on(0, abs, -1)).value(0) == 1
            assert settled(connected.on(1, abs, 1)).status(0) == REFUSED


def _raise_fake_death() -> None:
    raise fake_native.EngineDeath


def _kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
