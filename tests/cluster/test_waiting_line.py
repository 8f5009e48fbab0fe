"""What a wait for engines says, on a terminal and elsewhere."""

import io
import sys
from types import SimpleNamespace

import pytest
from broadleaf import requests


class Terminal(io.StringIO):
    """Somebody reads it as it is written."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch):
    """The time, which tests set."""
    clock = SimpleNamespace(now_s=100.0)
    monkeypatch.setattr(requests, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    return clock


def told(clock, monkeypatch, stream: io.StringIO) -> str:
    """What is written while a job is pending for two reasons, one after the other."""
    monkeypatch.setattr(sys, "stderr", stream)
    line = requests.WaitingLine()
    for tenth in range(60):
        clock.now_s = 100.0 + tenth / 10
        line.tell("job 30 is pending: Resources" if tenth < 45 else "job 30 is pending: Priority")
    line.close()
    return stream.getvalue()


def test_a_terminal_has_one_line_that_is_updated_and_removed(clock, monkeypatch):
    assert told(clock, monkeypatch, Terminal()).split("\r\x1b[K") == [
        "",
        "job 30 is pending: Resources, 3 s",
        "job 30 is pending: Resources, 4 s",
        "job 30 is pending: Priority, 5 s",
        "",
    ]


def test_a_log_has_each_reason_once(clock, monkeypatch):
    assert told(clock, monkeypatch, io.StringIO()).splitlines() == [
        "broadleaf: job 30 is pending: Resources",
        "broadleaf: job 30 is pending: Priority",
    ]


def test_a_short_wait_says_nothing(clock, monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    line = requests.WaitingLine()
    clock.now_s += 2.9
    line.tell("job 30 is pending: Resources")
    line.close()
    assert stream.getvalue() == ""
