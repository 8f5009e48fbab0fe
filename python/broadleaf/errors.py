"""Every exception Broadleaf raises, under the names users of IPython Parallel know, and a few of our own.

Whatever a task ends in but its value arrives as a `RemoteError`: `except RemoteError` catches an exception raised by
the task itself and every verdict of the cluster about it (aborted, timed out, refused, engine lost).
"""

from __future__ import annotations

import builtins
import sys
import traceback as _traceback
from collections.abc import Iterable, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

__all__ = [
    "AlreadyDisplayedError",
    "AuthenticationFailed",
    "ClusterConnectionError",
    "ClusterStopping",
    "CompositeError",
    "DeathCertificate",
    "DependencyTimeout",
    "EngineError",
    "IPythonError",
    "ImpossibleDependency",
    "InPlaceMismatch",
    "InvalidDependency",
    "KernelError",
    "LinkLost",
    "NoEnginesRegistered",
    "OverLimit",
    "RemoteError",
    "SerializationError",
    "TaskAborted",
    "TaskRejectError",
    "TaskTimeout",
    "TimeoutError",
    "UnmetDependency",
    "VersionMismatch",
    "collect_exceptions",
    "unwrap_exception",
    "wrap_exception",
]

Results = TypeVar("Results", list[Any], tuple[Any, ...], dict[Any, Any])

# One name for "not ready in time", the builtin one.
TimeoutError = builtins.TimeoutError


class IPythonError(Exception):
    """Base of all exceptions here."""


class KernelError(IPythonError):
    """Something went wrong between this process and the engines, or on them."""


class ClusterConnectionError(KernelError, ConnectionError):
    """No connection to the controller, or no longer one."""


class VersionMismatch(ClusterConnectionError):
    """Client and controller differ in Broadleaf's or Python's version."""


class AuthenticationFailed(ClusterConnectionError):
    """The controller belongs to another cluster or user, or the keys do not fit."""


class LinkLost(ClusterConnectionError):
    """The connection to the controller is closed or was lost."""


class SerializationError(KernelError, TypeError):
    """An object cannot be sent. `what` names it ("argument 2 of 'f'"), `reason` says why."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)
        self.what = what
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.what} cannot be sent: {self.reason}"


class InPlaceMismatch(KernelError, ValueError):
    """A value cannot be overwritten in place by another: of another shape, dtype, order or kind, or read-only."""


class RemoteError(KernelError):
    """A task did not return.

    `ename` and `evalue` are the exception's type and text on the engine, `traceback` its text there, `engine_info` a
    dict of `engine_id`, `engine_uuid` and `method`. Where the exception could be sent, it is the `__cause__`.
    """

    ename: str
    evalue: str
    traceback: str
    engine_info: dict[str, Any]

    def __init__(
        self, ename: str, evalue: str, traceback: str | None = None, engine_info: Mapping[str, Any] | None = None
    ) -> None:
        self.ename = ename
        self.evalue = evalue
        self.traceback = traceback or ""
        self.engine_info = dict(engine_info or {})
        self.args = (ename, evalue)

    def __reduce__(self) -> tuple[Any, ...]:
        state = {k: v for k, v in self.__dict__.items() if not k.startswith("__")}
        return _rebuild, (type(self), self.args, state)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}[{self.engine_info.get('engine_id', ' ')}]:{self.ename}({self.evalue})>"

    def __str__(self) -> str:
        return f"{_engine_label(self.engine_info)} {self.ename}: {self.evalue}"

    def render_traceback(self) -> list[str]:
        """The remote traceback as lines, the engine's name first."""
        text = self.traceback or "No traceback available"
        return [_engine_label(self.engine_info), *text.splitlines()]

    def _render_traceback_(self) -> list[str]:
        # IPython shows this in place of the local traceback.
        return self.render_traceback()

    def print_traceback(self, excid: int | None = None) -> None:
        """Prints `render_traceback`."""
        print("\n".join(self.render_traceback()))


def fresh(error: BaseException) -> BaseException:
    """A copy of `error` to raise.

    A result keeps its exception. Raising that very object would hang the frames it passes, and with them the result,
    on it: a cycle through native objects, which the garbage collector cannot see.
    """
    made = _rebuild(type(error), error.args, error.__dict__)
    made.__cause__ = error.__cause__
    made.__suppress_context__ = error.__suppress_context__
    return made


def _rebuild(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


def _engine_label(engine_info: Mapping[str, Any]) -> str:
    if "engine_id" not in engine_info:
        return "[Engine Exception]"
    return f"[{engine_info['engine_id']}:{engine_info.get('method', 'apply')}]"


class Verdict(RemoteError):
    """A task that did not return for a reason its own code did not give."""

    def __init__(self, message: str = "", engine_info: Mapping[str, Any] | None = None) -> None:
        super().__init__(type(self).__name__, message, None, engine_info)
        self.args = (message,) if message else ()

    def __str__(self) -> str:
        label = f"[engine {self.engine_info['engine_id']}] " if "engine_id" in self.engine_info else ""
        return label + (self.evalue or (type(self).__doc__ or "").splitlines()[0])

    def render_traceback(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


@dataclass(frozen=True)
class DeathCertificate:
    """Everything known of an engine's death."""

    engine_id: int
    uuid: str = ""
    pid: int = 0
    host: str = ""
    cause: str = "disconnected"
    """'exit', 'signal', 'out_of_memory', 'killed_by_timeout', 'stopped', 'host_gone' or 'disconnected'."""
    code: int | None = None
    """Exit code or signal number, for these two causes."""
    last_output: str = ""
    task_started: bool = False
    """Whether the task had been started on it."""

    @property
    def reason(self) -> str:
        """The cause as a clause of a sentence: 'was ended by signal 11 (SIGSEGV)'."""
        if self.cause == "exit":
            return f"left with exit code {self.code}"
        if self.cause == "signal":
            return f"was ended by signal {self.code}{_signal_name(self.code)}"
        return {
            "out_of_memory": "was ended by the kernel because memory ran out",
            "killed_by_timeout": "was killed because its task outlived its timeout and an interrupt",
            "stopped": "was stopped on request",
            "host_gone": "is gone with its host: the relay there ended, or the link to it is cut",
        }.get(self.cause, "lost its connection; its fate is unknown")

    @property
    def advice(self) -> str:
        """What the user may do about it."""
        if self.cause == "out_of_memory":
            return "Start fewer engines per host, or send less at a time."
        if self.cause in ("stopped", "disconnected"):
            return "Submit again to the engines that are left, or restart it with cluster.restart_engines()."
        return "Set retries=1 on the view to run such tasks again elsewhere, or look at the last output."


def _signal_name(number: int | None) -> str:
    import signal

    try:
        return f" ({signal.Signals(number).name})" if number is not None else ""
    except ValueError:
        return ""


class EngineError(Verdict):
    """The engine died. `certificate` says all that is known."""

    def __init__(
        self,
        message: str = "",
        engine_info: Mapping[str, Any] | None = None,
        certificate: DeathCertificate | None = None,
    ) -> None:
        if certificate is not None and not message:
            message = _obituary(certificate)
        super().__init__(message, engine_info)
        self.certificate = certificate

    def __str__(self) -> str:
        return self.evalue or "The engine died."


def _obituary(certificate: DeathCertificate) -> str:
    c = certificate
    host = f" on {c.host}" if c.host else ""
    parts = [
        f"engine {c.engine_id} (pid {c.pid}{host}) {c.reason}"
        f"{' while it ran this task' if c.task_started else ' before it started this task'}."
    ]
    if c.last_output.strip():
        last = "\n".join("  | " + line for line in c.last_output.strip().splitlines()[-10:])
        parts.append(f"Its last output:\n{last}\n{c.advice}")
    else:
        parts.append(c.advice)
    return " ".join(parts)


class NoEnginesRegistered(Verdict):
    """This needs engines and there are none. client.wait_for_engines(n) waits for them."""


class TaskAborted(Verdict, CancelledError):
    """The task was aborted."""


class TaskTimeout(Verdict):
    """The task ran longer than its timeout and was stopped."""


class OverLimit(Verdict):
    """Over this client's bound on unresolved tasks or bytes."""


class ResultNotKept(Verdict):
    """The cluster has no result, or no longer, of this task of another time or client."""


class ClusterStopping(Verdict):
    """The cluster is stopping."""


class UnmetDependency(Verdict):
    """A functional dependency does not hold on this engine."""


class ImpossibleDependency(UnmetDependency):
    """A dependency that can never be met."""


class DependencyTimeout(ImpossibleDependency):
    """Dependencies were not met in time."""


class InvalidDependency(ImpossibleDependency):
    """A dependency on itself, on a later task, or on no task of this client."""


class TaskRejectError(KernelError):
    """Raised by a task to say that this engine is the wrong one; with `retries` it is tried elsewhere."""


class CompositeError(RemoteError):
    """Several tasks of one request did not return.

    `elist` has (ename, evalue, traceback, engine_info) of each, `exceptions` the exceptions themselves.
    """

    tb_limit = 4

    def __init__(
        self,
        message: str,
        elist: Iterable[tuple[str, Any, str, dict[str, Any]]],
        exceptions: Iterable[BaseException] = (),
    ) -> None:
        self.msg = message
        self.elist = list(elist)
        self.exceptions = list(exceptions)
        self.ename = "CompositeError"
        self.evalue = message
        self.traceback = ""
        self.engine_info = {}
        self.args = tuple(entry[0] for entry in self.elist)

    def __repr__(self) -> str:
        return f"CompositeError({len(self.elist)})"

    def __str__(self) -> str:
        lines = [str(self.msg)]
        for ename, evalue, _, engine_info in self.elist[: self.tb_limit]:
            lines.append(f"{_engine_label(engine_info)}{ename}: {evalue}")
        if len(self.elist) > self.tb_limit:
            lines.append(f".... {len(self.elist) - self.tb_limit} more exceptions ...")
        return "\n".join(lines)

    def render_traceback(self, excid: int | None = None) -> list[str]:
        """The first `tb_limit` tracebacks as lines, or number `excid`."""
        lines: list[str] = []
        shown = self.elist[: self.tb_limit] if excid is None else [self._entry(excid)]
        for ename, evalue, text, engine_info in shown:
            lines.append(_engine_label(engine_info) + ":")
            lines.extend((text or f"{ename}: {evalue}").splitlines())
            if excid is None:
                lines.append("")
        if excid is None and len(self.elist) > self.tb_limit:
            lines.append(f"... {len(self.elist) - self.tb_limit} more exceptions ...")
        return lines

    def _entry(self, excid: int) -> tuple[str, Any, str, dict[str, Any]]:
        try:
            return self.elist[excid]
        except IndexError:
            raise IndexError(f"an exception with index {excid} does not exist") from None

    def print_traceback(self, excid: int | None = None) -> None:
        print("\n".join(self.render_traceback(excid)))

    def raise_exception(self, excid: int = 0) -> NoReturn:
        """Raises one of them, as a single engine's error is raised."""
        entry = self._entry(excid)
        if self.exceptions:
            raise fresh(self.exceptions[excid])
        raise RemoteError(*entry)


class AlreadyDisplayedError(RemoteError):
    """Stands for a CompositeError whose tracebacks were shown while output was streamed."""

    def __init__(self, original_error: CompositeError) -> None:
        self.original_error = original_error
        self.n = len(original_error.elist)
        super().__init__("AlreadyDisplayedError", f"{self.n} errors")

    def __repr__(self) -> str:
        return f"<AlreadyDisplayedError({self.n} errors)>"

    def __str__(self) -> str:
        return f"{self.n} errors"

    def render_traceback(self) -> list[str]:
        return [str(self)]


def collect_exceptions(results: Results, method: str = "unspecified") -> Results:
    """`results` unchanged when no value is a remote error, else raises the CompositeError of those that are."""
    values = results.values() if isinstance(results, dict) else results
    exceptions = [value for value in values if isinstance(value, RemoteError | SerializationError)]
    if exceptions:
        raise composite(exceptions, method)
    return results


def composite(exceptions: Iterable[BaseException], method: str) -> CompositeError:
    """One CompositeError of several exceptions; composites among them are taken apart."""
    elist: list[tuple[str, Any, str, dict[str, Any]]] = []
    flat: list[BaseException] = []
    for error in exceptions:
        if isinstance(error, CompositeError):
            elist.extend(error.elist)
            flat.extend(error.exceptions)
        elif isinstance(error, RemoteError):
            elist.append((error.ename, error.evalue, error.traceback, error.engine_info))
            flat.append(error)
        else:
            elist.append((type(error).__name__, str(error), "", {}))
            flat.append(error)
    return CompositeError(f"one or more exceptions raised in: {method}", elist, flat)


def wrap_exception(engine_info: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The exception being handled as a plain dict."""
    kind, error, tb = sys.exc_info()
    return {
        "status": "error",
        "traceback": _traceback.format_exception(kind, error, tb),
        "ename": kind.__name__ if kind else "",
        "evalue": str(error),
        "engine_info": dict(engine_info or {}),
    }


def unwrap_exception(content: Mapping[str, Any]) -> RemoteError:
    """The RemoteError of what `wrap_exception` gave."""
    return RemoteError(
        content["ename"], content["evalue"], "\n".join(content["traceback"]), content.get("engine_info", {})
    )
