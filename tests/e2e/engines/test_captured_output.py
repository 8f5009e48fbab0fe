"""What tasks write without Python's streams: it belongs to them all the same."""

from __future__ import annotations

import ctypes
import json
import logging
import multiprocessing
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from broadleaf import Cluster
from waiting import until, until_shown

LIMIT_S = 60


@pytest.fixture(scope="module")
def rc():
    with Cluster(n=1) as client:
        yield client


@pytest.fixture
def view(rc):
    return rc[0]


def done(result):
    result.get(LIMIT_S)
    return result.stdout, result.stderr


def printf(text):
    libc = ctypes.CDLL(None)
    libc.printf(b"%s", text.encode())


# Who writes


def test_shell_commands(view):
    assert done(view.apply_async(os.system, "echo out; echo err >&2")) == ("out\n", "err\n")


def test_child_processes(view):
    def run():
        subprocess.run([sys.executable, "-c", "print('child'); import sys; sys.exit('bad')"])

    assert done(view.apply_async(run)) == ("child\n", "bad\n")


def test_a_child_that_is_given_pythons_stream(view):
    def run():
        subprocess.run(["echo", "to the stream"], stdout=sys.stdout)
        subprocess.run("echo to the other", shell=True, stdout=sys.stderr)

    assert done(view.apply_async(run)) == ("to the stream\n", "to the other\n")


def test_c_code(view):
    assert done(view.apply_async(printf, "a line of C\n")) == ("a line of C\n", "")


def test_c_code_without_the_end_of_a_line(rc, view):
    first = view.apply_async(printf, "no end")
    second = view.apply_async(printf, "next\n")
    assert done(first)[0] == "no end"
    assert done(second)[0] == "next\n"


@pytest.mark.parametrize("preload", ["numpy", "json"])
def test_fortran_code(preload):
    packages = Path(pytest.importorskip("numpy").__file__).parents[1]
    library = next(map(str, packages.glob("*.libs/libgfortran*")), None)
    if library is None:
        pytest.skip("needs the Fortran runtime that NumPy's wheels bring")

    def write():
        runtime = ctypes.CDLL(library)
        file = ctypes.create_string_buffer(b"test.f90")
        statement = ctypes.create_string_buffer(struct.pack("iiPi", 128, 6, ctypes.addressof(file), 1), 2048)
        runtime._gfortran_st_write(statement)
        runtime._gfortran_transfer_character_write(statement, b"Fortran", 7)
        runtime._gfortran_st_write_done(statement)

    with Cluster(n=1, preload=preload) as rc:
        assert done(rc[0].apply_async(write))[0] == " Fortran\n"


def test_system_calls(view):
    assert done(view.apply_async(os.write, 1, b"out\n")) == ("out\n", "")
    assert done(view.apply_async(os.write, 2, b"err\n")) == ("", "err\n")


def test_pythons_own_streams(view):
    def run():
        print("out", file=sys.__stdout__)
        print("err", end="", file=sys.__stderr__)

    assert done(view.apply_async(run)) == ("out\n", "err")


def test_bytes(view):
    def run():
        print("text")
        assert sys.stdout.buffer.write(b"\xc3\xa9 bytes\n") == 9
        sys.stdout.buffer.flush()
        sys.stderr.buffer.raw.write(b"raw\n")

    assert done(view.apply_async(run)) == ("text\né bytes\n", "raw\n")


def test_paths_of_devices(view):
    assert done(view.apply_async(os.system, "echo a > /dev/stdout; echo b > /dev/stderr; echo c")) == ("a\nc\n", "b\n")


def test_forked_processes(view):
    def run():
        print("before", end=" ")
        child = multiprocessing.get_context("fork").Process(target=lambda: print("in the child"))
        child.start()
        child.join()
        print("after")

    assert done(view.apply_async(run))[0] == "before in the child\nafter\n"


def test_a_fork_without_ceremony(view):
    def run():
        pid = os.fork()
        if pid == 0:
            print("child " * 20_000, flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
        print("parent")

    assert done(view.apply_async(run))[0] == "child " * 20_000 + "\nparent\n"


# Order


def test_lines_stay_in_order(view):
    def run():
        for number in range(0, 60, 3):
            print(number)
            os.system(f"echo {number + 1}")
            printf(f"{number + 2}\n")

    assert done(view.apply_async(run))[0] == "".join(f"{n}\n" for n in range(60))


def test_parts_of_a_line_stay_in_order(view):
    def run():
        print("a", end="")
        os.system("printf b")
        printf("c")
        ctypes.CDLL(None).fflush(None)
        print("d")

    assert done(view.apply_async(run))[0] == "abcd\n"


def test_tasks_in_a_row_keep_their_output_apart(rc, view):
    lview = rc.load_balanced_view()
    results = [lview.apply_async(os.write, 1 + n % 2, b"%d" % n) for n in range(1000)]
    for number, result in enumerate(results):
        result.get(LIMIT_S)
        assert (result.stdout, result.stderr)[number % 2] == str(number)
        assert (result.stdout, result.stderr)[1 - number % 2] == ""


def test_tasks_in_a_row_that_say_nothing_get_nothing(rc):
    lview = rc.load_balanced_view()
    results = []
    for number in range(300):
        results.append((str(number), lview.apply_async(os.write, 1, b"%d" % number)))
        results.extend([("", lview.apply_async(int))] * 1)
    for text, result in results:
        result.get(LIMIT_S)
        assert result.stdout == text


# While the task runs, and how it ends


def test_output_comes_while_the_task_runs(view, tmp_path):
    go_on = str(tmp_path / "go")

    def run():
        os.system("echo first")
        while not os.path.exists(go_on):
            time.sleep(0.005)
        os.system("echo last")

    result = view.apply_async(run)
    assert until(lambda: result.stdout == "first\n")
    assert not result.ready()
    open(go_on, "w").close()
    assert done(result)[0] == "first\nlast\n"


def test_stream_output_shows_it(view, capsys, tmp_path):
    go_on = str(tmp_path / "go")

    def run():
        os.system("echo streamed")
        while not os.path.exists(go_on):
            time.sleep(0.005)

    result = view.apply_async(run)
    with result.stream_output():
        seen = until_shown("streamed", result, capsys)
        assert not result.ready()
        open(go_on, "w").close()
        result.get(LIMIT_S)
    assert (seen + capsys.readouterr().out).count("streamed") == 1


def test_output_of_a_task_that_fails(view):
    def run():
        os.system("echo said")
        raise ValueError

    result = view.apply_async(run)
    result.wait(LIMIT_S)
    assert result.status == "error"
    assert result.stdout == "said\n"


def test_a_child_left_behind_writes_to_the_log(rc, view, tmp_path):
    go_on = str(tmp_path / "go")
    script = f"echo now; (while ! [ -e {go_on} ]; do sleep 0.01; done; echo much later) &"
    assert done(view.apply_async(os.system, script))[0] == "now\n"
    open(go_on, "w").close()
    assert until(lambda: "much later\n" in rc.cluster.log_path(0).read_text(errors="replace"))
    result = view.apply_async(printf, "a task\n")
    assert done(result)[0] == "a task\n"


# Bytes


def test_bytes_that_are_no_text(view):
    assert done(view.apply_async(os.write, 1, b"a\xff\xfeb\n"))[0] == "a\ufffd\ufffdb\n"


def test_a_character_in_two_pieces(view, capsys, tmp_path):
    go_on = str(tmp_path / "go")

    def run():
        os.write(1, b"x\xe2\x82")
        while not os.path.exists(go_on):
            time.sleep(0.005)
        os.write(1, b"\xac\n")

    result = view.apply_async(run)
    assert until(lambda: result.stdout)
    assert result.stdout == "x"
    with result.stream_output():
        open(go_on, "w").close()
        result.get(LIMIT_S)
    assert result.stdout == "x€\n"
    assert "\ufffd" not in capsys.readouterr().out


# Bounds


def test_a_hundred_megabytes_of_c_code(rc, view):
    def run():
        libc = ctypes.PyDLL(None)  # holds the interpreter lock while it writes
        line = b"x" * 1023 + b"\n"
        for _ in range(100 * 1024):
            libc.write(1, line, len(line))
        return len(line)

    result = view.apply_async(run)
    assert result.get(LIMIT_S) == 1024
    # Where and how often something is dropped depends on who is faster. All of it is told.
    parts = re.split(r"\[broadleaf: ([\d,]+) bytes of output were dropped here\]\n", result.stdout)
    kept, dropped = "".join(parts[::2]), sum(int(n.replace(",", "")) for n in parts[1::2])
    assert len(kept) + dropped == 100 << 20
    assert set(kept) == {"x", "\n"}
    assert len(kept) <= 17 << 20
    assert os.path.getsize(rc.cluster.log_path(0)) <= 16 << 20


def test_what_is_dropped_is_said_in_place(view):
    def run():
        for _ in range(20 * 1024):
            print("x" * 1023)

    text = done(view.apply_async(run))[0]
    head, rest = text.split("\n", 1)
    dropped = (20 << 20) - len(rest)
    assert head == f"[broadleaf: {dropped:,} bytes of output were dropped here]"
    assert set(rest) == {"x", "\n"}


CLIENT_THAT_STOPS = """
import json, os, sys, time
from broadleaf import Client

def flood(go_on, over):
    while not os.path.exists(go_on):
        time.sleep(0.005)
    for _ in range(1600):
        os.write(1, b"x" * 65535 + b"\\n")
    open(over, "w").close()

with Client(sys.argv[1]) as client:
    result = client[0].apply_async(flood, *sys.argv[2:])
    client.wait([result], 0.1)
    print("sent", flush=True)
    result.get(60)
    lines = result.stdout.splitlines()
    print(json.dumps([line for line in lines if not line.startswith("x")] + [sum(line[0] == "x" for line in lines)]))
"""


def test_output_that_its_client_does_not_read(tmp_path):
    go_on, over = tmp_path / "go", tmp_path / "over"
    with Cluster(n=1, congestion_bytes=4 << 20) as rc:
        status = json.loads(json.loads(rc.link.request('"Status"'))["Text"])
        arguments = [str(rc.cluster.connection_file), str(go_on), str(over)]
        command = [sys.executable, "-c", CLIENT_THAT_STOPS, *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout.readline() == "sent\n"
            os.kill(child.pid, signal.SIGSTOP)
            go_on.touch()
            assert until(over.exists)
            with open(f"/proc/{status['pid']}/statm") as statm:
                node_bytes = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            os.kill(child.pid, signal.SIGCONT)
            *notices, n_lines = json.loads(child.stdout.read())
    assert node_bytes < 64 << 20
    dropped = [int(notice.split()[1].replace(",", "")) for notice in notices]
    assert dropped
    assert sum(dropped) + n_lines * 65536 == 1600 * 65536


# What users do with descriptors


def test_descriptors_put_elsewhere_and_back(view, tmp_path):
    path = str(tmp_path / "taken")

    def run():
        saved = os.dup(1)
        taken = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(taken, 1)
        os.system("echo taken")
        os.dup2(saved, 1)
        os.close(saved)
        os.close(taken)
        os.system("echo back")

    assert done(view.apply_async(run))[0] == "back\n"
    with open(path) as taken:
        assert taken.read() == "taken\n"


def test_a_descriptor_that_is_closed(view):
    def run():
        saved = os.dup(1)
        os.close(1)
        print("by Python")
        os.dup2(saved, 1)
        os.close(saved)
        os.system("echo by a child")

    assert done(view.apply_async(run))[0] == "by Python\nby a child\n"


def test_handlers_that_hold_an_older_stream(rc, view):
    def install():
        logger = logging.getLogger("held")
        logger.addHandler(logging.StreamHandler())

    view.apply_sync(install)
    assert done(view.apply_async(lambda: logging.getLogger("held").error("said")))[1] == "said\n"


def test_threads_that_outlive_their_task(rc, view, tmp_path):
    go_on = str(tmp_path / "go")

    def start():
        def later():
            while not os.path.exists(go_on):
                time.sleep(0.005)
            print("by a thread, later")
            os.write(1, b"by its descriptor, later\n")

        threading.Thread(target=later).start()

    assert done(view.apply_async(start)) == ("", "")
    open(go_on, "w").close()
    log = rc.cluster.log_path(0)
    assert until(lambda: "by a thread, later\nby its descriptor, later\n" in log.read_text(errors="replace"))


def test_properties_of_the_streams(view):
    def properties():
        sys.stdout.reconfigure(line_buffering=True)
        return (
            sys.stdout.isatty(), sys.stdout.fileno(), sys.stderr.fileno(), sys.stdout.buffer.fileno(),
            sys.stdout.buffer.raw.fileno(), sys.stdout.encoding,
        )  # fmt: skip

    assert view.apply_sync(properties) == (False, 1, 2, 1, 1, "utf-8")


# How engines are started, and how they end


@pytest.mark.parametrize("engine_start", ["fork", "spawn"])
def test_output_at_an_engines_death(engine_start, tmp_path):
    with Cluster(n=2, engine_start=engine_start) as rc:
        assert done(rc[1].apply_async(os.system, "echo out; echo err >&2")) == ("out\n", "err\n")

        def die():
            print("Python's last words")
            os.system("echo a child; echo its error >&2")
            os.write(2, b"the process's last words\n")
            os.kill(os.getpid(), signal.SIGABRT)

        result = rc[0].apply_async(die)
        result.wait(LIMIT_S)
        certificate = result.failure(0).certificate
        assert certificate.cause == "signal"
        for words in ("Python's last words\n", "a child\n", "its error\n", "the process's last words\n", "Aborted"):
            assert words in certificate.last_output


def test_output_that_came_before_the_death_stays(tmp_path):
    with Cluster(n=1) as rc:
        result = rc[0].apply_async(lambda: (os.system("echo here"), time.sleep(100)))
        assert until(lambda: result.stdout == "here\n")
        os.kill(rc.cluster.status_sync()["engines"][0]["pid"], signal.SIGKILL)
        result.wait(LIMIT_S)
        assert result.status == "lost"
        assert result.stdout == "here\n"


def test_capture_can_be_turned_off():
    with Cluster(n=1, capture_descriptors=False) as rc:
        result = rc[0].apply_async(lambda: (print("by Python"), os.system("echo by a child"), None)[2])
        assert done(result)[0] == "by Python\n"
        assert "by a child" in rc.cluster.log_path(0).read_text()
