"""Affinity, descriptors, deaths."""

import os
import signal
import subprocess
import sys

import pytest
from broadleaf.engine import process
from broadleaf.engine.process import Capture


def test_affinity():
    usable = sorted(os.sched_getaffinity(0))
    assert process.engine_cores("none", 0) is None
    assert process.engine_cores("spread", len(usable)) == usable[:1]
    assert process.engine_cores("0-2,5", 9) == [0, 1, 2, 5]
    with pytest.raises(ValueError):
        process.engine_cores("fast", 0)


def test_a_server_makes_room_for_pipes_and_its_engines_keep_their_limit():
    code = """
import resource, subprocess, sys
from broadleaf.engine import process
from broadleaf.engine.process import Capture
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 5000))
assert process.make_room_for_descriptors(10) == (300, 5000)
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (300, 5000)
before = process.make_room_for_descriptors(1000)
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (1256, 5000)
child = subprocess.Popen(["sleep", "100"])
process.limit_descriptors(child.pid, before)
assert resource.prlimit(child.pid, resource.RLIMIT_NOFILE) == (300, 5000)
child.kill()
process.make_room_for_descriptors(10_000)
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (5000, 5000)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_last_output_is_the_end(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"a" * 5000 + b"end")
    assert process.last_output(str(log)).endswith("end")
    assert len(process.last_output(str(log))) == process.LAST_OUTPUT_BYTES
    assert process.last_output(str(tmp_path / "none")) == ""


def _ended(code):
    child = subprocess.Popen([sys.executable, "-c", code])
    info = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    return child, info


def test_exit_and_signal_are_told_apart():
    watch = process.OutOfMemoryWatch()
    child, info = _ended("import os; os._exit(3)")
    event = process.describe_exit(1, info, "said", watch)
    child.wait()
    assert (event["code"], event["signal"], event["pid"]) == (3, None, child.pid)
    assert event["last_output"] == "said"
    child, info = _ended("import os; os.kill(os.getpid(), 9)")
    event = process.describe_exit(1, info, "said", watch)
    child.wait()
    assert (event["code"], event["signal"], event["out_of_memory"]) == (None, signal.SIGKILL, False)


@pytest.mark.parametrize(
    ("groups", "counter"),
    [
        ("4:memory:/a\n0::/\n", "memory/a/memory.oom_control"),
        ("4:memory:/not/visible\n", "memory/memory.oom_control"),
        ("0::/a/b\n", "a/b/memory.events"),
    ],
)
def test_each_out_of_memory_kill_explains_one_death(tmp_path, groups, counter):
    cgroup, proc = tmp_path / "cgroup", tmp_path / "proc"
    for pid in ("7", "8", "9"):
        (proc / pid).mkdir(parents=True)
        (proc / pid / "cgroup").write_text(groups)
    file = cgroup / counter
    file.parent.mkdir(parents=True)
    file.write_text("under_oom 0\noom_kill 2\n")
    watch = process.OutOfMemoryWatch(str(cgroup), str(proc))
    for pid in (7, 8, 9):
        watch.note(pid)
    assert not watch.explains(7)
    file.write_text("under_oom 0\noom_kill 3\n")
    assert watch.explains(8)
    assert not watch.explains(9)
    assert not watch.explains(8), "asked once"


def test_descriptors_of_others_are_closed_in_as_many_calls_as_own_ones_lie_between(monkeypatch):
    first = process.above_descriptors()
    everyone = [Capture.create("/dev/null", first) for _ in range(20)]
    own = everyone[7]
    for capture in everyone:
        capture.close_write_ends()
    calls = []
    close = os.closerange
    monkeypatch.setattr(os, "closerange", lambda low, high: (calls.append((low, high)), close(low, high)))
    last = max(number for capture in everyone for number in capture.kept())
    process.close_descriptors(first, last, own.numbers())
    monkeypatch.undo()
    assert len(calls) == len(own.kept()) + 1
    for capture in everyone:
        assert [_is_open(number) for number in capture.kept()] == [capture is own] * 3
    own.close()


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
