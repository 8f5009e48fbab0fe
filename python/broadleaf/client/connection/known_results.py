"""Finds a client's results by their tasks' ids, and tells the controller what to store or forget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from broadleaf.client.connection.control import Control
from broadleaf.client.connection.task_index import TaskIndex, listed
from broadleaf.client.results.async_result import AsyncResult
from broadleaf.client.results.combined import CombinedResult
from broadleaf.client.results.hub_results import AsyncHubResult, select


class RegisteredResults(Control):
    """The part of a client that finds results by their tasks' ids, here and at the controller."""

    def get_result(self, indices_or_msg_ids: Any = None, block: bool | None = None, owner: bool = True) -> AsyncResult:
        """The result of tasks given by their ids, or by indices of the history.

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
        """Ids of all tasks that the controller knows, of all clients.

        Returns:
            The ids in the order of submission.

        Raises:
            LinkLost: The connection is closed or was lost.
        """
        return [record["msg_id"] for record in self.hub.records(None)]

    def db_query(self, query: dict[str, Any], keys: str | Iterable[str] | None = None) -> list[dict[str, Any]]:
        """Records of the tasks that the controller knows, of all clients.

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
