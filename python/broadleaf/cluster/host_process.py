"""The process that owns a host: it forks the node and then the engines."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from broadleaf.cluster.launchers.base import ClusterStartError
from broadleaf.modules.search_path import search_path

if TYPE_CHECKING:
    from subprocess import Popen

# Imported only once sys.path is the client's, so that Broadleaf is found wherever the client has it from.
_BOOT = "import sys; sys.path[:] = sys.argv.pop().split('\\n'); from broadleaf.engine.fork_server import main; main()"


@dataclass
class HostProcess:
    """A host process that was started."""

    child: Popen[bytes]
    lifeline: int | None
    """Closed by whoever the host must not outlive."""
    _ready_read: int

    def wait_ready(self, timeout_s: float, log_tail: Callable[[], str]) -> dict[str, Any]:
        """Reads the line that says that the node listens, or why not: `ClusterStartError`, with the end of the log."""
        deadline = time.monotonic() + timeout_s
        text = b""
        try:
            while not text.endswith(b"\n"):
                readable, _, _ = select.select([self._ready_read], [], [], max(0.0, deadline - time.monotonic()))
                if not readable:
                    raise ClusterStartError(f"the host process was not ready within {timeout_s:g} s", log_tail())
                part = os.read(self._ready_read, 4096)
                if not part:
                    raise ClusterStartError("the cluster's host process died while it started", log_tail())
                text += part
        finally:
            os.close(self._ready_read)
        readiness: dict[str, Any] = json.loads(text)
        if "error" in readiness:
            code = readiness.get("exit_code")
            raise ClusterStartError(f"the cluster did not start: {readiness['error']} (exit code {code})", log_tail())
        return readiness


def start_host(
    cluster_id: str, node_config: dict[str, Any], host_config: dict[str, Any], log: int, *, with_lifeline: bool
) -> HostProcess:
    """Starts a host process, whose output goes to `log`; the descriptors it is passed are added to `node_config`."""
    import subprocess

    ready_read, ready_write = os.pipe()
    node_ready_read, node_ready_write = os.pipe()
    passed = [ready_write, node_ready_read, node_ready_write]
    lifeline_read, lifeline = os.pipe() if with_lifeline else (-1, None)
    if with_lifeline:
        passed.append(lifeline_read)
    node_config = node_config | {
        "ready_fd": node_ready_write,
        "lifeline_fd": lifeline_read if with_lifeline else None,
    }
    numbers = [ready_write, node_ready_read, node_ready_write, lifeline_read]
    try:
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT, *map(str, numbers), "\n".join(search_path())],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=os.environ | {"BROADLEAF_CLUSTER_ID": cluster_id},
            pass_fds=passed,
            start_new_session=True,  # Ctrl-C in the client's terminal is not for the cluster
        )
    except BaseException:
        os.close(ready_read)
        if lifeline is not None:
            os.close(lifeline)
        raise
    finally:
        for descriptor in passed:
            os.close(descriptor)
    if child.stdin is None:
        raise AssertionError("invariant: stdin is a pipe")
    try:
        with child.stdin as pipe:
            pipe.write(json.dumps(node_config).encode() + b"\n" + json.dumps(host_config).encode())
    except BrokenPipeError:
        pass  # it died; the ready pipe tells
    return HostProcess(child, lifeline, ready_read)


def python_version() -> str:
    """`major.minor`, which must be the same on all sides."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"
