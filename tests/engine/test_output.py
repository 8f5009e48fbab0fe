"""Standard streams of an engine."""

import os
import sys

import pytest
from broadleaf.engine import output


class FakeEngine:
    def __init__(self, task=None):
        self.task = task
        self.sent = []
        self.output_held = False

    def current_task(self):
        return self.task

    def send_output(self, stream, data):
        self.sent.append((stream, data))


def test_a_tasks_lines_leave_whole():
    engine = FakeEngine(task=1)
    stream = output.TaskStream(engine, output.STDOUT)
    print("one", 2, file=stream)
    assert engine.sent == [(1, b"one 2\n")]


def test_a_line_without_end_is_held_until_the_task_ends():
    engine = FakeEngine(task=1)
    stream = output.TaskStream(engine, output.STDERR)
    stream.write("part")
    assert engine.sent == []
    assert engine.output_held
    stream.flush()
    assert engine.sent == [(2, b"part")]
    stream.flush()
    assert len(engine.sent) == 1


def test_long_lines_leave_in_pieces():
    engine = FakeEngine(task=1)
    stream = output.TaskStream(engine, output.STDOUT)
    for _ in range(3):
        stream.write("x" * 5000)
    stream.flush()
    assert b"".join(data for _, data in engine.sent) == b"x" * 15000
    assert max(len(data) for _, data in engine.sent) <= 2 * output.HELD_CHARACTERS


def test_text_that_is_not_unicode_is_escaped():
    engine = FakeEngine(task=1)
    output.TaskStream(engine, output.STDOUT).write("a\udcff\n")
    assert engine.sent == [(1, b"a\\udcff\n")]


def test_between_tasks_output_goes_to_the_log(capfd):
    output.TaskStream(FakeEngine(), output.STDOUT).write("to the log\n")
    assert capfd.readouterr().out == "to the log\n"


def test_only_text_can_be_written():
    with pytest.raises(TypeError, match="must be str"):
        output.TaskStream(FakeEngine(), output.STDOUT).write(b"bytes")


def test_streams_replace_pythons_and_give_them_back(monkeypatch):
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    before = sys.stdout, sys.stderr
    engine = FakeEngine(task=1)
    streams = output.EngineStreams()
    streams.install(engine)
    print("out", end="")
    print("err", end="", file=sys.stderr)
    assert sys.stdout.fileno() == 1
    streams.remove()
    assert engine.sent == [(1, b"out"), (2, b"err")]
    assert (sys.stdout, sys.stderr) == before


def test_descriptor_is_the_one_children_inherit():
    stream = output.TaskStream(FakeEngine(), output.STDERR)
    assert os.fstat(stream.fileno()).st_ino == os.fstat(2).st_ino
    assert stream.encoding == "utf-8"
    assert stream.writable()
