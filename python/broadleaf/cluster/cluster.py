"""`Cluster`: starts a controller and engines with one call."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from broadleaf import config, standard_descriptors
from broadleaf.cluster import addresses
from broadleaf.cluster.control import ControlLink, Targets
from broadleaf.cluster.controller import Controller, Restart
from broadleaf.cluster.cores import engine_count, usable_cores
from broadleaf.cluster.coroutines import ClusterCoroutines
from broadleaf.cluster.credentials import Credentials
from broadleaf.cluster.elastic import Elastic
from broadleaf.cluster.engine_sets import Block, EngineSet, describe, described, make_engine_set, split_options
from broadleaf.cluster.session import session_environment
from broadleaf.cluster.started_sets import StartedSet, StartedSets, why_gone
from broadleaf.errors import BroadleafError, ClusterConnectionError, ClusterStartError, EngineError
from broadleaf.extensions import extension
from broadleaf.requests import catch_up, wait_for_engines
from broadleaf.state import directories, files
from broadleaf.state.directories import ClusterFileError, base_dir, make_private_dir, read_json
from broadleaf.state.files import ClusterFile, StateLock

if TYPE_CHECKING:
    from broadleaf.client.client import Client
    from broadleaf.config import Settings


# Clusters to stop when this process ends. Kept here so that a cluster whose object was dropped is stopped too.


_stopped_at_exit: dict[int, Cluster] = {}


def stop_at_exit(cluster: Cluster) -> None:
    """Registers the cluster to be stopped when this process ends."""
    if not _stopped_at_exit:
        atexit.unregister(_stop_all)
        atexit.register(_stop_all)
    _stopped_at_exit[id(cluster)] = cluster


def keep_at_exit(cluster: Cluster) -> None:
    """Undoes `stop_at_exit`."""
    _stopped_at_exit.pop(id(cluster), None)


def stop_earlier_run(cluster: Cluster) -> None:
    """Stops what an earlier run of the cell that made this cluster has started, and says so: its variables are gone."""
    cell = cluster._cell
    if cell is None:
        return
    for earlier in list(_stopped_at_exit.values()):
        is_earlier_run = earlier._cell is not None and earlier._cell.key == cell.key and earlier._cell.run != cell.run
        if is_earlier_run and earlier.running:
            earlier.stop_cluster_sync()
            print(f"stopped cluster {earlier.cluster_id!r}, which an earlier run of this cell had started")


def stops_at_exit(cluster: Cluster) -> bool:
    """Whether the cluster is stopped when this process ends."""
    return id(cluster) in _stopped_at_exit


def _stop_all() -> None:
    for cluster in list(_stopped_at_exit.values()):
        cluster.stop_if_owner()


# The dashboard that belongs to a `Cluster`.


class Dashboard(Protocol):
    """A page that shows what a cluster does."""

    @property
    def url(self) -> str:
        """Its address, with its token; reading it starts the server."""
        ...

    @property
    def running(self) -> bool:
        """Whether it is served."""
        ...

    def start(self) -> None:
        """Serves it, if it is not served yet."""

    def close(self) -> None:
        """Ends all streams and the server."""


class OwnDashboard:
    """A cluster's attribute `dashboard`."""

    @cached_property
    def dashboard(self) -> Dashboard:
        """A page that shows what the cluster does, at `cluster.dashboard.url` or in a notebook's output."""
        made: Dashboard = extension("dashboard")(self)
        return made

    def _close_dashboard(self) -> None:
        if "dashboard" in vars(self):
            self.dashboard.close()


# What a cluster looks like when it is displayed.


def description(cluster: Cluster) -> str:
    """The cluster in one line: what it is, and whether it runs."""
    detached = ", detached" if cluster.detached else ""
    return (
        f"<Cluster(cluster_id={cluster.cluster_id!r}, profile={cluster.profile!r}, n={cluster.n}, "
        f"{cluster.launcher_name}{detached}): {_state(cluster)}>"
    )


def html_description(cluster: Cluster) -> str:
    """The cluster and its engines as a table, for notebooks."""
    from broadleaf.client.display.reprs import dashboard_link, errors_html
    from broadleaf.tables import engine_table, titled

    state = _state(cluster)
    facts = [
        ("id", cluster.cluster_id),
        ("profile", cluster.profile),
        ("engines", f"{cluster.n:,}"),
        ("launcher", cluster.launcher_name),
    ]
    more: list[str] = []
    if cluster.running:
        try:
            with cluster.control(timeout_s=2.0) as control:
                hosts = {engine: host for engine, _, _, host in control.engines()}
                more = [dashboard_link(cluster), engine_table(control.status(), hosts)]
                more.append(errors_html(control.watch(0, 0)["failures"]))
        except (BroadleafError, TimeoutError, OSError):
            state = "does not answer"
    return titled("Cluster", [*facts, ("", state)], *more)


def _state(cluster: Cluster) -> str:
    if cluster.running:
        return "running"
    if cluster.is_coming_back:
        return "its controller is being started again"
    return "stopped" if cluster.was_started else "not started"


# Why engines on the controller's host did not start.


@contextmanager
def start_errors(cluster: Cluster, up: Callable[[], Sequence[int]]) -> Iterator[None]:
    """Turns exceptions from waiting for engines into `ClusterStartError`; `up` returns the engines that are up."""
    try:
        yield
    except TimeoutError:
        raise missing_engines(cluster, up()) from None
    except EngineError as error:
        raise ClusterStartError(str(error)) from None


def missing_engines(cluster: Cluster, up: Sequence[int]) -> ClusterStartError:
    """The error for a cluster of which only the engines in `up` started in time."""
    missing = [engine_id for engine_id in range(cluster.n) if engine_id not in up]
    reason = _why_not_started(cluster, missing)
    log = cluster.log_path(missing[0]) if missing else cluster.log_path()
    text = log.read_text(errors="replace")[-4096:] if log.exists() else ""
    timeout_s: float = cluster.settings["start_timeout_s"]
    return ClusterStartError(f"only {len(up)} of {cluster.n} engines came up within {timeout_s:g} s{reason}", text)


def _why_not_started(cluster: Cluster, missing: Sequence[int]) -> str:
    """The operating system's message if no process could be created for an engine."""
    try:
        engines = {entry["engine"]: entry for entry in cluster.status_sync()["engines"]}
    except (BroadleafError, TimeoutError, OSError):
        return ""
    deaths = [(engine_id, engines.get(engine_id, {}).get("last_death")) for engine_id in missing]
    reasons = [(one, death["last_output"]) for one, death in deaths if death and death["cause"] == "not_started"]
    return f": engine {reasons[0][0]} could not be started: {reasons[0][1]}" if reasons else ""


_STOP_GRACE_S = 10.0
# How long a client may take to learn what the controller knows.
_CATCH_UP_S = 10.0


class ClusterStateError(BroadleafError, RuntimeError):
    """The cluster is already running, is not running, or belongs to another host."""


class Cluster(ClusterCoroutines, OwnDashboard):
    """A controller and its engines.

    ``with Cluster(n=4) as client:`` starts them, gives a connected `Client` once all engines are up, and stops them at
    the end. Every method that takes time is a coroutine, and has a blocking variant ``<name>_sync``; the coroutine
    runs this variant on a thread of the event loop's executor.

    Args:
        n: Number of engines. By default, one for each core that this process may use; for engines on other hosts, the
            options of the engine set determine the number.
        profile: The profile, a folder of clusters and settings.
        cluster_id: The cluster's id. '' stands for "default", that of `broadleaf start`. By default, one is generated.
        engines: An engine set, or the name of one; by default the option `engines`.
        controller_ip: Short for ``listen="<ip>:0"``: the address that the controller listens on for other hosts.
        detached: Whether it outlives this process. Any other cluster is stopped when the process ends, however it ends.
        env: Variables that are set in the engines' environment, on every host and before their interpreters start.
        engine_options: Options of the engine set, where `engines` is a name. They may be given as keywords, too.
        **options: Options of `broadleaf.config`, and of the engine set. Arguments of IPython Parallel's `Cluster` are
            understood; those without a meaning here cause a warning.

    Raises:
        ValueError: An option does not exist, or does not take this value (then it is a `ConfigError`); there is no such
            engine set; `n` is negative; or the profile or id cannot be the name of a folder.
        TypeError: `n` is not an int.

    Example:
        >>> with ipp.Cluster(n=2) as client:
        ...     client[:].apply_sync(pow, 2, 8)
        [256, 256]
    """

    # IPython Parallel's names of the arguments, if they were given in its terms.
    _old_arguments: dict[str, Any]

    def __init__(
        self,
        n: int | None = None,
        *,
        profile: str = "default",
        cluster_id: str | None = None,
        engines: str | EngineSet | None = None,
        controller_ip: str | None = None,
        detached: bool = False,
        env: dict[str, str] | None = None,
        engine_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        set_options, options = split_options(engines, options)
        set_options |= engine_options or {}
        is_old = engines is not None and not isinstance(engines, EngineSet) and not str(engines).islower()
        if config.is_strange(options) or is_old:
            given = {"n": n, "profile": profile, "cluster_id": cluster_id, "engines": engines, "detached": detached}
            own, old = extension("cluster arguments")(given | {"controller_ip": controller_ip, "env": env} | options)
            own["engine_options"] = set_options
            Cluster.__init__(self, **own)
            self._old_arguments = old
            return
        self._old_arguments = {}
        if controller_ip is not None:
            options.setdefault("listen", f"{controller_ip}:0")
        self.profile: str = profile
        self.detached: bool = detached
        made_up = f"{int(time.time())}-{os.urandom(2).hex()}"
        self.cluster_id: str = files.check_id("cluster id", made_up if cluster_id is None else cluster_id or "default")
        self.env: dict[str, str] = dict(env or {})
        self._arguments = {name: value for name, value in options.items() if value is not None}
        self.settings: Settings = config.resolve(self._arguments, files.profile_dir(profile))
        self.engines_from: EngineSet = self._make_engine_set(engines, set_options)
        self.n: int = engine_count(n) if n is not None else 0 if self.engines_from.is_remote else usable_cores()
        self._default_n = self.n
        self._controller: Controller | None = None
        self._started_as = ""  # what all its controllers have in common, but no other cluster of this profile and id
        self._started_sets = StartedSets(self)
        self._client: Client | None = None
        self._clients: weakref.WeakSet[Client] = weakref.WeakSet()  # those of this process
        self.credentials: Credentials | None = None  # its keys, where they are not to be made at the start
        self.lock: StateLock = StateLock()
        self._file = ClusterFile(Path(self.cluster_file))
        self._elastic = Elastic(self, self._started_sets)
        self._is_new = False  # whether it was started here, and its engines have not all been up yet
        self._owner_pid = os.getpid()
        # The cell of a notebook that made it. No session is loaded only to ask.
        self._cell: Any = extension("running cell")() if "IPython" in sys.modules else None

    def _make_engine_set(self, engines: str | EngineSet | None, options: dict[str, Any]) -> EngineSet:
        if not isinstance(engines, EngineSet):
            name = engines or self.settings["engines"]
            engines = make_engine_set(name, files.profile_dir(self.profile), options)
        if engines.is_remote and not self.settings["listen"]:
            self._arguments["listen"] = f"{addresses.of_interface(engines.interface)}:0"
            self.settings = config.resolve(self._arguments, files.profile_dir(self.profile))
        return engines

    # What it is

    @property
    def launcher_name(self) -> str:
        """The name of its engine set."""
        return self.engines_from.name

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
        """Path of the file with which a client connects."""
        return str(self.cluster_dir / files.CLIENT_FILE)

    @property
    def relay_file(self) -> str:
        """Path of the file with which `broadleaf relay --connection` joins, for engines on other hosts."""
        return str(self.cluster_dir / files.ENGINE_FILE)

    @property
    def running(self) -> bool:
        """Whether its processes are alive."""
        return self._controller is not None and (self._controller.running() or self._has_successor())

    def _has_successor(self) -> bool:
        """Whether another process has started the controller again. It is then this object's controller, too."""
        assert self._controller is not None  # invariant: only asked where one has ended
        if self.settings["journal"] == "off":
            return False
        try:
            state = read_json(self.cluster_file)
        except ClusterFileError:
            return False  # it was stopped
        self._take_over_controller(state)
        return self._controller.running()

    @property
    def is_coming_back(self) -> bool:
        """Whether its controller has ended without being stopped, and is being started again."""
        return self._controller is not None and not self.running and self._elastic.brings_controller_back

    @property
    def was_started(self) -> bool:
        """Whether it is running or has run."""
        return self._controller is not None

    @property
    def engines(self) -> dict[str, StartedSet]:
        """The engine sets that are running, by id: engines that were started together."""
        with self.lock:
            return self._started_sets.living() if self.running else {}

    def processes_here(self) -> list[int]:
        """Processes of this host that belong to the cluster.

        Returns:
            Ids of its controller's processes, its engines here, and what they have started.
        """
        return self._controller.processes() if self._controller is not None else []

    def script(self) -> str:
        """The script that a start would submit, or run on each host, for users to read.

        Returns:
            The script. It contains no secrets.
        """
        return self.engines_from.script(self._started_sets.request(self.n))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # Called only for names that the class does not have, such as those of IPython Parallel's clusters.
            return extension("cluster attribute")(self, name)

    def __repr__(self) -> str:
        return description(self)

    def _repr_html_(self) -> str:
        return html_description(self)

    def log_path(self, engine_id: int | None = None) -> Path:
        """The log of the controller's node, or of an engine.

        Args:
            engine_id: The engine's id; None for the node.

        Returns:
            The path of the log.

        Raises:
            ClusterStateError: The cluster has not been started.
        """
        return self._started().log(engine_id)

    def previous_log_path(self, engine_id: int) -> Path:
        """The log of the process that had this engine's id before; it exists once the engine was restarted.

        Args:
            engine_id: The engine's id.

        Returns:
            The path of the log.

        Raises:
            ClusterStateError: The cluster has not been started.
        """
        log = self.log_path(engine_id)
        return log.with_name(f"{log.name}.previous")

    # Start and stop

    def start_cluster_sync(self, n: int | None = None) -> Self:
        """Starts controller and engines, and returns when the controller listens; engines come up meanwhile.

        Args:
            n: Number of engines, in place of the number that the cluster was created with.

        Returns:
            The cluster itself.

        Raises:
            ClusterStartError: It does not start; the message contains the end of the log. Nothing is left behind.
            ClusterStateError: It is already running, or another one with the same profile and id is.
        """
        if n is not None:
            self._default_n = self.n = engine_count(n)
        self._start(self.n, starts_engines=True)
        return self

    def start_controller_sync(self) -> None:
        """Starts the cluster without engines; `start_engines_sync` adds them.

        Raises:
            ClusterStartError: It does not start; the message contains the end of the log. Nothing is left behind.
            ClusterStateError: It is already running, or another one with the same profile and id is.
        """
        self._start(0, starts_engines=False)

    def _start(self, n_engines: int, *, starts_engines: bool) -> None:
        stop_earlier_run(self)
        with self.lock:
            if self.running:
                raise ClusterStateError(f"cluster {self.cluster_id!r} is already running")
            standard_descriptors.occupy()
            self.engines_from.require()
            describe(self.engines_from)  # refuses one that the steward could not make
            is_remote = self.engines_from.is_remote
            self._claim_directory()
            try:
                self._controller = Controller.start(
                    self.cluster_id,
                    self.cluster_dir,
                    self.settings,
                    n_engines=0 if is_remote else n_engines,
                    engine_env=session_environment() | self.env,
                    detached=self.detached,
                    # Most clusters get a client from this process, which has nothing else to do now.
                    meanwhile=lambda: import_module("broadleaf.client.client"),
                    credentials=self.credentials,
                )
            except BaseException:
                files.remove_cluster_files(self.cluster_dir, self.cluster_dir)
                raise
            self._owner_pid = os.getpid()
            self._started_as = os.urandom(8).hex()
            try:
                self._is_new = True
                self._started_sets.started(0 if is_remote else n_engines)
                self.write_cluster_file()
                if is_remote and starts_engines:
                    self._started_sets.start(n_engines, None)
                    self.write_cluster_file()
            except BaseException as error:
                # Otherwise nobody would find the cluster. It has a job if the submission was interrupted.
                try:
                    with self._cleaning_up_after(error):
                        self.cancel_blocks()
                finally:
                    self._controller.end()
                raise
            if not self.detached:
                stop_at_exit(self)
        self._share_state()
        self._elastic.look_after()

    def resume_controller_sync(self) -> Self:
        """Starts the controller again after it has ended without being stopped: it was killed, or its machine was.

        The steward of a detached cluster does that by itself, unless it has given up.

        Engines on other hosts that come back within `rejoin_timeout_s` keep their ids, their variables and the tasks
        that they run; nobody gets the values of these tasks. Engines on the controller's host are started anew. Clients
        of the earlier controller that are still there go on: see `Client.on_reconnect`.

        Returns:
            The cluster itself.

        Raises:
            ClusterStateError: It is running, its controller kept no journal (option `journal`), or it was started on
                another host.
            ClusterStartError: It does not start; the message contains the end of the log. It may be tried again.
        """
        with self.lock:
            if self.running:
                raise ClusterStateError(f"cluster {self.cluster_id!r} is running; there is nothing to resume")
            former = self._started()
            restart = Restart.read(self.cluster_dir)
            if restart is None:
                raise ClusterStateError(
                    f"cluster {self.cluster_id!r} of profile {self.profile!r} has no journal, so its controller cannot "
                    "be started again; start clusters with the option journal=on for that"
                )
            self._refuse_other_hosts_directory()
            standard_descriptors.occupy()
            former.end(keeps_journal=True)
            files.remove_cluster_files(former.run_dir, former.run_dir)
            if restart.tcp_port is not None:
                # Its relays know no other one.
                host, _, _ = self.settings["listen"].rpartition(":")
                self._arguments["listen"] = f"{host}:{restart.tcp_port}"
                self.settings = config.resolve(self._arguments, files.profile_dir(self.profile))
            self._controller = Controller.start(
                self.cluster_id,
                self.cluster_dir,
                self.settings,
                n_engines=restart.n_engines,
                engine_env=restart.engine_env,
                detached=self.detached,
                meanwhile=lambda: import_module("broadleaf.client.client"),
                credentials=Credentials(self.cluster_id, restart.keys),
                former=former,
            )
            self._owner_pid = os.getpid()
            try:
                self.write_cluster_file()
            except BaseException:
                self._controller.end(keeps_journal=True)  # nobody would find it
                raise
            if not self.detached:
                stop_at_exit(self)
        self._share_state()
        self._elastic.look_after(resumes=True)
        return self

    def write_cluster_file(self) -> None:
        """Writes `cluster_file`, which describes the cluster to other processes."""
        self._file.write(self.to_dict())

    def _share_state(self) -> None:
        """Shares the lock with other processes that change the cluster's state, and takes over what these change."""
        if self._elastic.may_have_steward_process or self.settings["journal"] != "off":
            self.lock.share(self.cluster_dir, self._take_over_changes)

    def _take_over_changes(self) -> None:
        if (state := self._file.changed()) is not None:
            self.n = state["n"]
            self._started_sets.from_dict(state["engine_sets"], state["submitting_since"])
            self._take_over_controller(state)

    def _take_over_controller(self, state: Mapping[str, Any]) -> None:
        """Makes the controller that a cluster's file names this object's, where that is another one."""
        former, successor = self._controller, state["controller"]
        is_same_cluster = state.get("started_as", "") == self._started_as
        if former is None or successor is None or former.to_dict() == successor or not is_same_cluster:
            return
        former.release()
        self._controller = Controller.from_dict(successor)
        self.detached, self._arguments = state["detached"], state["options"]
        self.settings = config.resolve(self._arguments, files.profile_dir(self.profile))

    def _claim_directory(self) -> None:
        for directory in (base_dir(), files.profile_dir(self.profile).parent, files.profile_dir(self.profile)):
            make_private_dir(directory)
        if Path(self.cluster_file).exists():
            other = Cluster.from_file(self.cluster_file)
            if other.running or other.is_coming_back:
                state = "already running" if other.running else "being started again, because its controller has ended"
                raise ClusterStateError(
                    f"cluster {self.cluster_id!r} of profile {self.profile!r} is {state}; stop it with "
                    f"`broadleaf stop --cluster-id {self.cluster_id}`, or choose another id"
                )
            self._refuse_other_hosts_directory()
            self._end_earlier(other)
        make_private_dir(self.cluster_dir)
        try:
            directories.mark_owner(self.cluster_dir)
        except OSError:
            self.cluster_dir.rmdir()
            raise

    def _end_earlier(self, other: Cluster) -> None:
        """Removes what a cluster of this profile and id has left. Its jobs would join this one."""
        if files.may_have_jobs(other.cluster_file):
            try:
                other.cancel_blocks()
            except BroadleafError as error:
                raise ClusterStateError(
                    f"an earlier cluster {self.cluster_id!r} of profile {self.profile!r} has left jobs behind, "
                    f"which cannot be cancelled: {error}. Choose another id, or try again with "
                    "`broadleaf stop --orphans`"
                ) from None
        other.remove_files()

    def _refuse_other_hosts_directory(self) -> None:
        if directories.may_judge(self.cluster_dir):
            return
        of = directories.owner_of(self.cluster_dir)
        where = (
            f"on host {of.host!r}" if of is not None and of.host != directories.Owner.here().host else "in a container"
        )
        raise ClusterStateError(
            f"cluster {self.cluster_id!r} of profile {self.profile!r} was started {where} that shares "
            f"{self.cluster_dir} with this one, and may still be running there. Choose another id, or stop it there; "
            "if it is gone, remove that directory"
        )

    def stop_cluster_sync(self) -> None:
        """Stops everything and waits until it is gone; a cluster that does not react is killed.

        If the cluster was killed, this ends the processes that are left. It does nothing if there are none.
        """
        self._elastic.end()
        with self.lock:
            client, self._client = self._client, None
            if client is not None:
                client.close()
            self._close_dashboard()
            if (controller := self._controller) is None:
                return
            keep_at_exit(self)
            if controller.running():
                self._ask_to_stop()
                controller.release()
                controller.wait(_STOP_GRACE_S + self.settings["stop_grace_s"])
            try:
                self.cancel_blocks()
            finally:
                controller.end()

    stop_controller_sync = stop_cluster_sync  # everything ends with the controller

    def stop_after(self, error: BaseException) -> None:
        """Stops everything because of an error, if this process has started it.

        Args:
            error: The error. If its jobs cannot be ended, it gets a note that says why.
        """
        with self._cleaning_up_after(error):
            self.stop_if_owner()

    @contextmanager
    def _cleaning_up_after(self, error: BaseException) -> Iterator[None]:
        """Keeps an error from being hidden by that of its own clean-up."""
        try:
            yield
        except BroadleafError as another:
            error.add_note(f"what cluster {self.cluster_id!r} has left could not be ended: {another}")

    def _ask_to_stop(self) -> None:
        try:
            with self.control() as control:
                control.shutdown()
        except (BroadleafError, TimeoutError, OSError):
            pass  # it may stop before it answers; we wait for its end in any case

    def remove_files(self, keep_logs: bool = False) -> None:
        """Removes the files that a cluster has left; it must not be running.

        Args:
            keep_logs: Whether its logs stay.
        """
        with self.lock:  # nobody is just starting its controller again
            if self._controller is not None and not (self.running or self.is_coming_back):
                run_dir = self._controller.to_dict()["run_dir"]
                files.remove_cluster_files(self.cluster_dir, run_dir, keep_logs)

    # Engines

    def start_engines_sync(self, n: int | None = None, engine_set_id: str | None = None) -> str:
        """Starts more engines; they come up later.

        Args:
            n: How many; by default as many as the cluster is made for.
            engine_set_id: The id of these engines together; by default, one is generated.

        Returns:
            That id.

        Raises:
            ValueError: The id is in use, or `n` is negative.
            ClusterStartError: The engine set's scheduler refuses them.
            ClusterConnectionError: The cluster has stopped.
        """
        n = self._default_n if n is None else engine_count(n)
        with self.lock:
            before = self._engines_asked_for()
            set_id = self._started_sets.start(n, engine_set_id)
            self.n = (self.n if before else 0) + n
            self.write_cluster_file()
        return set_id

    def _engines_asked_for(self) -> set[int]:
        """The engines that are up or are to come up."""
        with self.control() as control:
            return {entry["engine"] for entry in control.status()["engines"] if entry["state"] != "gone"}

    def stop_engines_sync(self, targets: Targets = None) -> None:
        """Stops engines for good.

        Args:
            targets: An engine's id, several ids, 'all' (the default), or the id of an engine set.

        Raises:
            KeyError: There is no engine set with that id.
            ClusterConnectionError: The cluster has stopped.
        """
        with self.lock:
            before, chosen = self._engines_asked_for(), self._started_sets.resolve(targets)
            self._started_sets.stop(targets)
            stopped = {chosen} if isinstance(chosen, int) else before if isinstance(chosen, str | None) else {*chosen}
            self.n = max(0, self.n - len(before & stopped))
            self.write_cluster_file()
        self._update_clients()

    def stop_engine_sync(self, engine_id: int) -> None:
        """Stops one engine for good.

        Args:
            engine_id: The engine's id.

        Raises:
            ClusterConnectionError: The cluster has stopped.
        """
        self.stop_engines_sync(engine_id)

    def restart_engines_sync(self, targets: Targets = None) -> None:
        """Stops engines and starts new ones with the same ids; the variables of the engines are lost.

        Restarting all engines includes those that died, but not those that `stop_engines` has stopped for good: to
        restart these, name them. The engines of an MPI world are always restarted together. Clients do not list
        engines that are being restarted; `Client.wait_for_engines` waits for the new ones.

        Args:
            targets: An engine's id, several ids, 'all' (the default), or the id of an engine set.

        Raises:
            KeyError: There is no engine set with that id.
            ClusterConnectionError: The cluster has stopped.
        """
        with self.lock:
            self._started_sets.restart(targets)
            self.write_cluster_file()
        self._update_clients()

    def restart_engine_sync(self, engine_id: int) -> None:
        """Restarts one engine.

        Args:
            engine_id: The engine's id.

        Raises:
            ClusterConnectionError: The cluster has stopped.
        """
        self.restart_engines_sync(engine_id)

    def signal_engines_sync(self, signum: int = signal.SIGINT, targets: Targets = None) -> None:
        """Sends a signal to engines.

        Args:
            signum: The signal's number.
            targets: An engine's id, several ids, 'all' (the default), or the id of an engine set.

        Raises:
            KeyError: There is no engine set with that id.
            ClusterConnectionError: The cluster has stopped.
        """
        with self.control() as control:
            control.signal(signum, self._started_sets.resolve(targets))

    def signal_engine_sync(self, signum: int, engine_id: int) -> None:
        """Sends a signal to one engine.

        Args:
            signum: The signal's number.
            engine_id: The engine's id.

        Raises:
            ClusterConnectionError: The cluster has stopped.
        """
        self.signal_engines_sync(signum, engine_id)

    # Blocks

    def all_blocks(self) -> list[Block]:
        """The blocks of all sets, as last checked.

        Returns:
            The blocks in the order of their submission.
        """
        return self._started_sets.blocks()

    def find_unrecorded_blocks(self) -> None:
        """Adds the job of a submission that was cut short: its process was killed before it could record it.

        Raises:
            BroadleafError: Its scheduler does not answer.
        """
        with self.lock:
            if self._started_sets.submitting_since is not None:
                self._started_sets.find_unrecorded()
                self.write_cluster_file()

    def spare_blocks(self) -> list[Block]:
        """Blocks on hosts of the engine set that have had none.

        Returns:
            The blocks, which are not started.
        """
        return self._started_sets.spare_blocks()

    def start_block_again(self, block: Block) -> None:
        """Starts a block that is over, or a spare one, where it was; only for sets whose hosts are given.

        Args:
            block: The block.

        Raises:
            ClusterStartError: It does not start.
        """
        with self.lock:
            self._started_sets.start_again(block)
            self.write_cluster_file()

    def blocks(self) -> list[Block]:
        """The batch jobs or connections that started the cluster's engines on other hosts.

        Returns:
            The blocks, each with its current state and the reason for it, its hosts, engines and deadline.

        Raises:
            ClusterConnectionError: The cluster has stopped.
        """
        with self.lock:
            if not self.running or not self.all_blocks():
                blocks = self.all_blocks()
                self.engines_from.poll(blocks)
                return blocks
            with self.control() as control:
                return self.look_at_blocks(control.status())

    def look_at_blocks(self, status: Mapping[str, Any], *, asks: bool = True) -> list[Block]:
        """The blocks of all sets, checked just now.

        Args:
            status: The controller's status, as `status_sync` returns it.
            asks: Whether the engine set checks them as well.

        Returns:
            The blocks in the order of their submission.
        """
        return self._started_sets.look_at(status, asks=asks)

    def cancel_blocks(self) -> None:
        """Ends all blocks of a cluster whose controller has stopped.

        Raises:
            BroadleafError: Their scheduler does not do so; `cluster_file` still has them.
        """
        with self.lock:
            self._started_sets.cancel()
            with contextlib.suppress(FileNotFoundError):  # it was removed, and had no jobs
                self.write_cluster_file()

    # Size

    def drain_sync(
        self, targets: Targets | Block = None, *, within_s: float | None = None, stateless: bool = False
    ) -> None:
        """Releases engines: they take no new tasks, finish those that they have, and stop for good.

        Returns when they are gone. Queued tasks that may run on other engines are moved there.

        Args:
            targets: An engine's id, several ids, 'all' (the default), the name of a host, the id of an engine set
                or of a block, or a block.
            within_s: Seconds after which engines are stopped even if their tasks have not ended; None: never.
            stateless: Whether data that clients may have left on the engines may be lost with them.

        Raises:
            RequestFailed: Clients may have left data on one of the engines. Nothing is released.
            KeyError: There is no host, block or engine set with that name.
            ClusterConnectionError: The cluster has stopped.
        """
        self._elastic.drain(targets, within_s=within_s, stateless=stateless)
        self._update_clients()

    def scale_sync(self, n: int, *, stateless: bool = False, within_s: float | None = None) -> None:
        """Scales the cluster to `n` engines: requests more, or releases some as `drain_sync` does.

        Returns before they are up or gone. On other hosts, whole blocks are started and released, so there may be more
        than `n` engines. From then on the number is maintained: blocks that end are replaced, and blocks whose job will
        end soon are replaced in advance. A steward does that: a thread of this process, or a separate process for a
        detached cluster whose engine set allows it.

        Args:
            n: Number of engines.
            stateless: Whether data that clients may have left on the engines may be lost with them.
            within_s: Seconds after which released engines are stopped even if their tasks have not ended; None: never.

        Raises:
            ScalingError: Clients may have left data on engines that would have to be released. Others were
                released.
            ClusterStartError: A submission was refused, or there can be no more engines.
            ValueError: `n` is negative.
            ClusterConnectionError: The cluster has stopped.
        """
        self._elastic.scale(n, stateless=stateless, within_s=within_s)
        self._update_clients()

    def adapt_sync(self, minimum: int, maximum: int, *, idle_s: float = 300.0, stateless: bool = False) -> None:
        """Makes the number of engines follow the queue.

        A steward does that for as long as this process lives or, if the cluster is detached and its engine set supports
        a steward in a separate process (`keeps_its_size`), for as long as the cluster lives.

        When tasks wait, blocks are requested one after the other; pending blocks that are no longer needed are
        cancelled; idle blocks are released. Tasks wait while there are no engines. After three consecutive failed
        starts nothing more is requested: `scaling_paused` says why. `scale_sync`, or another call of this method, ends
        that state.

        Args:
            minimum: Minimum number of engines.
            maximum: Maximum number of engines.
            idle_s: Seconds without a task after which a block is released.
            stateless: Whether data that clients may have left on the engines may be lost. Otherwise those engines stay.

        Raises:
            ValueError: They are not 0 <= `minimum` <= `maximum`.
        """
        self._elastic.adapt(minimum, maximum, idle_s=idle_s, stateless=stateless)

    @property
    def may_have_steward_process(self) -> bool:
        """Whether a process of its own can scale the cluster: any process can take over the blocks of its engine set.
        Engines of the controller's host need one only if the cluster outlives the program that started it."""
        return self._elastic.may_have_steward_process

    @property
    def keeps_its_size(self) -> bool:
        """Whether a process of its own scales the cluster, so that this one may end."""
        return self._elastic.keeps_its_size

    @property
    def scaling_paused(self) -> str:
        """Why engines are missing although the cluster is scaled, in the scheduler's words; '' if none are, or if they
        were requested and are awaited."""
        return self._elastic.why_paused

    def stop_steward(self) -> None:
        """Keeps the cluster at its current size from now on, whoever scaled it before."""
        self._elastic.stop_steward()

    def status_sync(self) -> dict[str, Any]:
        """Counters of the controller and the engines.

        Returns:
            A dict, as for `Client.status`.

        Raises:
            ClusterConnectionError: The cluster has stopped.
        """
        with self.control() as control:
            return control.status()

    def save_trace_sync(self, path: str | Path) -> None:
        """Writes the controller's recorded events as a Chrome trace, which Perfetto and `chrome://tracing` open.

        Args:
            path: The file to write.

        Raises:
            OSError: The file cannot be written.
            ClusterConnectionError: The cluster has stopped.
        """
        with self.control() as control:
            Path(path).write_text(control.request("Trace", 60.0))

    # Clients

    def connect_client_sync(self, **options: Any) -> Client:
        """A new client of this cluster.

        Args:
            **options: Keyword arguments of `Client`.

        Returns:
            The client, connected.

        Raises:
            ClusterStateError: The cluster has not been started.
            ClusterConnectionError: No connection was established.
        """
        from broadleaf.client.client import Client

        self._started()
        client = Client(self.connection_file, cluster=self, **options)
        self._clients.add(client)
        return client

    def start_and_connect_sync(self, n: int | None = None, activate: bool | None = None) -> Client:
        """Starts the cluster if it is not running, connects, and waits for all its engines.

        Args:
            n: Number of engines, in place of the number that the cluster was created with.
            activate: Whether the magics `%px` and `%%px` act on them from now on; with False they stay as they are. By
                default they act on the new engines if the client that they belong to is closed.

        Returns:
            A client.

        Raises:
            ClusterStartError: It does not start, or engines die at their start or do not come up in time
                (`start_timeout_s`). The cluster is stopped.
            ClusterStateError: Another cluster with the same profile and id is running.
        """
        if not self.running:
            self.start_cluster_sync(n)
        try:
            if not self.engines and (self.n or self.engines_from.is_remote):
                self.start_engines_sync(n)
            client = self._connect_and_wait(leaves_magics=activate is False)
        except BaseException as error:
            self.stop_after(error)
            raise
        if activate:
            client.activate()
        return client

    def _connect_and_wait(self, leaves_magics: bool) -> Client:
        from broadleaf.client.interactive import leaving_magics

        if self.engines_from.is_remote:
            self.wait_for_engines_sync()
        with leaving_magics() if leaves_magics else contextlib.nullcontext():
            client = self.connect_client_sync()
        timeout_s: float = self.settings["start_timeout_s"]
        is_new, link = self._is_new, client.link
        with start_errors(self, lambda: client.ids), client.link_errors():
            if not wait_for_engines(link, self.n, timeout_s, lambda: link.deaths_after(0)[0], all_are_new=is_new):
                raise TimeoutError
        self._is_new = False
        return client

    def wait_for_engines_sync(self) -> None:
        """Waits until all engines are up.

        Raises:
            ClusterStartError: They die at their start, or take too long (`start_timeout_s`).
            ClusterConnectionError: The cluster has stopped.
        """
        if self.engines_from.is_remote:
            self.n = self._started_sets.wait_for_blocks(self.settings["start_timeout_s"])
            self.write_cluster_file()
        else:
            with (
                self.control() as control,
                start_errors(self, lambda: [engine_id for engine_id, *_ in control.engines()]),
            ):
                if not control.wait_for_engines(self.n, self.settings["start_timeout_s"], all_are_new=self._is_new):
                    raise TimeoutError
            self._is_new = False
        self._update_clients()

    def _update_clients(self) -> None:
        """Waits until this process's clients of the cluster know the engines that the controller knows.

        Each has a connection of its own, which may be behind: a direct view made now would lack some engines.
        """
        for client in list(self._clients):
            # One that is closed, or does not answer, is nobody's reason to fail here.
            with contextlib.suppress(BroadleafError, TimeoutError), client.link_errors():
                catch_up(client.link, _CATCH_UP_S)

    def __enter__(self) -> Client:
        self._client = self.start_and_connect_sync()
        return self._client

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is None:
            self.stop_if_owner()
        else:
            self.stop_after(error)

    # Other processes' clusters

    def to_dict(self) -> dict[str, Any]:
        """What another process needs to use and stop this cluster; the content of `cluster_file`.

        Returns:
            A dict, ready for JSON.
        """
        return {
            "cluster_id": self.cluster_id,
            "profile": self.profile,
            "n": self.n,
            **describe(self.engines_from),
            "engine_sets": self._started_sets.to_dict(),
            "submitting_since": self._started_sets.submitting_since,
            files.LEAVES_JOBS: self._may_have_jobs(),
            "detached": self.detached,
            "started_as": self._started_as,
            "options": self._arguments,
            "controller": self._controller.to_dict() if self._controller else None,
        }

    def _may_have_jobs(self) -> bool:
        is_submitting = self._started_sets.submitting_since is not None
        return self.engines_from.leaves_jobs and (is_submitting or any(not b.is_over for b in self.all_blocks()))

    @classmethod
    def from_dict(cls, state: dict[str, Any], **old_arguments: Any) -> Cluster:
        """The cluster that `to_dict` described. This process will not stop it at its end.

        Args:
            state: That dict.
            **old_arguments: Arguments of IPython Parallel's `Cluster`; they change nothing in a running cluster.

        Returns:
            The cluster.
        """
        cluster = cls(
            state["n"],
            profile=state["profile"],
            cluster_id=state["cluster_id"],
            engines=described(state),
            detached=state["detached"],
            **state["options"],
        )
        cluster._old_arguments = old_arguments
        if state["controller"] is not None:
            cluster._controller = Controller.from_dict(state["controller"])
            cluster._started_as = state.get("started_as", "")
        cluster._started_sets.from_dict(state["engine_sets"], state["submitting_since"])
        cluster._share_state()
        return cluster

    @classmethod
    def from_file(
        cls,
        cluster_file: str | Path | None = None,
        *,
        profile: str = "default",
        cluster_id: str = "default",
        **old_arguments: Any,
    ) -> Cluster:
        """The cluster of a file, or of a profile and id. This process will not stop it at its end.

        Args:
            cluster_file: The path of the file, a `cluster_file`.
            profile: Without a file: the cluster's profile.
            cluster_id: Without a file: the cluster's id.
            **old_arguments: Arguments of IPython Parallel's `Cluster`; a `profile_dir` names the profile.

        Returns:
            The cluster.

        Raises:
            ClusterFileError: There is no such file, or it is not a cluster's.
        """
        if (directory := old_arguments.get("profile_dir")) is not None:
            profile = extension("profile name")(directory)
        path = Path(cluster_file or files.cluster_dir(profile, cluster_id or "default") / files.CLUSTER_FILE)
        if not cluster_file and not path.exists():
            raise ClusterFileError(files.no_such_cluster(profile, cluster_id or "default"))
        return cls.from_dict(read_json(path), **old_arguments)

    def _started(self) -> Controller:
        if self._controller is None:
            raise ClusterStateError(f"cluster {self.cluster_id!r} has not been started")
        return self._controller

    def why_gone(self, host: str) -> str:
        """Why a host is gone, if its scheduler knows.

        Args:
            host: The host, by its name in a `DeathCertificate`.

        Returns:
            The scheduler's words about the end of its job; '' if the job still runs, or nobody knows.
        """
        if not (self.engines_from.is_remote and self._elastic.may_have_steward_process):
            return why_gone(self, host)
        with self.control() as control:
            return control.why_gone(host, self._elastic.has_steward_process)

    def control(self, timeout_s: float = 10.0) -> ControlLink:
        """A connection for control requests; use it as a context manager.

        Args:
            timeout_s: Maximum number of seconds that connecting may take.

        Returns:
            The connection.

        Raises:
            ClusterConnectionError: The cluster has stopped, or does not answer.
            ClusterStateError: The cluster has not been started.
        """
        self._started()
        if self.is_coming_back:
            raise ClusterConnectionError(
                f"the controller of cluster {self.cluster_id!r} has ended, and is being started again"
            )
        if not self.running:
            raise ClusterConnectionError(f"cluster {self.cluster_id!r} has stopped")
        return ControlLink(Path(self.connection_file).read_text(), timeout_s)

    def wait_stopped(self, timeout_s: float | None = None) -> bool:
        """Waits until the cluster's processes are gone.

        Args:
            timeout_s: Seconds to wait; None means forever.

        Returns:
            Whether they are.

        Raises:
            ClusterStateError: The cluster has not been started.
        """
        give_up_at = None if timeout_s is None else time.monotonic() + timeout_s
        while self._started().wait(timeout_s):
            if not self.running:  # otherwise there is another one by now
                return True
            timeout_s = None if give_up_at is None else max(0.0, give_up_at - time.monotonic())
        return False

    def exit_code(self, timeout_s: float) -> int | None:
        """How the controller ended.

        Args:
            timeout_s: Seconds to wait for its end.

        Returns:
            Its exit code, 128 + n for signal n. None while it runs, or if only another process knows.
        """
        return None if self._controller is None else self._controller.exit_code(timeout_s)

    def stop_if_owner(self) -> None:
        """Stops the cluster, except when a child that was forked inside the `with` block leaves the block."""
        if os.getpid() == self._owner_pid:
            self.stop_cluster_sync()
