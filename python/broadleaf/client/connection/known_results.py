"""Results a client can still find by their tasks' ids. It holds none of them alive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from broadleaf.client.results.async_result import AsyncResult
from broadleaf.client.results.hub_results import AsyncHubResult, Hub, select

if TYPE_CHECKING:
    from broadleaf.client.client import Client


class RegisteredResults:
    """The part of a client that knows results by task id.

    A result is registered when it is made (direct views, maps) or when its ids are asked for (single balanced tasks,
    which are too many for that).
    """

    session: str
    hub: Hub
    _registered: WeakValueDictionary[int, AsyncResult]
    # Results of other clients' tasks that this client has asked for, by task id.
    _fetched: WeakValueDictionary[str, AsyncHubResult]

    def msg_id(self, seq: int) -> str:
        """The id of task number `seq` of this client."""
        return f"{self.session}_{seq}"

    def seq_of(self, msg_id: str) -> int | None:
        """The number of the task of this id, or None if it is none of this client's."""
        session, _, number = msg_id.rpartition("_")
        return int(number) if session == self.session and number.isdigit() else None

    def remember(self, result: Any) -> None:
        """Makes `result` known by its first task's number."""
        self._registered[result.seq] = result

    def register(self, result: AsyncResult) -> list[str]:
        """Makes `result` known, and gives the ids of its tasks."""
        ids = []
        for owner, part in result.parts():
            if part == 0 or owner is not result:
                self._registered.setdefault(owner.seq, owner)
            known_as = owner.known_as if isinstance(owner, AsyncHubResult) else ()
            ids.append(known_as[part] if known_as else self.msg_id(owner._part_seq(part)))
        return ids

    def find(self, seq: int) -> tuple[AsyncResult, int] | None:
        """The living result that task number `seq` belongs to, and its part there."""
        exact = self._registered.get(seq)
        if exact is not None and 0 not in exact.purged:
            return exact, 0
        for result in list(self._registered.values()):
            if result.seq <= seq < result.seq + result.n_parts and seq - result.seq not in result.purged:
                return result, seq - result.seq
        return None

    def get_result(self, indices_or_msg_ids: Any = None, block: bool | None = None, owner: bool = True) -> AsyncResult:
        """The result of tasks given by id, by index in the history (default: the last), or as results.

        Ids may be of other clients' tasks, also of clients that left, as long as the controller keeps their results;
        then it is an `AsyncHubResult`, unless this client holds their values already. Raises
        `KeyError` for tasks whose result is gone.
        """
        jobs = -1 if indices_or_msg_ids is None else indices_or_msg_ids
        single = isinstance(jobs, str | int | AsyncResult)
        located = self._locate(jobs)
        missing = [part for part in located if isinstance(part, str)]
        kept = iter(self.hub.result(missing, single).parts() if missing else ())
        found = [next(kept) if isinstance(part, str) else part for part in located]
        whole = found[0][0]
        if found == whole.parts() and (missing or not self._is_held(jobs)):
            result = whole
        else:
            from broadleaf.client.results.combined import CombinedResult

            result = CombinedResult.joined([CombinedResult.of_part(*part) for part in found])
            result.origin.single = single and len(found) == 1
        if missing and isinstance(whole, AsyncHubResult):
            self._fetched.update(dict.fromkeys(missing, whole))
        if block:
            result.wait()
        return result

    def _locate(self, jobs: Any) -> list[tuple[AsyncResult, int] | str]:
        """Each task's living result and part there, or its id where there is none here."""
        located: list[tuple[AsyncResult, int] | str] = []
        for job in listed(jobs):
            if isinstance(job, AsyncResult):
                located.extend(job.parts())
                continue
            seq = self.seq_of(job) if isinstance(job, str) else self._job_seq(job)
            part = self._held(job) if seq is None else self.find(seq)
            located.append(part or (self.msg_id(seq) if seq is not None else job))
        if not located:
            raise KeyError("no tasks were given")
        return located

    def _held(self, msg_id: str) -> tuple[AsyncResult, int] | None:
        """The part of a fetched result that is the task of this id, if it has its value and is still alive."""
        result = self._fetched.get(msg_id)
        if result is None or msg_id not in result.known_as:
            return None
        part = result.known_as.index(msg_id)
        has_value = result.part_done(part) and result.failure(part) is None
        return (result, part) if has_value and part not in result.purged else None

    def _is_held(self, jobs: Any) -> bool:
        """Whether jobs are given by ids of tasks whose results were fetched before."""
        return any(isinstance(job, str) and self._held(job) is not None for job in listed(jobs))

    def _ids(self, jobs: Any) -> list[str]:
        """Ids of tasks given by results, ids or indices, one or several."""
        ids: list[str] = []
        for job in listed(jobs):
            if isinstance(job, AsyncResult):
                ids.extend(job.msg_ids)
            else:
                ids.append(job if isinstance(job, str) else self.msg_id(self._job_seq(job)))
        return ids

    def _job_seq(self, job: Any) -> int:
        if isinstance(job, int):
            return self.submitted.seqs()[job]  # type: ignore[attr-defined, no-any-return]
        if not isinstance(job, str):
            raise TypeError(f"a task is given by its id, index or result, not {type(job).__name__}")
        seq = self.seq_of(job)
        if seq is None:
            raise KeyError(f"{job!r} is not the id of a task of this client")
        return seq

    def _is_foreign(self, job: Any) -> bool:
        """Whether `job` is a future whose tasks are not this client's, if it has any."""
        if isinstance(job, AsyncResult):
            return job.origin.client is not self
        return isinstance(job, Future)

    def _job_seqs(self, jobs: Any) -> list[int]:
        """Numbers of tasks given by results, ids or indices, one or several; of results, those that are not done."""
        seqs: list[int] = []
        for job in listed(jobs):
            if isinstance(job, AsyncResult):
                if self._is_foreign(job):
                    raise ValueError(f"{job!r} is a result of another client")
                seqs.extend(job._unfinished_seqs())
            else:
                seqs.append(self._job_seq(job))
        return seqs

    def result_status(self, msg_ids: Any, status_only: bool = True) -> dict[str, Any]:
        """Ids of tasks `completed` and `pending`; without `status_only` also the completed values by id.

        They may be any client's tasks that the controller knows. Raises `KeyError` for others.
        """
        ids = self._ids(msg_ids)
        seqs = [self.seq_of(msg_id) for msg_id in ids]
        parts = {msg_id: self.find(seq) for msg_id, seq in zip(ids, seqs, strict=True) if seq is not None}
        elsewhere = [msg_id for msg_id in ids if parts.get(msg_id) is None]
        records = {record["msg_id"]: record for record in self.hub.records_of(elsewhere)} if elsewhere else {}
        status: dict[str, Any] = {"completed": [], "pending": []}
        for msg_id in ids:
            located = parts.get(msg_id)
            if located is None and msg_id not in records:
                raise KeyError(f"no task is known as {msg_id!r}")
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
        """Forgets results of `jobs` (or 'all'), and of all tasks that went to the engines `targets`.

        Raises `RuntimeError` when some are not done; then none is forgotten.
        """
        if jobs == "all" or targets == "all":
            chosen = [part for result in list(self._registered.values()) for part in result.parts()]
        else:
            wanted = listed(jobs)
            here = self._locate(wanted) if wanted else []
            chosen = [part for part in here if not isinstance(part, str)]
            chosen += self._parts_at(targets)
        pending = [self.msg_id(result._part_seq(part)) for result, part in chosen if not result.part_done(part)]
        if pending:
            raise RuntimeError(f"Can't purge outstanding tasks: {pending}")
        for result, part in chosen:
            result.purged = result.purged | {part}
            if len(result.purged) == result.n_parts:
                self._registered.pop(result.seq, None)

    def _parts_at(self, targets: Any) -> list[tuple[AsyncResult, int]]:
        """The parts of known results that were sent to these engines, or ran there."""
        if targets is None or (not isinstance(targets, int | slice) and not list(targets)):
            return []
        ids = self.resolve_targets(targets)[0]  # type: ignore[attr-defined]
        return [
            (result, part)
            for result in list(self._registered.values())
            for part in range(result.n_parts)
            if result._engine_id(part) in ids
        ]

    def purge_results(self, jobs: Any = (), targets: Any = ()) -> None:
        """`purge_local_results` and `purge_hub_results`."""
        self.purge_local_results(jobs, targets)
        self.purge_hub_results(jobs, targets)

    def purge_hub_results(self, jobs: Any = (), targets: Any = ()) -> None:
        """Has the controller keep nothing of `jobs` (or 'all'), and of all ended tasks that ran on `targets`."""
        if jobs == "all" or targets == "all":
            self.hub.forget(None)
            return
        ids = self._ids(jobs)
        if targets is not None and (isinstance(targets, int | slice) or list(targets)):
            engines = self.resolve_targets(targets)[0]  # type: ignore[attr-defined]
            ids += [record["msg_id"] for record in self.hub.records(None) if record["engine_id"] in engines]
        names = [name for name in map(self.hub.name_of, ids) if name is not None]
        if names:
            self.hub.forget(names)

    def resubmit(self, indices_or_msg_ids: Any = None, metadata: Any = None, block: bool | None = None) -> AsyncResult:
        """Runs tasks again, those of other clients too: the same function, arguments and options, no dependencies.

        Raises `KeyError` for tasks of which the controller does not keep enough for that.
        """
        jobs = -1 if indices_or_msg_ids is None else indices_or_msg_ids
        result = self.hub.result(self._ids(jobs), isinstance(jobs, str | int), run_again=True)
        if block:
            result.wait()
        return result

    def hub_history(self) -> list[str]:
        """Ids of all tasks the controller knows, of all clients, in the order of submission."""
        return [record["msg_id"] for record in self.hub.records(None)]

    def db_query(self, query: dict[str, Any], keys: str | Iterable[str] | None = None) -> list[dict[str, Any]]:
        """Records of the tasks the controller knows that match `query`; see `hub_results.select`."""
        return select(self.hub.records(None), query, [keys] if isinstance(keys, str) else keys)

    def purge_everything(self) -> None:
        """Forgets all results and the history. Raises `RuntimeError` when some tasks are not done."""
        self.purge_results("all")
        self.submitted.clear()  # type: ignore[attr-defined]


def listed(jobs: Any) -> list[Any]:
    """One job, or several, as a list; a result is one, though it can be iterated over."""
    return [jobs] if isinstance(jobs, str | int | Future) else list(jobs)


class KnownResults(Mapping[str, Any]):
    """Something of every result that is done, alive, known, and nobody's own, by task id."""

    def __init__(self, client: Client, get: Callable[[AsyncResult, int], Any]) -> None:
        self._client = client
        self._get = get

    def _parts(self) -> Iterator[tuple[AsyncResult, int]]:
        for result in list(self._client._registered.values()):
            if not result.owner:
                parts = (part for part in range(result.n_parts) if part not in result.purged)
                yield from ((result, part) for part in parts if result.part_done(part))

    def __iter__(self) -> Iterator[str]:
        return (self._client.msg_id(result.seq + part) for result, part in self._parts())

    def __len__(self) -> int:
        return sum(1 for _ in self._parts())

    def __getitem__(self, msg_id: str) -> Any:
        seq = self._client.seq_of(msg_id)
        found = None if seq is None else self._client.find(seq)
        if found is None or found[0].owner or not found[0].part_done(found[1]):
            raise KeyError(msg_id)
        return self._get(*found)
