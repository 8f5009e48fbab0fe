"""Every exception Broadleaf raises, under the names users of IPython Parallel know, and a few of our own.

If a task ends in anything but its value, that arrives as a `RemoteError`: `except RemoteError` catches both an
exception raised by the task itself and every verdict of the cluster about it (aborted, timed out, refused, engine
lost).
"""

from __future__ import annotations

import builtins
import sys
import traceback as _traceback
from collections.abc import Iterable, Mapping
from importlib import import_module
from pickle import PicklingError
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from broadleaf.errors.display import (
    composite_lines,
    composite_notes,
    composite_summary,
    engine_label,
    headline,
    ipython_traceback,
    remote_note,
    render_in_ipython,
)
from broadleaf.errors.types import blank, can_be_raised, common_type, copy_of, joint_error, load_exception, set_cause
from broadleaf.text import count

if TYPE_CHECKING:
    from broadleaf.errors.aborted import TaskAborted as TaskAborted
    from broadleaf.errors.death_certificate import ControllerDeath
    from broadleaf.errors.death_certificate import DeathCertificate as DeathCertificate

__all__ = [
    "AlreadyDisplayedError",
    "AuthenticationFailed",
    "BroadleafError",
    "ClusterConnectionError",
    "ClusterStartError",
    "ClusterStopping",
    "CompositeError",
    "DeathCertificate",
    "DependencyTimeout",
    "EngineError",
    "ImpossibleDependency",
    "InPlaceMismatch",
    "InvalidDependency",
    "LinkLost",
    "NoEnginesRegistered",
    "OverLimit",
    "RemoteError",
    "RemoteTraceback",
    "SerializationError",
    "TaskAborted",
    "TaskRejectError",
    "TaskTimeout",
    "TimeoutError",
    "Undeliverable",
    "UnmetDependency",
    "VersionMismatch",
    "collect_exceptions",
    "unwrap_exception",
    "wrap_exception",
]

# Engines raise neither, so most never import them.
_LATER = {
    "DeathCertificate": "broadleaf.errors.death_certificate",
    "TaskAborted": "broadleaf.errors.aborted",
}
# Attributes of a RemoteError that do not come from the exception that was raised.
_STATE_NAMES = ("ename", "evalue", "traceback", "engine_info", "item_index", "item_repr", "_original")

Results = TypeVar("Results", list[Any], tuple[Any, ...], dict[Any, Any])

# The builtin name for "not ready in time".
TimeoutError = builtins.TimeoutError


class BroadleafError(Exception):
    """Base of all exceptions of Broadleaf."""


class ClusterConnectionError(BroadleafError, ConnectionError):
    """There is no connection to the controller, or no longer one."""

    _joins_no_remote_error = True


class VersionMismatch(ClusterConnectionError):
    """Client and controller have different versions of Broadleaf or Python."""


class AuthenticationFailed(ClusterConnectionError):
    """The controller belongs to another cluster or user, or the keys do not match."""


class LinkLost(ClusterConnectionError):
    """The connection to the controller is closed or was lost.

    If it is raised by a result that had not arrived, `task_started` says whether its task had started, and
    `certificate` what happened to the controller; either is None if unknown.
    """

    certificate: ControllerDeath | None = None
    task_started: bool | None = None


class ClusterStartError(BroadleafError):
    """A cluster, or a part of it, does not start.

    Args:
        message: What did not start, on which host, and why.
        log: The end of what its processes wrote; empty if they wrote nothing. It is part of the exception's text.
    """

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log

    def __str__(self) -> str:
        message = str(self.args[0])
        if not self.log.strip():
            return message
        return message + "\nThe end of its log:\n" + "\n".join("  | " + line for line in self.log.splitlines())


class SerializationError(BroadleafError, PicklingError, TypeError):
    """An object cannot be sent: it cannot be pickled, or not be loaded where it arrives.

    Args:
        what: What it is, such as "argument 2 of 'f'".
        reason: Why not.
        fault: What cannot be done with it.
    """

    def __init__(self, what: str, reason: str, fault: str = "cannot be sent") -> None:
        super().__init__(what, reason, fault)
        self.what = what
        self.reason = reason
        self.fault = fault

    def __str__(self) -> str:
        return f"{self.what} {self.fault}: {self.reason}"


class InPlaceMismatch(BroadleafError, ValueError):
    """A value cannot be overwritten in place: its shape, dtype, order or kind differs, or it is read-only."""


class RemoteTraceback(Exception):
    """Shows the traceback from another process, as the `__cause__` of an exception that was raised there."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0]) if self.args else ""


class _RemoteNotes:
    """The notes of an error that say what happened on the engine, created when somebody reads them."""

    def __get__(self, error: RemoteError | None, owner: type[RemoteError]) -> Any:
        if error is None:
            return self
        # From then on the instance's own list is found first, and `add_note` adds to it.
        notes = error.__dict__["__notes__"] = error._remote_notes()
        return notes


class RemoteError(BroadleafError):
    """A task did not return.

    `ename` and `evalue` are the exception's type and text on the engine, `traceback` its text there, `engine_info` a
    dict of `engine_id`, `engine_uuid` and `method`. In a map, `item_index` is the position of the item that failed,
    and `item_repr` a short text of it.

    If the exception could be sent, it is the `__cause__`. If possible, the error is then also an instance of the
    exception's type, with its attributes: `except ValueError` catches a remote ValueError.

    Args:
        ename: The exception's type on the engine.
        evalue: Its text.
        traceback: Its traceback there, as text.
        engine_info: Which engine it was.

    Example:
        >>> try:
        ...     rc[0].apply_sync(lambda: 1 // 0)
        ... except ZeroDivisionError as error:
        ...     print(error.ename, error.engine_info["engine_id"])
        ZeroDivisionError 0
    """

    ename: str
    evalue: str
    traceback: str
    engine_info: dict[str, Any]
    item_index: int | None = None
    item_repr: str = ""
    __notes__: Any = _RemoteNotes()

    _joins_no_remote_error = True
    # The pickle of what the task raised.
    _original: bytes | None = None
    # For a joint type: our type, and the original's.
    _kind: ClassVar[type[RemoteError] | None] = None
    _original_type: ClassVar[type[BaseException] | None] = None
    _state_names: ClassVar[tuple[str, ...]] = _STATE_NAMES

    def __init__(
        self, ename: str, evalue: str, traceback: str | None = None, engine_info: Mapping[str, Any] | None = None
    ) -> None:
        self.ename = ename
        self.evalue = evalue
        self.traceback = traceback or ""
        self.engine_info = dict(engine_info or {})
        self.args: tuple[Any, ...] = self._own_args()

    def _own_args(self) -> tuple[Any, ...]:
        return self.ename, self.evalue

    if not TYPE_CHECKING:
        # Works even if the other type of a joint one is frozen.
        __setattr__ = BaseException.__setattr__
        __delattr__ = BaseException.__delattr__

    def __init_subclass__(cls, **options: Any) -> None:
        # A user's type that counts its subclasses should not see the joint ones.
        if "_original_type" not in vars(cls):
            super().__init_subclass__(**options)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._kind is not None:
            state = {name: self.__dict__[name] for name in self._state_names if name in self.__dict__}
            return _rebuild, (self._kind, self._own_args(), state)
        state = {name: value for name, value in self.__dict__.items() if not name.startswith("__")}
        return _rebuild, (type(self), self.args, state)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}[{self.engine_info.get('engine_id', ' ')}]:{self.ename}({self.evalue})>"

    def __str__(self) -> str:
        item = self.item_text()
        return f"{engine_label(self.engine_info)} {headline(self.ename, self.evalue)}" + (item and f" ({item})")

    def item_text(self) -> str:
        """Names the item of a map that failed.

        Returns:
            "item 17 = 'x'", or '' where it is not known.
        """
        if self.item_index is None:
            return ""
        return f"item {self.item_index}" + (self.item_repr and f" = {self.item_repr}")

    def as_original(self) -> BaseException:
        """The exception that the task raised, with the remote traceback as its `__cause__`.

        Returns:
            A new object each time. If it cannot be loaded, or raising it would be misleading (`SystemExit` would end
            this process, `StopIteration` a loop), it is this error.
        """
        original = load_exception(self._original)
        if original is None or not can_be_raised(original):
            return self
        set_cause(original, RemoteTraceback("\n".join(self._remote_notes())))
        render_in_ipython(original)
        return original

    def _remote_notes(self) -> list[str]:
        return [remote_note(self)] if self.traceback else []

    def render_traceback(self) -> list[str]:
        """The remote traceback as text.

        Returns:
            Its lines, the engine's name first.
        """
        text = self.traceback or "No traceback available"
        return [engine_label(self.engine_info), *text.splitlines()]

    def _render_traceback_(self) -> list[str]:
        # IPython shows this instead of the local traceback.
        return ipython_traceback(self, self.__notes__)

    def print_traceback(self, excid: int | None = None) -> None:
        """Prints `render_traceback`.

        Args:
            excid: Of a `CompositeError`, the index of one of its exceptions.
        """
        print("\n".join(self.render_traceback()))


def fresh(error: BaseException) -> BaseException:
    """A copy of `error` to raise.

    A result keeps its exception. Raising that very object would attach the frames it passes to it, and with them the
    result: a cycle through native objects, which the garbage collector cannot see.
    """
    return copy_of(error)


def hides_frames(excinfo: Any) -> bool:
    """Used as `__tracebackhide__` of a module: whether pytest leaves out its frames, which say nothing about a remote
    error."""
    error = getattr(excinfo, "value", None)
    return isinstance(error, RemoteError) or isinstance(getattr(error, "__cause__", None), RemoteTraceback)


def typed(error: RemoteError, data: bytes | None) -> RemoteError:
    """`error` with the original, unpickled from `data`, as its cause, and also of the original's type if possible."""
    original = load_exception(data)
    if original is None:
        return error
    error._original = data
    made = joint_error(error, original, original_type_of(original))
    made.__cause__ = original
    return made


def original_type_of(error: BaseException) -> type[BaseException]:
    """The type of `error`, or the type raised on the engine if it is a joint type."""
    return (isinstance(error, RemoteError) and error._original_type) or type(error)


def _rebuild(kind: type[RemoteError], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    error = blank(kind, args)
    error.__dict__.update(state)
    if isinstance(error, CompositeError):
        return _of_common_type(error)
    return typed(error, error._original) if isinstance(error, RemoteError) else error


class Verdict(RemoteError):
    """A task that did not return for a reason other than its own code.

    Args:
        message: What happened.
        engine_info: Which engine it was on.
    """

    def __init__(self, message: str = "", engine_info: Mapping[str, Any] | None = None) -> None:
        super().__init__(type(self).__name__, message, None, engine_info)
        self.args: tuple[Any, ...] = (message,) if message else ()

    def __str__(self) -> str:
        label = f"[engine {self.engine_info['engine_id']}] " if "engine_id" in self.engine_info else ""
        return label + (self.evalue or (type(self).__doc__ or "").splitlines()[0])

    def render_traceback(self) -> list[str]:
        """This error as text: there is no remote traceback.

        Returns:
            One line.
        """
        return [f"{type(self).__name__}: {self}"]


class EngineError(Verdict):
    """The engine died.

    Args:
        message: What happened; by default the text of the certificate.
        engine_info: Which engine it was.
        certificate: Everything known about the death.
        retries: The task's number of retries; None if it cannot be retried.
    """

    def __init__(
        self,
        message: str = "",
        engine_info: Mapping[str, Any] | None = None,
        certificate: DeathCertificate | None = None,
        retries: int | None = None,
    ) -> None:
        if certificate is not None and not message:
            from broadleaf.errors.death_certificate import obituary

            message = obituary(certificate, retries)
        super().__init__(message, engine_info)
        self.certificate = certificate
        self.retries = retries

    def __str__(self) -> str:
        return self.evalue or "The engine died."


class NoEnginesRegistered(Verdict):
    """The call needs engines, but there are none; client.wait_for_engines(n) waits for them."""


class TaskTimeout(Verdict):
    """The task ran longer than its timeout and was stopped."""


class OverLimit(Verdict):
    """The client's limit on unresolved tasks or bytes is exceeded."""


class ResultNotKept(Verdict):
    """The cluster does not have, or no longer has, the result of this task."""


class Undeliverable(Verdict):
    """The task's arguments or its value could not be moved to the host that needs them; the message says why."""


class ClusterStopping(Verdict):
    """The cluster is stopping."""


class UnmetDependency(Verdict):
    """A functional dependency does not hold on this engine."""


class ImpossibleDependency(UnmetDependency):
    """A dependency that can never be met."""


class DependencyTimeout(ImpossibleDependency):
    """Dependencies were not met in time."""


class InvalidDependency(ImpossibleDependency):
    """A dependency on itself, on a later task, or on a task of another client."""


class TaskRejectError(BroadleafError):
    """Raised by a task to say that it cannot run on this engine; with `retries` it is tried elsewhere."""


class CompositeError(RemoteError):
    """Several tasks of one request did not return.

    `elist` has (ename, evalue, traceback, engine_info) of each, `exceptions` the exceptions themselves.

    Args:
        message: What they have in common.
        elist: An entry for each.
        exceptions: The exceptions, in the same order.

    Example:
        >>> try:
        ...     rc[:].apply_sync(lambda: 1 // (engine_id // 2))
        ... except ipp.CompositeError as error:
        ...     [entry[0] for entry in error.elist]
        ['ZeroDivisionError', 'ZeroDivisionError']
    """

    tb_limit = 4
    _state_names = (*_STATE_NAMES, "_message", "elist", "exceptions")

    def __init__(
        self,
        message: str,
        elist: Iterable[tuple[str, Any, str, dict[str, Any]]],
        exceptions: Iterable[BaseException] = (),
    ) -> None:
        self._message = message
        self.elist: list[tuple[str, Any, str, dict[str, Any]]] = list(elist)
        self.exceptions: list[BaseException] = list(exceptions)
        self.ename = "CompositeError"
        self.evalue = message
        self.traceback = ""
        self.engine_info: dict[str, Any] = {}
        self.args: tuple[Any, ...] = self._own_args()

    @property
    def msg(self) -> str:
        """What the exceptions have in common.

        Returns:
            The text that it was made with, also where an exception type such as `ImportError` has a `msg` of its own.
        """
        return self._message

    def _own_args(self) -> tuple[Any, ...]:
        return tuple(entry[0] for entry in self.elist)

    def __repr__(self) -> str:
        return f"CompositeError({len(self.elist)})"

    def __str__(self) -> str:
        return composite_summary(self)

    def as_original(self) -> BaseException:
        """The exception that the task raised, if there is only one failure; otherwise this error.

        Returns:
            A new object each time, with the remote traceback as its `__cause__`; or this error.
        """
        if len(self.exceptions) == 1 and isinstance(self.exceptions[0], RemoteError):
            return fresh(self.exceptions[0]).as_original()  # type: ignore[attr-defined, no-any-return]
        return self

    def _remote_notes(self) -> list[str]:
        return composite_notes(self)

    def render_traceback(self, excid: int | None = None) -> list[str]:
        """The remote tracebacks as text.

        Args:
            excid: The index of one of the exceptions.

        Returns:
            The lines of that exception. By default those of up to `tb_limit` exceptions, identical ones once.

        Raises:
            IndexError: There is no exception with that index.
        """
        if excid is None:
            return composite_lines(self)
        ename, evalue, text, engine_info = self._entry(excid)
        return [engine_label(engine_info) + ":", *(text or headline(ename, evalue)).splitlines()]

    def _entry(self, excid: int) -> tuple[str, Any, str, dict[str, Any]]:
        try:
            return self.elist[excid]
        except IndexError:
            raise IndexError(f"an exception with index {excid} does not exist") from None

    def print_traceback(self, excid: int | None = None) -> None:
        """Prints `render_traceback`.

        Args:
            excid: The index of one of the exceptions.

        Raises:
            IndexError: There is no exception with that index.
        """
        print("\n".join(self.render_traceback(excid)))

    def raise_exception(self, excid: int = 0) -> NoReturn:
        """Raises one of the exceptions, as a single engine's error is raised.

        Args:
            excid: Its index.

        Raises:
            RemoteError: That exception.
            IndexError: There is no exception with that index.
        """
        entry = self._entry(excid)
        raise fresh(self.exceptions[excid]) if self.exceptions else RemoteError(*entry)


class AlreadyDisplayedError(RemoteError):
    """Replaces a CompositeError whose tracebacks were shown while output was streamed.

    Args:
        original_error: That error.
    """

    def __init__(self, original_error: CompositeError) -> None:
        self.original_error = original_error
        self.n: int = len(original_error.elist)
        super().__init__("AlreadyDisplayedError", count(self.n, "error"))

    def __repr__(self) -> str:
        return f"<AlreadyDisplayedError({self})>"

    def __str__(self) -> str:
        return count(self.n, "error")

    def render_traceback(self) -> list[str]:
        """How many errors there were.

        Returns:
            One line.
        """
        return [str(self)]

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def collect_exceptions(results: Results, method: str = "unspecified") -> Results:
    """Raises the remote errors among values, if there are any.

    Args:
        results: The values, as `get(return_exceptions=True)` returns them, or by engine id.
        method: What was called, for the error's message.

    Returns:
        `results`, unchanged.

    Raises:
        CompositeError: Some of the values are errors; it has all of them.
    """
    values = results.values() if isinstance(results, dict) else results
    exceptions = [value for value in values if isinstance(value, RemoteError | SerializationError)]
    if exceptions:
        raise composite(exceptions, method)
    return results


def composite(exceptions: Iterable[BaseException], method: str) -> CompositeError:
    """One CompositeError of several exceptions; composites among them are flattened."""
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
            # It was raised here, such as by loading a result.
            elist.append((type(error).__name__, str(error), "", {"is_here": True}))
            flat.append(error)
    return _of_common_type(CompositeError(f"one or more exceptions raised in: {method}", elist, flat))


def _of_common_type(error: CompositeError) -> CompositeError:
    """`error`, made an instance of the common type of all its errors as well, if possible."""
    causes = [one.__cause__ for one in error.exceptions if isinstance(one, RemoteError) and one._kind is not None]
    if not causes or len(causes) < len(error.exceptions) or causes[0] is None:
        return error
    common = common_type(original_type_of(one) for one in error.exceptions)
    made = error if common is None else joint_error(error, causes[0], common)
    return made


def wrap_exception(engine_info: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The exception being handled as a plain dict.

    Args:
        engine_info: Which engine it was.

    Returns:
        A dict of 'status', 'traceback' (lines), 'ename', 'evalue' and 'engine_info'.
    """
    kind, error, tb = sys.exc_info()
    return {
        "status": "error",
        "traceback": _traceback.format_exception(kind, error, tb),
        "ename": kind.__name__ if kind else "",
        "evalue": str(error),
        "engine_info": dict(engine_info or {}),
    }


def unwrap_exception(content: Mapping[str, Any]) -> RemoteError:
    """The error that `wrap_exception` described.

    Args:
        content: That dict.

    Returns:
        The error.

    Raises:
        KeyError: It is not such a dict.
    """
    return RemoteError(
        content["ename"], content["evalue"], "\n".join(content["traceback"]), content.get("engine_info", {})
    )


def __getattr__(name: str) -> Any:
    if name in _LATER:
        found = globals()[name] = getattr(import_module(_LATER[name]), name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
