"""Results of tasks that may not be there yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from broadleaf.client.failures import STATUS_CANCELLED, STATUS_NAMES, STATUS_OK, link_lost
from broadleaf.client.lazy_future import LazyFuture
from broadleaf.client.metadata import METADATA_KEYS, Metadata, moment, outputs_of
from broadleaf.errors import composite, fresh
from broadleaf.serialize.functions import function_name

__all__ = ["ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION", "AsyncResult"]


def seconds(timeout: float | None) -> float | None:
    """A timeout as the native side takes it: None, for ever, also for negative numbers."""
    return None if timeout is None or timeout < 0 else timeout


class AsyncResult(LazyFuture):
    """The result of a request to one or more engines, which may still be on its way.

    It is a `concurrent.futures.Future`, can be awaited, and can be iterated over as parts arrive. `get` gives the
    value (of one engine) or the list of values (of several, in target order) and raises what the tasks raised, as
    `RemoteError` or `CompositeError`. Everything known about the tasks (`ar.engine_id`, `ar.stdout`, `ar.started`,
    ...) can be had by attribute or key, one value or a list.
    """

    owner = True
    purged: frozenset[int] = frozenset()
    """Parts that the client was told to forget."""
    _return_exceptions = False
    _output_listeners: tuple[Callable[[int, int, bytes], None], ...] = ()

    # Waiting ------------------------------------------------------------------------------------

    def wait(self, timeout: float | None = -1, return_when: str | None = None) -> Any:
        """Waits up to `timeout` seconds (None or negative: for ever).

        Returns whether everything is resolved; with `return_when` (a constant of `concurrent.futures`) two sets of
        results, those done and those pending. Ctrl-C aborts the tasks waited for.
        """
        timeout = seconds(timeout)
        with self._aborting_on_interrupt():
            if return_when is None:
                return self.wait_all_done(timeout)
            self._wait_when(timeout, return_when)
        parts = self.split()
        done = {part for part in parts if part.done()}
        return done, set(parts) - done

    def _wait_when(self, timeout: float | None, return_when: str) -> None:
        if return_when == FIRST_COMPLETED:
            self.wait_count(min(1, self.n_parts), timeout)
        elif return_when == FIRST_EXCEPTION:
            self._wait_first_failure(timeout)
        elif return_when == ALL_COMPLETED:
            self.wait_all_done(timeout)
        else:
            raise ValueError(f"return_when={return_when!r} is not a constant of concurrent.futures")

    def _wait_first_failure(self, timeout: float | None) -> int | None:
        """The first part known to have failed; None when there is none yet, or at all."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for rank in range(self.n_parts):
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self.wait_count(rank + 1, left):
                return None
            part = self.completed_part(rank)
            if self.part_status(part) != STATUS_OK:
                return part
        return None

    @contextmanager
    def _aborting_on_interrupt(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            self._abort_unfinished()
            raise
        except self.origin.client.native.LinkClosed as error:
            raise link_lost(error) from error

    def _abort_unfinished(self) -> None:
        self.origin.client.cancel_tasks(self._unfinished_seqs())

    def _unfinished_seqs(self) -> list[int]:
        return [self._part_seq(part) for part in range(self.n_parts) if not self.part_done(part)]

    def _part_seq(self, part: int) -> int:
        return self.seq + part

    # Values -------------------------------------------------------------------------------------

    def get(
        self, timeout: float | None = None, return_exceptions: bool | None = None, return_when: str | None = None
    ) -> Any:
        """The value, or list of values in target order.

        Raises `TimeoutError` when it is not there within `timeout` seconds, and `RemoteError` or `CompositeError` for
        tasks that did not return; with `return_exceptions` those exceptions stand among the values instead. With
        `return_when=FIRST_EXCEPTION` the first failure raises at once. With `FIRST_COMPLETED` it waits for one task
        only, and a list has the values of the tasks that are done. Ctrl-C aborts the tasks waited for.
        """
        if return_exceptions is None:
            return_exceptions = self._return_exceptions
        if return_when not in (None, ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION):
            raise ValueError(f"return_when={return_when!r} is not a constant of concurrent.futures")
        timeout = seconds(timeout)
        parts: Sequence[int] = range(self.n_parts)
        try:
            if return_when == FIRST_EXCEPTION and not return_exceptions:
                part = self._wait_first_failure(timeout)
                failed = None if part is None else self.failure(part)
                if failed is not None:
                    raise fresh(failed)
                timeout = 0.0 if timeout is not None else None
            if return_when == FIRST_COMPLETED:
                ready = self.wait_count(min(1, self.n_parts), timeout)
                parts = [part for part in parts if self.part_done(part)]
            else:
                ready = self.wait_all_done(timeout)
        except KeyboardInterrupt:
            self._abort_unfinished()
            raise
        except self.origin.client.native.LinkClosed as error:
            raise link_lost(error) from error
        if not ready:
            raise TimeoutError(f"{self._name} is not ready: {self.n_done()} of {self.n_parts} tasks are done")
        return self._collect(return_exceptions, parts)

    def _collect(self, return_exceptions: bool, parts: Sequence[int]) -> Any:
        """The value of these parts, all of them resolved."""
        if len(parts) == self.n_parts:
            known = self._all_values()
            if known is not None:
                return self._assemble(known)
        values = [self._part_outcome(part) for part in parts]
        failures = [value for value in values if isinstance(value, Failure)]
        if failures and not return_exceptions:
            raise self._exception_of([failure.error for failure in failures])
        return self._assemble([v.error if isinstance(v, Failure) else v for v in values])

    def _all_values(self) -> list[Any] | None:
        """All values at once, where every part has one and that is quicker than one by one."""
        return None

    def _part_outcome(self, part: int) -> Any:
        """The value of a resolved part, or the `Failure` it ended in."""
        error = self.failure(part)
        return self._part_value(part) if error is None else Failure(error)

    def _part_value(self, part: int) -> Any:
        return self.value(part)

    def _exception_of(self, errors: list[BaseException]) -> BaseException:
        if self.origin.single and self.n_parts == 1:
            return fresh(errors[0])
        return composite(errors, self._name)

    def _assemble(self, values: list[Any]) -> Any:
        return values[0] if self.origin.single else values

    @property
    def r(self) -> Any:
        """`get()`."""
        return self.get()

    def get_dict(self, timeout: float | None = None) -> dict[int, Any]:
        """The values by engine id. Raises `ValueError` when an engine ran more than one of the tasks."""
        results = self.get(timeout)
        if self.origin.single:
            results = [results]
        return self._by_engine(results)

    def _by_engine(self, values: Iterable[Any]) -> dict[int, Any]:
        engines = [self._engine_id(part) for part in range(self.n_parts)]
        if len(set(engines)) < len(engines):
            busiest = max(engines, key=engines.count)
            raise ValueError(f"Cannot build dict, {engines.count(busiest)} jobs ran on engine #{busiest}")
        return {engine: value for engine, value in zip(engines, values, strict=True) if engine is not None}

    @property
    def result_dict(self) -> dict[int, Any]:
        """`get_dict()`."""
        return self.get_dict()

    def __iter__(self) -> Iterator[Any]:
        if self.origin.single:
            raise TypeError("AsyncResults with a single result are not iterable.")
        with self._aborting_on_interrupt():
            for part in range(self.n_parts):
                self.wait_part(part, None)
                yield self._value_or_raise(part)

    def _value_or_raise(self, part: int) -> Any:
        outcome = self._part_outcome(part)
        if not isinstance(outcome, Failure):
            return outcome
        if self._return_exceptions:
            return outcome.error
        raise self._exception_of([outcome.error])

    def __len__(self) -> int:
        return self.n_parts

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, key: int | slice | str) -> Any:
        if isinstance(key, str):
            return self._metadata_values(key)
        if not isinstance(key, int | slice):
            raise TypeError(f"Invalid key type {type(key)!r}, must be 'int', 'slice', or 'str'")
        return self.get(0)[key]

    # State --------------------------------------------------------------------------------------

    def ready(self) -> bool:
        """Whether everything is resolved."""
        return self.all_done()

    def failed(self) -> bool:
        """Whether some part, of those resolved, did not return."""
        return any(self.part_status(part) > STATUS_OK for part in range(self.n_parts))

    def successful(self) -> bool:
        """Whether all tasks returned. Raises `RuntimeError` before they are resolved."""
        if not self.all_done():
            raise RuntimeError("Cannot check successful() if not done.")
        return not self.failed()

    def cancelled(self) -> bool:
        """Whether all tasks were aborted."""
        n = self.n_parts
        return n > 0 and self.all_done() and all(self.part_status(p) == STATUS_CANCELLED for p in range(n))

    def cancel(self) -> bool:
        """Aborts the tasks, queued or running. False when it is too late."""
        if self.all_done():
            return self.cancelled()
        self._abort_unfinished()
        return not self.all_done() or self.cancelled()

    def abort(self) -> None:
        """Aborts the tasks, queued or running. Raises `RuntimeError` when all are done."""
        if self.all_done():
            raise RuntimeError("Can't abort, I am already done!")
        self._abort_unfinished()

    @property
    def sent(self) -> bool:
        """True: arguments are copied before a submission returns, so the caller may change them."""
        return True

    def wait_for_send(self, timeout: float | None = -1) -> bool:
        """True at once; see `sent`."""
        return True

    @property
    def progress(self) -> int:
        """How many of `len(self)` are done."""
        return self.n_done()

    @property
    def _name(self) -> str:
        return self.origin.method if self.origin.method != "apply" else function_name(self.function)

    def __repr__(self) -> str:
        state = "pending" if not self.all_done() else "failed" if self.failed() else "finished"
        return f"<{self._kind}({self._name}): {state}>"

    _kind = "AsyncResult"

    # Splitting ----------------------------------------------------------------------------------

    def split(self) -> tuple[AsyncResult, ...]:
        """One result per task. A result of one task is its own split."""
        if self.n_parts == 1:
            return (self,)
        known: tuple[AsyncResult, ...] | None = self.__dict__.get("_split")
        if known is None:
            from broadleaf.client.combined import CombinedResult

            known = self.__dict__["_split"] = tuple(CombinedResult.of_part(self, part) for part in range(self.n_parts))
        return known

    @classmethod
    def join(cls, *async_results: AsyncResult) -> AsyncResult:
        """One result of several, the inverse of `split`."""
        if not async_results:
            raise ValueError("Must specify at least one AsyncResult to join")
        if len(async_results) == 1:
            return async_results[0]
        from broadleaf.client.combined import CombinedResult

        return CombinedResult.joined(async_results)

    def parts(self) -> list[tuple[AsyncResult, int]]:
        """Every part as (the submitted result it belongs to, its number there)."""
        return [(self, part) for part in range(self.n_parts)]

    # Metadata -----------------------------------------------------------------------------------

    @property
    def msg_ids(self) -> list[str]:
        """The ids of the tasks; `client.get_result` takes them while this result lives."""
        return self.origin.client.register(self)

    def _engine_id(self, part: int) -> int | None:
        engine = self.times(part)[3]
        if engine >= 0:
            return engine
        targets = self.origin.targets
        return targets[part] if targets is not None else None

    @property
    def status(self) -> Any:
        """How each task ended: 'ok', 'error', 'aborted', 'timeout', 'refused', 'lost'; None until it has."""
        return self._metadata_values("status")

    @property
    def engine_id(self) -> Any:
        """Where each task ran, or is to run; None while the scheduler has not said."""
        return self._metadata_values("engine_id")

    def part_metadata(self, part: int) -> Metadata:
        """All that is known of one task."""
        started_ns, completed_ns, received_ns, _ = self.times(part)
        stdout, stderr, messages = self.output(part)
        outputs, data = outputs_of(messages)
        status = self.part_status(part)
        engine = self._engine_id(part)
        client = self.origin.client
        return Metadata(
            msg_id=client.msg_id(self._part_seq(part)),
            submitted=moment(self.submitted_ns),
            started=moment(started_ns),
            completed=moment(completed_ns),
            received=moment(received_ns),
            engine_uuid=client.engine_uuid(engine) if engine is not None else None,
            engine_id=engine,
            follow=[],
            after=[],
            status=STATUS_NAMES.get(status),
            execute_input=None,
            execute_result=None,
            error=self.failure(part) if status > STATUS_OK else None,
            stdout=stdout,
            stderr=stderr,
            outputs=outputs,
            data=data,
            label=self.origin.label,
        )

    @property
    def metadata(self) -> Any:
        """`Metadata` of the task, or a list of them."""
        found = [self.part_metadata(part) for part in range(self.n_parts)]
        return found[0] if self.origin.single else found

    def _metadata_values(self, key: str) -> Any:
        if key not in METADATA_KEYS:
            raise KeyError(key)
        values: list[Any]
        if key == "engine_id":
            values = [self._engine_id(part) for part in range(self.n_parts)]
        else:
            values = [self.part_metadata(part)[key] for part in range(self.n_parts)]
        return values[0] if self.origin.single else values

    if not TYPE_CHECKING:  # else any misspelt name would pass

        def __getattr__(self, key: str) -> Any:
            # Only what is not found otherwise comes here.
            if key in METADATA_KEYS:
                return self._metadata_values(key)
            raise AttributeError(f"{self._kind!r} object has no attribute {key!r}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *METADATA_KEYS]

    def __reduce__(self) -> Any:
        raise TypeError("a result cannot be sent; call its get() first, or use it as a dependency (after=, follow=)")

    # Times --------------------------------------------------------------------------------------

    def timedelta(
        self,
        start: datetime | Iterable[datetime],
        end: datetime | Iterable[datetime],
        start_key: Callable[..., datetime] = min,
        end_key: Callable[..., datetime] = max,
    ) -> float:
        """Seconds between two sets of times, by default from the earliest `start` to the latest `end`."""
        first = start if isinstance(start, datetime) else start_key(start)
        last = end if isinstance(end, datetime) else end_key(end)
        return (last - first).total_seconds()

    @property
    def elapsed(self) -> float:
        """Seconds since submission, or `wall_time` once everything is done."""
        return self.wall_time if self.all_done() else (time.time_ns() - self.submitted_ns) / 1e9

    def _require_ready(self) -> None:
        if not self.all_done():
            raise TimeoutError("result not ready")

    @property
    def serial_time(self) -> float:
        """Seconds the tasks took on the engines, summed. Raises `TimeoutError` before they are resolved."""
        self._require_ready()
        return sum(completed - started for started, completed, _, _ in map(self.times, range(self.n_parts))) / 1e9

    @property
    def wall_time(self) -> float:
        """Seconds from submission to the last reply. Raises `TimeoutError` before all are resolved."""
        self._require_ready()
        last_ns = max((self.times(part)[2] for part in range(self.n_parts)), default=self.submitted_ns)
        return max(0, last_ns - self.submitted_ns) / 1e9

    # Output and progress ------------------------------------------------------------------------

    def wait_interactive(
        self,
        interval: float = 0.1,
        timeout: float | None = -1,
        widget: bool | None = None,
        return_when: str = ALL_COMPLETED,
    ) -> None:
        """Waits, showing progress every `interval` seconds. Raises nothing when `timeout` seconds are over."""
        from broadleaf.client.display import show_progress

        with self._aborting_on_interrupt():
            show_progress(self, interval, seconds(timeout), return_when)

    def wait_for_output(self, timeout: float | None = -1) -> bool:
        """Waits until everything the tasks wrote is here: output comes before the result it belongs to."""
        return self.wait_all_done(seconds(timeout))

    def stream_output(self) -> AbstractContextManager[None]:
        """While the block runs, shows what the tasks write as it arrives."""
        from broadleaf.client.display import stream_output

        return stream_output(self)

    def display_outputs(self, groupby: str = "type", result_only: bool = False) -> None:
        """Waits, then shows all output, grouped by 'type', 'engine' or 'order'."""
        from broadleaf.client.display import display_outputs

        display_outputs(self, groupby, result_only)

    def on_output(self, part: int, stream: int, data: bytes) -> None:
        """Live output of one part, from the client's hooks."""
        for listener in self._output_listeners:
            listener(part, stream, data)

    def listen(self, listener: Callable[[int, int, bytes], None]) -> None:
        """Has live output passed to `listener(part, stream, data)`."""
        self._output_listeners = (*self._output_listeners, listener)

    def unlisten(self, listener: Callable[[int, int, bytes], None]) -> None:
        """Undoes `listen`."""
        self._output_listeners = tuple(known for known in self._output_listeners if known != listener)


class Failure:
    """Tells an exception that a part ended in from one that a task returned as its value."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error
