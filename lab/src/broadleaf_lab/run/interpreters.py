"""Python interpreters that a study asks for: found, or reported as missing; none is ever substituted for another."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_PROBE = """
import json, platform, sys, sysconfig
jit = getattr(sys, "_jit", None)
args = sysconfig.get_config_var("CONFIG_ARGS") or ""
print(json.dumps({
    "path": sys.executable,
    "version": platform.python_version(),
    "implementation": platform.python_implementation(),
    "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "jit": jit.is_available() if jit else "--enable-experimental-jit" in args,
}))
"""
_PROBE_TIMEOUT_S = 30
_NUMBERED = re.compile(r"(\d+\.\d+(?:\.\d+)?)(t?)")


class Unavailable(Exception):
    """This machine lacks what a level needs. Such runs are recorded as skipped."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """One Python. `text` is what runs.csv contains for it: version and build."""

    path: str
    version: str
    implementation: str
    free_threaded: bool
    jit: bool

    @property
    def text(self) -> str:
        """Version and build: `3.13.0`, `3.13.0t`, `3.14.0+jit`."""
        name = "" if self.implementation == "CPython" else f"{self.implementation} "
        return f"{name}{self.version}{'t' if self.free_threaded else ''}{'+jit' if self.jit else ''}"


@cache
def find_interpreter(wanted: str, directory: Path = Path()) -> Interpreter:
    """The interpreter called `wanted`: a path, relative to `directory`, or a command. Raises Unavailable if it is
    missing or does not run.
    """
    why = "not found"
    for path in _candidates(wanted, directory):
        try:
            done = subprocess.run(
                [path, "-I", "-c", _PROBE],
                capture_output=True,
                text=True,
                timeout=_PROBE_TIMEOUT_S,
                check=True,
                stdin=subprocess.DEVNULL,
            )
            # The interpreter that a version manager's command finally starts is measured without that command.
            return Interpreter(**json.loads(done.stdout))
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            said = getattr(error, "stderr", None) or str(error)
            why = f"{path} does not run: {str(said).strip().splitlines()[0] if str(said).strip() else error!r}"
    raise Unavailable(f"interpreter {wanted!r}: {why}")


def _candidates(wanted: str, directory: Path) -> list[str]:
    if wanted == sys.executable or os.sep in wanted:
        resolved = directory / Path(wanted).expanduser()
        # Not resolved: the interpreter of a virtual environment is a link, and the link is the one to use.
        return [os.path.abspath(resolved)] if resolved.exists() else []
    found = [path] if (path := shutil.which(wanted)) else []
    if match := re.fullmatch(r"python" + _NUMBERED.pattern, wanted):
        # A version manager's command with that name may refuse to run although the version is installed.
        root = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
        for installed in sorted(root.glob(f"{match[1]}*{match[2]}/bin/python"), reverse=True):
            if installed.parent.parent.name.endswith("t") == bool(match[2]):
                found.append(str(installed))
    return found


def check_level(level: str, found: Interpreter) -> None:
    """Raises Unavailable if a level that names a version (`3.13t`) would be measured with another one."""
    match = _NUMBERED.fullmatch(level.removeprefix("python"))
    if match is None:
        return
    same = found.version == match[1] or found.version.startswith(match[1] + ".")
    if not same or found.free_threaded != bool(match[2]):
        raise Unavailable(f"level {level!r} asks for a different Python than {found.path}, which is {found.text}")


def check_variables(variables: dict[str, str], found: Interpreter) -> None:
    """Raises Unavailable if a variable asks for something that this build of Python ignores or refuses."""
    if variables.get("PYTHON_JIT") == "1" and not found.jit:
        raise Unavailable(
            f"{found.path} ({found.text}) was built without the JIT, so PYTHON_JIT=1 would have no effect"
        )
    if variables.get("PYTHON_GIL") == "0" and not found.free_threaded:
        raise Unavailable(f"{found.path} ({found.text}) is not a free-threaded build and cannot run with PYTHON_GIL=0")
