"""Turns the way a task ended into the exception that reports it. Only this table knows both sides."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from broadleaf.client.protocols import Origin
from broadleaf.errors import (
    AuthenticationFailed,
    BroadleafError,
    ClusterConnectionError,
    ClusterStopping,
    DeathCertificate,
    DependencyTimeout,
    EngineError,
    ImpossibleDependency,
    InvalidDependency,
    LinkLost,
    NoEnginesRegistered,
    OverLimit,
    RemoteError,
    ResultNotKept,
    TaskAborted,
    TaskTimeout,
    Undeliverable,
    Verdict,
    VersionMismatch,
)
from broadleaf.requests import why_gone
from broadleaf.serialize.errors import ErrorRecord, remote_error

# The same as `_native.STATUS_*`, repeated here so that results can be read without the native module.
STATUS_PENDING = -1
STATUS_OK = 0
STATUS_ERROR = 1
STATUS_CANCELLED = 2
STATUS_TIMEOUT = 3
STATUS_REFUSED = 4
STATUS_LOST = 5

STATUS_NAMES: dict[int, str | None] = {
    STATUS_PENDING: None,
    STATUS_OK: "ok",
    STATUS_ERROR: "error",
    STATUS_CANCELLED: "aborted",
    STATUS_TIMEOUT: "timeout",
    STATUS_REFUSED: "refused",
    STATUS_LOST: "lost",
}

REFUSALS: dict[str, tuple[type[Verdict], str]] = {
    "NoEngines": (
        NoEnginesRegistered,
        "no engine of the view's targets exists; wait for some with client.wait_for_engines(n)",
    ),
    "NoSuchEngine": (EngineError, "engine {detail} does not exist, or no longer exists"),
    "Undefined": (Verdict, "the controller does not know the task's function or options"),
    "ImpossibleDependency": (ImpossibleDependency, "a task that this one depends on failed, or cannot be followed"),
    "InvalidDependency": (InvalidDependency, "a dependency on itself, on a later task, or on an unknown task"),
    "UnmetEverywhere": (ImpossibleDependency, "no engine meets the task's @depend or @require condition; {detail}"),
    "OverLimit": (OverLimit, "this client has too many unresolved tasks or bytes; collect results first"),
    "NotStored": (ResultNotKept, "the cluster does not keep this task's result, or what it takes to run it again"),
    "Undeliverable": (Undeliverable, "its data could not be transferred between hosts: {detail}"),
    "Stopping": (ClusterStopping, "the cluster is stopping"),
}

CONNECTION_REFUSALS: dict[str, type[ClusterConnectionError]] = {
    "version": VersionMismatch,
    "python": VersionMismatch,
    "identity": AuthenticationFailed,
    "full": ClusterConnectionError,
    "malformed": ClusterConnectionError,
}


def connection_error(error: BaseException) -> ClusterConnectionError:
    """The exception for a connection the controller refused: `error.args` is (kind, message)."""
    kind, message = (*error.args, "", "")[:2]
    return CONNECTION_REFUSALS.get(kind, ClusterConnectionError)(message or str(error))


def link_lost(error: BaseException) -> LinkLost:
    """The exception for a closed or lost connection."""
    return LinkLost(str(error) or "the connection to the controller is closed")


def decode_failure(status: int, payload: bytes, engine_id: int, origin: Origin) -> RemoteError:
    """The exception of a task that did not return and did not raise: `status` and `payload` say how it ended."""
    info = _engine_info(engine_id, origin)
    if status == STATUS_CANCELLED:
        return TaskAborted("", info)
    if status == STATUS_TIMEOUT:
        if engine_id < 0:
            return DependencyTimeout("its dependencies were not met in time", info)
        limit = f" of {origin.timeout_s:g} s" if origin.timeout_s else ""
        return TaskTimeout(f"the task ran longer than its timeout{limit} and was stopped", info)
    reason = _json(payload)
    if status == STATUS_LOST:
        certificate = _with_block_end(death_certificate(reason, engine_id), origin)
        return EngineError("", info or {"engine_id": certificate.engine_id}, certificate, origin.retries)
    known = _known_death(reason, origin)
    return EngineError("", info, known) if known is not None else refusal(reason, info)


def raised_by_task(record: ErrorRecord, engine_id: int, origin: Origin) -> RemoteError:
    """The exception that the record of a task describes."""
    error = remote_error(record)
    error.engine_info = {**error.engine_info, **_engine_info(engine_id, origin)}
    return error


def _engine_info(engine_id: int, origin: Origin) -> dict[str, Any]:
    if engine_id < 0:
        return {}
    uuid = origin.client.engine_uuid(engine_id)
    return {"engine_id": engine_id, "engine_uuid": uuid, "method": origin.method}


def _with_block_end(certificate: DeathCertificate, origin: Origin) -> DeathCertificate:
    """Adds the scheduler's reason if the engine was lost with its host and anybody knows it."""
    if certificate.cause != "host_gone":
        return certificate
    cluster, link = origin.client.cluster, origin.client.link
    try:
        why = why_gone(link, certificate.host) if cluster is None else cluster.why_gone(certificate.host)
    except (BroadleafError, TimeoutError, OSError):
        why = ""  # the cluster has ended
    return certificate._replace(block_end=why)


def _known_death(reason: Any, origin: Origin) -> DeathCertificate | None:
    """What the client knows about an engine that died before the task reached the controller."""
    if not isinstance(reason, dict) or "NoSuchEngine" not in reason:
        return None
    certificate = origin.client.death_certificate(reason["NoSuchEngine"])
    return certificate and _with_block_end(certificate._replace(task_started=False), origin)


def refusal(reason: Any, engine_info: Mapping[str, Any] | None = None) -> Verdict:
    """The exception of a refused task; `reason` is the decoded JSON of a RefusalReason."""
    name, detail = next(iter(reason.items())) if isinstance(reason, dict) and reason else (reason, None)
    kind, text = REFUSALS.get(str(name), (Verdict, f"the task was refused: {name}"))
    return kind(text.format(detail=detail), engine_info)


def death_certificate(fields: Any, engine_id: int = -1) -> DeathCertificate:
    """The certificate for the decoded JSON of a DeathCertificate."""
    if not isinstance(fields, dict):
        return DeathCertificate(engine_id)
    cause, code = fields.get("cause", "Disconnected"), None
    if isinstance(cause, dict):
        cause, code = next(iter(cause.items()))
    return DeathCertificate(
        engine_id=fields.get("engine", engine_id),
        uuid=fields.get("uuid", ""),
        pid=fields.get("pid", 0),
        host=fields.get("host", ""),
        cause="".join("_" + c.lower() if c.isupper() else c for c in cause).lstrip("_"),
        code=code,
        last_output=fields.get("last_output", ""),
        task_started=bool(fields.get("task_started", False)),
    )


def _json(payload: bytes) -> Any:
    try:
        return json.loads(payload) if payload else None
    except ValueError:
        return None
