"""Arrays that were received and not written to are sent on without a copy; all others are copied, correctly."""

import gc
import os
import signal
import sys

import numpy as np
import pytest
from waiting import until

PAGE_ITEMS = 4096 // 8
ITEMS = 1_000_000 // 8
pytestmark = pytest.mark.timeout(60)


def array(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(ITEMS)


def engine_counters() -> dict[str, int]:
    """Of the engine's own segments."""
    return sys.stdout._engine.counters()


def open_segments() -> set[int]:
    """Inodes of the segments that this process has descriptors of."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{number}"
        try:
            if os.readlink(path).startswith("/memfd:broadleaf "):
                found.add(os.stat(path).st_ino)
        except FileNotFoundError:  # the one that listed them
            continue
    return found


class Copies:
    """Counts buffers copied into segments by the client and by engine 0."""

    def __init__(self, rc):
        self.rc = rc
        self.begin = self.now()

    def now(self) -> tuple[int, int]:
        return self.rc.counters()["copies"], self.rc[0].apply_sync(engine_counters)["copies"]

    def __call__(self) -> tuple[int, int]:
        return tuple(now - before for now, before in zip(self.now(), self.begin, strict=True))


@pytest.fixture
def copies(rc):
    return Copies(rc)


def echo(x):
    return x


def test_an_echo_is_one_copy_and_both_ends_own_their_bytes(rc, copies):
    x = array()
    y = rc[0].apply_sync(echo, x)
    assert copies() == (1, 0)
    assert np.array_equal(x, y)
    assert y.flags.writeable
    y[:] = 0
    x[:] = 1
    z = rc[0].apply_sync(echo, x)
    assert (y == 0).all()
    assert (z == 1).all()


@pytest.mark.parametrize("place", [0, ITEMS // 2, ITEMS - 1])
@pytest.mark.parametrize("at_client", [False, True])
def test_one_written_item_is_seen(rc, copies, place, at_client):
    def change(x, place):
        x[place] = -1
        return x

    x = array()
    if at_client:
        y = rc[0].apply_sync(change, rc[0].apply_sync(echo, x), place)
        assert copies() == (1, 1)
        y[place] = -2
        z = rc[0].apply_sync(echo, y)
        assert copies() == (2, 1)
        assert z[place] == -2
        y[place] = z[place] = x[place]
        assert np.array_equal(y, z)
    else:
        y = rc[0].apply_sync(change, x, place)
        assert copies() == (1, 1)
        assert y[place] == -1
        y[place] = x[place]
    assert np.array_equal(x, y)


def test_a_written_page_beside_a_part_does_not_matter_and_one_under_it_does(rc, copies):
    def tail(x, first):
        x[PAGE_ITEMS - 1] = -1
        return x[first:]

    x = array()
    assert np.array_equal(rc[0].apply_sync(tail, x, PAGE_ITEMS), x[PAGE_ITEMS:])
    assert copies() == (1, 0)
    part = rc[0].apply_sync(tail, x, PAGE_ITEMS - 1)
    assert copies() == (2, 1)
    assert part[0] == -1
    assert np.array_equal(part[1:], x[PAGE_ITEMS:])


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[1:],
        lambda x: x[1234:-1],
        lambda x: x.view(np.uint8)[4099:-3],
        lambda x: x.view(np.int32),
        lambda x: x.reshape(8, -1)[3:],
        lambda x: x.reshape(8, -1).T,
    ],
)
def test_a_contiguous_part_is_sent_on_from_both_ends(rc, copies, view):
    x = array()
    y = rc[0].apply_sync(lambda x, view: view(x), x, view)
    assert copies() == (1, 0)
    assert np.array_equal(y, view(x))
    assert y.dtype == view(x).dtype
    again = rc[1].apply_sync(lambda a: a[1:], y)
    assert np.array_equal(again, y[1:])
    assert copies() == (1, 0)


def test_a_small_part_is_copied_so_that_it_does_not_keep_the_whole(rc, copies):
    x = array()
    part = rc[0].apply_sync(lambda x: x[5 : 5 + ITEMS // 8], x)
    assert np.array_equal(part, x[5 : 5 + ITEMS // 8])
    assert copies() == (1, 1)


def test_a_stride_is_no_part(rc):
    x = array()
    assert np.array_equal(rc[0].apply_sync(lambda x: x[::2], x), x[::2])


def test_parts_of_several_arguments_and_one_named_twice(rc, copies):
    x, y = array(1), array(2)
    a, b, c = rc[0].apply_sync(lambda x, y: (y, x[ITEMS // 2 :], y[: ITEMS // 2]), x, y)
    assert np.array_equal(a, y)
    assert np.array_equal(b, x[ITEMS // 2 :])
    assert np.array_equal(c, y[: ITEMS // 2])
    assert copies() == (2, 0)
    a[:] = 0
    assert np.array_equal(c, y[: ITEMS // 2])


def test_an_engines_array_goes_on_to_others_and_back_to_itself(rc, copies):
    y = rc[0].apply_sync(array, 5)
    assert copies() == (0, 1)
    for engine in (1, 0, 2):
        y = rc[engine].apply_sync(echo, y)
    rc[3].push({"kept": y}, block=True)
    assert copies() == (0, 1)
    del y
    gc.collect()
    assert np.array_equal(rc[3].pull("kept", block=True), array(5))


def test_to_several_engines_at_once(rc, copies):
    y = rc[0].apply_sync(echo, array())
    ours = copies()[0]
    for z in rc[:].apply_sync(echo, y):
        assert np.array_equal(z, y)
    assert copies()[0] == ours


def test_kept_bytes_outlive_the_original_and_a_thousand_sends(rc, lview, copies):
    x = array(7)
    kept = rc[0].apply_sync(echo, x)
    part = rc[1].apply_sync(lambda x: x[100:], kept)
    rc[2].push({"there": kept}, block=True)
    del x
    other = np.zeros(ITEMS)
    for number in range(0, 1000, 20):
        other[:] = number
        for y in [lview.apply_async(echo, other) for _ in range(20)]:
            assert (y.get() == number).all()
    assert np.array_equal(kept, array(7))
    assert np.array_equal(part, array(7)[100:])
    del kept, part
    assert np.array_equal(rc[2].pull("there", block=True), array(7))


def test_after_a_fork_parent_and_child_have_their_own(rc, copies):
    def fork(x):
        child = os.fork()
        if child == 0:
            right = x[-1] == 7 and (x[:-1] == 3).all()
            x[:] = 0
            os._exit(0 if right else 1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), x

    x = np.full(ITEMS, 3.0)
    x[-1] = 7
    code, y = rc[0].apply_sync(fork, x)
    assert code == 0
    assert np.array_equal(x, y)
    assert copies() == (1, 0)

    code, y = rc[0].apply_sync(lambda x, f: f(x.__setitem__(0, 3.0) or x), x, fork)
    assert code == 0
    assert np.array_equal(x, y)
    assert copies() == (2, 1)


def test_everything_is_given_back(rc):
    def settled() -> tuple[int, int]:
        rc[:].apply_sync(gc.collect)
        gc.collect()
        rc[:].apply_sync(len, "")  # what was dropped is reported with the next message
        counters = rc.counters()
        in_use = counters["segment_bytes"] - counters["warm_bytes"]
        engines = rc[:].apply_sync(engine_counters)
        in_use += sum(c["segment_bytes"] - c["warm_bytes"] for c in engines)
        mapped = counters["mappings"] - counters["segments"]
        return in_use, mapped + sum(c["mappings"] - c["segments"] for c in engines)

    assert until(lambda: settled()[0] == 0)
    base = settled()
    y = rc[0].apply_sync(array, 1)
    kept = [rc[0].apply_sync(echo, y), rc[1].apply_sync(lambda x: (x, x[5:]), y), rc[:].apply_sync(echo, array(2))]
    during = settled()
    assert during[0] > 0
    del y, kept
    # What earlier tests left mapped may be unmapped at any time.
    assert until(lambda: settled()[0] == 0 and settled()[1] < during[1] and settled()[1] <= base[1])


def test_bytes_of_a_killed_engine_live_on_and_are_forgotten_in_the_end():
    import broadleaf as ipp

    before = open_segments()  # of other clusters
    with ipp.Cluster(n=2, restart_engines=False) as client:
        mapped_before = client.counters()["mappings"]
        victim = client[0].apply_sync(os.getpid)
        y = client[0].apply_sync(array, 3)
        z = client[1].apply_sync(echo, y)
        os.kill(victim, signal.SIGKILL)
        assert until(lambda: client.ids == [1])
        w = client[1].apply_sync(lambda x: x[1:], z)
        for got in (y, z, np.concatenate([y[:1], w])):
            assert np.array_equal(got, array(3))

        def known() -> tuple[int, int]:
            return client.status()["node"]["segments"], client.counters()["mappings"]

        assert known()[0] == 1
        assert len(open_segments() - before) <= 1
        del y, z, w, got
        gc.collect()
        assert until(lambda: client[1].apply_sync(gc.collect) is not None and known()[0] == 0)
        assert known()[1] <= mapped_before, "of what it mapped itself nothing is left"
        assert client[1].apply_sync(open_segments) == set()
        assert open_segments() <= before
