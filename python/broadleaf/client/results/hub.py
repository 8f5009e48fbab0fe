"""Results in the controller's store: of other clients, of clients that left, and of tasks run again."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from broadleaf.client.failures import STATUS_NAMES, STATUS_OK
from broadleaf.client.metadata import Metadata, combined_outputs, moment
from broadleaf.client.protocols import Origin
from broadleaf.client.results.async_result import AsyncResult
from broadleaf.client.results.execute_reply import ExecuteReply

if TYPE_CHECKING:
    from broadleaf.client.protocols import Client

TaskName = tuple[int, int]
"""A task of any client: the client's number, and the task's number there."""

# The engine id that means "no engine".
_NO_ENGINE = 2**32 - 1
# Maximum number of tasks in one request.
_BATCH = 50_000
# What `broadleaf.engine.operations.execute` returns has these.
_REPLY_KEYS = frozenset(("status", "execution_count", "execute_result", "engine_id"))
_FIRST_BATCH = 256


class AsyncHubResult(AsyncResult):
    """The result of tasks that this client did not submit, or no longer holds, as the controller returns it.

    Values are as the engines returned them: a map's tasks give one list per chunk. Executed code has `ExecuteReply`
    objects with the latest output and displays. Only the client that submitted other tasks knows what they wrote.
    """

    _kind = "AsyncHubResult"
    _internal_names = frozenset(("known_as", "submitted_at"))
    # Ids and submission times of the requested tasks; a result of tasks run again has its own.
    known_as: tuple[str, ...] = ()
    submitted_at: tuple[int, ...] = ()

    @property
    def msg_ids(self) -> list[str]:
        """The ids of the tasks, which are the same for all clients."""
        return list(self.known_as) or super().msg_ids

    def _task_name(self, part: int) -> TaskName | None:
        return self.origin.client.hub.name_of(self.known_as[part]) if self.known_as else super()._task_name(part)

    def cancel(self) -> bool:
        """Aborts tasks that were run again by `Client.resubmit`.

        Other tasks can only be aborted by the client that submitted them.

        Returns:
            Whether the tasks are cancelled.

        Raises:
            LinkLost: The connection is closed or was lost.
        """
        return self.cancelled() if self.known_as else super().cancel()

    def part_metadata(self, part: int) -> Metadata:
        """What is known about one task."""
        metadata = super().part_metadata(part)
        if self.known_as:
            metadata.update(msg_id=self.known_as[part], submitted=moment(self.submitted_at[part]))
        metadata.update(self._kept_output(part))
        return metadata

    def _part_value(self, part: int) -> Any:
        value = self.value(part)
        return ExecuteReply(value, self.part_metadata(part)) if _is_reply(value) else value

    def _kept_output(self, part: int) -> dict[str, Any]:
        """For executed code: its value and output, as far as the reply has them."""
        status = self.part_status(part)
        if status == STATUS_OK:
            value = self.value(part)
            if not _is_reply(value):
                return {}
            output, found = value.get("output", {}), {"execute_result": value["execute_result"]}
        elif status > STATUS_OK:
            output, found = getattr(self.failure(part), "engine_info", {}).get("output", {}), {}
        else:
            return {}
        found.update((name, output[name]) for name in ("stdout", "stderr") if name in output)
        if "displays" in output:
            found["outputs"] = combined_outputs(output["displays"])[0]
        return found


def _is_reply(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() >= _REPLY_KEYS


class Hub:
    """A client's queries about tasks that the controller knows: live ones, and ended ones that it keeps."""

    def __init__(self, client: Client, cluster_key: str) -> None:
        self._client = client
        self._cluster_key = cluster_key
        self._clock_offset_ns: int | None = None
        self._submitters: dict[tuple[bool, bool], Any] = {}

    def of_successor(self) -> Hub:
        """The same for a controller that was started again."""
        return Hub(self._client, self._cluster_key)

    def session(self, client_id: int) -> str:
        """The prefix of a client's task ids, which differs from that of any other client of any cluster."""
        return f"{self._cluster_key}-{client_id}"

    def name_of(self, msg_id: str) -> TaskName | None:
        """The task with this id, or None if it does not belong to this cluster."""
        session, _, seq = msg_id.rpartition("_")
        key, _, client_id = session.rpartition("-")
        if key != self._cluster_key or not seq.isdigit() or not client_id.isdigit():
            return None
        return int(client_id), int(seq)

    def records(self, names: Sequence[TaskName] | None) -> list[dict[str, Any]]:
        """The record of each of these tasks that is known, or of all, in the order of submission."""
        batches = [None] if names is None else [list(names[i : i + _BATCH]) for i in range(0, len(names), _BATCH)]
        raw: list[dict[str, Any]] = []
        for batch in batches:
            content = self._client.request({"Records": batch}, timeout=60.0)
            if self._clock_offset_ns is None:
                # Read once, so that a task's time is the same whenever this client asks.
                self._clock_offset_ns = time.time_ns() - content["now_ns"]
            raw += content["records"]
        raw.sort(key=lambda record: (record["submitted_ns"], record["client"], record["seq"]))
        return [self._record(fields) for fields in raw]

    def any_runs(self, names: Sequence[TaskName]) -> bool:
        """Whether one of these tasks is running."""
        # Mostly the first unfinished ones, so these are requested first.
        batches = names[:_FIRST_BATCH], names[_FIRST_BATCH:]
        return any(record["running"] for batch in batches if batch for record in self.records(batch))

    def not_running(self, seqs: Sequence[int]) -> list[int]:
        """Numbers of those among this client's tasks that are not running."""
        client_id = self._client.link.client_id
        running = {record["msg_id"] for record in self.records([(client_id, seq) for seq in seqs]) if record["running"]}
        return [seq for seq in seqs if self._client.tasks.msg_id(seq) not in running]

    def records_of(self, msg_ids: Sequence[str]) -> list[dict[str, Any]]:
        """The record of each known task with one of these ids."""
        names = [name for name in map(self.name_of, msg_ids) if name is not None]
        return self.records(names) if names else []

    def _record(self, fields: dict[str, Any]) -> dict[str, Any]:
        session = self.session(fields["client"])
        engine = None if fields["engine"] == _NO_ENGINE else fields["engine"]
        msg_id = f"{session}_{fields['seq']}"
        submitted_ns = fields["submitted_ns"] + (self._clock_offset_ns or 0)
        submitted = moment(submitted_ns)
        status = None if fields["status"] is None else STATUS_NAMES[fields["status"]]
        completed = moment(fields["completed_ns"])
        return {
            "msg_id": msg_id,
            "client_uuid": session,
            "engine_id": engine,
            "engine_uuid": None if engine is None else self._client.engine_uuid(engine),
            "header": {"msg_id": msg_id, "session": session, "date": submitted},
            "submitted": submitted,
            "submitted_ns": submitted_ns,
            "started": moment(fields["started_ns"]),
            "completed": completed,
            "received": completed,
            "status": status,
            "running": fields["is_running"],
            "label": fields["label"] or None,
            "has_result": fields["has_result"],
            "can_run_again": fields["can_run_again"],
        }

    def result(self, msg_ids: Sequence[str], single: bool, run_again: bool = False) -> AsyncHubResult:
        """The result of tasks by their ids. Raises `KeyError` if the controller does not have a result."""
        names = []
        for msg_id in msg_ids:
            name = self.name_of(msg_id)
            if name is None:
                raise KeyError(f"{msg_id!r} is not the id of a task in this cluster")
            names.append(name)
        wanted = "can_run_again" if run_again else "has_result"
        known = {record["msg_id"]: record for record in self.records(names) if record[wanted]}
        for msg_id in msg_ids:
            if msg_id not in known:
                what = "cannot be run again" if run_again else "has no result"
                raise KeyError(
                    f"task {msg_id!r} {what}: neither this client nor the cluster has kept what is needed; see the "
                    "option kept_results_bytes"
                )
        submitter = self._submitters.get((single, run_again))
        client = self._client
        if submitter is None:
            origin = Origin(client, None, single)
            histories = (client.tasks.history,) if run_again else ()
            adopted = client.result_types.adopted
            submitter = client.native.Submitter(client.link, adopted, origin, 0, 0, histories=histories)
            self._submitters[single, run_again] = submitter
        try:
            with client.link_errors():
                result: AsyncHubResult = submitter.subscribe(_kept_task, names, run_again)
            if run_again:
                client.tasks.remember(result)
                return result
        except KeyboardInterrupt:
            client.abort_begun()
            raise
        result.known_as = tuple(msg_ids)
        result.submitted_at = tuple(known[msg_id]["submitted_ns"] for msg_id in msg_ids)
        return result

    def forget(self, names: Sequence[TaskName] | None) -> None:
        """Makes the controller forget these ended tasks, or all of them."""
        if names is None:
            self._client.request({"Forget": None})
            return
        for i in range(0, len(names), _BATCH):
            self._client.request({"Forget": list(names[i : i + _BATCH])})


def _kept_task() -> None:
    """Stands for the function of a task that somebody else submitted."""


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "$eq": operator.eq,
    "$ne": operator.ne,
    "$lt": operator.lt,
    "$gt": operator.gt,
    "$lte": operator.le,
    "$gte": operator.ge,
    "$in": lambda value, wanted: value in wanted,
    "$nin": lambda value, wanted: value not in wanted,
    "$glob": lambda value, pattern: fnmatchcase(value, pattern),
}


def select(
    records: Iterable[dict[str, Any]], query: dict[str, Any], keys: Iterable[str] | None
) -> list[dict[str, Any]]:
    """The records that match `query`, with `msg_id` and these keys only.

    A query gives each key a value, or a dict of operators ($eq, $ne, $lt, $gt, $lte, $gte, $in, $nin, $glob). A
    comparison with an unknown time or text is false. Raises `ValueError` for unknown operators.
    """
    tests = [(key, op, wanted) for key, condition in query.items() for op, wanted in _conditions(condition)]
    found = [record for record in records if all(_holds(record.get(key), op, wanted) for key, op, wanted in tests)]
    if keys is None:
        return found
    chosen = ["msg_id", *(key for key in keys if key != "msg_id")]
    return [{key: record.get(key) for key in chosen} for record in found]


def _conditions(condition: Any) -> list[tuple[str, Any]]:
    if not isinstance(condition, dict) or not any(str(key).startswith("$") for key in condition):
        return [("$eq", condition)]
    for op in condition:
        if op not in _OPERATORS:
            raise ValueError(f"{op!r} is not a query operator; choose from {', '.join(_OPERATORS)}")
    return list(condition.items())


def _holds(value: Any, op: str, wanted: Any) -> bool:
    if isinstance(value, datetime) and isinstance(wanted, datetime) and wanted.tzinfo is None:
        wanted = wanted.astimezone()
    if value is None and op not in ("$eq", "$ne", "$in", "$nin"):
        return False
    return _OPERATORS[op](value, wanted)
