"""Calls that are too large for something: either they work, or only that call ends in an error that names what is
large.
"""

import json
import re
import time
from pathlib import Path

import broadleaf as ipp
import numpy as np
import pytest

MIB = 1 << 20
# More than a frame holds.
OVER_A_FRAME = 257 * MIB
pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def other(rc, tmp_path: Path):
    """A task of the same client, which must survive, and all engines with it."""
    gate = tmp_path / "other"
    result = rc[3].apply_async(wait_for, str(gate))
    yield result
    gate.touch()
    assert result.get(timeout=30) is None
    assert rc.ids == [0, 1, 2, 3]


def wait_for(path: str) -> None:
    import os
    import time

    while not os.path.exists(path):
        time.sleep(0.01)


def raise_long() -> None:
    raise ValueError("x" * OVER_A_FRAME)


def raise_with_much() -> None:
    error = ValueError("short")
    error.data = b"x" * OVER_A_FRAME  # type: ignore[attr-defined]
    raise error


@pytest.mark.parametrize(("function", "text"), [(raise_long, "xxxx"), (raise_with_much, "short")])
def test_an_exception(rc, other, function, text):
    with pytest.raises(ipp.RemoteError, match=text) as caught:
        rc[0].apply_async(function).get(timeout=120)
    assert len(str(caught.value)) < MIB


def test_many_buffers_there_and_back(rc, other):
    # Large ones, more than one message can name; small ones, more than one message holds.
    for n, items in ((4_200, 8_200), (60_000, 600)):
        sums, first = rc[0].apply_async(sums_of, [np.full(items, i, float) for i in range(n)]).get(timeout=120)
        assert sums == [float(i * items) for i in range(n)]
        assert [array.shape for array in first] == [(items,)] * n
        assert float(first[n - 1][items - 1]) == n - 1
        first[0][0] = -1
        assert float(first[1][0]) == 1


def sums_of(arrays):
    sums = [float(array.sum()) for array in arrays]
    assert all(array.flags.writeable for array in arrays)
    return sums, arrays


def test_buffers_of_many_sizes_keep_their_order(rc):
    lengths = [5_000_000, *(9_000 + i for i in range(1_100)), 0, 3, 1_100_000]
    arrays = [np.full(n, i, np.int32) for i, n in enumerate(lengths)]
    back = rc[0].apply_async(lambda x: x, {"arrays": arrays, "n": 1}).get(timeout=60)
    assert back["n"] == 1
    for sent, got in zip(arrays, back["arrays"], strict=True):
        np.testing.assert_array_equal(sent, got)


def test_many_captured_buffers(rc, lview):
    arrays = [np.full(10_000, i) for i in range(2_000)]
    with pytest.warns(UserWarning, match="unpacks 160"):
        result = lview.map(lambda i: int(arrays[i][-1]), range(0, 2_000, 50), chunksize=1)
    assert sum(result) == sum(range(0, 2_000, 50))


def test_readonly_buffers_stay_so(rc):
    rc[0].push({"arrays": [np.ones(600) for _ in range(20_000)]}, mode="readonly", block=True)
    assert rc[0].apply_async(writeable, ipp.Reference("arrays")).get(timeout=60) == [False] * 20_000


def writeable(arrays):
    return [array.flags.writeable for array in arrays]


def test_many_dependencies(rc, lview, other):
    n = 66_000
    before = [lview.apply_async(int) for _ in range(n)]
    with lview.temp_flags(after=before):
        assert lview.apply_async(abs, -1).get(timeout=60) == 1
    lview._prepare()
    with pytest.raises(ValueError, match="can depend on at most 1048576 tasks"):
        submitter(lview)(abs, (-1,), {}, range((1 << 20) + 1), ())


def submitter(view):
    """What the view submits by, which takes numbers of tasks that need not exist."""
    view.apply_sync(int)
    return view._submit_one


@pytest.mark.parametrize("mib", [1, 64])
def test_a_large_argument_beside_tasks_with_few_bytes(tmp_path: Path, mib):
    with ipp.Cluster(n=2, max_outstanding_bytes=mib * MIB) as client:
        gate = tmp_path / "open"
        held = [client[1].apply_async(lambda: wait_for(str(gate))), client[1].apply_async(wait_for, str(gate))]
        large = np.zeros((mib + 1) * MIB // 8)
        client[0].push({"a": large}, block=True)
        client.broadcast_view(0).push({"b": large}, block=True)
        assert client.load_balanced_view(0).apply_async(len, large).get(timeout=30) == len(large)
        gate.touch()
        for result in held:
            result.get(timeout=30)


def test_keywords(rc, other):
    kwargs = {f"k{i}": "x" * 16_000 for i in range(17_000)}
    assert rc[0].apply_async(lambda **k: sum(map(len, k.values())), **kwargs).get(timeout=120) == 16_000 * 17_000


def test_code_output_and_names(rc, other):
    rc[0].execute(f"text = '{'y' * OVER_A_FRAME}'", block=True)
    assert rc[0].apply_async(len, ipp.Reference("text")).get(timeout=60) == OVER_A_FRAME
    written = rc[0].apply_async(print, "é" * (OVER_A_FRAME // 2))
    written.get(timeout=120)
    rest, n_notices = re.subn(r"\[broadleaf: [\d,]+ bytes of output were dropped here\]", "", written.stdout)
    assert n_notices > 0, "the client keeps the newest, and a busy one is sent less"
    assert set(rest) <= {"é", "\n", "\ufffd"}


def test_options(rc, lview, other):
    with lview.temp_flags(label="x" * OVER_A_FRAME), pytest.raises(ValueError, match="use a shorter label"):
        lview.apply_async(abs, 1)
    assert lview.apply_async(abs, -1).get(timeout=10) == 1


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory):
    """A client that no segment reaches, like one on another host."""
    with ipp.Cluster(n=2, listen="127.0.0.1:0") as local:
        connection = json.loads(Path(local.cluster.connection_file).read_text()) | {"transport": "tcp"}
        path = tmp_path_factory.mktemp("tcp") / "tcp.json"
        path.write_text(json.dumps(connection))
        with ipp.Client(str(path)) as client:
            client.wait_for_engines(2, timeout=30)
            yield client
            assert client[0].apply_async(abs, -1).get(timeout=30) == 1


def test_a_function_from_another_host_names_what_is_large(remote, tmp_path: Path):
    table = {i: -i for i in range(8_000_000)}
    names = {"__name__": "__main__", "table": table, "small": 1}
    exec("def f(x): return len(table) + small + x", names)
    view = remote.load_balanced_view()
    gate = tmp_path / "open"
    other = remote[1].apply_async(wait_for, str(gate))
    with (
        pytest.raises(ipp.SerializationError, match=r"the function 'f'.*the global 'table' .* is \d+ MiB.*64 MiB"),
        pytest.warns(UserWarning, match="unpacks"),
    ):
        view.map(names["f"], range(4), chunksize=1)
    small = np.ones(MIB)
    with pytest.warns(UserWarning, match="unpacks 8"):
        result = view.map(lambda x: float(small[-1]) + x, range(3), chunksize=1)
    assert result.get(timeout=60) == [1.0, 2.0, 3.0]
    # One call of it is one message.
    assert view.apply_async(names["f"], 1).get(timeout=120) == len(table) + 2
    gate.touch()
    other.get(timeout=30)


def test_arguments_from_another_host_that_no_message_holds(remote):
    large = b"x" * OVER_A_FRAME
    engine = remote[0]
    assert engine.apply_async(len, large).get(timeout=120) == OVER_A_FRAME
    assert engine.apply_async(lambda *, key: len(key), key=large).get(timeout=120) == OVER_A_FRAME
    assert engine.apply_async(lambda: len(large)).get(timeout=120) == OVER_A_FRAME
    halves = [letter * (OVER_A_FRAME // 2 + 1) for letter in (b"x", b"y")]
    assert engine.apply_async(max, *halves).get(timeout=120)[:1] == b"y"


def test_a_value_for_another_host(remote):
    for value in (bytes, np.zeros):
        size = OVER_A_FRAME if value is bytes else OVER_A_FRAME // 8 + 1
        assert len(remote[0].apply_async(value, size).get(timeout=120)) == size
    started = time.monotonic()
    assert remote[0].apply_async(abs, -2).get(timeout=30) == 2
    assert time.monotonic() - started < 30
