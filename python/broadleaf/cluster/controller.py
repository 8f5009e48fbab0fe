"""A cluster's controller: a fork server on this host, and the engines here."""

from __future__ import annotations

import os
import select
import signal
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from broadleaf.cluster import addresses
from broadleaf.cluster.credentials import Credentials, listen_address
from broadleaf.cluster.fork_servers import ChildProcess, HostPlan, log_tail
from broadleaf.config import Settings
from broadleaf.serialize.search_path import search_path
from broadleaf.state import files
from broadleaf.state.directories import make_run_dir, read_json, write_json
from broadleaf.text import os_text_from_json, os_text_to_json


class Restart(NamedTuple):
    """What a controller needs, beside its journal, to take the place of another one."""

    keys: Mapping[str, Mapping[str, str]]
    tcp_port: int | None
    n_engines: int
    """Engines on the controller's host."""
    engine_env: Mapping[str, str]

    def write(self, cluster_dir: Path) -> None:
        """Writes it where `read` finds it."""
        variables = {os_text_to_json(name): os_text_to_json(value) for name, value in self.engine_env.items()}
        write_json(cluster_dir / files.RESTART_FILE, self._asdict() | {"engine_env": variables})

    @classmethod
    def read(cls, cluster_dir: Path) -> Restart | None:
        """That of a cluster whose controller kept a journal; None if there is none."""
        if not files.can_be_resumed(cluster_dir):
            return None
        state = read_json(cluster_dir / files.RESTART_FILE)
        variables = state.pop("engine_env")
        decoded = {os_text_from_json(name): os_text_from_json(value) for name, value in variables.items()}
        return cls(**state, engine_env=decoded)


class Controller:
    """The controller of a cluster, and everything it has started on this host."""

    def __init__(self, cluster_id: str, cluster_dir: Path, run_dir: Path, fork_server_pid: int, node_pid: int) -> None:
        self.cluster_id = cluster_id
        self.cluster_dir = cluster_dir
        self.run_dir = run_dir
        self.fork_server_pid: int = fork_server_pid
        self.node_pid = node_pid
        self._child: ChildProcess | None = None
        self._lifeline: int | None = None

    @classmethod
    def start(
        cls,
        cluster_id: str,
        cluster_dir: Path,
        settings: Settings,
        *,
        n_engines: int,
        engine_env: Mapping[str, str],
        detached: bool,
        meanwhile: Callable[[], object],
        credentials: Credentials | None = None,
        former: Controller | None = None,
    ) -> Controller:
        """Starts the fork server with `n_engines` of this host, calls `meanwhile`, waits until its node listens, and
        writes the connection files; with fresh keys, unless `credentials` are given. It takes the place of `former`,
        which has kept the journal, at the same address, and its log goes on.

        Raises `ClusterStartError`, and leaves nothing behind then, except for the journal.
        """
        if settings["listen"] and not settings["tls"]:
            addresses.warn_of_plaintext()
        name = former.run_dir.name if former is not None else None
        run_dir = Path(make_run_dir(cluster_id, outlives_session=detached, name=name))
        controller = cls(cluster_id, cluster_dir, run_dir, 0, 0)
        try:
            credentials = credentials or Credentials.generate(cluster_id)
            resumes = former is not None
            plan = controller._plan(credentials, settings, n_engines, engine_env, resumes)
            readiness = controller._start_host(plan, settings, detached, meanwhile, resumes)
            controller.node_pid = readiness["pid"]
            credentials.write(
                cluster_dir,
                settings,
                unix_path=controller._unix_path(),
                pid=controller.node_pid,
                tcp_port=readiness.get("tcp_port"),
                engine_env=engine_env,
            )
            if settings["journal"] != "off":
                Restart(credentials.keys, readiness.get("tcp_port"), n_engines, engine_env).write(cluster_dir)
        except BaseException:
            controller.end(keeps_journal=former is not None)
            raise
        return controller

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Controller:
        """A cluster that another process started."""
        return cls(
            state["cluster_id"],
            Path(state["cluster_dir"]),
            Path(state["run_dir"]),
            state["fork_server_pid"],
            state["node_pid"],
        )

    def to_dict(self) -> dict[str, Any]:
        """Paths and process ids."""
        return {
            "cluster_id": self.cluster_id,
            "cluster_dir": str(self.cluster_dir),
            "run_dir": str(self.run_dir),
            "fork_server_pid": self.fork_server_pid,
            "node_pid": self.node_pid,
        }

    def running(self) -> bool:
        """Whether the fork server is alive; it ends last."""
        if self._child is not None:
            return self._child.poll() is None
        return files.process_of_cluster(self.fork_server_pid, self.cluster_id)

    def wait(self, timeout_s: float | None) -> bool:
        """Whether the fork server was gone within `timeout_s`."""
        if self._child is not None:
            import subprocess

            try:
                self._child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return False
            return True
        try:
            descriptor = os.pidfd_open(self.fork_server_pid)
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
        """The node's, which the fork server passes on."""
        if self._child is None or not self.wait(timeout_s):
            return None
        code = self._child.returncode
        # Below 0, the fork server itself was killed, and the node ended with it.
        return code if code is not None and code >= 0 else None

    def end(self, *, keeps_journal: bool = False) -> None:
        """Kills every process of the cluster's session and removes the files, except for the logs and the journal with
        `keeps_journal`."""
        self.release()
        if self._child is not None:
            self._child.kill()  # it may be too young for its environment to identify it
        if self.fork_server_pid:
            # The fork server leads a session. Everything that it or an engine starts belongs to it until a process
            # leaves by itself.
            while members := self.processes():
                for pid in members:
                    _kill_and_wait(pid)
            self.wait(None)
        files.remove_cluster_files(self.cluster_dir, self.run_dir, keep_logs=keeps_journal)

    def release(self) -> None:
        """Closes the lifeline."""
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None

    def processes(self) -> list[int]:
        """Those that it has started on this host, and what these have started."""
        return _session(self.fork_server_pid, self.cluster_id)

    def log(self, engine_id: int | None = None) -> Path:
        """Path of the node's log, or of an engine's."""
        if engine_id is None:
            return self.cluster_dir / files.NODE_LOG
        return self.run_dir / f"engine-{engine_id}.log"

    def _unix_path(self) -> str:
        return str(self.run_dir / "node.sock")

    def _plan(
        self,
        credentials: Credentials,
        settings: Settings,
        n_engines: int,
        engine_env: Mapping[str, str],
        resumes: bool,
    ) -> HostPlan:
        journal = {"path": str(self.cluster_dir / files.JOURNAL), "resume": resumes}
        return HostPlan(
            connection=credentials.connection("engine", settings, unix_path=self._unix_path()),
            part={
                "tcp": listen_address(settings),
                "journal": journal if settings["journal"] != "off" else None,
            },
            keys=credentials.keys,
            n_engines=n_engines,
            run_dir=self.run_dir,
            cluster_dir=self.cluster_dir,
            sys_path=search_path(),
            engine_env=engine_env,
        )

    def _start_host(
        self, plan: HostPlan, settings: Settings, detached: bool, meanwhile: Callable[[], object], resumes: bool
    ) -> dict[str, Any]:
        started = plan.start(self.log(), with_lifeline=not detached, log_goes_on=resumes)
        self._child = started.child
        self._lifeline = started.lifeline
        self.fork_server_pid = started.child.pid
        _parents.add(self)
        meanwhile()
        return started.wait_ready(settings["start_timeout_s"], lambda: log_tail(self.log()))


def _session(session_id: int, cluster_id: str) -> list[int]:
    """Processes of the session, which must belong to the cluster."""
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


# For fork servers that this process has started. A child that this process forks later must not keep the cluster alive
# or close the lifeline's descriptor twice. The fork server is not its child either.
_parents: weakref.WeakSet[Controller] = weakref.WeakSet()


def _forget_children() -> None:
    for controller in list(_parents):
        controller.release()
        if controller._child is not None:
            controller._child.returncode = 0  # so that nobody here waits for it
            controller._child = None
    _parents.clear()


os.register_at_fork(after_in_child=_forget_children)
