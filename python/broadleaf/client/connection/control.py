"""What a client requests from the controller besides running tasks."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from broadleaf import requests
from broadleaf.client.connection.failures import link_lost
from broadleaf.client.connection.local_modules import LocalModules
from broadleaf.client.connection.task_index import TaskIndex
from broadleaf.client.results.async_result import AsyncResult
from broadleaf.client.results.hub_results import Hub
from broadleaf.config import OPTIONS
from broadleaf.errors import DeathCertificate, EngineError, LinkLost
from broadleaf.requests import signal_number

if TYPE_CHECKING:
    from broadleaf._native import Link

Joining = TypeVar("Joining")

# Maximum number of tasks in one request to cancel.
_CANCEL_BATCH = 50_000
# The engine id that means "no engine".
_NO_ENGINE = 2**32 - 1


def _stage(record: dict[str, Any]) -> str:
    """The name that `queue_status` gives to a task's stage."""
    if record["status"] is not None:
        return "completed"
    return "tasks" if record["running"] else "queue"


class Control:
    """The part of a client that makes control requests."""

    hub: Hub
    link: Link
    local_modules: LocalModules
    native: Any
    tasks: TaskIndex
    _left_behind: set[int]

    @contextmanager
    def link_errors(self) -> Iterator[None]:
        """Turns errors of the link into those of the package."""
        try:
            yield
        except self.native.LinkClosed as error:
            raise link_lost(error) from error

    def resolve_targets(self, targets: Any) -> tuple[tuple[int, ...], bool]:
        """See `Client`."""
        raise NotImplementedError

    def death_certificate(self, engine_id: int) -> DeathCertificate | None:
        """See `Client`."""
        raise NotImplementedError

    def request(self, request: object, timeout: float | None = 10.0) -> Any:
        """Sends one control request; returns the reply's content. Raises `RequestFailed` if it was not done."""
        with self.link_errors():
            # The controller must know the tasks submitted before when it reads this.
            self.link.flush()
            return requests.send(self.link, request, timeout)

    def cancel_tasks(self, seqs: Sequence[int]) -> None:
        """Aborts tasks by number, queued or running; those that are done are left alone. The engine of a task that does
        not react is killed after `interrupt_grace_s`."""
        for first in range(0, len(seqs), _CANCEL_BATCH):
            self.request({"Cancel": list(seqs[first : first + _CANCEL_BATCH])})

    def interrupt_tasks(self, seqs: Sequence[int]) -> None:
        """Aborts tasks like `cancel_tasks`, but engines whose tasks do not react are not killed."""
        for first in range(0, len(seqs), _CANCEL_BATCH):
            self.request({"InterruptTasks": list(seqs[first : first + _CANCEL_BATCH])})

    def interrupt_unawaited(self, seqs: Sequence[int]) -> None:
        """As `interrupt_tasks`, for finalizers: does not wait for the controller, and raises nothing."""
        with suppress(self.native.LinkClosed):
            # The controller must know the tasks submitted before when it reads this.
            self.link.flush()
            for first in range(0, len(seqs), _CANCEL_BATCH):
                self.link.post(json.dumps({"InterruptTasks": list(seqs[first : first + _CANCEL_BATCH])}))

    def abort_interrupted(self, seqs: Sequence[int]) -> None:
        """Ctrl-C has ended a call: aborts its tasks. If others are left, the next long wait of this client says so."""
        with suppress(LinkLost, self.native.LinkClosed):
            self.cancel_tasks(seqs)
            ended = set(seqs)
            self._left_behind = {seq for seq in self.link.outstanding_seqs() if seq not in ended}
            if self._left_behind:
                self.link.leave_behind()

    def abort_begun(self) -> None:
        """Ctrl-C came before a call had returned its result: aborts what this thread's last submission began."""
        first, n = self.link.begun()
        with suppress(self.native.LinkClosed):
            self.abort_interrupted([seq for seq in self.link.outstanding_seqs() if first <= seq < first + n])

    def warn_of_left_behind(self) -> None:
        """Warns if tasks that Ctrl-C has left are still there."""
        n = len(self._left_behind.intersection(self.link.outstanding_seqs()))
        self._left_behind = set()
        if n:
            tasks = "1 task" if n == 1 else f"{n:,} tasks"
            warnings.warn(
                f"{tasks} submitted before Ctrl-C still run or wait for an engine, and this call may be waiting for "
                "them. Client.abort() aborts all tasks of a client.",
                stacklevel=2,
            )

    def interrupt(self, targets: Any = None) -> None:
        """Interrupts whatever engines are running now, as Ctrl-C would.

        Args:
            targets: Engines: an id, a list of ids, a slice, or 'all', which is the default.

        Raises:
            IndexError: One of the engines does not exist.
            LinkLost: The connection is closed or was lost.
        """
        self.request({"Interrupt": self._target_set(targets)})

    def send_signal(self, sig: int | str, targets: Any = None, block: bool | None = None) -> None:
        """Sends a signal to engines. SIGINT interrupts what they are running.

        Args:
            sig: The signal's number or name: 15, 'SIGTERM'.
            targets: Engines: an id, a list of ids, a slice, or 'all', which is the default.
            block: Accepted for compatibility, without effect.

        Raises:
            ValueError: The signal does not exist.
            IndexError: One of the engines does not exist.
            LinkLost: The connection is closed or was lost.
        """
        self.request({"Signal": [self._target_set(targets), signal_number(sig)]})

    def shutdown(
        self, targets: Any = "all", restart: bool = False, hub: bool = False, block: bool | None = None
    ) -> None:
        """Stops engines, or the whole cluster.

        Args:
            targets: Engines: an id, a list of ids, a slice, or 'all'.
            restart: Whether to restart the engines with the same ids; 'all' includes those that died.
            hub: Whether to stop the whole cluster.
            block: Accepted for compatibility, without effect.

        Raises:
            IndexError: One of the engines does not exist.
            LinkLost: The connection is closed or was lost.
        """
        if hub:
            self.request("Shutdown")
        elif restart:
            self.request({"RestartEngines": self._restart_set(targets)}, timeout=60.0)
        else:
            self.request({"StopEngines": self._target_set(targets)})

    def _target_set(self, targets: Any) -> object:
        if targets is None or targets == "all":
            return requests.target_set(None)
        return requests.target_set(self.resolve_targets(targets)[0])

    def _restart_set(self, targets: Any) -> object:
        """Like `_target_set`, for targets that may be dead."""
        if not isinstance(targets, int | list | tuple | range | set):
            return self._target_set(targets)
        ids = [targets] if isinstance(targets, int) else targets
        living = [i for i in ids if self.death_certificate(i) is None]
        resolved = dict(zip(living, self.resolve_targets(living)[0], strict=True))
        return requests.target_set([resolved.get(i, i) for i in ids])

    def ship_module(self, *modules: ModuleType | str) -> None:
        """Sends your modules to all engines, including those that start later, in place of the versions that they have.

        For a module in a package, the whole package is sent, including data files. This takes effect before anything
        submitted afterwards. Send it again when you have changed it.

        Args:
            *modules: Modules, or their names.

        Raises:
            ImportError: There is no module with this name here.
            ValueError: The module has no files, or more than 32 MiB of them.
            LinkLost: The connection is closed or was lost.
        """
        for module in modules:
            with self.link_errors():
                self.local_modules.ship(module)

    def on_join(self, function: Callable[[], Joining]) -> Callable[[], Joining]:
        """Calls a function on every engine, before anything that is submitted from now on.

        These are the current engines, and each one that joins while this client is connected, before its first task.
        So engines that come later can load or compute what the others have; nothing else that was done before is
        repeated on them. The function's return value is dropped. If it raises, the traceback goes to the engine's log,
        and the engine continues.

        Args:
            function: The function to call, without arguments.

        Returns:
            The function, so that `on_join` may be used as a decorator.

        Raises:
            SerializationError: The function cannot be pickled.
            LinkLost: The connection is closed or was lost.

        Example:
            >>> @rc.on_join
            ... def load():
            ...     global table
            ...     table = {"a": 1}
            >>> rc[0].apply_sync(lambda: table["a"])
            1
        """
        with self.link_errors():
            self.local_modules.update()
            self.local_modules.call(function)
        return function

    @overload
    def queue_status(self, targets: int, verbose: Literal[False] = False) -> dict[str, int]: ...

    @overload
    def queue_status(self, targets: int, verbose: bool) -> dict[str, Any]: ...

    @overload
    def queue_status(self, targets: Any = "all", verbose: bool = False) -> dict[Any, Any]: ...

    def queue_status(self, targets: Any = "all", verbose: bool = False) -> dict[Any, Any]:
        """How many tasks engines have queued, run and completed.

        Args:
            targets: Engines: an id, a list of ids, a slice, or 'all'.
            verbose: Whether to list the tasks' ids instead of their numbers; for completed tasks, only those still in
                the result store.

        Returns:
            A dict by engine id of 'queue' (not started), 'tasks' (running) and 'completed', and under 'unassigned' the
            tasks that no engine has been chosen for. For a single id, only its dict.

        Raises:
            EngineError: The only requested engine has just left.
            IndexError: One of the engines does not exist.
            LinkLost: The connection is closed or was lost.
        """
        queues: dict[int, dict[str, Any]] = {
            engine: {"queue": queued, "tasks": running, "completed": completed}
            for engine, queued, running, completed in self.request("QueueStatus")
        }
        nowhere = queues.pop(_NO_ENGINE, None)
        unassigned: Any = nowhere["queue"] if nowhere is not None else 0
        if verbose:
            queues = {engine: {"queue": [], "tasks": [], "completed": []} for engine in queues}
            unassigned = []
            for record in self.hub.records(None):
                if record["engine_id"] in queues:
                    queues[record["engine_id"]][_stage(record)].append(record["msg_id"])
                elif record["status"] is None:
                    unassigned.append(record["msg_id"])
        ids, single = self.resolve_targets(targets)
        if single:
            if ids[0] not in queues:
                certificate = self.death_certificate(ids[0])
                what = certificate.reason if certificate is not None else "is not there, or no longer"
                raise EngineError(f"engine {ids[0]} {what}", {"engine_id": ids[0]}, certificate)
            return queues[ids[0]]
        status: dict[Any, Any] = {engine: queues[engine] for engine in ids if engine in queues}
        status["unassigned"] = unassigned
        return status

    def explain(self, result: AsyncResult | str | int) -> str:
        """Why a task is not done.

        Args:
            result: A result, a task's id, or an index of `history`. For a result of several tasks, the first that is
                not done.

        Returns:
            A short text, such as "waits for engine 3", "behind 40 tasks" or "after task 7"; "done" if it is.

        Raises:
            KeyError: The id does not belong to a task of this client.
            LinkLost: The connection is closed or was lost.
        """
        seqs = self.tasks.seqs(result)
        if isinstance(result, AsyncResult):
            waiting = result._unfinished_seqs()
            if not waiting:
                return "done"
            seqs = waiting
        return str(self.request({"Explain": seqs[0]}))

    def status(self) -> dict[str, Any]:
        """Counters of the controller and the engines.

        Returns:
            A dict. Under 'engines' it has a list of dicts, one for each engine slot. Names end in their units.

        Raises:
            LinkLost: The connection is closed or was lost.
        """
        with self.link_errors():
            return requests.status(self.link)

    def counters(self) -> dict[str, int]:
        """What this connection has done: tasks submitted and resolved, reads, writes, bytes, copies.

        Returns:
            Numbers by name.
        """
        return dict(self.link.counters())

    def config(self) -> dict[str, Any]:
        """Every option of the controller, with its value.

        Returns:
            Values by the options' names.

        Raises:
            LinkLost: The connection is closed or was lost.
        """
        config: dict[str, Any] = json.loads(self.request("Config"))
        return config

    def set_log(self, level: str | int = "info", sink: str = "ring") -> None:
        """Sets what the controller records from now on, and where.

        Args:
            level: 'off', 'error', 'info' or 'debug', or its number from 0 on: the option `log_level`.
            sink: 'ring', 'stderr' or the path of a file on the controller's host: the option `log_sink`.

        Raises:
            ValueError: The level does not exist.
            LinkLost: The connection is closed or was lost.
        """
        if isinstance(level, str):
            names = OPTIONS["log_level"].choices
            if level not in names:
                raise ValueError(f"level must be one of {', '.join(names)}, not {level!r}")
            level = names.index(level)
        self.request({"SetLog": {"level": level, "sink": sink}})

    def save_trace(self, path: str) -> None:
        """Writes what the controller has recorded as a Chrome trace, for chrome://tracing or Perfetto.

        Args:
            path: The file to write, on this host.

        Raises:
            OSError: The file cannot be written.
            LinkLost: The connection is closed or was lost.
        """
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.request("Trace"))
