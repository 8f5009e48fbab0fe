"""When a request to interrupt a task is granted."""

from __future__ import annotations

import importlib
import signal
import sys

import pytest
from broadleaf.engine import main

pytestmark = pytest.mark.timeout(30)


class AskedEngine:
    """An engine whose task somebody wants to be interrupted, until it is."""

    def __init__(self) -> None:
        self.is_open = True
        self.task = "a task"

    def current_task(self) -> str:
        return self.task

    def is_interrupt_requested(self) -> bool:
        return self.is_open

    def wakeup_fd(self) -> int:
        return -1

    def on_interrupted(self) -> None:
        pass

    def interrupt_pending(self) -> bool:
        was_open, self.is_open = self.is_open, False
        return was_open


@pytest.fixture
def engine():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGURG)}
    engine = AskedEngine()
    main.install_interrupts(engine)  # type: ignore[arg-type]
    yield engine
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that is interrupted between a submodule's import and the use of its name."""
    name = "interrupted_package"
    (tmp_path / name).mkdir()
    (tmp_path / name / "part.py").write_text("VALUE = 7\n")
    (tmp_path / name / "__init__.py").write_text(
        "from .part import *\nimport signal\nsignal.raise_signal(signal.SIGURG)\nTWICE = 2 * part.VALUE\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    for module in (name, f"{name}.part"):
        sys.modules.pop(module, None)


def test_a_request_is_granted_at_once(engine):
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGURG)
    assert not engine.is_open


def test_without_a_request_a_handler_of_the_task_is_not_called(engine):
    """The signal also wakes the main thread, or comes after the task it was meant for."""
    heard = []
    signal.signal(signal.SIGINT, lambda *_: heard.append("SIGINT"))
    engine.is_open = False
    signal.raise_signal(signal.SIGURG)
    assert not heard
    engine.is_open = True
    signal.raise_signal(signal.SIGURG)
    assert heard == ["SIGINT"]


def test_a_task_that_has_handled_a_request_has_time_to_end(engine, monkeypatch):
    """A request is repeated while its task goes on, also after the task's handler is gone."""
    monkeypatch.setattr(main, "HANDLER_PATIENCE_S", 60.0)
    ours, heard = signal.getsignal(signal.SIGINT), []
    signal.signal(signal.SIGINT, lambda *_: heard.append("SIGINT"))
    signal.raise_signal(signal.SIGURG)
    signal.raise_signal(signal.SIGURG)
    signal.signal(signal.SIGINT, ours)
    signal.raise_signal(signal.SIGURG)
    assert heard == ["SIGINT"]
    monkeypatch.setattr(main, "HANDLER_PATIENCE_S", 0.0)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGURG)


def test_the_next_task_is_interrupted_at_once(engine):
    ours = signal.signal(signal.SIGINT, lambda *_: None)
    signal.raise_signal(signal.SIGURG)
    signal.signal(signal.SIGINT, ours)
    engine.task = "another task"
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGURG)


def test_a_request_waits_while_sigint_is_ignored(engine):
    ours = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.raise_signal(signal.SIGURG)
    assert engine.is_open
    signal.signal(signal.SIGINT, ours)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGURG)


def test_a_request_does_not_wait_for_ever_while_sigint_is_ignored(engine, monkeypatch):
    monkeypatch.setattr(main, "IGNORED_PATIENCE_S", 0.0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGURG)


def test_a_request_waits_for_an_import(engine, package, monkeypatch):
    monkeypatch.setattr(main, "IMPORT_PATIENCE_S", 60.0)
    assert importlib.import_module(package).TWICE == 14
    assert engine.is_open
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGURG)


def test_a_request_does_not_wait_for_ever(engine, package, monkeypatch):
    monkeypatch.setattr(main, "IMPORT_PATIENCE_S", 0.0)
    with pytest.raises(KeyboardInterrupt):
        importlib.import_module(package)
    assert not engine.is_open
