"""A run's processes: measured, ended in time, and never left behind."""

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from broadleaf_lab.run.process import Finished, run_command, run_directory
from waiting import until

MARKER = "LAB_TEST_PROCESS"


def processes_with(value: str) -> list[int]:
    """Living processes whose environment has the marker."""
    entry = f"{MARKER}={value}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if entry in (path / "environ").read_bytes() and path.name != str(os.getpid()):
                found.append(int(path.name))
        except OSError:
            continue
    return found


def run(code: str, *, timeout_s: float = 30, **env: str) -> Finished:
    with run_directory() as directory:
        return run_command(
            [sys.executable, "-c", code],
            cwd=directory,
            env={**os.environ, **env},
            timeout_s=timeout_s,
            run_dir=directory,
        )


def test_output_exit_code_and_usage_are_told():
    code = "import sys; b = b'x' * 80_000_000; x = sum(range(2_000_000)); print('out'); print('err', file=sys.stderr)"
    done = run(code + "; open('file', 'wb').write(b'x' * 3_000_000); sys.exit(7)")
    assert (done.exit_code, done.stdout, done.stderr) == (7, "out\n", "err\n")
    assert not done.timed_out
    assert 0 < done.cpu_s <= done.duration_s * 2
    assert done.max_rss_kb > 80_000_000 / 1024
    assert done.bytes_written >= 3_000_000


def test_a_command_that_is_not_there_is_told():
    with run_directory() as directory:
        done = run_command(["no-such-program"], cwd=directory, env={}, timeout_s=5, run_dir=directory)
    assert "no-such-program" in done.error
    assert done.exit_code is None


def test_a_signal_is_its_exit_code():
    assert run("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)").exit_code == -signal.SIGSEGV


# Ignores the polite request, and has a child in a session of its own.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("ready", flush=True)
time.sleep(600)
"""


def test_a_timeout_ends_every_process():
    name = uuid.uuid4().hex
    done = run(STUBBORN, timeout_s=8, **{MARKER: name})
    assert done.timed_out
    assert done.stdout == "ready\n"
    assert processes_with(name) == []


def test_what_a_command_leaves_behind_is_killed_and_counted():
    name = uuid.uuid4().hex
    code = "import subprocess, sys; subprocess.Popen(['sleep', '600'], start_new_session=True)"
    done = run(code, **{MARKER: name})
    assert done.exit_code == 0
    assert done.stragglers == 1
    assert done.duration_s < 30
    assert processes_with(name) == []


def test_nothing_outlives_a_runner_that_is_killed():
    name = uuid.uuid4().hex
    code = f"""
import os
from broadleaf_lab.run.process import run_command, run_directory
with run_directory() as d:
    print(d, flush=True)
    run_command([{sys.executable!r}, "-c", {STUBBORN!r}], cwd=d, env=dict(os.environ), timeout_s=600, run_dir=d)
"""
    runner = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, MARKER: name}, stdout=subprocess.PIPE, text=True
    )
    with runner:
        assert runner.stdout is not None
        directory = Path(runner.stdout.readline().strip())
        # The runner, the supervisor, the command and its child.
        assert until(lambda: len(processes_with(name)) >= 4), "never: four processes"
        runner.kill()
    assert until(lambda: not processes_with(name)), "never: all processes gone"
    assert until(lambda: not directory.exists()), "never: the run's directory gone"


def test_nothing_outlives_a_supervisor_that_is_killed_but_what_left_its_group():
    name = uuid.uuid4().hex
    code = "import os, time; os.kill(os.getppid(), 9); time.sleep(600)"
    with pytest.raises(Exception, match="supervisor"):
        run(code, **{MARKER: name})
    assert until(lambda: not processes_with(name)), "never: the command gone"
