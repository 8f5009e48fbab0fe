"""Which live result each task of a client belongs to. It keeps none of them alive."""

from __future__ import annotations

from bisect import bisect_right
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from broadleaf.client.results.async_result import AsyncResult
from broadleaf.client.results.hub import AsyncHubResult

if TYPE_CHECKING:
    from broadleaf._native import History


def listed(jobs: Any) -> list[Any]:
    """One job or several, as a list. A result counts as one, although it is iterable."""
    return [jobs] if isinstance(jobs, str | int | Future) else list(jobs)


class TaskIndex:
    """A client's tasks by number and id.

    A result is registered when it is made (direct views, maps) or when its ids are requested (single load-balanced
    tasks, of which there are too many).
    """

    def __init__(self, history: History) -> None:
        self.history: History = history
        """The numbers of the last tasks submitted, a `_native.History`."""
        self.session: str = ""
        """What the ids of the tasks that this client submits now start with; known once there is a connection."""
        # The number of the first task of each session, and what the ids of its tasks start with, oldest first.
        self._firsts: list[int] = []
        self._sessions: list[str] = []
        self._registered: WeakValueDictionary[int, AsyncResult] = WeakValueDictionary()
        # Results that this client has requested of other clients' tasks, by task id.
        self._fetched: WeakValueDictionary[str, AsyncHubResult] = WeakValueDictionary()

    def begin_session(self, first: int, session: str) -> None:
        """From this number on, ids of tasks start with `session`: the client's name at a controller."""
        self._firsts.append(first)
        self._sessions.append(session)
        self.session = session

    def session_number(self, seq: int) -> int:
        """To which session task number `seq` belongs, counted from 0."""
        return max(0, bisect_right(self._firsts, seq) - 1)

    def msg_id(self, seq: int) -> str:
        """The id of task number `seq` of this client."""
        return f"{self._sessions[self.session_number(seq)]}_{seq}"

    def seq_of(self, msg_id: str) -> int | None:
        """The number of the task with this id, or None if it does not belong to this client."""
        _, _, number = msg_id.rpartition("_")
        return int(number) if number.isdigit() and self.msg_id(int(number)) == msg_id else None

    def msg_ids(self) -> list[str]:
        """Ids of the last tasks submitted, oldest first."""
        return [self.msg_id(seq) for seq in self.history.seqs()]

    # Results ------------------------------------------------------------------------------------

    def results(self) -> list[AsyncResult]:
        """The registered results that are alive."""
        return list(self._registered.values())

    def remember(self, result: Any) -> None:
        """Registers `result` under its first task's number."""
        self._registered[result.seq] = result

    def register(self, result: AsyncResult) -> list[str]:
        """Registers `result` and returns the ids of its tasks."""
        ids = []
        for owner, part in result.parts():
            if part == 0 or owner is not result:
                self._registered.setdefault(owner.seq, owner)
            known_as = owner.known_as if isinstance(owner, AsyncHubResult) else ()
            ids.append(known_as[part] if known_as else self.msg_id(owner._part_seq(part)))
        return ids

    def remember_fetched(self, msg_ids: list[str], result: AsyncHubResult) -> None:
        """Registers the result of other clients' tasks under their ids."""
        self._fetched.update(dict.fromkeys(msg_ids, result))

    def forget(self, result: AsyncResult, part: int) -> None:
        """Unregisters one part of a result."""
        result.purged = result.purged | {part}
        if len(result.purged) == result.n_parts:
            self._registered.pop(result.seq, None)

    def find(self, seq: int) -> tuple[AsyncResult, int] | None:
        """The live result that task number `seq` belongs to, and its part there."""
        exact = self._registered.get(seq)
        if exact is not None and 0 not in exact.purged:
            return exact, 0
        for result in self.results():
            if result.seq <= seq < result.seq + result.n_parts and seq - result.seq not in result.purged:
                return result, seq - result.seq
        return None

    def locate(self, jobs: Any) -> list[tuple[AsyncResult, int] | str]:
        """Each task's live result and its part there, or the task's id if there is no result here."""
        located: list[tuple[AsyncResult, int] | str] = []
        for job in listed(jobs):
            if isinstance(job, AsyncResult):
                located.extend(job.parts())
                continue
            seq = self.seq_of(job) if isinstance(job, str) else self.seq(job)
            part = self._held(job) if seq is None else self.find(seq)
            located.append(part or (self.msg_id(seq) if seq is not None else job))
        if not located:
            raise KeyError("give at least one task")
        return located

    def _held(self, msg_id: str) -> tuple[AsyncResult, int] | None:
        """The part of a fetched result for the task with this id, if it has its value and is still alive."""
        result = self._fetched.get(msg_id)
        if result is None or msg_id not in result.known_as:
            return None
        part = result.known_as.index(msg_id)
        has_value = result.part_done(part) and result.failure(part) is None
        return (result, part) if has_value and part not in result.purged else None

    def is_held(self, jobs: Any) -> bool:
        """Whether the jobs are ids of tasks whose results were fetched before."""
        return any(isinstance(job, str) and self._held(job) is not None for job in listed(jobs))

    # Jobs: results, ids, or indices of the history ----------------------------------------------

    def ids(self, jobs: Any) -> list[str]:
        """Ids of tasks given by results, ids or indices, one or several."""
        ids: list[str] = []
        for job in listed(jobs):
            if isinstance(job, AsyncResult):
                ids.extend(job.msg_ids)
            else:
                ids.append(job if isinstance(job, str) else self.msg_id(self.seq(job)))
        return ids

    def seq(self, job: Any) -> int:
        """The number of a task given by id or index. Raises `KeyError` for another client's task, and `TypeError` for
        anything else."""
        if isinstance(job, int):
            return self.history.seqs()[job]
        if not isinstance(job, str):
            raise TypeError(
                f"a task is specified by its id, index or result, not by a value of type {type(job).__name__}"
            )
        seq = self.seq_of(job)
        if seq is None:
            raise KeyError(f"{job!r} is not the id of one of this client's tasks")
        return seq

    def is_foreign(self, job: Any) -> bool:
        """Whether `job` is a future that has no tasks of this client."""
        if isinstance(job, AsyncResult):
            return job.origin.client.tasks is not self
        return isinstance(job, Future)

    def seqs(self, jobs: Any) -> list[int]:
        """Numbers of tasks given by results, ids or indices, one or several; for results, only tasks that are not
        done."""
        seqs: list[int] = []
        for job in listed(jobs):
            if isinstance(job, AsyncResult):
                if self.is_foreign(job):
                    raise ValueError(f"{job!r} is a result of another client")
                seqs.extend(job._unfinished_seqs())
            else:
                seqs.append(self.seq(job))
        return seqs
