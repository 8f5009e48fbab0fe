"""What a client asks of its cluster besides tasks, and results by their ids."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from broadleaf import requests
from broadleaf.client.failures import link_lost
from broadleaf.client.modules import LocalModules
from broadleaf.client.results.async_result import AsyncResult
from broadleaf.client.results.combined import CombinedResult
from broadleaf.client.results.hub import AsyncHubResult, Hub, select
from broadleaf.client.task_index import TaskIndex, listed
from broadleaf.config import OPTIONS
from broadleaf.errors import DeathCertificate, EngineError, LinkLost
from broadleaf.requests import signal_number

if TYPE_CHECKING:
    from broadleaf._native import Link


# What a client requests from the controller besides running tasks.


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
            are = "is" if n == 1 else "are"
            warnings.warn(
                f"{tasks} submitted before Ctrl-C {are} still running or waiting for an engine, and this call may be "
                "waiting for them. Client.abort() aborts all tasks of a client.",
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

        The current engines call it, and so does each engine that joins while this client is connected, before its first
        task. So engines that join later can load or compute the same data as the others. Nothing else that was done
        before is repeated on them. The function's return value is dropped. If the function raises an exception, the
        traceback goes to the engine's log, and the engine continues.

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
        """The number of tasks that each engine has queued, is running and has completed.

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
                what = certificate.reason if certificate is not None else "does not exist, or no longer exists"
                raise EngineError(f"engine {ids[0]} {what}", {"engine_id": ids[0]}, certificate)
            return queues[ids[0]]
        status: dict[Any, Any] = {engine: queues[engine] for engine in ids if engine in queues}
        status["unassigned"] = unassigned
        return status

    def explain(self, result: AsyncResult | str | int) -> str:
        """The reason why a task is not done.

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
        """Counters of this connection: tasks submitted and resolved, reads, writes, bytes, copies.

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
        """Sets which events the controller records from now on, and where.

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
        """Writes the controller's recorded events as a Chrome trace, for chrome://tracing or Perfetto.

        Args:
            path: The file to write, on this host.

        Raises:
            OSError: The file cannot be written.
            LinkLost: The connection is closed or was lost.
        """
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.request("Trace"))

    def save_inputs(self, path: str, stop: bool = False) -> None:
        """Writes everything that the controller has been told since the cluster started, for a bug report.

        The cluster must have been started with the option `record_inputs`. The file has no data, no code and no output,
        but names of hosts and numbers of processes.

        Args:
            path: The file to write, on this host.
            stop: Whether to end the recording.

        Raises:
            RequestFailed: Nothing is recorded.
            OSError: The file cannot be written.
            LinkLost: The connection is closed or was lost.
        """
        with self.link_errors():
            requests.save_inputs(self.link, path, stop)


# Finds a client's results by their tasks' ids, and tells the controller what to store or forget.


class RegisteredResults(Control):
    """The part of a client that finds results by their tasks' ids, here and at the controller."""

    def get_result(self, indices_or_msg_ids: Any = None, block: bool | None = None, owner: bool = True) -> AsyncResult:
        """The result of tasks, which are specified by their ids or by indices of the history.

        They may be tasks of other clients, including clients that have left, if the controller still has the results.

        Args:
            indices_or_msg_ids: A task's id, an index of `history`, a result, or a list of these; by default the last
                task.
            block: Whether to wait until it is done.
            owner: Accepted for compatibility, without effect.

        Returns:
            The result. Its value is a single value for one id or index, and a list for a list. It is an
            `AsyncHubResult` if the controller has the result and this client does not.

        Raises:
            KeyError: The result of a task is gone, or there never was such a task.
            IndexError: The history is not that long.
            LinkLost: The connection is closed or was lost.

        Example:
            >>> result = rc[:].apply_async(pow, 2, 3)
            >>> rc.get_result(result.msg_ids[0]).get()
            8
        """
        jobs = -1 if indices_or_msg_ids is None else indices_or_msg_ids
        single = isinstance(jobs, str | int | AsyncResult)
        located = self.tasks.locate(jobs)
        missing = [part for part in located if isinstance(part, str)]
        kept = iter(self.hub.result(missing, single).parts() if missing else ())
        found = [next(kept) if isinstance(part, str) else part for part in located]
        whole = found[0][0]
        if found == whole.parts() and (missing or not self.tasks.is_held(jobs)):
            result = whole
        else:
            result = CombinedResult.joined([CombinedResult.of_part(*part) for part in found])
            result.origin.single = single and len(found) == 1
        if missing and isinstance(whole, AsyncHubResult):
            self.tasks.remember_fetched(missing, whole)
        if block:
            result.wait()
        return result

    def split_result(self, result: AsyncResult) -> tuple[AsyncResult, ...]:
        """A result for each part of `result`."""
        return tuple(CombinedResult.of_part(result, part) for part in range(result.n_parts))

    def join_results(self, results: Iterable[AsyncResult]) -> AsyncResult:
        """One result with the parts of all `results`, of which there is at least one."""
        return CombinedResult.joined(results)

    def result_status(self, msg_ids: Any, status_only: bool = True) -> dict[str, Any]:
        """Which tasks are done, and their results.

        Args:
            msg_ids: A task's id, an index of `history`, a result, or a list of these. They may be any client's tasks
                that the controller knows.
            status_only: Whether to omit the values.

        Returns:
            A dict with lists of ids under 'completed' and 'pending'. Without `status_only` it has the value of each
            completed task under its id, or the exception.

        Raises:
            KeyError: There is no such task, or nothing is known about it any more.
            LinkLost: The connection is closed or was lost.
        """
        ids = self.tasks.ids(msg_ids)
        seqs = [self.tasks.seq_of(msg_id) for msg_id in ids]
        parts = {msg_id: self.tasks.find(seq) for msg_id, seq in zip(ids, seqs, strict=True) if seq is not None}
        elsewhere = [msg_id for msg_id in ids if parts.get(msg_id) is None]
        records = {record["msg_id"]: record for record in self.hub.records_of(elsewhere)} if elsewhere else {}
        status: dict[str, Any] = {"completed": [], "pending": []}
        for msg_id in ids:
            located = parts.get(msg_id)
            if located is None and msg_id not in records:
                raise KeyError(f"no such task: {msg_id!r}")
            if located is None and records[msg_id]["status"] is None:
                status["pending"].append(msg_id)
                continue
            if located is None and status_only:
                status["completed"].append(msg_id)
                continue
            result, part = located or (self.hub.result([msg_id], True), 0)
            if located is None:
                result.wait_all_done(None)
            done = result.part_done(part)
            status["completed" if done else "pending"].append(msg_id)
            if done and not status_only:
                failure = result.failure(part)
                status[msg_id] = failure if failure is not None else result._part_value(part)
        return status

    def purge_local_results(self, jobs: Any = (), targets: Any = ()) -> None:
        """Forgets results here; the controller may still have them.

        Args:
            jobs: A result, a task's id, an index of `history`, or a list of these; 'all' for everything.
            targets: Engines whose results are all forgotten; 'all' for everything.

        Raises:
            RuntimeError: Some of the tasks are not done; nothing is forgotten.
            KeyError: There is no task with this id.
        """
        if jobs == "all" or targets == "all":
            chosen = [part for result in self.tasks.results() for part in result.parts()]
        else:
            wanted = listed(jobs)
            here = self.tasks.locate(wanted) if wanted else []
            chosen = [part for part in here if not isinstance(part, str)]
            chosen += self._parts_at(targets)
        pending = [self.tasks.msg_id(result._part_seq(part)) for result, part in chosen if not result.part_done(part)]
        if pending:
            raise RuntimeError(f"Can't purge outstanding tasks: {pending}")
        for result, part in chosen:
            self.tasks.forget(result, part)

    def _parts_at(self, targets: Any) -> list[tuple[AsyncResult, int]]:
        """The parts of known results that were sent to these engines or ran there."""
        if targets is None or (not isinstance(targets, int | slice) and not list(targets)):
            return []
        ids = self.resolve_targets(targets)[0]
        return [
            (result, part)
            for result in self.tasks.results()
            for part in range(result.n_parts)
            if result._engine_id(part) in ids
        ]

    def purge_results(self, jobs: Any = (), targets: Any = ()) -> None:
        """Forgets results, here and at the controller: `purge_local_results` and `purge_hub_results`.

        Args:
            jobs: A result, a task's id, an index of `history`, or a list of these; 'all' for everything.
            targets: Engines whose results are all forgotten; 'all' for everything.

        Raises:
            RuntimeError: Some of the tasks are not done; nothing is forgotten.
            LinkLost: The connection is closed or was lost.
        """
        self.purge_local_results(jobs, targets)
        self.purge_hub_results(jobs, targets)

    def purge_hub_results(self, jobs: Any = (), targets: Any = ()) -> None:
        """Removes ended tasks from the controller's result store.

        Args:
            jobs: A result, a task's id, an index of `history`, or a list of these; 'all' for everything, of all
                clients.
            targets: Engines whose results are all forgotten; 'all' for everything.

        Raises:
            LinkLost: The connection is closed or was lost.
        """
        if jobs == "all" or targets == "all":
            self.hub.forget(None)
            return
        ids = self.tasks.ids(jobs)
        if targets is not None and (isinstance(targets, int | slice) or list(targets)):
            engines = self.resolve_targets(targets)[0]
            ids += [record["msg_id"] for record in self.hub.records(None) if record["engine_id"] in engines]
        names = [name for name in map(self.hub.name_of, ids) if name is not None]
        if names:
            self.hub.forget(names)

    def resubmit(self, indices_or_msg_ids: Any = None, metadata: Any = None, block: bool | None = None) -> AsyncResult:
        """Runs tasks again, including those of other clients.

        They have the same function, arguments and options, but no dependencies.

        Args:
            indices_or_msg_ids: A task's id, an index of `history`, a result, or a list of these; by default the last
                task.
            metadata: Accepted for compatibility, without effect.
            block: Whether to wait until they are done.

        Returns:
            The result of the new tasks.

        Raises:
            KeyError: The result store does not hold enough of a task to run it again.
            IndexError: The history is not that long.
            LinkLost: The connection is closed or was lost.
        """
        jobs = -1 if indices_or_msg_ids is None else indices_or_msg_ids
        result = self.hub.result(self.tasks.ids(jobs), isinstance(jobs, str | int), run_again=True)
        if block:
            result.wait()
        return result

    def hub_history(self) -> list[str]:
        """Ids of all clients' tasks that the controller knows.

        Returns:
            The ids in the order of submission.

        Raises:
            LinkLost: The connection is closed or was lost.
        """
        return [record["msg_id"] for record in self.hub.records(None)]

    def db_query(self, query: dict[str, Any], keys: str | Iterable[str] | None = None) -> list[dict[str, Any]]:
        """Records of all clients' tasks that the controller knows.

        Args:
            query: What a record must contain, by key: a value, or a dict of operators (`$eq`, `$ne`, `$lt`, `$gt`,
                `$lte`, `$gte`, `$in`, `$nin`, `$glob`). A comparison with an unknown time or text is false.
            keys: The keys to return besides `msg_id`; None for all of them.

        Returns:
            The records as dicts, in the order of submission. Times are `datetime`s.

        Raises:
            ValueError: The operator does not exist.
            LinkLost: The connection is closed or was lost.

        Example:
            >>> _ = rc[0].apply_sync(pow, 2, 3)
            >>> rc.db_query({"engine_id": 0, "status": "ok"}, keys=["status"])[-1]["status"]
            'ok'
        """
        return select(self.hub.records(None), query, [keys] if isinstance(keys, str) else keys)

    def purge_everything(self) -> None:
        """Forgets all results, here and at the controller, and the history.

        Raises:
            RuntimeError: Some tasks are not done. Then nothing is forgotten.
            LinkLost: The connection is closed or was lost.
        """
        self.purge_results("all")
        self.tasks.history.clear()


class KnownResults(Mapping[str, Any]):
    """A mapping from task ids to values or metadata: of results that are done, alive, and have `owner` set to False."""

    def __init__(self, tasks: TaskIndex, get: Callable[[AsyncResult, int], Any]) -> None:
        self._tasks = tasks
        self._get = get

    def _parts(self) -> Iterator[tuple[AsyncResult, int]]:
        for result in self._tasks.results():
            if not result.owner:
                parts = (part for part in range(result.n_parts) if part not in result.purged)
                yield from ((result, part) for part in parts if result.part_done(part))

    def __iter__(self) -> Iterator[str]:
        return (self._tasks.msg_id(result.seq + part) for result, part in self._parts())

    def __len__(self) -> int:
        return sum(1 for _ in self._parts())

    def __getitem__(self, msg_id: str) -> Any:
        seq = self._tasks.seq_of(msg_id)
        found = None if seq is None else self._tasks.find(seq)
        if found is None or found[0].owner or not found[0].part_done(found[1]):
            raise KeyError(msg_id)
        return self._get(*found)
