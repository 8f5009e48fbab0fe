"""Payloads that are encoded and then not sent: nothing of them stays in use."""

import os
import signal
import threading
from pathlib import Path

import broadleaf as ipp
import numpy as np
import pytest
from waiting import until

MIB = 1 << 20


def bytes_in_use(client: ipp.Client) -> int:
    counters = client.link.counters()
    return counters["segment_bytes"] - counters["warm_bytes"]


@ipp.interactive
def total() -> float:
    return float(a.sum())  # noqa: F821


@ipp.interactive
def wait_for(path: str, _: object) -> None:
    import os
    import time

    while not os.path.exists(path):
        time.sleep(0.01)


def test_a_payload_of_which_a_part_does_not_fit():
    with ipp.Cluster(n=1, pool_max_bytes=64 * MIB) as client:
        view = client[0]
        small, large = np.arange(MIB, dtype=float), np.zeros(10 * MIB)
        with pytest.raises(MemoryError):
            view.push({"a": small, "b": large}, block=True)
        assert bytes_in_use(client) == 0
        # The first array's segment is used again, and nobody was told of it the first time.
        for i in range(3):
            view.push({"a": small + i}, block=True)
            assert view.apply_sync(total) == (small + i).sum()


def test_a_large_payload_without_buffers():
    with ipp.Cluster(n=1) as client:
        view = client[0]
        assert view.apply_async(sizes, [b"x" * (256 * MIB)], np.zeros(MIB)).get(timeout=60) == [1, MIB]
        # Each text is small enough for the compact encoding, all of them are not.
        texts = tuple(chr(0x4E00 + n) * 5_461 for n in range(16_384))
        for many in (texts, {str(n): text for n, text in enumerate(texts)}):
            assert view.apply_async(len, many).get(timeout=60) == len(many)
        view.apply_sync(abs, 1)
        assert bytes_in_use(client) == 0


def test_a_large_payload_for_which_there_is_no_room():
    with ipp.Cluster(n=1, pool_max_bytes=64 * MIB) as client:
        view = client[0]
        for values in (
            [b"x" * (65 * MIB)],
            [np.zeros(MIB // 8) for _ in range(70)],
            [np.zeros(600) for _ in range(15_000)],
        ):
            with pytest.raises(MemoryError):
                view.apply_async(len, values)
            with pytest.raises(MemoryError):
                view.apply_async(lambda values=values: len(values))
            assert bytes_in_use(client) == 0
        view.push({"a": np.ones(MIB)}, block=True)
        assert view.apply_sync(total) == MIB


def sizes(*values: object) -> list[int]:
    return [len(value) for value in values]  # type: ignore[arg-type]


def test_a_submission_interrupted_while_it_waits_for_room(tmp_path: Path):
    with ipp.Cluster(n=1, max_outstanding_bytes=MIB) as client:
        view, gate = client.load_balanced_view(), tmp_path / "open"
        held = view.apply_async(wait_for, str(gate), np.zeros(MIB))
        in_use = bytes_in_use(client)

        def interrupt() -> None:
            until(lambda: client.link.counters()["throttled"])
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            view.apply_async(len, np.ones(MIB))
        thread.join()
        assert bytes_in_use(client) == in_use
        gate.touch()
        held.get(timeout=30)
        assert view.apply_sync(len, np.ones(MIB)) == MIB
