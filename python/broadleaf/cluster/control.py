"""Requests to a running cluster's controller, in the controller's own terms."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from broadleaf import _native, requests
from broadleaf.cluster.engine_sets.base import Block, EngineSet
from broadleaf.config import Settings
from broadleaf.errors import ClusterConnectionError
from broadleaf.requests import wait_for_engines
from broadleaf.state.files import StateLock

if TYPE_CHECKING:
    from broadleaf.engine.written import Seen

Targets = int | Sequence[int] | str | None


class _ControlHooks:
    """Hooks for a connection that submits no tasks."""

    def __init__(self) -> None:
        self.n_deaths = 0
        self.on_death: Callable[[], None] = lambda: None

    def on_event(self, kind: str, body: str) -> None:
        """Only the fact that an engine died matters."""
        if kind == "engine_down":
            self.n_deaths += 1
            self.on_death()


class ControlLink:
    """A connection for requests only; use it as a context manager."""

    def __init__(self, connection: str, timeout_s: float = 10.0) -> None:
        self._hooks = _ControlHooks()
        hooks: Any = self._hooks
        try:
            self._link = _native.Link(connection, hooks, timeout_s, "control")
        except (OSError, ValueError, _native.LinkClosed, _native.ConnectionRefused) as error:
            raise ClusterConnectionError(f"the cluster does not answer: {error}") from error

    def __enter__(self) -> ControlLink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection."""
        self._link.close()

    def request(self, request: str | dict[str, Any], timeout_s: float | None = 10.0) -> Any:
        """Sends one request; returns the text of its reply, or None. Raises `RequestFailed`."""
        with _closed_link():
            return requests.send(self._link, request, timeout_s)

    def engines(self) -> list[tuple[int, str, int, str]]:
        """(engine id, uuid, pid, host) of every known engine, by id."""
        return self._link.engines()

    def wait_for_engines(self, n: int, timeout_s: float | None, *, all_are_new: bool) -> bool:
        """Whether at least `n` engines started in time. Raises `EngineError` if too many died while they started, which
        all dead ones did if `all_are_new`.
        """
        with _closed_link():
            return wait_for_engines(self._link, n, timeout_s, lambda: self._hooks.n_deaths, all_are_new=all_are_new)

    def wait_until_up(self, n: int, timeout_s: float) -> bool:
        """Whether at least `n` engines were up in time, whatever becomes of others."""
        with _closed_link():
            return self._link.wait_for_engines(n, timeout_s)

    def add_engines(self, n: int) -> None:
        """Requests `n` more engines, which start later."""
        self.request({"AddEngines": n})

    def stop_engines(self, targets: Targets = None) -> None:
        """Stops engines for good."""
        self.request({"StopEngines": _target_set(targets)})

    def drain(
        self,
        engines: Sequence[int] = (),
        hosts: Sequence[int] = (),
        within_s: float | None = None,
        stateless: bool = False,
    ) -> None:
        """Releases engines, and hosts (by their numbers in `status`) with all of their engines, once their tasks are
        finished or after `within_s` seconds.

        Raises `RequestFailed` if clients may have left data there, unless `stateless`.
        """
        within_ns = None if within_s is None else round(within_s * 1e9)
        targets = requests.target_set(engines)
        order = {"targets": targets, "hosts": list(hosts), "within_ns": within_ns, "stateless": stateless}
        self.request({"Drain": order})

    def call_on_death(self, on_death: Callable[[], None]) -> None:
        """Has this called, on a thread of the link, when an engine dies."""
        self._hooks.on_death = on_death

    def await_engines(self, awaits: bool) -> None:
        """Whether tasks wait while there is no engine, as long as this connection lasts: its owner will start some."""
        self.request({"AwaitEngines": awaits})

    def restart_engines(self, targets: Targets = None) -> None:
        """Stops engines and starts them again with the same ids; "all" includes those that died."""
        self.request({"RestartEngines": _target_set(targets)})

    def signal(self, number: int, targets: Targets = None) -> None:
        """Sends a signal to engines."""
        self.request({"Signal": [_target_set(targets), int(number)]})

    def tell(self, about: str, text: str) -> None:
        """Tells every client something that only whoever starts the engines knows; '' takes it back."""
        self.request({"Notice": {"about": about, "text": text}})

    def why_gone(self, host: str, has_steward: bool) -> str:
        """Why a host is gone, as the steward tells it; '' if nobody knows. `has_steward` says whether there is one: it
        may have told nothing yet."""
        with _closed_link():
            return requests.why_gone(self._link, host, has_steward)

    def status(self) -> dict[str, Any]:
        """Counters of controller and engines."""
        with _closed_link():
            return requests.status(self._link)

    def watch(self, after: int, max_events: int) -> dict[str, Any]:
        """At most `max_events` events from number `after` on, the busiest functions, and transfers, for an observer."""
        news: dict[str, Any] = json.loads(self.request({"Watch": {"after": after, "max_events": max_events}}))
        return news

    def written(self, engine_id: int, seen: Seen | None) -> dict[str, Any]:
        """What an engine has written since `seen`, as its host tells it: the latest output, and the end of its log."""
        asked = {"engine": engine_id, "seen": None if seen is None else seen._asdict()}
        news: dict[str, Any] = json.loads(self.request({"Written": asked}))
        return news

    def save_inputs(self, path: str | Path, stop: bool) -> requests.Recording:
        """Writes the recording of the controller's inputs to a file here; with `stop`, nothing more is recorded."""
        with _closed_link():
            return requests.save_inputs(self._link, path, stop)

    def shutdown(self) -> None:
        """Stops the whole cluster; it may be gone before it answers."""
        self.request("Shutdown", 2.0)


@contextmanager
def _closed_link() -> Iterator[None]:
    try:
        yield
    except _native.LinkClosed as error:
        raise ClusterConnectionError(f"the cluster closed the connection: {error}") from error


def _target_set(targets: Targets) -> object:
    """JSON form of a target set: None and 'all' mean every engine."""
    if targets is None or targets == "all":
        return requests.target_set(None)
    if isinstance(targets, str):
        raise TypeError(f"targets must be an engine id, a sequence of engine ids or 'all', not {targets!r}")
    return requests.target_set([targets] if isinstance(targets, int) else targets)


class StartedEngines(Protocol):
    """Engines that were started together."""

    @property
    def blocks(self) -> list[Block]:
        """The blocks that they run in."""
        ...


class RunningCluster(Protocol):
    """What the parts of a `Cluster` use of it."""

    engines_from: EngineSet
    cluster_id: str
    lock: StateLock
    settings: Settings

    @property
    def engines(self) -> Mapping[str, StartedEngines]:
        """The sets of engines that were started together, by id."""
        ...

    @property
    def running(self) -> bool:
        """Whether it runs."""
        ...

    @property
    def is_coming_back(self) -> bool:
        """Whether its controller has ended and is being started again."""
        ...

    @property
    def cluster_dir(self) -> Path:
        """Directory of its files."""
        ...

    @property
    def cluster_file(self) -> str:
        """Path of the file that describes it."""
        ...

    @property
    def relay_file(self) -> str:
        """Path of the file that relays join with."""
        ...

    def control(self, timeout_s: float = 10.0) -> ControlLink:
        """A connection for requests."""
        ...

    def log_path(self, engine_id: int | None = None) -> Path:
        """Path of the log of the controller, or of an engine of this host."""
        ...

    def all_blocks(self) -> list[Block]:
        """The blocks of all sets, as last checked."""
        ...

    def look_at_blocks(self, status: Mapping[str, Any], *, asks: bool = True) -> list[Block]:
        """The blocks of all sets, checked just now; unless it `asks`, only as the controller knows them."""
        ...

    def spare_blocks(self) -> list[Block]:
        """Blocks on hosts that have had none, which `start_block_again` can start."""
        ...

    def start_block_again(self, block: Block) -> None:
        """Starts a block that is over, or a spare one, where it was."""

    def write_cluster_file(self) -> None:
        """Writes `cluster_file`."""

    def wait_stopped(self, timeout_s: float | None = None) -> bool:
        """Whether its processes were gone in time."""
        ...

    def start_engines_sync(self, n: int | None = None, engine_set_id: str | None = None) -> str:
        """Starts more engines, and returns their id together."""
        ...

    def stop_engines_sync(self, targets: Targets = None) -> None:
        """Stops engines for good."""

    def signal_engines_sync(self, signum: int = signal.SIGINT, targets: Targets = None) -> None:
        """Sends a signal to engines."""
