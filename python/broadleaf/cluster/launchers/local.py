"""A cluster on this host: one process that forks the node and then the engines."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broadleaf import _native
from broadleaf.cluster import addresses, files
from broadleaf.cluster.cores import usable_cores
from broadleaf.cluster.host_process import python_version, start_host
from broadleaf.cluster.launchers.base import Launcher, StartRequest
from broadleaf.config import Settings
from broadleaf.modules.search_path import search_path, working_directory

if TYPE_CHECKING:
    from subprocess import Popen

_LOG_TAIL_BYTES = 4096


class LocalLauncher(Launcher):
    """The processes of a cluster on this host."""

    def __init__(self, cluster_id: str, cluster_dir: Path, run_dir: Path, host_pid: int, node_pid: int) -> None:
        self.cluster_id = cluster_id
        self.cluster_dir = cluster_dir
        self.run_dir = run_dir
        self.host_pid = host_pid
        self.node_pid = node_pid
        self._child: Popen[bytes] | None = None
        self._lifeline: int | None = None

    @classmethod
    def start(cls, request: StartRequest) -> LocalLauncher:
        """Starts the host process and waits until its node listens."""
        if request.settings["listen"] and not request.settings["tls"]:
            addresses.warn_of_plaintext()
        run_dir = files.make_run_dir(request.cluster_id, outlives_session=request.detached)
        launcher = cls(request.cluster_id, request.cluster_dir, run_dir, 0, 0)
        try:
            log = files.open_log(request.cluster_dir / files.NODE_LOG)
        except BaseException:
            launcher.end()
            raise
        try:
            keys = json.loads(_native.generate_keys())
            readiness = launcher._start_host(request, keys, log)
            launcher.node_pid = readiness["pid"]
            launcher._write_connections(request, keys, readiness.get("tcp_port"))
        except BaseException:
            launcher.end()
            raise
        finally:
            os.close(log)
        return launcher

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> LocalLauncher:
        """A cluster that another process started."""
        return cls(
            state["cluster_id"],
            Path(state["cluster_dir"]),
            Path(state["run_dir"]),
            state["host_pid"],
            state["node_pid"],
        )

    def to_dict(self) -> dict[str, Any]:
        """Paths and process ids."""
        return {
            "cluster_id": self.cluster_id,
            "cluster_dir": str(self.cluster_dir),
            "run_dir": str(self.run_dir),
            "host_pid": self.host_pid,
            "node_pid": self.node_pid,
        }

    def running(self) -> bool:
        """Whether the host process is alive; it is the last to go."""
        if self._child is not None:
            return self._child.poll() is None
        return files.process_of_cluster(self.host_pid, self.cluster_id)

    def wait(self, timeout_s: float | None) -> bool:
        """Whether the host process was gone within `timeout_s`."""
        if self._child is not None:
            import subprocess

            try:
                self._child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return False
            return True
        try:
            descriptor = os.pidfd_open(self.host_pid)
        except ProcessLookupError:
            return True
        try:
            if not self.running():
                return True
            gone, _, _ = select.select([descriptor], [], [], timeout_s)
            return bool(gone)
        finally:
            os.close(descriptor)

    def exit_code(self, timeout_s: float) -> int | None:
        """The node's, which the host process passes on."""
        if self._child is None or not self.wait(timeout_s):
            return None
        code: int = self._child.returncode
        return code if code >= 0 else None  # the host itself was ended, and has taken the node with it

    def end(self) -> None:
        """Kills every process of the cluster's session and removes the files."""
        self.release()
        if self._child is not None:
            self._child.kill()  # it may be too young to be known by its environment
        if self.host_pid:
            # The host leads a session, and all that it or an engine starts is in there until it leaves of its own.
            while members := _session(self.host_pid, self.cluster_id):
                for pid in members:
                    _kill_and_wait(pid)
            self.wait(None)
        files.remove_cluster_files(self.cluster_dir, self.run_dir)

    def release(self) -> None:
        """Closes the lifeline."""
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None

    def log(self, engine_id: int | None = None) -> Path:
        """Path of the node's log, or of an engine's."""
        if engine_id is None:
            return self.cluster_dir / files.NODE_LOG
        return self.run_dir / f"engine-{engine_id}.log"

    def _unix_path(self) -> str:
        return str(self.run_dir / "node.sock")

    def _start_host(self, request: StartRequest, keys: dict[str, Any], log: int) -> dict[str, Any]:
        unix_path, tcp = self._unix_path(), _tcp(request.settings)
        node_config = {
            "cluster_id": self.cluster_id,
            "unix_path": unix_path,
            "python": python_version(),
            "tcp": tcp,
            "keys": keys,
            "n_engines": request.n,
            "engine_env": request.engine_environment,
            "options": request.settings.to_native(),
        }
        options = request.settings.to_dict() | {"preload": preload_modules(request.settings["preload"])}
        host_config = {
            "connection": json.dumps(self._connection(request, keys, "engine", None)),
            "run_dir": str(self.run_dir),
            "cluster_dir": str(self.cluster_dir),
            "options": options,
            "n_engines": request.n,
            "n_cores": usable_cores(),
            "sys_path": search_path(),
            "directory": working_directory(),
        }
        started = start_host(self.cluster_id, node_config, host_config, log, with_lifeline=not request.detached)
        self._child, self._lifeline, self.host_pid = started.child, started.lifeline, started.child.pid
        _parents.add(self)
        return started.wait_ready(request.settings["start_timeout_s"], self._log_tail)

    def _log_tail(self) -> str:
        try:
            return self.log().read_bytes()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace")
        except OSError:
            return ""

    def _connection(
        self, request: StartRequest, keys: dict[str, Any], role: str, tcp_port: int | None
    ) -> dict[str, Any]:
        tcp = _tcp(request.settings)
        return {
            "cluster_id": self.cluster_id,
            "unix_path": self._unix_path(),
            "tcp": {"host": addresses.to_dial(tcp["host"]), "port": tcp_port} if tcp and tcp_port else None,
            "tls": request.settings["tls"],
            "role": role,
            "server_public_key": keys["server"]["public"],
            "private_key": keys[role]["private"],
            "broadleaf": _native.__version__,
            "python": python_version(),
            "pid": self.node_pid,
            "search_path": search_path(),
            "directory": working_directory(),
            "options": request.settings.to_native() | {"preload": preload_modules(request.settings["preload"])},
        }

    def _write_connections(self, request: StartRequest, keys: dict[str, Any], tcp_port: int | None) -> None:
        for role, name in (("engine", files.ENGINE_FILE), ("client", files.CLIENT_FILE)):
            files.write_json(self.cluster_dir / name, self._connection(request, keys, role, tcp_port))


def preload_modules(option: list[str]) -> list[str]:
    """The modules that the `preload` option names, with `auto` resolved for this process."""
    modules = [name for name in option if name != "auto"]
    if "auto" in option:
        if "numpy" in sys.modules:
            modules.append("numpy")
        ipython = sys.modules.get("IPython")
        if ipython is not None and ipython.get_ipython() is not None:
            modules.append("IPython")
    return list(dict.fromkeys(modules))


def _session(session_id: int, cluster_id: str) -> list[int]:
    """Processes of the session, which must be the cluster's."""
    pids = []
    for pid in files.process_ids():
        try:
            member = os.getsid(pid) == session_id
        except ProcessLookupError:
            continue
        if member and files.process_of_cluster(pid, cluster_id):
            pids.append(pid)
    return pids


def _kill_and_wait(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        select.select([descriptor], [], [])
    except ProcessLookupError:
        pass
    finally:
        os.close(descriptor)


def _tcp(settings: Settings) -> dict[str, Any] | None:
    if not settings["listen"]:
        return None
    host, _, port = settings["listen"].rpartition(":")
    return {"host": host.strip("[]"), "port": int(port), "tls": settings["tls"]}


# Of host processes that this one has started. A child that this process forks later must not keep the cluster alive,
# nor close the lifeline's number twice; and the host is no child of its own.
_parents: weakref.WeakSet[LocalLauncher] = weakref.WeakSet()


def _forget_children() -> None:
    for launcher in list(_parents):
        launcher.release()
        if launcher._child is not None:
            launcher._child.returncode = 0  # so that nobody waits for it here
            launcher._child = None
    _parents.clear()


os.register_at_fork(after_in_child=_forget_children)
