"""The process that owns a host: it forks the node and then the engines."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from broadleaf import standard_descriptors
from broadleaf.cluster.credentials import python_version
from broadleaf.cluster.hosts.cores import usable_cores
from broadleaf.cluster.hosts.fork_servers.process import ChildProcess, WaitingProcess
from broadleaf.engine.environment import is_set
from broadleaf.errors import ClusterStartError
from broadleaf.state import files
from broadleaf.text import os_text_from_json

_LOG_TAIL_BYTES = 4096


class ForkServer:
    """A started fork server."""

    def __init__(self, child: ChildProcess, lifeline: int | None, ready_read: int) -> None:
        self.child = child
        self.lifeline = lifeline
        """Closed by whoever the host must not outlive."""
        self._ready_read = ready_read

    def wait_ready(self, timeout_s: float, log_tail: Callable[[], str]) -> dict[str, Any]:
        """Reads the line that says that the node listens, or why not: `ClusterStartError`, with the end of the log."""
        deadline = time.monotonic() + timeout_s
        text = b""
        try:
            while not text.endswith(b"\n"):
                readable, _, _ = select.select([self._ready_read], [], [], max(0.0, deadline - time.monotonic()))
                if not readable:
                    raise ClusterStartError(f"the fork server was not ready within {timeout_s:g} s", log_tail())
                part = os.read(self._ready_read, 4096)
                if not part:
                    raise ClusterStartError("the cluster's fork server died while it started", log_tail())
                text += part
        finally:
            os.close(self._ready_read)
        readiness: dict[str, Any] = json.loads(text)
        if "error" in readiness:
            code = readiness.get("exit_code")
            raise ClusterStartError(f"the cluster did not start: {readiness['error']} (exit code {code})", log_tail())
        return readiness


class HostPlan(NamedTuple):
    """A host to start: the role of its node, its engines, and where its files go."""

    connection: Mapping[str, Any]
    """What its engines connect by: the content of a connection file, with this host's socket in it."""
    part: Mapping[str, Any]
    """What makes the node a controller, `tcp`, or a relay, `relay`."""
    keys: Mapping[str, Mapping[str, str]]
    n_engines: int
    run_dir: Path
    cluster_dir: Path
    sys_path: Sequence[str]
    engine_env: Mapping[str, str]
    """What engines have in their environment in addition to that of this process."""
    ends_with_guests: bool = False
    """Whether it is there for engines that it does not start, and ends with the last of them."""

    def start(self, log_path: Path, *, with_lifeline: bool) -> ForkServer:
        """Starts the fork server. Its output goes to `log_path`, which is emptied."""
        cluster_id, options = self.connection["cluster_id"], self.connection["options"]
        directory = self.connection.get("directory")
        node = {
            "cluster_id": cluster_id,
            "unix_path": self.connection["unix_path"],
            "python": python_version(),
            "keys": self.keys,
            "n_engines": self.n_engines,
            "options": options,
            **self.part,
        }
        host = {
            "connection": json.dumps(self.connection),
            "run_dir": str(self.run_dir),
            "cluster_dir": str(self.cluster_dir),
            "options": options,
            "n_engines": self.n_engines,
            "n_cores": usable_cores(),
            "sys_path": list(self.sys_path),
            "directory": None if directory is None else os_text_from_json(directory),
            "ends_with_guests": self.ends_with_guests,
        }
        log = files.open_log(log_path)
        try:
            return _start(cluster_id, self.engine_env, node, host, log, with_lifeline)
        finally:
            os.close(log)


def log_tail(path: Path) -> str:
    """The end of a log; '' if there is none."""
    try:
        return path.read_bytes()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace")
    except OSError:
        return ""


def fork_early() -> None:
    """Forks the process that becomes the fork server of the next host that this process starts.

    For a program that starts one host and was itself started for its cluster; see `WaitingProcess.fork`. Otherwise each
    host takes an interpreter of its own.
    """
    global _forked
    standard_descriptors.occupy()
    _forked = WaitingProcess.fork(with_lifeline=True)


# What `fork_early` left, until a host takes it.
_forked: WaitingProcess | None = None


def _forked_process(cluster_id: str, environment: Mapping[str, str], *, with_lifeline: bool) -> WaitingProcess | None:
    """A forked process, if its environment, by which processes of a cluster are known, names this one.

    It is what `fork_early` left, if its interpreter was started with the engines' `environment`. A host without a
    lifeline forks no engines, so its fork server may be forked from a process that holds a key.
    """
    global _forked
    early, _forked = _forked, None  # it ends if it is not used
    if os.environ.get("BROADLEAF_CLUSTER_ID") != cluster_id:
        return None
    if not with_lifeline:
        return WaitingProcess.fork(with_lifeline=False)
    return early if is_set(environment) else None


def _start(
    cluster_id: str,
    environment: Mapping[str, str],
    node_config: dict[str, Any],
    host_config: dict[str, Any],
    log: int,
    with_lifeline: bool,
) -> ForkServer:
    """Starts a fork server, whose output goes to `log`. The descriptors that it inherits are added to `node_config`."""
    process = _forked_process(cluster_id, environment, with_lifeline=with_lifeline)
    if process is not None:
        process.send_log(log)
    else:
        process = WaitingProcess.start(cluster_id, environment, log, with_lifeline=with_lifeline)
    pipes = process.pipes
    node_config = node_config | {
        "ready_fd": pipes.node_ready_write,
        "lifeline_fd": pipes.lifeline_read if with_lifeline else None,
    }
    process.configure(f"{json.dumps(node_config)}\n{json.dumps(host_config)}")
    return ForkServer(process.child, pipes.lifeline, pipes.ready_read)
