"""Standard streams of an engine, and the pipes beneath them."""

import io
import os
import sys

import pytest
from broadleaf.engine import output
from broadleaf.engine.process import Capture


class FakeEngine:
    def __init__(self):
        self.written = []

    def write_output(self, stream, data):
        self.written.append((stream, data))

    def flush_output(self, stream=None):
        self.written.append((stream, "flush"))


def test_what_is_printed_goes_to_the_engine():
    engine = FakeEngine()
    print("one", 2, file=output.TaskStream(engine, output.STDOUT))
    assert b"".join(data for _, data in engine.written) == b"one 2\n"
    assert {stream for stream, _ in engine.written} == {1}


def test_text_that_is_not_unicode_is_escaped():
    engine = FakeEngine()
    assert output.TaskStream(engine, output.STDERR).write("a\udcff\n") == 3
    assert engine.written == [(2, b"a\\udcff\n")]


def test_bytes_go_the_same_way():
    engine = FakeEngine()
    stream = output.TaskStream(engine, output.STDOUT)
    assert stream.buffer.write(b"\xff\n") == 2
    assert stream.buffer.write(memoryview(b"abcd")[::2]) == 2
    assert engine.written == [(1, b"\xff\n"), (1, b"ac")]
    stream.buffer.flush()
    assert engine.written[-1] == (1, "flush")


def test_a_text_wrapper_of_ones_own():
    engine = FakeEngine()
    wrapper = io.TextIOWrapper(output.TaskStream(engine, output.STDOUT).buffer, encoding="latin-1", write_through=True)
    wrapper.write("\xe9")
    assert (1, b"\xe9") in engine.written
    wrapper.detach()


def test_only_text_can_be_written():
    with pytest.raises(TypeError, match="must be str"):
        output.TaskStream(FakeEngine(), output.STDOUT).write(b"bytes")


def test_write_through_leaves_nothing_behind():
    engine = FakeEngine()
    stream = output.TaskStream(engine, output.STDOUT)
    stream.reconfigure(line_buffering=True, encoding="utf-8")
    stream.write("a")
    assert engine.written == [(1, b"a")]
    stream.reconfigure(write_through=True)
    stream.write("b")
    assert engine.written[1:] == [(1, b"b"), (1, "flush")]


def test_streams_replace_pythons_and_give_them_back(monkeypatch):
    for name in ("stdout", "stderr", "__stdout__", "__stderr__"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    monkeypatch.setattr(os, "register_at_fork", lambda **_hooks: None)
    before = sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__
    engine = FakeEngine()
    streams = output.EngineStreams()
    streams.install(engine)
    print("out", end="")
    print("err", end="", file=sys.stderr)
    assert (sys.stdout.fileno(), sys.stderr.fileno()) == (1, 2)
    assert sys.__stdout__ is sys.stdout
    streams.remove()
    assert [written for written in engine.written if written[1]] == [
        (1, b"out"), (2, b"err"), (1, "flush"), (2, "flush"),
    ]  # fmt: skip
    assert (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__) == before


def test_a_forked_child_writes_to_the_descriptor(capfd):
    engine = FakeEngine()
    stream = output.TaskStream(engine, output.STDOUT)
    stream.on_forked()
    stream.write("a line\nand a pa")
    stream.buffer.write(b"rt\xff\n")
    stream.flush()
    assert capfd.readouterr().out == "a line\nand a part\ufffd\n"
    assert engine.written == []


def test_what_an_engine_left_in_its_pipes_is_saved(tmp_path):
    log = tmp_path / "engine.log"
    log.write_text("before\n")
    capture = Capture.create(str(log))
    os.write(capture.stdout_write, b"out\n")
    os.write(capture.stderr_write, b"err\n")
    assert capture.save_rest() == b"out\nerr\n"  # the other ends are still open, as when a child has them
    assert capture.save_rest() == b""
    assert log.read_text() == "before\nout\nerr\n"
    capture.close_write_ends()
    assert capture.save_rest() == b""
    capture.close()


def test_last_output_ends_with_what_was_not_read():
    capture = Capture.create("/dev/null")
    assert capture.last_output() == ""
    os.pwrite(capture.recent, (3).to_bytes(8, "little") + b"abc", 0)
    assert capture.last_output(b"rest") == "abcrest"
    assert capture.last_output(b"x" * 5000) == "x" * 4096
    with pytest.raises(OSError):
        os.ftruncate(capture.recent, 0)  # the engine has it mapped
    capture.close_write_ends()
    capture.close()


def test_ends_are_closed_when_only_one_pipe_can_be_had(monkeypatch):
    real, made = os.pipe, []

    def pipe():
        if made:
            raise OSError(24, "Too many open files")
        made.extend(real())
        return tuple(made)

    monkeypatch.setattr(os, "pipe", pipe)
    with pytest.raises(OSError, match="Too many"):
        Capture.create("/dev/null")
    for end in made:
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(end)


def test_what_the_server_keeps_of_an_engine_has_high_numbers():
    capture = Capture.create("/dev/null", 200)
    assert min(capture.kept()) >= 200
    assert max(capture.stdout_write, capture.stderr_write) < 200
    os.write(capture.stderr_write, b"err")
    assert capture.save_rest() == b"err", "it reads without waiting"
    capture.close_write_ends()
    capture.close()
