"""`bind_kernel`: Jupyter's consoles on an engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from broadleaf.state import connection

# The prefix that the process writes before the path of its connection file, once it listens.
_READY = "broadleaf kernel: "

_process: subprocess.Popen[str] | None = None
_connection_file = ""


def bind_kernel(**ignored: Any) -> str:
    """Lets Jupyter's consoles connect to this engine, as `%connect_info` describes; call it in a task or a cell.

    Code from a console waits its turn behind tasks, and sees and changes the engine's variables. The process that
    serves consoles ends with the engine.

    Args:
        **ignored: Arguments of IPython Parallel's function, without effect.

    Returns:
        The path of the connection file.

    Raises:
        RuntimeError: This is no engine, or the kernel did not start; then the message has its last lines.
    """
    global _process, _connection_file
    if not connection.is_engine():
        raise RuntimeError("bind_kernel() is for engines: call it in a task, or in a cell of %%px")
    if _process is not None and _process.poll() is None:
        return _connection_file
    engine_id = int(os.environ["BROADLEAF_ENGINE_ID"])
    _process = subprocess.Popen(
        [sys.executable, "-m", "broadleaf.notebook.engine_kernel"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert _process.stdin is not None
    assert _process.stdout is not None
    # It contains keys, so it must not be an argument, a variable or a file.
    _process.stdin.write(json.dumps({"connection": connection.connection_for_child(), "engine_id": engine_id}))
    _process.stdin.close()
    lines: list[str] = []
    for line in _process.stdout:
        if line.startswith(_READY):
            _connection_file = line[len(_READY) :].strip()
            return _connection_file
        lines.append(line)
    _process.wait()
    raise RuntimeError("this engine cannot start a kernel, which needs ipykernel:\n" + "".join(lines[-20:]))


def connect_info() -> str:
    """How consoles connect to this engine."""
    path = bind_kernel()
    with open(path) as file:
        content = file.read()
    return (
        f"{content}\nConnect a console on this host with\n    jupyter console --existing {os.path.basename(path)}\n"
        f"or, where Jupyter's runtime directory is another, with the file's path:\n"
        f"    jupyter console --existing {path}\n"
    )
