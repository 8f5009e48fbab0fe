"""Engines killed at random under load: nothing is lost, nothing runs twice, nothing is left behind."""

import contextlib
import os
import random
import signal
import threading
from pathlib import Path

import broadleaf as ipp
import pytest

ROUNDS = int(os.environ.get("BROADLEAF_KILL_ROUNDS", "12"))
TASKS = 300


def note(directory: str, task: int) -> int:
    """Leaves one line for each time it runs, in a way that survives the death of the process."""
    descriptor = os.open(os.path.join(directory, str(task)), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, b"x")
    os.close(descriptor)
    return task


def resources() -> tuple[int, int, int]:
    """Descriptors, threads and mappings of segments of this process."""
    maps = Path("/proc/self/maps").read_text()
    return len(os.listdir("/proc/self/fd")), threading.active_count(), maps.count("memfd:")


@pytest.mark.timeout(60 + 10 * ROUNDS)
def test_kills_under_load(tmp_path: Path) -> None:
    chance = random.Random(20_260_101)
    with ipp.Cluster(n=4, restart_engines=True, max_restarts=1_000_000, restart_backoff_max_s=0.1) as client:
        view = client.load_balanced_view()
        view.map_sync(abs, range(100))
        before = resources()
        killed = 0
        causes = set()
        for number in range(ROUNDS):
            directory = tmp_path / str(number)
            directory.mkdir()
            client.wait_for_engines(4, timeout=30)
            results = [view.apply_async(note, str(directory), task) for task in range(TASKS)]
            for engine in chance.sample(client.link.engines(), chance.choice([1, 1, 2])):
                # After the last round's kills a pid may be that of an engine that is gone already.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(engine[2], signal.SIGKILL)
                killed += 1
            runs = failures = 0
            for task, result in enumerate(results):
                try:
                    assert result.get(timeout=30) == task
                except ipp.EngineError as error:
                    failures += 1
                    causes.add(error.certificate.cause)
            for task in range(TASKS):
                path = directory / str(task)
                times = len(path.read_bytes()) if path.exists() else 0
                assert times <= 1, f"task {task} ran {times} times without retries"
                runs += times
            # What was reported done did run, and only what an engine had taken can have failed.
            assert runs >= TASKS - failures
        assert killed >= ROUNDS
        assert causes <= {"signal"}
        client.wait_for_engines(4, timeout=30)
        after = resources()
    assert [a <= b + 4 for a, b in zip(after, before, strict=True)] == [True, True, True], (before, after)
