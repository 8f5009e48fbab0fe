"""The client: one connection to a cluster, and the views that use it."""

from __future__ import annotations

import importlib
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ALL_COMPLETED
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakValueDictionary

from broadleaf.client.control import Control
from broadleaf.client.failures import connection_error, death_certificate
from broadleaf.client.hooks import Hooks
from broadleaf.client.hub_results import Hub
from broadleaf.client.known_results import KnownResults, RegisteredResults
from broadleaf.client.options import TaskOptions
from broadleaf.client.pending import ResultTypes, result_types
from broadleaf.client.results import AsyncResult, seconds
from broadleaf.client.views.base import HISTORY_TASKS
from broadleaf.config import OPTIONS
from broadleaf.errors import ClusterConnectionError, DeathCertificate, NoEnginesRegistered

if TYPE_CHECKING:
    from broadleaf.client.views.balanced import LoadBalancedView
    from broadleaf.client.views.broadcast import BroadcastView
    from broadleaf.client.views.direct import DirectView
    from broadleaf.interop.concurrent import ViewExecutor

# Of the cluster's public key, in the ids of its tasks.
_CLUSTER_KEY_CHARACTERS = 16
# Deaths that a client remembers.
_CERTIFICATES = 256


class Client(Control, RegisteredResults):
    """A connection to a cluster.

    It is the sequence of its engines: `len(rc)`, `rc.ids`, and `rc[0]`, `rc[:]`, `rc[[1, 3]]` are direct views;
    `rc.load_balanced_view()` runs tasks on whichever engine is free. Thread-safe.

    `connection_info` is a connection file's path, or its contents as a dict; without it the file of `profile` and
    `cluster_id` is looked for. Raises `ClusterConnectionError` when there is no connection within `timeout` seconds.
    """

    def __init__(
        self,
        connection_info: str | os.PathLike[str] | dict[str, Any] | None = None,
        *,
        profile: str | None = None,
        cluster_id: str = "",
        cluster: Any = None,
        timeout: float = 10.0,
        name: str = "",
        native: Any = None,
    ) -> None:
        self.native = native if native is not None else importlib.import_module("broadleaf._native")
        """The module that does the work; another one only in tests."""
        self.cluster = cluster
        self.profile = profile
        self.block = False
        """Default of the flag of the same name of views made from now on."""
        self.engines_version = 0
        """Changes when engines come or go."""
        self.submitted = self.native.History(HISTORY_TASKS)
        self._registered: WeakValueDictionary[int, AsyncResult] = WeakValueDictionary()
        self._engines: dict[int, tuple[str, int, str]] = {}
        self._engines_seen = -1
        self._certificates: OrderedDict[int, DeathCertificate] = OrderedDict()
        self._listeners = 0
        self._listeners_lock = threading.Lock()
        text = _connection_text(connection_info, profile, cluster_id)
        try:
            self.link = self.native.Link(text, Hooks(self), timeout, name)
        except self.native.ConnectionRefused as error:
            raise connection_error(error) from error
        except (OSError, ValueError, self.native.LinkClosed) as error:
            raise ClusterConnectionError(f"no connection to the cluster: {error}") from error
        connection = json.loads(text)
        key = str(connection.get("server_public_key") or connection.get("cluster_id", ""))
        self.hub = Hub(self, "".join(filter(str.isalnum, key))[-_CLUSTER_KEY_CHARACTERS:])
        """What the controller keeps of ended tasks."""
        self.session = self.hub.session(self.link.client_id)
        options = connection.get("options", {})
        self.chunk_target: int = options.get("chunk_target", OPTIONS["chunk_target"].default)
        """The option of this name."""

    @property
    def result_types(self) -> ResultTypes:
        """The result types over this client's native module."""
        return result_types(self.native)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self)} engines"
        return f"<Client: {state}>"

    def __reduce__(self) -> Any:
        raise TypeError("a Client cannot be sent to engines")

    # Life ---------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether the connection is closed, from this side or by its loss."""
        return self.link.closed  # type: ignore[no-any-return]

    def close(self, linger: Any = None) -> None:
        """Closes the connection; unresolved results then raise `LinkLost`. May be called again."""
        self.link.close()

    def leave(self) -> None:
        """Closes the connection, and has the cluster carry on with this client's tasks.

        Their results are kept for whoever asks for them by their ids, as far as the option `kept_results_bytes` goes;
        not those in shared memory (above 64 KiB) that have come to this client already. After `close` tasks that have
        not started never do, and those that run end for nobody.
        """
        self.request("Leave")
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def on_event(self, kind: str, body: Any) -> None:
        """News of the cluster, from the link."""
        if kind == "engine_down":
            certificate = death_certificate(body)
            self._certificates[certificate.engine_id] = certificate
            while len(self._certificates) > _CERTIFICATES:
                self._certificates.popitem(last=False)
        self.engines_version += 1

    @contextmanager
    def live_output(self) -> Iterator[None]:
        """Has output reported as it arrives while the block runs."""
        with self._listeners_lock:
            self._listeners += 1
            self.link.live_output = True
        try:
            yield
        finally:
            with self._listeners_lock:
                self._listeners -= 1
                self.link.live_output = self._listeners > 0

    def define_options(self, options: TaskOptions) -> int:
        """The link's number for a set of task options."""
        with self.link_errors():
            return self.link.define_options(options.to_json())  # type: ignore[no-any-return]

    # Engines ------------------------------------------------------------------------------------

    def _known_engines(self) -> dict[int, tuple[str, int, str]]:
        version = self.engines_version
        if version != self._engines_seen:
            self._engines = {engine: (uid, pid, host) for engine, uid, pid, host in self.link.engines()}
            self._engines_seen = version
        return self._engines

    @property
    def ids(self) -> list[int]:
        """Ids of the engines there are, in order."""
        return sorted(self._known_engines())

    def engine_uuid(self, engine_id: int) -> str:
        """What tells an engine from another that has its id before or after; '' if unknown."""
        known = self._known_engines().get(engine_id)
        if known is not None:
            return known[0]
        dead = self._certificates.get(engine_id)
        return dead.uuid if dead is not None else ""

    def death_certificate(self, engine_id: int) -> DeathCertificate | None:
        """What is known of the last death of an engine of this id, or None."""
        return self._certificates.get(engine_id)

    def resolve_targets(self, targets: Any) -> tuple[tuple[int, ...], bool]:
        """Engine ids of `targets`, in order, and whether they are one engine rather than a list.

        Raises `IndexError` for an engine that does not exist, `TypeError` for what are no targets.
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
        raise TypeError(f"targets by int/slice/collection of ints/'all' only, not {targets!r}")

    def _engine_id(self, target: Any, ids: list[int]) -> int:
        if isinstance(target, bool) or not isinstance(target, int):
            raise TypeError(f"an engine's id is an int, not {type(target).__name__}")
        if target < 0 and -len(ids) <= target:
            return ids[target]
        if target not in self._engines:
            dead = self._certificates.get(target)
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
            raise TypeError(f"key by int/slice/iterable of ints only, not {type(key)}")
        return self.direct_view(key)

    def wait_for_engines(
        self,
        n: int | None = None,
        *,
        timeout: float | None = -1,
        block: bool = True,
        interactive: bool | None = None,
        widget: bool | None = None,
    ) -> Any:
        """Waits until there are `n` engines, by default as many as the cluster was asked for.

        Raises `TimeoutError`, and `LinkLost` on a closed connection. With `block=False` it returns a future.
        """
        if n is None:
            n = getattr(self.cluster, "n", None)
            if n is None:
                raise TypeError("n is needed: this client does not know how many engines were asked for")
        if not block:
            from concurrent.futures import ThreadPoolExecutor

            pool = ThreadPoolExecutor(1, "broadleaf-wait")
            future = pool.submit(self.wait_for_engines, n, timeout=timeout)
            pool.shutdown(wait=False)
            return future
        with self.link_errors():
            there = self.link.wait_for_engines(n, seconds(timeout))
        if not there:
            raise TimeoutError(f"{n} engines were not there in {timeout} s; there are {len(self.link.engines())}")
        self.engines_version += 1
        return None

    # Views --------------------------------------------------------------------------------------

    def direct_view(self, targets: Any = "all", **flags: Any) -> DirectView:
        """A view of these engines: an id, a list of ids, a slice, or 'all', which is looked up at each call."""
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

        `coalescing` is another name of `is_coalescing`.
        """
        from broadleaf.client.views.broadcast import BroadcastView

        wanted = is_coalescing if coalescing is None else coalescing
        return BroadcastView(self, self._view_targets(targets), wanted, **{"block": self.block, **flags})

    def broadcast(self, value: Any, name: str, mode: str = "private", targets: Any = "all") -> None:
        """Sets the variable `name` to `value` on engines, and waits until all have it.

        The value travels once, and is kept once on each host. `mode` is that of `DirectView.push`.
        """
        self.broadcast_view(targets, coalescing=True).broadcast(value, name, mode, block=True)

    def load_balanced_view(self, targets: Any = None, **flags: Any) -> LoadBalancedView:
        """A view that runs tasks on whichever engine (of `targets`) is free."""
        from broadleaf.client.views.balanced import LoadBalancedView

        if targets is not None and targets != "all":
            targets = list(self.resolve_targets(targets)[0])
            if not targets:
                raise NoEnginesRegistered("no engine is among these targets")
        else:
            targets = None
        return LoadBalancedView(self, targets, **{"block": self.block, **flags})

    def executor(self, targets: Any = None) -> ViewExecutor:
        """A `concurrent.futures.Executor` over a load-balanced view."""
        return self.load_balanced_view(targets).executor

    def clear(self, targets: Any = None, block: bool | None = None) -> Any:
        """Removes the user's variables from engines."""
        return self.direct_view("all" if targets is None else targets).clear(block=block)

    # Tasks --------------------------------------------------------------------------------------

    @property
    def history(self) -> list[str]:
        """Ids of the last `HISTORY_TASKS` tasks submitted, oldest first."""
        return [self.msg_id(seq) for seq in self.submitted.seqs()]

    @property
    def outstanding(self) -> set[str]:
        """Ids of the tasks submitted and not done."""
        return {self.msg_id(seq) for seq in self.link.outstanding_seqs()}

    @property
    def results(self) -> KnownResults:
        """Values by task id, of the results that are done, alive, and not owned by a variable of yours."""
        return KnownResults(self, lambda result, part: result._part_value(part))

    @property
    def metadata(self) -> KnownResults:
        """Metadata by task id, of the same results as `results`."""
        return KnownResults(self, lambda result, part: result.part_metadata(part))

    def wait(self, jobs: Any = None, timeout: float | None = -1) -> bool:
        """Waits for `jobs` (results or task ids), or for everything; False if `timeout` seconds were too short.

        Ctrl-C aborts the tasks waited for.
        """
        if jobs is None:
            try:
                with self.link_errors():
                    return self.link.wait_all(seconds(timeout))  # type: ignore[no-any-return]
            except KeyboardInterrupt:
                self.cancel_tasks(self.link.outstanding_seqs())
                raise
        return self.wait_for_tasks(self._job_seqs(jobs), timeout)

    def wait_for_tasks(self, seqs: Sequence[int], timeout: float | None) -> bool:
        """Waits until the tasks of these numbers are done. Ctrl-C aborts those that are not."""
        try:
            with self.link_errors():
                return self.link.wait_tasks(seqs, seconds(timeout))  # type: ignore[no-any-return]
        except KeyboardInterrupt:
            self.cancel_tasks(sorted(set(seqs).intersection(self.link.outstanding_seqs())))
            raise

    def wait_interactive(
        self, jobs: Any = None, interval: float = 1.0, timeout: float | None = -1, widget: bool | None = None
    ) -> bool:
        """`wait` that shows progress. Returns whether everything is done."""
        result = self.get_result(list(self.outstanding) if jobs is None else jobs)
        result.wait_interactive(interval, timeout, widget, ALL_COMPLETED)
        return result.ready()

    def abort(self, jobs: Any = None, targets: Any = None, block: bool | None = None) -> None:
        """Aborts `jobs` (results or task ids), or everything, queued or running.

        `targets` alone aborts what direct views have asked of these engines.
        """
        if jobs is not None:
            self.cancel_tasks(self._job_seqs(jobs))
        elif targets is not None and targets != "all":
            self.cancel_tasks(self.seqs_addressed_to(targets))
        else:
            self.cancel_tasks(self.link.outstanding_seqs())

    def seqs_addressed_to(self, targets: Any) -> list[int]:
        """Numbers of the tasks that direct views have sent to these engines, and that are not done."""
        ids, _ = self.resolve_targets(targets)
        return [
            result.seq + part
            for result in list(self._registered.values())
            for part, engine in enumerate(result.origin.targets or ())
            if engine in ids and not result.part_done(part)
        ]


def _connection_text(info: str | os.PathLike[str] | dict[str, Any] | None, profile: str | None, cluster_id: str) -> str:
    """The JSON text of a connection file."""
    if isinstance(info, dict):
        return json.dumps(info)
    if info is None:
        files = importlib.import_module("broadleaf.cluster.files")
        info = files.find_connection_file(profile or "default", cluster_id or None)
    try:
        with open(os.path.expanduser(os.fspath(info)), encoding="utf-8") as file:  # type: ignore[arg-type]
            return file.read()
    except OSError as error:
        raise ClusterConnectionError(f"no connection file: {error}") from error
