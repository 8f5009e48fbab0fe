"""One run of the workload in separate processes: nothing that it starts outlives it, or outlives the runner."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from broadleaf_lab.errors import RunError

PADDING = "LAB_PADDING"
"""Environment variable of random length in every run: the size of the environment shifts the stack and with it the
speed of some programs, so it must not be the same in all runs of a configuration."""
_PADDING_MAX = 4096
_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_LAST_LINES = 20


@dataclass(frozen=True, slots=True)
class Finished:
    """How a run's processes ended, and what they used in total. Times in seconds."""

    exit_code: int | None
    duration_s: float
    timed_out: bool = False
    stragglers: int = 0
    cpu_s: float = 0.0
    main_cpu_s: float = 0.0
    """Of the command's first thread alone."""
    queued_s: float = 0.0
    """How long that thread could have run, but waited for a processor."""
    late_s: float = 0.0
    """How long the supervisor itself waited for a processor, and so saw the end later."""
    max_rss_kb: int = 0
    ctx_switches: int = 0
    bytes_written: int = 0
    page_faults: int = 0
    counters: Mapping[str, int] = field(default_factory=dict)
    """Cycles, instructions, cache and branch misses outside the kernel; those that this machine counts."""
    stdout: str = ""
    stderr: str = ""
    error: str = ""
    """Why it could not be started; empty if it was."""


@contextmanager
def run_directory() -> Iterator[Path]:
    """A private directory for one run, removed afterwards. Its path is short: sockets are made in it."""
    path = Path(tempfile.mkdtemp(prefix="lab-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def padding(rng: random.Random) -> str:
    """A text of random length for the environment."""
    return "x" * rng.randrange(_PADDING_MAX)


def run_command(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    timeout_s: float,
    run_dir: Path,
    cpus: Collection[int] | None = None,
) -> Finished:
    """Runs `command` to its end or for `timeout_s`, only on `cpus` if given, then kills whatever it left behind.
    Raises RunError if it cannot be watched."""
    out, err = run_dir / "stdout", run_dir / "stderr"
    task = {
        "command": list(command),
        "cwd": str(cwd),
        "env": dict(env),
        "timeout_s": timeout_s,
        "stdout": str(out),
        "stderr": str(err),
        "cpus": None if cpus is None else sorted(cpus),
    }
    supervisor = subprocess.Popen(
        [sys.executable, "-I", "-S", str(_SUPERVISOR)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert supervisor.stdin is not None
    assert supervisor.stdout is not None
    try:
        with supervisor.stdin as lifeline, supervisor.stdout as answer:
            lifeline.write(json.dumps(task).encode() + b"\n")
            lifeline.flush()
            # Reading comes first: the lifeline must stay open for as long as the run lasts.
            text = answer.read()
    except BaseException:
        # Its standard input is closed by now, so it kills the command and exits.
        supervisor.wait()
        raise
    supervisor.wait()
    try:
        result = json.loads(text)
    except ValueError:
        raise RunError(
            f"the supervisor of {command[0]!r} was killed (exit code {supervisor.returncode}). "
            "Run `broadleaf-lab run` again to continue."
        ) from None
    return Finished(
        exit_code=result.get("exit_code"),
        duration_s=result.get("duration_s", 0.0),
        timed_out=result.get("timed_out", False),
        stragglers=result.get("stragglers", 0),
        cpu_s=result.get("cpu_s", 0.0),
        main_cpu_s=result.get("main_cpu_s", 0.0),
        queued_s=result.get("queued_s", 0.0),
        late_s=result.get("late_s", 0.0),
        max_rss_kb=result.get("max_rss_kb", 0),
        ctx_switches=result.get("ctx_switches", 0),
        bytes_written=result.get("bytes_written", 0),
        page_faults=result.get("page_faults", 0),
        counters=result.get("counters", {}),
        stdout=_text(out),
        stderr=_text(err),
        error=result.get("error", ""),
    )


def clean_environment() -> dict[str, str]:
    """The environment of a run: the runner's own, without what only concerns the runner."""
    return {name: value for name, value in os.environ.items() if name not in ("OLDPWD", "_", "COLUMNS", "LINES")}


def last_words(finished: Finished) -> str:
    """The end of a failed run's output, as one line."""
    lines = (finished.stderr.strip() or finished.stdout.strip()).splitlines()[-_LAST_LINES:]
    return " | ".join(line.strip() for line in lines if line.strip())[-500:]


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
