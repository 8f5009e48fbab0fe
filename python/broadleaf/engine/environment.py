"""The environment of an engine's process, whatever starts it: a fork server, its own interpreter, or `mpiexec`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from broadleaf.text import os_text_from_json

# The number of threads that libraries start. The others have names of their own for what the first one says.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "POLARS_MAX_THREADS",
    "RAYON_NUM_THREADS",
)


def variables_of(connection: Mapping[str, Any]) -> dict[str, str]:
    """What the cluster of an `engine.json` with this content sets in its engines' environment."""
    return {
        os_text_from_json(name): os_text_from_json(value) for name, value in connection.get("engine_env", {}).items()
    }


def is_set(variables: Mapping[str, str]) -> bool:
    """Whether this process has all these variables. Some are read only when an interpreter starts."""
    return all(os.environ.get(name) == value for name, value in variables.items())


def start_again_with(variables: Mapping[str, str]) -> None:
    """Starts this program again, in the same process, unless it was started with these variables.

    Only for a program that has not done anything yet.
    """
    if not is_set(variables):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | variables)


def prepare(threads_per_engine: int, share: int, given: Mapping[str, str]) -> None:
    """Sets what libraries find in the environment; comes before the first import of a numerical one.

    `share` is the number of cores for each engine. `given` is the environment before anything was set here.
    """
    os.environ.update(thread_environment(threads_per_engine, share, given))
    # NumPy loads the Fortran runtime, which checks descriptor 1 when it is loaded. Here that is a file, so it would
    # hold back what tasks print until their engine ends.
    os.environ.setdefault("GFORTRAN_UNBUFFERED_PRECONNECTED", "y")


def thread_environment(threads_per_engine: int, share: int, given: Mapping[str, str]) -> dict[str, str]:
    """Variables that keep numerical libraries from running more threads than there are cores.

    With a `threads_per_engine` of 0, libraries run as many threads as `OMP_NUM_THREADS` says in the environment that
    the user has `given`, otherwise `share`; a variable that is set there stays. Any other number is the user's explicit
    choice and takes precedence.
    """
    if threads_per_engine:
        return dict.fromkeys(THREAD_VARIABLES, str(threads_per_engine))
    # One number for each level of nested regions.
    outermost = given.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    count = outermost if outermost.isdecimal() and int(outermost) else str(share)
    return {name: count for name in THREAD_VARIABLES if name not in given}


def work_in(directory: str | None) -> None:
    """Changes to the session's working directory, if this host has it."""
    if directory and os.path.isdir(directory):
        os.chdir(directory)


def preload(modules: Iterable[str]) -> None:
    """Imports the modules of the option `preload`; says on standard error which cannot be imported."""
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # an engine that needs it will say so
            sys.stderr.write(f"broadleaf: cannot preload {module}: {error!r}\n")
