"""Turns with a network of their own, which has only loopback, and process ids of their own.

Some systems turn 127.0.0.1 into the address of another interface and listen there; and with a process namespace nothing
outlives a turn, however it ends.
"""

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from broadleaf.bench.turn import Place

ISOLATED = "network and process namespace, loopback only"
_LOOPBACK = str(Path(__file__).with_name("loopback.py"))


class Isolated(Place):
    """Turns in namespaces, where the kernel permits them, and beside this process where it does not."""

    def __init__(self) -> None:
        if namespaces():
            self.isolation = ISOLATED

    def process(self, command: list[str], variables: dict[str, str]) -> tuple[list[str], dict[str, str]]:
        if not namespaces():
            return command, variables
        return [*namespaces(), sys.executable, "-I", "-S", _LOOPBACK, *command], variables


@cache
def namespaces() -> tuple[str, ...]:
    """The command that gives a process both namespaces, or nothing if that is not permitted."""
    tool = shutil.which("unshare")
    if not tool:
        return ()
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    command = (tool, *user, "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
    tried = subprocess.run([*command, sys.executable, "-c", ""], capture_output=True, check=False)
    return command if tried.returncode == 0 else ()
