"""What a task writes before a signal ends its engine reaches its client: every line, once, in order."""

from __future__ import annotations

import broadleaf as ipp
import pytest

ENGINES = 4
ROUNDS = 10
KILL = "import os, signal\nos.kill(os.getpid(), signal.{signal})"
FIVE_LINES = "".join(f"line {number}\n" for number in range(5))


@pytest.fixture(scope="module")
def mortals():
    """A client of engines that are restarted."""
    with ipp.Cluster(n=ENGINES, restart_engines=True, max_restarts=1000, restart_backoff_max_s=0.1) as client:
        yield client


def written_by_killed(mortals: ipp.Client, code: str, signal: str = "SIGKILL") -> list[tuple[str, str]]:
    """Runs code on all engines, which are then killed; returns what they wrote to each stream."""
    mortals.wait_for_engines(ENGINES, timeout=30)
    ar = mortals[:].execute(f"{code}\n{KILL.format(signal=signal)}", silent=False, block=False)
    errors = ar.get(30, return_exceptions=True)
    assert [type(error) for error in errors] == [ipp.EngineError] * ENGINES
    return list(zip(ar.stdout, ar.stderr, strict=True))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("signal", ["SIGKILL", "SIGSEGV"])
def test_five_lines(mortals, signal):
    code = "for number in range(5): print('line', number)"
    for _ in range(ROUNDS):
        # Python itself reports a fault in the error stream.
        assert [out for out, _ in written_by_killed(mortals, code, signal)] == [FIVE_LINES] * ENGINES


@pytest.mark.timeout(120)
def test_both_streams_and_an_unfinished_line(mortals):
    code = "import sys\nprint('one')\nprint('error', file=sys.stderr)\nprint('un', end='')\nprint('finished', end='')"
    for _ in range(ROUNDS):
        assert written_by_killed(mortals, code) == [("one\nunfinished", "error\n")] * ENGINES


@pytest.mark.timeout(120)
def test_what_was_sent_is_not_told_again(mortals):
    # The first lines have left by the flush, the last have not.
    code = "for number in range(5): print('line', number, flush=number == 2)"
    for _ in range(ROUNDS):
        assert written_by_killed(mortals, code) == [(FIVE_LINES, "")] * ENGINES


@pytest.mark.timeout(120)
@pytest.mark.parametrize("length", [100, 5_000, 300_000])
def test_many_lines_and_long_ones(mortals, length):
    n = 2_000_000 // length
    expected = "".join(f"{number} {'x' * length}\n" for number in range(n))
    code = f"for number in range({n}): print(number, 'x' * {length})"
    assert written_by_killed(mortals, code) == [(expected, "")] * ENGINES


@pytest.mark.timeout(120)
def test_a_display(mortals):
    mortals.wait_for_engines(ENGINES, timeout=30)
    code = f"from IPython.display import display\ndisplay('shown')\n{KILL.format(signal='SIGKILL')}"
    ar = mortals[:].execute(code, silent=False, block=False)
    ar.wait(30)
    assert [[output["data"]["text/plain"] for output in outputs] for outputs in ar.outputs] == [["'shown'"]] * ENGINES


@pytest.mark.timeout(120)
def test_on_another_host():
    """The relay of that host passes it on."""
    with ipp.Cluster(n=0, listen="127.0.0.1:0") as client:
        relay = ipp.Relay(client.cluster.relay_file, ENGINES, name="other")
        try:
            code = "for number in range(5): print('line', number)"
            assert written_by_killed(client, code) == [(FIVE_LINES, "")] * ENGINES
        finally:
            relay.stop()
