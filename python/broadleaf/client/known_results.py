"""Results a client can still find by their tasks' ids. It holds none of them alive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from broadleaf.client.results import AsyncResult

if TYPE_CHECKING:
    from broadleaf.client.client import Client


class RegisteredResults:
    """The part of a client that knows results by task id.

    A result is registered when it is made (direct views, maps) or when its ids are asked for (single balanced tasks,
    which are too many for that).
    """

    session: str
    _registered: WeakValueDictionary[int, AsyncResult]

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
            ids.append(self.msg_id(owner._part_seq(part)))
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

        Raises `KeyError` for tasks whose result is gone or that are not this client's.
        """
        jobs = -1 if indices_or_msg_ids is None else indices_or_msg_ids
        single = isinstance(jobs, str | int | AsyncResult)
        found = self._find_all(jobs)
        whole = found[0][0]
        if found == whole.parts():
            result = whole
        else:
            from broadleaf.client.combined import CombinedResult

            result = CombinedResult.joined([CombinedResult.of_part(*part) for part in found])
            result.origin.single = single and len(found) == 1
        if block:
            result.wait()
        return result

    def _find_all(self, jobs: Any) -> list[tuple[AsyncResult, int]]:
        found: list[tuple[AsyncResult, int]] = []
        for job in _listed(jobs):
            if isinstance(job, AsyncResult):
                found.extend(job.parts())
                continue
            seq = self._job_seq(job)
            part = self.find(seq)
            if part is None:
                raise KeyError(f"no result is known for task {job!r}: results live as long as you keep them")
            found.append(part)
        if not found:
            raise KeyError("no tasks were given")
        return found

    def _job_seq(self, job: Any) -> int:
        if isinstance(job, int):
            from broadleaf.client.views.base import flatten

            return flatten(self.submitted)[job]  # type: ignore[attr-defined]
        if not isinstance(job, str):
            raise TypeError(f"a task is given by its id, index or result, not {type(job).__name__}")
        seq = self.seq_of(job)
        if seq is None:
            raise KeyError(f"{job!r} is not the id of a task of this client")
        return seq

    def _job_seqs(self, jobs: Any) -> list[int]:
        """Numbers of tasks given by results, ids or indices, one or several."""
        seqs: list[int] = []
        for job in _listed(jobs):
            if isinstance(job, AsyncResult):
                seqs.extend(owner._part_seq(part) for owner, part in job.parts())
            else:
                seqs.append(self._job_seq(job))
        return seqs

    def result_status(self, msg_ids: Any, status_only: bool = True) -> dict[str, Any]:
        """Ids of tasks `completed` and `pending`; without `status_only` also the completed values by id."""
        parts = self._find_all(msg_ids)
        status: dict[str, Any] = {"completed": [], "pending": []}
        for result, part in parts:
            msg_id = self.msg_id(result._part_seq(part))
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
            wanted = _listed(jobs)
            chosen = self._find_all(wanted) if wanted else []
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
        """`purge_local_results`: the controller keeps no results that were delivered."""
        self.purge_local_results(jobs, targets)

    def purge_everything(self) -> None:
        """Forgets all results and the history. Raises `RuntimeError` when some tasks are not done."""
        self.purge_local_results("all")
        self.submitted.clear()  # type: ignore[attr-defined]


def _listed(jobs: Any) -> list[Any]:
    """One job, or several, as a list; a result is one, though it can be iterated over."""
    return [jobs] if isinstance(jobs, str | int | AsyncResult) else list(jobs)


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
