"""Sampling profilers under which a run can be started: py-spy for Python, perf for everything else."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from broadleaf_lab.errors import RunError

RATE_HZ = 200
_PERF_SAMPLE = re.compile(r"\s*[0-9a-f]+\s+(?P<symbol>.+?)\s+\((?P<file>[^()]*)\)\s*$")
_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Profiler:
    """A program that watches another one, and how its samples are read."""

    name: Literal["py-spy", "perf"]
    path: str

    def around(self, command: Sequence[str], output: Path) -> list[str]:
        """The command under the profiler, which writes its samples to `output`."""
        if self.name == "py-spy":
            options = ["record", "--format", "raw", "--function", "--subprocesses", "--rate", str(RATE_HZ)]
            return [self.path, *options, "--output", str(output), "--", *command]
        return [self.path, "record", "--quiet", "--freq", str(RATE_HZ), "--output", str(output), "--", *command]

    def samples(self, output: Path) -> Counter[str]:
        """How often each function was running. Raises RunError if the profiler wrote nothing that can be read."""
        if not output.is_file():
            raise RunError(f"{self.name} wrote no samples: it may not be allowed to watch other processes here.")
        if self.name == "py-spy":
            return folded(output.read_text(errors="replace"))
        done = subprocess.run(
            [self.path, "script", "--input", str(output), "--fields", "ip,sym,dso"],
            capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise RunError(f"perf cannot read its samples: {done.stderr.strip()[-300:]}")
        return perf_script(done.stdout)


def profiler_for(command: Sequence[str]) -> Profiler | str:
    """The profiler that can watch this command here, or a text that says why there is none."""
    is_python = Path(command[0]).name.startswith(("python", "pypy"))
    if is_python:
        if path := _find("py-spy"):
            return Profiler("py-spy", path)
        return "py-spy is not installed: pip install py-spy"
    path = _find("perf")
    if path is None:
        return "perf is not installed"
    tried = subprocess.run(
        [path, "record", "--quiet", "--output", "/dev/null", "--", "true"],
        capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip
    if tried.returncode != 0:
        return f"perf may not be used here: {tried.stderr.strip().splitlines()[0] if tried.stderr.strip() else ''}"
    return Profiler("perf", path)


def _find(name: str) -> str | None:
    """A program on the search path, or in this interpreter's environment, which need not be activated."""
    return shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))


def folded(text: str) -> Counter[str]:
    """Samples by innermost function, of lines such as `main (a.py);log (b.py) 12`."""
    found: Counter[str] = Counter()
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        if count.isdigit() and stack:
            found[_short(stack.rpartition(";")[2])] += int(count)
    return found


def perf_script(text: str) -> Counter[str]:
    """Samples by symbol, of the lines that `perf script` writes."""
    found: Counter[str] = Counter()
    for line in text.splitlines():
        if match := _PERF_SAMPLE.match(line):
            symbol = match["symbol"].partition("+0x")[0]
            found[f"{symbol} ({Path(match['file']).name})"] += 1
    return found


def _short(frame: str) -> str:
    """`name (/long/path/to/package/module.py:12)` with the last two parts of the path."""
    name, opening, source = frame.rpartition(" (")
    if not opening:
        return frame
    path = re.sub(r":\d+$", "", source.removesuffix(")"))
    return f"{name} ({'/'.join(Path(path).parts[-2:])})"
