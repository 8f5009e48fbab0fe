"""The work: what the engines run, the same functions for every system."""

import os
import time
from typing import Any, TypeVar

T = TypeVar("T")


def noop() -> None:
    """The empty task."""


def echo(x: T) -> T:
    return x


def name_of_type(x: object) -> str:
    """The answer to a value that need not come back."""
    return type(x).__name__


_held: Any = None


def hold(x: Any) -> None:
    """Keeps a value in a process that has no namespace to push into."""
    global _held
    _held = x


def held() -> Any:
    """That value."""
    return _held


def add_one(x: int) -> int:
    """The trivial item of the map benchmark."""
    return x + 1


def nap(seconds: float) -> float:
    """Sleeps, and says when it was done (wall clock, s)."""
    time.sleep(seconds)
    return time.time()


def held_checksum() -> float:
    """The checksum of the variable `held`, computed on the worker that received it."""
    import sys
    from importlib import import_module

    return float(import_module("broadleaf.bench.workload.payloads").checksum(sys.modules["__main__"].__dict__["held"]))


def meet(folder: str, n: int, timeout_s: float = 120.0) -> int:
    """Returns this process's id once n processes have called this: then every worker of a pool is up."""
    with open(os.path.join(folder, str(os.getpid())), "w"):
        pass
    end = time.monotonic() + timeout_s
    while len(os.listdir(folder)) < n:
        if time.monotonic() > end:
            raise TimeoutError("not all workers appeared")
        time.sleep(0.002)
    return os.getpid()
