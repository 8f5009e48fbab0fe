"""Tasks and clients that fork: a child is neither an engine nor a client, and its parent does not notice it."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
import traceback

import broadleaf as ipp
import pytest

pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]


def in_child(function):
    """What `function` returns in a forked child, through JSON: a value, or the type and text of what it raised."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            try:
                said = ["value", function()]
            except BaseException as error:
                said = [type(error).__name__, str(error)]
            os.write(write_end, json.dumps(said).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(said)


# In tasks


def forked_exit_code(child):
    """Forks in a task; the parent's value is the child's exit code."""

    def task():
        pid = os.fork()
        if pid == 0:
            return child()
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    return task


def fail():
    raise ValueError("raised in a child")


async def fork_in_coroutine():
    pid = os.fork()
    if pid == 0:
        return "child"
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize(
    ("child", "code"),
    [(lambda: "child", 0), (lambda: sys.exit(0), 0), (lambda: sys.exit(3), 3), (lambda: sys.exit("no"), 1), (fail, 1)],
    ids=["returns", "exit 0", "exit 3", "exit with text", "raises"],
)
def test_a_child_that_comes_back_from_its_task_ends(rc, child, code):
    view = rc[0]
    pid = view.apply_sync(os.getpid)
    assert view.apply_async(forked_exit_code(child)).get(timeout=20) == code
    for number in range(50):
        view["a"] = number
        assert view.apply_async(lambda number: (os.getpid(), number), number).get(timeout=20) == (pid, number)
        assert view["a"] == number


def test_a_child_of_a_coroutine_ends(rc):
    # asyncio has no running loop in a child, so the child's outcome is not the point.
    assert rc[0].apply_async(fork_in_coroutine).get(timeout=20) in (0, 1)
    assert rc[0].apply_async(lambda: "the engine").get(timeout=20) == "the engine"


def test_a_child_of_a_nested_task_ends(rc):
    def outer():
        return ipp.get_client()[:1].apply_async(forked_exit_code(fail)).get(timeout=20)

    assert rc[1].apply_async(outer).get(timeout=20) == [1]


def test_a_child_that_outlives_its_task_is_not_heard_of(rc):
    def leave_child():
        read_end, write_end = os.pipe()
        if os.fork() == 0:
            os.close(write_end)
            os.read(read_end, 1)
            return "from a child"
        os.close(read_end)
        return write_end

    view = rc[0]
    write_end = view.apply_async(leave_child).get(timeout=20)
    assert view.apply_sync(lambda: 1) == 1
    assert view.apply_async(lambda: (os.close(write_end), os.wait())[1][1]).get(timeout=20) == 0
    assert view.apply_sync(lambda: 2) == 2


def test_children_hold_no_socket_of_their_engine(rc):
    def sockets_of_child():
        def sockets():
            links = []
            for fd in os.listdir("/proc/self/fd"):
                try:
                    links.append(os.readlink(f"/proc/self/fd/{fd}"))
                except FileNotFoundError:  # that of the listing itself
                    continue
            return [link for link in links if link.startswith("socket:")]

        own = sockets()
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(write_end, json.dumps(sockets()).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        return own, json.loads(os.read(read_end, 65536))

    own, childs = rc[3].apply_sync(sockets_of_child)
    assert own
    assert childs == []


def test_what_a_child_prints_and_how_it_failed_is_its_tasks(rc):
    result = rc[0].apply_async(forked_exit_code(lambda: (print("printed by the child"), fail())))
    assert result.get(timeout=20) == 1
    assert "printed by the child" in result.stdout
    assert "ValueError: raised in a child" in result.stderr
    assert "panicked" not in result.stderr


def test_processes_of_multiprocessing_in_a_task(rc):
    def pool():
        with multiprocessing.get_context("fork").Pool(2) as workers:
            return workers.map(abs, range(-5, 0))

    assert rc[0].apply_async(pool).get(timeout=30) == [5, 4, 3, 2, 1]
    assert rc[0].apply_sync(lambda: "the same engine") == "the same engine"


def test_a_child_can_be_interrupted(rc):
    def interrupted():
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.write(write_end, b"!")
                while True:  # in slices: a signal just before a sleep does not end it
                    time.sleep(0.05)
            except KeyboardInterrupt:
                os._exit(42)
        os.read(read_end, 1)
        os.kill(pid, signal.SIGINT)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert rc[0].apply_async(interrupted).get(timeout=20) == 42


def test_a_child_that_is_interrupted_again_and_again_ends(rc):
    def interrupted():
        pid = os.fork()
        if pid == 0:
            return
        ended, status = 0, 0
        while not ended:
            os.kill(pid, signal.SIGINT)
            ended, status = os.waitpid(pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status)

    assert {rc[0].apply_async(interrupted).get(timeout=20) for _ in range(50)} <= {0, 1}


# Clients

SAYS = "open a new Client after the fork"


USES = {
    "apply_async": lambda client, view, pending: view.apply_async(int),
    "apply_sync": lambda client, view, pending: view.apply_sync(int),
    "push": lambda client, view, pending: view.push({"a": 1}, block=True),
    "map": lambda client, view, pending: client.load_balanced_view().map_async(abs, [1]),
    "new view": lambda client, view, pending: client[0].apply_async(int),
    "get": lambda client, view, pending: pending.get(timeout=5),
    "wait": lambda client, view, pending: pending.wait(5),
    "abort": lambda client, view, pending: pending.abort(),
    "wait of all": lambda client, view, pending: client.wait(timeout=5),
    "queue_status": lambda client, view, pending: client.queue_status(),
    "wait_for_engines": lambda client, view, pending: client.wait_for_engines(1, timeout=5),
    "add_done_callback": lambda client, view, pending: pending.add_done_callback(print),
}


@pytest.mark.parametrize("name", USES)
def test_a_forked_client_says_so_and_its_parent_goes_on(cluster, gate, name):
    with cluster.connect_client_sync() as client:
        view = client[:]
        pending = view.apply_async(gate.task(), "asked for before the fork")
        kind, text = in_child(lambda: USES[name](client, view, pending))
        assert (kind, SAYS in text) == ("LinkLost", True), (kind, text)
        gate.open()
        assert pending.get(timeout=20) == ["asked for before the fork"] * 4
        assert view.apply_async(lambda: "after").get(timeout=20) == ["after"] * 4


def test_a_client_is_closed_in_a_child_without_a_word(cluster, capfd):
    with cluster.connect_client_sync() as client:

        def close():
            looks = [client.closed, repr(client)]
            client.close()
            client.__exit__(None, None, None)
            return looks

        kind, (closed, text) = in_child(close)
        assert (kind, closed) == ("value", True)
        assert "closed" in text
        assert client[:].apply_sync(lambda: 1) == [1] * 4
    assert capfd.readouterr() == ("", "")


def test_a_client_dropped_in_a_child_is_no_matter_to_its_parent(cluster, capfd):
    held = [cluster.connect_client_sync()]
    try:
        view = held[0][:]
        assert view.apply_sync(lambda: 1) == [1] * 4
        del view
        assert in_child(lambda: held.clear() or (__import__("gc").collect() and None))[0] == "value"
        assert held[0][:].apply_sync(lambda: 1) == [1] * 4
    finally:
        held[0].close()
    assert capfd.readouterr() == ("", "")


def test_a_child_reads_results_that_were_there_and_opens_a_client_of_its_own(cluster):
    with cluster.connect_client_sync() as client:
        done = client[:].apply_async(lambda: bytes(200_000))
        done.wait()

        def in_its_own():
            assert done.get() == [bytes(200_000)] * 4
            with ipp.Client(cluster.connection_file) as own:
                return own[:].apply_async(lambda: "own").get(timeout=20)

        assert in_child(in_its_own) == ["value", ["own"] * 4]
        assert client[:].apply_sync(lambda: 1) == [1] * 4


def test_a_process_of_multiprocessing_leaves_the_client_alone(cluster):
    with cluster.connect_client_sync() as client:
        process = multiprocessing.get_context("fork").Process(target=lambda: client[:].apply_sync(int))
        process.start()
        process.join(20)
        assert process.exitcode == 1
        assert client[:].apply_sync(lambda: 1) == [1] * 4


def test_a_child_that_leaves_the_clusters_block_does_not_stop_it():
    with ipp.Cluster(n=1) as client:
        pid = os.fork()
        if pid == 0:
            try:
                client.cluster.__exit__(None, None, None)
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        assert client[:].apply_async(lambda: 1).get(timeout=20) == [1]
        assert client.cluster.running


def test_a_child_knows_that_the_cluster_runs():
    with ipp.Cluster(n=1) as client:
        cluster = client.cluster
        assert in_child(lambda: (cluster.running, len(cluster.status_sync()["engines"]))) == ["value", [True, 1]]
        assert cluster.running
