"""Interrupts of eight engines, round after round: all end what they run, and the next call is right.

`BROADLEAF_INTERRUPT_ROUNDS=100` runs as many rounds, and `-s` shows how long it takes until the engines are idle.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

import broadleaf as ipp
import pytest
from test_interrupts import BEGUN, LOOP, SLEEP
from test_interrupts import interrupting as interrupting_cell
from waiting import until

ROUNDS = int(os.environ.get("BROADLEAF_INTERRUPT_ROUNDS", "3"))
ENGINES = 8
# A call into BLAS continues to its end; the interrupt comes afterwards.
PRODUCT = f"import numpy\nfactor = numpy.ones((1000, 1000))\n{BEGUN}for _ in range(10_000):\n    factor @ factor"
# An engine that nobody interrupts is busy for a minute.
IDLE_S = 20.0


@pytest.fixture(scope="module")
def engines():
    """A client of eight engines."""
    with ipp.Cluster(n=ENGINES) as client:
        yield client


@pytest.fixture
def px8(ip, engines):
    """A session whose cells run on all of them."""
    engines.activate(suffix="8")
    return ip


def are_idle(rc: ipp.Client) -> bool:
    """Whether no engine runs or awaits anything."""
    status = rc.queue_status()
    return all(status[engine]["tasks"] == status[engine]["queue"] == 0 for engine in rc.ids)


def rounds(rc: ipp.Client, directory, interrupt: Callable[[str, Callable[[], bool]], float], code: str) -> None:
    """Makes `interrupt` interrupt `code` again and again; returns the moment of the interrupt."""
    took_s = []
    for number in range(ROUNDS):
        here = directory / str(number)
        here.mkdir()
        rc[:].push({"directory": str(here)}, block=True)
        moment = interrupt(code, lambda here=here: len(list(here.iterdir())) == ENGINES)
        assert until(lambda: are_idle(rc), IDLE_S), rc.queue_status()
        took_s.append(time.monotonic() - moment)
        assert rc[:].apply_sync(abs, -number) == [number] * ENGINES
        assert rc[:].map_sync(abs, range(-16, 0)) == list(range(16, 0, -1))
    print(f"idle after {max(took_s):.3f} s at most, {sorted(took_s)[ROUNDS // 2]:.3f} s in the middle of {ROUNDS}")
    assert len(rc.ids) == ENGINES


def by_signals(rc: ipp.Client, send: Callable[[], object]) -> Callable[[str, Callable[[], bool]], float]:
    def interrupt(code: str, begun: Callable[[], bool]) -> float:
        busy = rc[:].execute(code, block=False)
        assert until(begun)
        moment = time.monotonic()
        send()
        values = busy.get(IDLE_S, return_exceptions=True)
        assert [getattr(value, "ename", None) for value in values] == ["KeyboardInterrupt"] * ENGINES
        return moment

    return interrupt


KINDS = pytest.mark.parametrize("code", [LOOP, SLEEP, PRODUCT], ids=["loop", "sleep", "product"])
TIMEOUT = pytest.mark.timeout(60 + 20 * ROUNDS)


@TIMEOUT
@KINDS
def test_rounds_of_ctrl_c_in_a_cell(engines, px8, tmp_path, code):
    moments = []

    def interrupt(code: str, begun: Callable[[], bool]) -> float:
        with interrupting_cell(begun, on_sent=moments.append), contextlib.suppress(KeyboardInterrupt):
            px8.run_cell_magic("px8", "", code)
        return moments[-1]

    rounds(engines, tmp_path, interrupt, code)


@TIMEOUT
@KINDS
def test_rounds_of_send_signal(engines, tmp_path, code):
    rounds(engines, tmp_path, by_signals(engines, lambda: engines.send_signal(signal.SIGINT)), code)


@TIMEOUT
@KINDS
def test_rounds_of_kill(engines, tmp_path, code):
    pids = engines[:].apply_sync(os.getpid)
    rounds(engines, tmp_path, by_signals(engines, lambda: [os.kill(pid, signal.SIGINT) for pid in pids]), code)
