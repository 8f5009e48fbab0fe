"""`Client`, and `get_client` for the cluster of a task."""

from __future__ import annotations

import importlib
import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_futures
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, overload
from weakref import WeakSet

from broadleaf import _native, standard_descriptors
from broadleaf.client.connection import Hooks, LinkEnd, connection_text, profile_name, tunnel_to
from broadleaf.client.control import KnownResults, RegisteredResults
from broadleaf.client.display.own_streams import OwnStreams
from broadleaf.client.display.reprs import PublicNames, client_in_words
from broadleaf.client.failures import connection_error, death_certificate
from broadleaf.client.interactive import Interactive
from broadleaf.client.modules import LocalModules
from broadleaf.client.results.async_result import seconds
from broadleaf.client.results.hub import Hub
from broadleaf.client.results.pending import ResultTypes, result_types
from broadleaf.client.task_index import TaskIndex, listed
from broadleaf.client.task_options import TaskOptions
from broadleaf.client.views.base import HISTORY_TASKS, AsyncFunction, Function, Returned
from broadleaf.config import OPTIONS
from broadleaf.errors import ClusterConnectionError, DeathCertificate, NoEnginesRegistered
from broadleaf.errors.os_limits import explained
from broadleaf.extensions import extension
from broadleaf.requests import wait_for_engines
from broadleaf.text import os_text_from_json

if TYPE_CHECKING:
    from broadleaf._native import Link
    from broadleaf.client.display.debugger import Debugging
    from broadleaf.client.results.async_result import AsyncResult
    from broadleaf.client.results.maps import AsyncMapResult
    from broadleaf.client.views.balanced import LoadBalancedView
    from broadleaf.client.views.broadcast import BroadcastView
    from broadleaf.client.views.direct import DirectView
    from broadleaf.client.views.executor import ViewExecutor


# The client: one connection to a cluster, and the views that use it.


# Number of characters of the cluster's public key in the ids of its tasks.
_CLUSTER_KEY_CHARACTERS = 16
# Time between two logins to a host that cannot be reached.
_TUNNEL_RETRY_S = 1.0
# While a link through ssh is broken, how often it is looked whether ssh has ended.
_TUNNEL_LOOK_S = 0.05
# Number of deaths that a client remembers.
_CERTIFICATES = 256


class Client(RegisteredResults, Interactive, PublicNames):
    """A connection to a cluster.

    It is also a sequence of its engines: `len(rc)`, `rc.ids`, and `rc[0]`, `rc[:]`, `rc[[1, 3]]` are direct views;
    `rc.load_balanced_view()` runs tasks on whichever engine is free. It is thread-safe. As a context manager, it is
    closed at the end of the block.

    ``"ssh://[user@]host[:port][/profile[/cluster_id]]"`` names a cluster on another host. Its connection file is read
    by ssh; all traffic goes through that ssh process, which ends with the client.

    Args:
        connection_info: The path of a connection file, its contents as a dict, or an address of ssh as above. Without
            it, `profile` and `cluster_id` determine the file. With none of the three, a task connects to its own
            cluster.
        profile: The profile that the cluster was started in, "default" by default.
        cluster_id: The id of the cluster. Without it, the profile's default cluster or its only one is used.
        cluster: The `Cluster` that this is a client of, if this process has it.
        sshserver: ``user@host``: with `profile` and `cluster_id`, the host of the cluster; with a connection file, the
            host to tunnel through.
        sshkey: The file of a private key.
        ssh_args: Additional arguments for ssh.
        timeout: Maximum number of seconds that connecting may take.
        name: This client's name in the cluster's status.
        native: The native module; tests pass another one.
        on_join: A function that every engine calls first; see the method `on_join`.
        **old_arguments: Arguments of IPython Parallel's client. Arguments without a meaning here cause a warning.

    Raises:
        ClusterConnectionError: No connection was established within `timeout` seconds. The cluster may also have
            refused it: `VersionMismatch` and `AuthenticationFailed` say why.
        TypeError: Neither this class nor IPython Parallel's has an argument with this name.

    Example:
        >>> with ipp.Client() as other:
        ...     other.ids
        [0, 1, 2, 3]
    """

    _internal_names = frozenset(
        (
            "abort_begun",
            "abort_interrupted",
            "cancel_tasks",
            "chunk_target",
            "debugging",
            "define_options",
            "engine_uuid",
            "hub",
            "interrupt_tasks",
            "interrupt_unawaited",
            "join_results",
            "link",
            "link_ends",
            "link_errors",
            "live_output",
            "native",
            "on_event",
            "own_streams",
            "request",
            "resolve_targets",
            "result_types",
            "seqs_addressed_to",
            "split_result",
            "tasks",
            "wait_for_tasks",
            "warn_of_left_behind",
        )
    )

    def __init__(
        self,
        connection_info: str | os.PathLike[str] | dict[str, Any] | None = None,
        *,
        profile: str | None = None,
        cluster_id: str = "",
        cluster: Any = None,
        sshserver: str | None = None,
        sshkey: str | None = None,
        ssh_args: Sequence[str] = (),
        timeout: float = 10.0,
        name: str = "",
        native: Any = None,
        on_join: Callable[[], object] | None = None,
        **old_arguments: Any,
    ) -> None:
        if old_arguments:
            translate_arguments = extension("client arguments")
            connection_info, profile = translate_arguments(connection_info, profile, old_arguments)
        standard_descriptors.occupy()
        self.native: Any = native if native is not None else importlib.import_module("broadleaf._native")
        """The native module; tests pass another one."""
        self.cluster = cluster
        self.profile: str = profile_name(connection_info, profile, cluster)
        self.block = False
        """Default of the flag of the same name of views made from now on."""
        self.tasks: TaskIndex = TaskIndex(self.native.History(HISTORY_TASKS))
        """Which result each task belongs to."""
        self._engines: dict[int, tuple[str, int, str]] = {}
        self._engines_seen = -1
        self._certificates: OrderedDict[int, DeathCertificate] = OrderedDict()
        self._n_deaths = 0
        self._left_behind = set()
        self._debugging: Debugging | None = None
        self._view_of_submit: LoadBalancedView | None = None
        self._on_reconnect: list[Callable[[], object]] = []
        self._goes_on, self._tunnel_lock = threading.Event(), threading.Lock()
        self._listeners = 0
        self._listeners_lock = threading.Lock()
        self._tunnel = tunnel_to(connection_info, profile, cluster_id, sshserver, sshkey, ssh_args, timeout)
        if self._tunnel is not None:
            text, timeout = json.dumps(self._tunnel.connection), self._tunnel.left_s()
        else:
            text = connection_text(connection_info, profile, cluster_id)
        connection = json.loads(text)
        self.link_ends: list[LinkEnd] = [LinkEnd(connection)]
        """How the connections to the cluster's controllers ended, once they have, the latest last."""
        options = connection.get("options", {})
        ships_local: bool = options.get("ship_local_modules", OPTIONS["ship_local_modules"].default)
        try:
            hooks = Hooks(self, ships_local)
            self.link: Link = self.native.Link(text, hooks, timeout, name, goes_on=True)
        except (OSError, ValueError, self.native.LinkClosed, self.native.ConnectionRefused) as error:
            why = self._tunnel.close_because() if self._tunnel is not None else ""
            if isinstance(error, self.native.ConnectionRefused):
                raise connection_error(error) from error
            why = why or (explained(error) if isinstance(error, OSError) else str(error))
            raise ClusterConnectionError(f"no connection to the cluster: {why}") from error
        _connected.add(self)
        self.own_streams: OwnStreams = OwnStreams(self.link)
        """Where what tasks of pools write is shown."""
        self._cluster_id = str(connection.get("cluster_id", ""))
        known_path = [os_text_from_json(entry) for entry in connection.get("search_path", ())]
        self._make_local_modules = partial(LocalModules, self.link, known_path, ships_local, hooks.note_shipped)
        self.local_modules: LocalModules = self._make_local_modules()
        """What engines are told of this process's modules."""
        self.local_modules.update()
        key = str(connection.get("server_public_key") or connection.get("cluster_id", ""))
        self.hub: Hub = Hub(self, "".join(filter(str.isalnum, key))[-_CLUSTER_KEY_CHARACTERS:])
        """What the controller keeps of ended tasks."""
        self.tasks.begin_session(0, self.hub.session(self.link.client_id))
        self.chunk_target: int = options.get("chunk_target", OPTIONS["chunk_target"].default)
        """The option of this name."""
        if on_join is not None:
            self.on_join(on_join)
        self._activate_first()
        self._listen_to_debuggers()

    @property
    def result_types(self) -> ResultTypes:
        """The result types for this client's native module."""
        return result_types(self.native)

    def __repr__(self) -> str:
        return f"<Client{client_in_words(self)}>"

    def __reduce__(self) -> Any:
        raise TypeError("a Client cannot be sent to engines; use broadleaf.get_client() inside the task")

    # Life ---------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether the client is closed, from this side or because its connection is lost.

        It is not while the client tries to reach the controller again, or one that was started again.
        """
        return self.link.closed

    def close_at_exit(self) -> None:
        """Closes the connection of a process that ends: none of its threads calls Python any more."""
        self._note_closing()
        self.link.close_at_exit()
        if self._tunnel is not None:
            self._tunnel.close()

    def close(self, linger: Any = None) -> None:
        """Closes the connection; unresolved results then raise `LinkLost`. May be called again.

        Args:
            linger: Accepted for compatibility, without effect.
        """
        self._note_closing()
        self.link.close()
        if self._tunnel is not None:
            self._tunnel.close()

    def _note_closing(self) -> None:
        link_end = self.link_ends[-1]
        if link_end.sequel:
            link_end.sequel = ""  # from now on no other controller is awaited
        else:
            link_end.closed_here |= not self.link.closed

    def leave(self) -> None:
        """Closes the connection, and lets the cluster continue this client's tasks.

        Their results are stored for anyone who asks for them by their ids, as far as the option `kept_results_bytes`
        allows, except for those in shared memory (above 64 KiB) that this client has already received. After `close`,
        by contrast, tasks that have not started never start, and nobody gets the results of those that are running.

        Raises:
            LinkLost: The connection is closed already, or was lost.
        """
        self.request("Leave")
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def on_event(self, kind: str, body: Any) -> None:
        """Events of the cluster, from the link."""
        link_end = self.link_ends[-1]
        if kind == "link_lost":
            # After a controller was awaited in vain, the first failure says more.
            link_end.failure, link_end.sequel = link_end.failure or body, ""
        elif kind == "stopping":
            link_end.is_stopping = True
        elif kind == "controller_lost":
            link_end.failure, link_end.sequel = body, "awaited"
            self._log("the controller has ended; waiting until it is started again")
        elif kind == "successor":
            self._begin_anew()
        elif kind == "link_broken":
            self._log("the connection to the controller is broken; trying to reach it again")
            if self._tunnel is not None:
                self._goes_on.clear()
                threading.Thread(target=self._keep_tunnel_open, name="broadleaf-tunnel", daemon=True).start()
        elif kind == "link_resumed":
            self._goes_on.set()
            self._log("connected to the controller again")
            for callback in tuple(self._on_reconnect):
                callback()

    def _begin_anew(self) -> None:
        """Tells a controller that was started again what the one before was told, before anything else is."""
        self.link_ends[-1].sequel = "replaced"
        self.link_ends.append(self.link_ends[-1].of_successor())
        self.hub = self.hub.of_successor()
        self.tasks.begin_session(self.link.next_seq, self.hub.session(self.link.client_id))
        local_modules = self._make_local_modules(self.local_modules)
        local_modules.tell_again()
        self.local_modules = local_modules

    def on_reconnect(self, callback: Callable[[], object]) -> Callable[[], object]:
        """Has `callback()` called whenever the client is connected again.

        That is when a broken connection to a controller on another host goes on, or when a controller that has ended
        was started again. Views and earlier results stay valid. In the first case tasks went on, and what was submitted
        meanwhile is sent: nothing needs to be done. In the second, results that had not arrived have raised `LinkLost`:
        submit these calls again. It runs in a thread of its own.

        Args:
            callback: Called without arguments.

        Returns:
            The function, so that `on_reconnect` may be used as a decorator.
        """
        self._on_reconnect.append(callback)
        return callback

    @staticmethod
    def _log(message: str) -> None:
        import logging

        logging.getLogger("broadleaf.client").warning("%s", message)

    def _keep_tunnel_open(self) -> None:
        """Logs in again whenever ssh has ended, until the link goes on or is lost.

        ssh's connections are closed a moment before ssh itself has ended, and it may also end later.
        """
        tunnel = self._tunnel
        assert tunnel is not None
        with self._tunnel_lock:
            while not self._goes_on.wait(_TUNNEL_LOOK_S) and not self.link.closed:
                if tunnel.is_open():
                    continue
                try:
                    tunnel.reopen()
                except (ClusterConnectionError, OSError) as error:
                    self._log(str(error))
                    self._goes_on.wait(_TUNNEL_RETRY_S)
            if self.link.closed:
                tunnel.close()

    @contextmanager
    def live_output(self) -> Iterator[None]:
        """While the block runs, output is reported as it arrives."""
        with self._listeners_lock:
            self._listeners += 1
            self.link.live_output = True
        try:
            yield
        finally:
            with self._listeners_lock:
                self._listeners -= 1
                self.link.live_output = self._listeners > 0

    def debugging(self) -> Debugging:
        """The debuggers that tasks of this client have opened."""
        if self._debugging is None:
            from broadleaf.client.display.debugger import Debugging

            self._debugging = self._debugging or Debugging(self)
        return self._debugging

    def define_options(self, options: TaskOptions) -> int:
        """The link's number for a set of task options."""
        with self.link_errors():
            return self.link.define_options(options.to_json())

    # Engines ------------------------------------------------------------------------------------

    def _known_engines(self) -> dict[int, tuple[str, int, str]]:
        version = self.link.engines_version
        if version != self._engines_seen:
            with self.link_errors():
                self._engines = {engine: (uid, pid, host) for engine, uid, pid, host in self.link.engines()}
            self._engines_seen = version
        return self._engines

    def _known_deaths(self) -> Mapping[int, DeathCertificate]:
        # Asked for, since news of a death may come later than an error that is due to it.
        n_deaths, new = self.link.deaths_after(self._n_deaths)
        for body in new:
            certificate = death_certificate(json.loads(body))
            self._certificates[certificate.engine_id] = certificate
        while len(self._certificates) > _CERTIFICATES:
            self._certificates.popitem(last=False)
        self._n_deaths = n_deaths
        return self._certificates

    @property
    def ids(self) -> list[int]:
        """Ids of the existing engines, in order."""
        return sorted(self._known_engines())

    def engine_uuid(self, engine_id: int) -> str:
        """Distinguishes an engine from earlier and later ones with the same id; '' if unknown."""
        known = self._known_engines().get(engine_id)
        if known is not None:
            return known[0]
        dead = self._known_deaths().get(engine_id)
        return dead.uuid if dead is not None else ""

    def death_certificate(self, engine_id: int) -> DeathCertificate | None:
        """The last known death of an engine with this id.

        Args:
            engine_id: The engine's id.

        Returns:
            The certificate; None if this client knows of no such death. The last 256 deaths are remembered.
        """
        return self._known_deaths().get(engine_id)

    def resolve_targets(self, targets: Any) -> tuple[tuple[int, ...], bool]:
        """Engine ids of `targets`, in order, and whether they are one engine rather than a list.

        Raises `IndexError` for an engine that does not exist, and `TypeError` if these are not targets.
        """
        ids = self.ids
        if targets is None or targets == "all":
            return tuple(ids), False
        if isinstance(targets, slice):
            return tuple(ids[targets]), False
        if isinstance(targets, int) and not isinstance(targets, bool):
            return (self._engine_id(targets, ids),), True
        if isinstance(targets, list | tuple | range | set):
            return tuple(self._engine_id(target, ids) for target in targets), False
        raise TypeError(f"targets must be an int, a slice, a collection of ints or 'all', not {targets!r}")

    def _engine_id(self, target: Any, ids: list[int]) -> int:
        if isinstance(target, bool) or not isinstance(target, int):
            raise TypeError(f"an engine's id must be an int, not {type(target).__name__}")
        if target < 0 and -len(ids) <= target:
            return ids[target]
        if target not in self._engines:
            dead = self._known_deaths().get(target)
            why = f": it {dead.reason}" if dead is not None else f"; there are {ids}"
            raise IndexError(f"No such engine: {target}{why}")
        return target

    def __len__(self) -> int:
        return len(self._known_engines())

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[DirectView]:
        for engine in self.ids:
            yield self.direct_view(engine)

    def __getitem__(self, key: int | slice | Sequence[int]) -> DirectView:
        if not isinstance(key, int | slice | list | tuple | range):
            raise TypeError(f"a key must be an int, a slice or an iterable of ints, not {type(key)}")
        return self.direct_view(key)

    @overload
    def wait_for_engines(
        self,
        n: int | None = None,
        *,
        timeout: float | None = -1,
        block: Literal[True] = True,
        interactive: bool | None = None,
        widget: bool | None = None,
    ) -> None: ...

    @overload
    def wait_for_engines(
        self,
        n: int | None = None,
        *,
        timeout: float | None = -1,
        block: bool,
        interactive: bool | None = None,
        widget: bool | None = None,
    ) -> Future[None] | None: ...

    def wait_for_engines(
        self,
        n: int | None = None,
        *,
        timeout: float | None = -1,
        block: bool = True,
        interactive: bool | None = None,
        widget: bool | None = None,
    ) -> Future[None] | None:
        """Waits until there are enough engines.

        Args:
            n: How many; by default, as many as the cluster was asked for, if the client has its `Cluster`.
            timeout: Seconds to wait; None or a negative number means forever.
            block: Whether to wait here; otherwise a thread waits.
            interactive: Accepted for compatibility, without effect.
            widget: Accepted for compatibility, without effect.

        Returns:
            None. With `block=False`, a future, which is done already if there are so many.

        Raises:
            TimeoutError: There are fewer than `n` engines after `timeout` seconds.
            EngineError: So many engines died while they started that `n` cannot be reached.
            LinkLost: The connection is closed or was lost.
            TypeError: `n` is missing, and this client does not know how many engines were requested.

        Example:
            >>> rc.wait_for_engines(4, timeout=30)
        """
        if n is None:
            n = getattr(self.cluster, "n", None)
            if n is None:
                raise TypeError("n is required: this client does not know how many engines were requested")
        if not block:
            return self._future_engines(n, timeout)
        with self.link_errors():
            there = wait_for_engines(self.link, n, seconds(timeout), lambda: self.link.deaths_after(0)[0])
        if not there:
            raise TimeoutError(
                f"only {len(self.link.engines())} of {n} engines registered within {timeout} s{self._not_started()}"
            )
        return None

    def _future_engines(self, n: int, timeout: float | None) -> Future[None]:
        from concurrent.futures import Future, ThreadPoolExecutor

        known: Future[None] = Future()
        try:
            known.set_result(self.wait_for_engines(n, timeout=0))
        except TimeoutError:
            pool = ThreadPoolExecutor(1, "broadleaf-wait")
            future = pool.submit(self.wait_for_engines, n, timeout=timeout)
            pool.shutdown(wait=False)
            return future
        except Exception as error:
            known.set_exception(error)
        return known

    def _not_started(self) -> str:
        reasons = [
            f"; engine {engine_id} {death.reason}"
            for engine_id, death in self._known_deaths().items()
            if death.cause == "not_started" and engine_id not in self.ids
        ]
        return reasons[-1] if reasons else ""

    # Views --------------------------------------------------------------------------------------

    def direct_view(self, targets: Any = "all", **flags: Any) -> DirectView:
        """A view of these engines; each of them runs every call.

        Args:
            targets: An engine's id, a list of ids, a slice of `ids`, or 'all', which is looked up at each call.
            **flags: Flags of the view: `block`, `mode`, `topology`, `label`.

        Returns:
            The view. For a single id it returns single values, otherwise lists.

        Raises:
            IndexError: One of the engines does not exist.
            TypeError: `targets` is not a valid set of targets.
            KeyError: There is no flag with this name.

        Example:
            >>> rc.direct_view([0, 1]).apply_sync(pow, 2, 5)
            [32, 32]
            >>> rc[3].apply_sync(pow, 2, 5)
            32
        """
        from broadleaf.client.views.direct import DirectView

        return DirectView(self, self._view_targets(targets), **{"block": self.block, **flags})

    def _view_targets(self, targets: Any) -> Any:
        if targets is None or targets == "all":
            return "all"
        ids, single = self.resolve_targets(targets)
        return ids[0] if single else list(ids)

    def broadcast_view(
        self, targets: Any = "all", is_coalescing: bool = False, *, coalescing: bool | None = None, **flags: Any
    ) -> BroadcastView:
        """A direct view of these engines that can have one reply for all of them; see `BroadcastView`.

        Args:
            targets: An engine's id, a list of ids, a slice of `ids`, or 'all', which is looked up at each call.
            is_coalescing: Whether the replies to a call arrive together.
            coalescing: Another name for `is_coalescing`; takes precedence.
            **flags: Other flags of the view: `block`, `mode`, `topology`, `label`.

        Returns:
            The view.

        Raises:
            IndexError: One of the engines does not exist.
            TypeError: `targets` is not a valid set of targets.
            KeyError: There is no flag with this name.
        """
        from broadleaf.client.views.broadcast import BroadcastView

        wanted = is_coalescing if coalescing is None else coalescing
        return BroadcastView(self, self._view_targets(targets), wanted, **{"block": self.block, **flags})

    def broadcast(self, value: Any, name: str, mode: str = "private", targets: Any = "all") -> None:
        """Sets a variable on engines, and waits until all have it.

        The value is sent once, and stored once on each host.

        Args:
            value: What to send. The large buffers of arrays are not pickled.
            name: The variable's name in the engines' namespaces; it may be dotted.
            mode: What engines may do with large buffers: 'private', 'readonly', 'shared' or 'inplace'; see
                `DirectView.push`.
            targets: Engines: an id, a list of ids, a slice, or 'all'.

        Raises:
            RemoteError: An engine could not accept it; a `CompositeError` if several could not.
            SerializationError: The value cannot be pickled.
            NoEnginesRegistered: There are no engines.
            ValueError: The mode does not exist.

        Example:
            >>> rc.broadcast([1, 2, 3], "weights")
            >>> rc[:].apply_sync(lambda: sum(weights))
            [6, 6, 6, 6]
        """
        self.broadcast_view(targets, coalescing=True).broadcast(value, name, mode, block=True)

    def load_balanced_view(self, targets: Any = None, **flags: Any) -> LoadBalancedView:
        """A view that runs each task on whichever engine is free.

        Args:
            targets: The engines to choose from: an id, a list of ids or a slice. None or 'all': the engines that exist
                when a task runs.
            **flags: Flags of the view: `block`, `label`, `after`, `follow`, `timeout`, `retries`, `priority`.

        Returns:
            The view.

        Raises:
            NoEnginesRegistered: `targets` contains no engine.
            IndexError: One of the engines does not exist.
            KeyError: There is no flag with this name.

        Example:
            >>> rc.load_balanced_view(retries=2).map_sync(lambda x: x * x, range(5))
            [0, 1, 4, 9, 16]
        """
        from broadleaf.client.views.balanced import LoadBalancedView

        if targets is not None and targets != "all":
            targets = list(self.resolve_targets(targets)[0])
            if not targets:
                raise NoEnginesRegistered("no engine matches these targets")
        else:
            targets = None
        return LoadBalancedView(self, targets, **{"block": self.block, **flags})

    @overload
    def submit(self, function: AsyncFunction[Returned], /, *args: Any, **kwargs: Any) -> AsyncResult[Returned]: ...

    @overload
    def submit(self, function: Function[Returned], /, *args: Any, **kwargs: Any) -> AsyncResult[Returned]: ...

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AsyncResult[Any]:
        """Calls `function(*args, **kwargs)` on a free engine: `apply_async` of a load-balanced view.

        For retries, a timeout, a priority or dependencies, use `load_balanced_view(retries=2).apply_async`.

        Args:
            function: The function to call. It is sent to engines that do not have it.
            *args: Its positional arguments.
            **kwargs: Its keyword arguments.

        Returns:
            The result of the call, which is a future.

        Raises:
            TypeError: The function cannot be called.
            SerializationError: The function or an argument cannot be pickled.
            LinkLost: The connection is closed or was lost.

        Example:
            >>> rc.submit(pow, 2, 10).get()
            1024
        """
        return self._any_engine().apply_async(function, *args, **kwargs)

    @overload
    def map(
        self,
        function: AsyncFunction[Returned],
        /,
        *sequences: Any,
        return_exceptions: Literal[False] = False,
        **options: Any,
    ) -> AsyncMapResult[Returned]: ...

    @overload
    def map(
        self,
        function: Function[Returned],
        /,
        *sequences: Any,
        return_exceptions: Literal[False] = False,
        **options: Any,
    ) -> AsyncMapResult[Returned]: ...

    @overload
    def map(
        self, function: Function[Any], /, *sequences: Any, return_exceptions: bool, **options: Any
    ) -> AsyncMapResult[Any]: ...

    def map(self, function: Callable[..., Any], /, *sequences: Any, **options: Any) -> AsyncMapResult[Any]:
        """Calls `function` on each item, each on a free engine: `map_async` of a load-balanced view.

        Args:
            function: The function to call with an item of each sequence.
            *sequences: Sequences or other iterables, cut to the shortest.
            **options: Options of `LoadBalancedView.map` without `block`: `chunksize`, `ordered`, `return_exceptions`,
                `label`.

        Returns:
            The result, to iterate over as values arrive; its `get` waits for the list of all.

        Raises:
            TypeError: There are no sequences, the function cannot be called, or an option does not exist.
            SerializationError: The function or an item cannot be pickled.
            LinkLost: The connection is closed or was lost.

        Example:
            >>> list(rc.map(lambda x: x * x, range(4)))
            [0, 1, 4, 9]
        """
        # A view of its own: an option such as `label` changes the view while the map is submitted.
        return self.load_balanced_view().map_async(function, *sequences, **options)

    def _any_engine(self) -> LoadBalancedView:
        """The view of `submit`, which keeps what was prepared for its calls."""
        view = self._view_of_submit
        if view is None:
            view = self._view_of_submit = self.load_balanced_view()
        return view

    def executor(
        self,
        targets: Any = None,
        *,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
    ) -> ViewExecutor:
        """A `concurrent.futures.Executor` over a load-balanced view.

        Args:
            targets: The engines to choose from, as `load_balanced_view` takes them.
            initializer: A function that each engine calls before its first task for this executor: existing
                engines now, and engines that join while this client is connected when they join.
            initargs: Its arguments.

        Returns:
            The executor. Shutting it down does not stop the engines.

        Raises:
            NoEnginesRegistered: `targets` contains no engine.
            IndexError: One of the engines does not exist.
            RemoteError: The initializer raised an exception on an engine; a `CompositeError` if it did so on several.

        Example:
            >>> with rc.executor() as pool:
            ...     list(pool.map(abs, [-1, 2, -3]))
            [1, 2, 3]
        """
        from broadleaf.client.views.executor import ViewExecutor

        return ViewExecutor(self.load_balanced_view(targets), initializer, initargs)

    @overload
    def clear(self, targets: Any = None, *, block: Literal[True]) -> list[None] | None: ...

    @overload
    def clear(self, targets: Any = None, *, block: Literal[False]) -> AsyncResult[list[None] | None]: ...

    @overload
    def clear(self, targets: Any = None, block: bool | None = None) -> Any: ...

    def clear(self, targets: Any = None, block: bool | None = None) -> Any:
        """Removes the user's variables from engines.

        Args:
            targets: Engines: an id, a list of ids, a slice, or 'all', which is the default.
            block: Whether to wait; by default, the client's `block` decides.

        Returns:
            An `AsyncResult`; with `block`, None for each engine.

        Raises:
            IndexError: One of the engines does not exist.
            NoEnginesRegistered: There are no engines.
        """
        return self.direct_view("all" if targets is None else targets).clear(block=block)

    def become_dask(
        self,
        targets: Any = "all",
        port: int = 0,
        nanny: bool = False,
        scheduler_args: dict[str, Any] | None = None,
        **worker_args: Any,
    ) -> Any:
        """Turns engines into Dask workers. The scheduler runs in this process.

        Scheduler and workers listen on loopback. The worker is `dask_worker` in an engine's namespace.

        Args:
            targets: Engines: an id, a list of ids, a slice, or 'all'.
            port: The scheduler's port; 0 for a free one.
            nanny: Whether each worker is a separate process, started by its engine.
            scheduler_args: Keyword arguments of `distributed.Scheduler`.
            **worker_args: Keyword arguments of `distributed.Worker`; `nthreads` is 1 by default.

        Returns:
            A `distributed.Client`, once all workers have registered.

        Raises:
            ImportError: Dask is not installed; install it with ``pip install "broadleaf[dask]"``.
            RemoteError: A worker could not start; a `CompositeError` if several could not.
        """
        return extension("become dask")(self, targets, port, nanny, scheduler_args, **worker_args)

    def stop_dask(self, targets: Any = "all") -> None:
        """Undoes `become_dask`: stops the workers on these engines, and also the scheduler if these are all engines.

        Args:
            targets: Engines: an id, a list of ids, a slice, or 'all'.
        """
        extension("stop dask")(self, targets)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # Called only for names that the class does not have, such as those of IPython Parallel's clients.
            return extension("client attribute")(self, name)

    # Tasks --------------------------------------------------------------------------------------

    @property
    def history(self) -> list[str]:
        """Ids of the last 65,536 tasks submitted, oldest first."""
        return self.tasks.msg_ids()

    @property
    def outstanding(self) -> set[str]:
        """Ids of the tasks that were submitted and are not done."""
        with self.link_errors():
            return {self.tasks.msg_id(seq) for seq in self.link.outstanding_seqs()}

    @property
    def results(self) -> KnownResults:
        """Values by task id, for results that are done, still exist, and have their attribute `owner` set to False."""
        return KnownResults(self.tasks, lambda result, part: result._part_value(part))

    @property
    def metadata(self) -> KnownResults:
        """Metadata by task id, for the same results as `results`."""
        return KnownResults(self.tasks, lambda result, part: result.part_metadata(part))

    def wait(self, jobs: Any = None, timeout: float | None = -1) -> bool:
        """Waits for tasks. Ctrl-C aborts the tasks it is waiting for.

        Args:
            jobs: A result, a task's id, an index of `history`, any `concurrent.futures.Future`, or a list of these. By
                default, everything that was submitted.
            timeout: Seconds to wait; None or a negative number means forever.

        Returns:
            Whether they are all done, however they ended.

        Raises:
            KeyError: The id does not belong to a task of this client.
            IndexError: The history is not that long.
            LinkLost: The connection is closed or was lost.
        """
        wanted = None if jobs is None else listed(jobs)
        try:
            return self._wait(wanted, seconds(timeout))
        except KeyboardInterrupt:
            seqs = self.link.outstanding_seqs()
            if wanted is not None:
                seqs = self.tasks.seqs([job for job in wanted if not self.tasks.is_foreign(job)])
            self.abort_interrupted(seqs)
            raise

    def _wait(self, jobs: list[Any] | None, timeout_s: float | None) -> bool:
        with self.link_errors():
            if jobs is None:
                return self.link.wait_all(timeout_s)
            deadline = None if timeout_s is None else time.monotonic() + timeout_s
            futures = [job for job in jobs if self.tasks.is_foreign(job)]
            own = [job for job in jobs if not self.tasks.is_foreign(job)]
            if not self.link.wait_tasks(self.tasks.seqs(own), timeout_s):
                return False
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        return not futures or not wait_for_futures(futures, left).not_done

    def wait_for_tasks(self, seqs: Sequence[int], timeout: float | None) -> bool:
        """Waits until the tasks of these numbers are done. Ctrl-C aborts those that are not."""
        try:
            with self.link_errors():
                return self.link.wait_tasks(seqs, seconds(timeout))
        except KeyboardInterrupt:
            self.abort_interrupted(sorted(set(seqs).intersection(self.link.outstanding_seqs())))
            raise

    def abort(
        self, jobs: Any = None, targets: Any = None, block: bool | None = None, queued_only: bool = False
    ) -> None:
        """Aborts tasks, queued or running. Tasks that are done are left alone.

        Running tasks are interrupted; the engine of one that does not react is killed after `interrupt_grace_s` (the
        option).

        Args:
            jobs: A result, a task's id, an index of `history`, or a list of these. By default, everything.
            targets: Without `jobs`: only what direct views have sent to these engines.
            block: Accepted for compatibility, without effect: use `wait` to wait until they have ended.
            queued_only: Whether to let running tasks continue.

        Raises:
            KeyError: The id does not belong to a task of this client.
            ValueError: The result belongs to another client.
            LinkLost: The connection is closed or was lost.
        """
        if jobs is not None:
            seqs = self.tasks.seqs(jobs)
        elif targets is not None and targets != "all":
            seqs = self.seqs_addressed_to(targets)
        else:
            seqs = self.link.outstanding_seqs()
        self.cancel_tasks(self.hub.not_running(seqs) if queued_only else seqs)

    def seqs_addressed_to(self, targets: Any) -> list[int]:
        """Numbers of the tasks that direct views have sent to these engines, and that are not done."""
        ids, _ = self.resolve_targets(targets)
        return [
            result.seq + part
            for result in self.tasks.results()
            for part, engine in enumerate(result.origin.targets or ())
            if engine in ids and not result.part_done(part)
        ]


_connected: WeakSet[Client] = WeakSet()


def close_all_at_exit() -> None:
    """Closes the clients that are left when the process ends.

    A thread that runs Python code while the interpreter ends would take the whole process down.
    """
    for client in list(_connected):
        client.close_at_exit()


# Clients for tasks.


_lock = threading.Lock()
# Keyed by process, because a task may fork, and by depth: a task that closes its client, or waits for everything
# submitted through it, must not affect another task that waits on the same engine.
_clients: dict[tuple[int, int], Client] = {}


def get_client() -> Client:
    """The client of the cluster that runs the calling task.

    While the task waits for results of its own cluster, its engine runs other tasks. The engine keeps the client for
    later tasks, so there is no need to close it.

    Returns:
        The client, for the calling task and others at the same nesting depth.

    Raises:
        ClusterConnectionError: The caller is not a task, or its engine belongs to a relay that was given no connection
            file for clients.

    Example:
        >>> def total(n):
        ...     view = ipp.get_client().load_balanced_view()
        ...     return sum(view.map_sync(abs, range(n)))
        >>> rc[0].apply_sync(total, 4)
        6
    """
    depth = _native.submitted_depth()
    if depth == 0:
        raise ClusterConnectionError(
            "get_client() works only in a task on an engine; here, create a client with "
            "broadleaf.Client() or Cluster(n=4).start_and_connect_sync()"
        )
    key = (os.getpid(), depth)
    with _lock:
        client = _clients.get(key)
        if client is None or client.closed:
            name = f"engine {os.environ.get('BROADLEAF_ENGINE_ID', '')}, depth {depth}"
            client = _clients[key] = Client(name=name)
        return client
