"""`Cluster`: engines and a controller of one's own, from one call."""

from __future__ import annotations

import atexit
import os
import secrets
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from broadleaf import config
from broadleaf.cluster import files
from broadleaf.cluster.control import ControlLink, Targets
from broadleaf.cluster.cores import usable_cores
from broadleaf.cluster.launchers import ClusterStartError, Launcher, StartRequest, find_launcher
from broadleaf.errors import ClusterConnectionError, KernelError

if TYPE_CHECKING:
    from broadleaf.client import Client

_STOP_GRACE_S = 10.0


class ClusterStateError(KernelError):
    """What was asked needs a cluster that runs, or one that does not."""


class Cluster:
    """A controller and `n` engines.

    ``with Cluster(n=4) as client:`` starts them, gives a connected `Client` once all engines are up, and stops them at
    the end. Every method that takes time is a coroutine, and has a twin ``<name>_sync`` for plain code; the coroutine
    runs the twin on a thread of the event loop's executor.

    `n` defaults to the cores this process may use. `engines` names a launcher. A `detached` cluster outlives this
    process; any other is stopped when the process ends, however it ends. `controller_ip` is short for
    ``listen="<ip>:0"``. `env` is set in the engines' environment. All other keywords are options of
    `broadleaf.config`.
    """

    def __init__(
        self,
        n: int | None = None,
        *,
        profile: str = "default",
        cluster_id: str | None = None,
        engines: str = "local",
        controller_ip: str | None = None,
        detached: bool = False,
        env: dict[str, str] | None = None,
        **options: Any,
    ) -> None:
        if n is not None and n < 0:
            raise ValueError(f"n={n}: a cluster cannot have fewer than no engines")
        if controller_ip is not None:
            options.setdefault("listen", f"{controller_ip}:0")
        self.n = usable_cores() if n is None else n
        self.profile = profile
        self.cluster_id = files.check_id("cluster id", cluster_id or f"{int(time.time())}-{secrets.token_hex(2)}")
        self.engines = engines
        self.detached = detached
        self.env = dict(env or {})
        self._arguments = {name: value for name, value in options.items() if value is not None}
        self.settings = config.resolve(self._arguments, files.profile_dir(profile))
        self._launcher_class = find_launcher(engines)
        self._launcher: Launcher | None = None
        self._client: Client | None = None
        self._lock = threading.RLock()
        self._owner_pid = os.getpid()

    # What it is

    @property
    def cluster_dir(self) -> Path:
        """Directory of this cluster's files."""
        return files.cluster_dir(self.profile, self.cluster_id)

    @property
    def cluster_file(self) -> str:
        """Path of the file that `from_file` reads."""
        return str(self.cluster_dir / files.CLUSTER_FILE)

    @property
    def connection_file(self) -> str:
        """Path of the file that a client connects by."""
        return str(self.cluster_dir / files.CLIENT_FILE)

    @property
    def relay_file(self) -> str:
        """Path of the file that `broadleaf relay --connection` joins by, for engines on other hosts."""
        return str(self.cluster_dir / files.ENGINE_FILE)

    @property
    def running(self) -> bool:
        """Whether its processes are alive."""
        return self._launcher is not None and self._launcher.running()

    def __repr__(self) -> str:
        state = "running" if self.running else "stopped" if self._launcher else "not started"
        detached = ", detached" if self.detached else ""
        return (
            f"<Cluster(cluster_id={self.cluster_id!r}, profile={self.profile!r}, n={self.n}, {self.engines}"
            f"{detached}): {state}>"
        )

    def log_path(self, engine_id: int | None = None) -> Path:
        """Path of the node's log, or of an engine's."""
        return self._started().log(engine_id)

    # Start and stop

    def start_cluster_sync(self, n: int | None = None) -> Self:
        """Starts controller and engines, and returns when the controller listens; engines come up meanwhile.

        Raises `ClusterStartError` with the end of the log, and leaves nothing behind then.
        """
        with self._lock:
            if self.running:
                raise ClusterStateError(f"cluster {self.cluster_id!r} is running already")
            if n is not None:
                self.n = n
            self._claim_directory()
            request = StartRequest(
                self.profile,
                self.cluster_id,
                self.n,
                self.settings,
                self.cluster_dir,
                self.env,
                self.detached,
            )
            self._launcher = self._launcher_class.start(request)
            self._owner_pid = os.getpid()
            files.write_json(Path(self.cluster_file), self.to_dict())
            if not self.detached:
                _stop_at_exit(self)
        return self

    def _claim_directory(self) -> None:
        for directory in (config.base_dir(), files.profile_dir(self.profile).parent, files.profile_dir(self.profile)):
            files.make_private_dir(directory)
        if Path(self.cluster_file).exists():
            other = Cluster.from_file(self.cluster_file)
            if other.running:
                raise ClusterStateError(
                    f"cluster {self.cluster_id!r} of profile {self.profile!r} is running already; stop it with "
                    f"`broadleaf stop --cluster-id {self.cluster_id}`, or choose another id"
                )
            other.remove_files()
        files.make_private_dir(self.cluster_dir)

    def stop_cluster_sync(self) -> None:
        """Stops everything and waits until it is gone; a cluster that does not obey is killed. Does nothing to one
        that does not run."""
        with self._lock:
            client, self._client = self._client, None
            if client is not None:
                client.close()
            launcher = self._launcher
            if launcher is None:
                return
            _running.pop(id(self), None)
            if launcher.running():
                self._ask_to_stop()
                launcher.release()
                launcher.wait(_STOP_GRACE_S + self.settings["stop_grace_s"])
            launcher.end()

    def _ask_to_stop(self) -> None:
        try:
            with self.control(timeout_s=2.0) as control:
                control.shutdown()
        except (KernelError, TimeoutError, OSError):
            pass  # it may stop before it answers; whether it has stopped is waited for in any case

    def remove_files(self) -> None:
        """Removes what a cluster that does not run has left on disk."""
        if self._launcher is not None and not self.running:
            run_dir = self._launcher.to_dict()["run_dir"]
            files.remove_cluster_files(self.cluster_dir, run_dir)

    # Engines

    def start_engines_sync(self, n: int | None = None) -> None:
        """Starts `n` more engines (by default as many as the cluster began with); they come up later."""
        count = self.n if n is None else n
        with self.control() as control:
            control.add_engines(count)

    def stop_engines_sync(self, targets: Targets = None) -> None:
        """Stops these engines for good, or all."""
        with self.control() as control:
            control.stop_engines(targets)

    def stop_engine_sync(self, engine_id: int) -> None:
        """Stops one engine for good."""
        self.stop_engines_sync(engine_id)

    def restart_engines_sync(self, targets: Targets = None) -> None:
        """Stops these engines, or all, and starts them afresh under the same ids; their variables are lost."""
        with self.control() as control:
            control.restart_engines(targets)

    def restart_engine_sync(self, engine_id: int) -> None:
        """Restarts one engine."""
        self.restart_engines_sync(engine_id)

    def signal_engines_sync(self, signum: int = signal.SIGINT, targets: Targets = None) -> None:
        """Sends a signal to these engines, or all."""
        with self.control() as control:
            control.signal(signum, targets)

    def signal_engine_sync(self, signum: int, engine_id: int) -> None:
        """Sends a signal to one engine."""
        self.signal_engines_sync(signum, engine_id)

    def status_sync(self) -> dict[str, Any]:
        """Counters of controller and engines."""
        with self.control() as control:
            return control.status()

    def save_trace_sync(self, path: str | Path) -> None:
        """Writes the event ring as a Chrome trace, which Perfetto and `chrome://tracing` open."""
        with self.control() as control:
            Path(path).write_text(control.request("Trace", 60.0))

    # Clients

    def connect_client_sync(self, **options: Any) -> Client:
        """A new client of this cluster; `options` are those of `Client`."""
        from broadleaf.client import Client

        self._started()
        return Client(self.connection_file, cluster=self, **options)

    def start_and_connect_sync(self, n: int | None = None) -> Client:
        """Starts the cluster if it does not run, connects, and waits for all its engines.

        Raises `ClusterStartError` when engines do not come up in time, and stops the cluster then.
        """
        if not self.running:
            self.start_cluster_sync(n)
        try:
            client = self.connect_client_sync()
            try:
                client.wait_for_engines(self.n, timeout=self.settings["start_timeout_s"])
            except TimeoutError:
                raise self._missing_engines(client.ids) from None
        except BaseException:
            self.stop_cluster_sync()
            raise
        return client

    def wait_for_engines_sync(self) -> None:
        """Waits until all engines are up. Raises `ClusterStartError` when they are not in time."""
        with self.control() as control:
            if not control.wait_for_engines(self.n, self.settings["start_timeout_s"]):
                raise self._missing_engines([engine_id for engine_id, *_ in control.engines()])

    def _missing_engines(self, up: Sequence[int]) -> ClusterStartError:
        missing = [engine_id for engine_id in range(self.n) if engine_id not in up]
        log = self.log_path(missing[0]) if missing else self.log_path()
        text = log.read_text(errors="replace")[-4096:] if log.exists() else ""
        timeout_s: float = self.settings["start_timeout_s"]
        return ClusterStartError(f"only {len(up)} of {self.n} engines came up within {timeout_s:g} s", text)

    def __enter__(self) -> Client:
        self._client = self.start_and_connect_sync()
        return self._client

    def __exit__(self, *_: object) -> None:
        self.stop_cluster_sync()

    async def __aenter__(self) -> Client:
        self._client = await self.start_and_connect()
        return self._client

    async def __aexit__(self, *_: object) -> None:
        await self.stop_cluster()

    # The same as coroutines

    async def start_cluster(self, n: int | None = None) -> Self:
        """See `start_cluster_sync`."""
        await _on_thread(self.start_cluster_sync, n)
        return self

    async def stop_cluster(self) -> None:
        """See `stop_cluster_sync`."""
        await _on_thread(self.stop_cluster_sync)

    async def start_engines(self, n: int | None = None) -> None:
        """See `start_engines_sync`."""
        await _on_thread(self.start_engines_sync, n)

    async def stop_engines(self, targets: Targets = None) -> None:
        """See `stop_engines_sync`."""
        await _on_thread(self.stop_engines_sync, targets)

    async def stop_engine(self, engine_id: int) -> None:
        """See `stop_engine_sync`."""
        await _on_thread(self.stop_engine_sync, engine_id)

    async def restart_engines(self, targets: Targets = None) -> None:
        """See `restart_engines_sync`."""
        await _on_thread(self.restart_engines_sync, targets)

    async def restart_engine(self, engine_id: int) -> None:
        """See `restart_engine_sync`."""
        await _on_thread(self.restart_engine_sync, engine_id)

    async def signal_engines(self, signum: int = signal.SIGINT, targets: Targets = None) -> None:
        """See `signal_engines_sync`."""
        await _on_thread(self.signal_engines_sync, signum, targets)

    async def signal_engine(self, signum: int, engine_id: int) -> None:
        """See `signal_engine_sync`."""
        await _on_thread(self.signal_engine_sync, signum, engine_id)

    async def connect_client(self, **options: Any) -> Client:
        """See `connect_client_sync`."""
        client: Client = await _on_thread(lambda: self.connect_client_sync(**options))
        return client

    async def start_and_connect(self, n: int | None = None) -> Client:
        """See `start_and_connect_sync`."""
        client: Client = await _on_thread(self.start_and_connect_sync, n)
        return client

    # Other processes' clusters

    def to_dict(self) -> dict[str, Any]:
        """What another process needs to use and stop this cluster; the content of `cluster_file`."""
        return {
            "cluster_id": self.cluster_id,
            "profile": self.profile,
            "n": self.n,
            "engines": self.engines,
            "detached": self.detached,
            "options": self._arguments,
            "launcher": self._launcher.to_dict() if self._launcher else None,
        }

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Cluster:
        """The cluster that `to_dict` described; this process does not stop it at its end."""
        cluster = cls(
            state["n"],
            profile=state["profile"],
            cluster_id=state["cluster_id"],
            engines=state["engines"],
            detached=state["detached"],
            **state["options"],
        )
        if state["launcher"] is not None:
            cluster._launcher = cluster._launcher_class.from_dict(state["launcher"])
        return cluster

    @classmethod
    def from_file(
        cls, cluster_file: str | Path | None = None, *, profile: str = "default", cluster_id: str = "default"
    ) -> Cluster:
        """The cluster of a `cluster_file`, or of this profile and id. Raises `ClusterFileError`."""
        path = Path(cluster_file) if cluster_file else files.cluster_dir(profile, cluster_id) / files.CLUSTER_FILE
        return cls.from_dict(files.read_json(path))

    def _started(self) -> Launcher:
        if self._launcher is None:
            raise ClusterStateError(f"cluster {self.cluster_id!r} has not been started")
        return self._launcher

    def control(self, timeout_s: float = 10.0) -> ControlLink:
        """A connection for requests; use it as a context manager. Raises `ClusterConnectionError`."""
        self._started()
        if not self.running:
            raise ClusterConnectionError(f"cluster {self.cluster_id!r} has stopped")
        return ControlLink(Path(self.connection_file).read_text(), timeout_s)

    def wait_stopped(self, timeout_s: float | None = None) -> bool:
        """Whether the cluster's processes were gone within `timeout_s`."""
        return self._started().wait(timeout_s)

    def _stop_if_owner(self) -> None:
        if os.getpid() == self._owner_pid:
            self.stop_cluster_sync()


async def _on_thread(function: Any, *arguments: Any) -> Any:
    import asyncio

    return await asyncio.to_thread(function, *arguments)


# Clusters to stop when this process ends. Held here, so that one whose object was dropped is stopped too.
_running: dict[int, Cluster] = {}


def _stop_at_exit(cluster: Cluster) -> None:
    if not _running:
        atexit.unregister(_stop_all)
        atexit.register(_stop_all)
    _running[id(cluster)] = cluster


def _stop_all() -> None:
    clusters: Sequence[Cluster] = list(_running.values())
    for cluster in clusters:
        cluster._stop_if_owner()
