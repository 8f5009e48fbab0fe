"""Colours only where somebody sees them."""

import os
import pty
import subprocess
import sys

import pytest

_RUN = [sys.executable, "-c", "import sys; sys.argv[0] = 'broadleaf'; from broadleaf.cli import main; main()"]


def on_a_terminal(*arguments, **variables):
    """What a command writes to a terminal."""
    main, end = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    child = subprocess.Popen([*_RUN, *arguments], stdin=end, stdout=end, stderr=end,
                             env=environment | {"TERM": "xterm-256color", **variables})  # fmt: skip
    os.close(end)
    written = b""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:
            break
        if not part:
            break
        written += part
    os.close(main)
    child.wait(50)
    return written.decode()


@pytest.mark.parametrize("arguments", [["config", "show"], ["staus"], ["plan", "--engines", "100"]])
def test_colours_on_a_terminal_unless_refused(arguments):
    assert "\x1b[" in on_a_terminal(*arguments)
    assert "\x1b[" not in on_a_terminal(*arguments, NO_COLOR="1")


@pytest.mark.parametrize("arguments", [["config", "show"], ["staus"], ["plan", "--engines", "100"], ["--help"]])
def test_nothing_but_text_into_a_pipe(arguments):
    done = subprocess.run([*_RUN, *arguments], capture_output=True, text=True, timeout=50)
    assert done.stdout or done.stderr
    assert not {"\x1b", "\r"} & set(done.stdout + done.stderr)


def test_a_reader_that_has_seen_enough_is_no_failure():
    main, end = os.pipe()
    os.close(main)
    done = subprocess.run([*_RUN, "config", "show", "--markdown"], stdout=end, stderr=subprocess.PIPE, text=True,
                          timeout=50)  # fmt: skip
    os.close(end)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_table_for_a_reader_that_has_seen_enough():
    main, end = os.pipe()
    os.close(main)
    done = subprocess.run([*_RUN, "config", "show", "--long"], stdout=end, stderr=subprocess.PIPE, text=True,
                          timeout=50)  # fmt: skip
    os.close(end)
    assert (done.returncode, done.stderr) == (0, "")
