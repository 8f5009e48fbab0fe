"""What is told of an engine's output and log."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from broadleaf.dashboard.log_tail import LogTail
from broadleaf.engine import recent_output
from broadleaf.engine.written import Seen, news

ROOM_BYTES = recent_output.MEMORY_BYTES - 8


class Memory:
    """The latest output of this process, as an engine's native part writes it."""

    def __init__(self) -> None:
        self.descriptor = recent_output.create()
        self.written_bytes = 0

    def write(self, content: bytes) -> None:
        for byte in content:
            os.pwrite(self.descriptor, bytes([byte]), 8 + self.written_bytes % ROOM_BYTES)
            self.written_bytes += 1
        os.pwrite(self.descriptor, self.written_bytes.to_bytes(8, "little"), 0)


@pytest.fixture
def memory() -> Iterator[Memory]:
    memory = Memory()
    yield memory
    os.close(memory.descriptor)


def told(log: Path, before: dict | None = None) -> dict:
    """What a page is told of this process that was told `before`."""
    seen = None if before is None else Seen(before["pid"], before["output"]["end"], before["log"]["end"])
    return news(os.getpid(), str(log), seen)


def test_output_and_log_are_told_once(memory: Memory, tmp_path: Path) -> None:
    log = tmp_path / "engine-3.log"
    log.write_text("from C\n")
    memory.write(b"one\ntwo\n")
    first = told(log)
    assert (first["is_new"], first["output"]["text"], first["log"]["lines"]) == (True, "one\ntwo\n", ["from C"])
    second = told(log, first)
    assert (second["is_new"], second["output"]["text"], second["log"]["lines"]) == (False, "", [])
    memory.write("h\u00e9".encode()[:2])
    with log.open("a") as file:
        file.write("more\nunfinished")
    third = told(log, second)
    assert (third["output"]["text"], third["log"]["lines"]) == ("h", ["more"]), "half a character is not told"
    memory.write("h\u00e9".encode()[2:] + b"!")
    assert told(log, third)["output"]["text"] == "\u00e9!"


def test_what_was_lost_is_counted(memory: Memory, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    memory.write(b"x" * 100)
    first = told(log)
    memory.write(b"y" * (ROOM_BYTES + 70))
    second = told(log, first)
    assert (set(second["output"]["text"]), second["output"]["missing_bytes"]) == ({"y"}, 70)
    assert len(second["output"]["text"]) == ROOM_BYTES


def test_an_engine_that_was_started_again_is_told_from_the_beginning(memory: Memory, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("line\n")
    memory.write(b"hello\n")
    again = news(os.getpid(), str(log), Seen(os.getpid() + 1, 6, 5))
    assert (again["is_new"], again["output"]["text"], again["log"]["lines"]) == (True, "hello\n", ["line"])


def test_little_is_told_of_the_dead(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("line\n")
    dead = news(0, str(log), None)
    assert (dead["output"], dead["log"]["lines"]) == (None, ["line"])
    # Of one that died meanwhile, a page keeps what it has.
    after = news(0, str(log), Seen(4711, 6, 0))
    assert (after["is_new"], after["output"], after["log"]["lines"]) == (False, None, ["line"])
    other = news(os.getpid(), str(tmp_path / "none"), None)
    assert (other["output"], other["log"]) == (None, None), "no engine's process"


def test_a_log_is_told_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    tail = LogTail(lambda: path)
    assert tail.new_lines() == []
    path.write_text("one\ntwo\nthr")
    assert tail.new_lines() == ["one", "two"]
    assert tail.new_lines() == []
    with path.open("a") as log:
        log.write("ee\n\xff" + "x" * 2_000 + "\n")
    assert [len(line) for line in tail.new_lines()] == [5, 500]
    path.write_text("anew\n")
    assert tail.new_lines() == ["anew"]
    path.write_text("".join(f"line {n}\n" for n in range(20_000)))
    lines = tail.new_lines()
    assert lines[-1] == "line 19999"
    assert len(lines) < 10_000
