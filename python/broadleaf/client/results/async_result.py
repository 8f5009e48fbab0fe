"""Results of tasks that may not have arrived yet."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, cast, overload

from broadleaf.client.display.output import OutputStream, display_outputs, show
from broadleaf.client.display.progress import show_progress
from broadleaf.client.display.reprs import progress_in_words, result_html
from broadleaf.client.failures import STATUS_NAMES, STATUS_OK, link_lost
from broadleaf.client.metadata import METADATA_KEYS, STDERR, STDOUT, Metadata, moment, outputs_of
from broadleaf.client.results.base import TimedResult, Value
from broadleaf.client.results.chunk_outcomes import ChunkOutcomes, Failure
from broadleaf.errors import LinkLost, RemoteError, composite, fresh, hides_frames
from broadleaf.serialize.functions import function_name

if TYPE_CHECKING:
    from broadleaf.client.protocols import Client

__all__ = ["ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION", "AsyncResult", "seconds"]


# The part of a result that shows what its tasks write, and their progress.


def seconds(timeout: float | None) -> float | None:
    """A timeout as the native side takes it: None means forever, and so do negative numbers."""
    return None if timeout is None or timeout < 0 else timeout


class ShownResult(TimedResult[Value]):
    """Output, progress, and a notebook's view of a result."""

    _output_listeners: tuple[Callable[[int, int, bytes], None], ...] = ()

    def _as_result(self) -> AsyncResult:
        return cast("AsyncResult", self)

    def _repr_html_(self) -> str:
        return result_html(self._as_result())

    def wait_interactive(
        self,
        interval: float = 0.1,
        timeout: float | None = -1,
        widget: bool | None = None,
        return_when: str = ALL_COMPLETED,
    ) -> None:
        """Waits and shows progress. Raises nothing when the time is up. Ctrl-C aborts the tasks it is waiting for.

        Args:
            interval: Seconds between two updates.
            timeout: Seconds to wait; None or a negative number means forever.
            widget: Whether the bar is a Jupyter widget; by default, if widgets are available.
            return_when: `FIRST_COMPLETED`, `FIRST_EXCEPTION` or `ALL_COMPLETED`.

        Raises:
            LinkLost: The connection is closed or was lost.
        """
        with self._as_result()._aborting_on_interrupt():
            show_progress(self._as_result(), interval, seconds(timeout), return_when, widget)

    def wait_for_output(self, timeout: float | None = -1) -> bool:
        """Waits until everything the tasks wrote has arrived: output comes before the result it belongs to.

        Args:
            timeout: Seconds to wait; None or a negative number means forever.

        Returns:
            Whether all tasks are done.
        """
        return self._as_result().wait_all_done(seconds(timeout))

    def stream_output(self, group_lines: bool = False) -> OutputStream:
        """Shows what the tasks write as it arrives, while a `with` block runs.

        Args:
            group_lines: Whether to show identical lines once, with the engines that wrote them.

        Returns:
            A context manager.
        """
        return OutputStream(self._as_result(), group_lines)

    def show(
        self,
        stream: bool = True,
        groupby: str = "type",
        progress_after: float = 2.0,
        signal_on_interrupt: str | int | None = "SIGINT",
    ) -> None:
        """Waits and shows what the tasks write, display, return and raise, as a `%%px` cell does.

        Args:
            stream: Whether to show everything as it arrives, including errors. Otherwise it is shown at the end, as by
                `display_outputs`.
            groupby: How it is grouped at the end: 'type', 'engine', 'order', or 'lines' to show identical lines once.
            progress_after: Seconds after which a progress bar appears, on a terminal or in a notebook; negative: never.
            signal_on_interrupt: The signal that engines get on Ctrl-C, after which this returns; SIGINT aborts the
                tasks. With None, they are aborted and the interrupt is raised.

        Raises:
            AlreadyDisplayedError: Tasks of several engines failed, and their errors have been shown.
            RemoteError: A task did not return. Without `stream`, a `CompositeError` if there are several engines.
            ValueError: The grouping or signal does not exist.
            LinkLost: The connection is closed or was lost.
        """
        show(self._as_result(), stream, groupby, progress_after, signal_on_interrupt)

    def display_outputs(self, groupby: str = "type", result_only: bool = False) -> None:
        """Waits, then shows everything that the tasks wrote, displayed and returned.

        Args:
            groupby: 'type', 'engine', 'order', or 'lines' to show identical lines once.
            result_only: Whether only the values of last expressions are shown.

        Raises:
            ValueError: The grouping does not exist.
            LinkLost: The connection is closed or was lost.
        """
        display_outputs(self._as_result(), groupby, result_only)

    def on_output(self, part: int, stream: int, data: bytes) -> None:
        """Live output of one part, from the client's hooks."""
        for listener in self._output_listeners:
            listener(part, stream, data)

    def debug(self, engine: int | None = None) -> None:
        """Opens Python's debugger where a task of this result stopped or failed, and returns when you leave it.

        The task waits in a `breakpoint()`, or failed on an engine that keeps the frames of failed
        tasks (the option `keep_failed_frames`).

        Args:
            engine: The engine that runs the task; by default, the first that stopped or failed.

        Raises:
            LookupError: There is nothing to debug.
        """
        self._as_result().origin.client.debugging().debug(self._as_result(), engine)

    def listen(self, listener: Callable[[int, int, bytes], None]) -> None:
        """Passes live output to `listener(part, stream, data)`."""
        self._output_listeners = (*self._output_listeners, listener)

    def unlisten(self, listener: Callable[[int, int, bytes], None]) -> None:
        """Undoes `listen`."""
        self._output_listeners = tuple(known for known in self._output_listeners if known != listener)


__tracebackhide__ = hides_frames


class AsyncResult(ShownResult[Value]):
    """The result of a request to one or more engines, which may not have arrived yet.

    It is a `concurrent.futures.Future`, can be awaited, and can be iterated over as parts arrive. `get` returns the
    value (of one engine) or the list of values (of several, in target order) and raises what the tasks raised, as
    `RemoteError` or `CompositeError`. Everything known about the tasks (`ar.engine_id`, `ar.stdout`, `ar.started`,
    ...) is available by attribute or key, as one value or a list.

    Example:
        >>> result = rc[:].apply_async(lambda: engine_id)
        >>> result.get(timeout=30)
        [0, 1, 2, 3]
        >>> result.status
        ['ok', 'ok', 'ok', 'ok']
    """

    _internal_names = frozenset(
        (
            "abort_all",
            "abort_interrupted",
            "keep_outcomes",
            "listen",
            "locate_failure",
            "on_output",
            "outcomes_of",
            "owner",
            "part_metadata",
            "parts",
            "purged",
            "unlisten",
        )
    )

    owner = True
    purged: frozenset[int] = frozenset()
    """Parts that the client was told to forget."""
    raises_original = False
    """Whether a failure is raised as what the task raised, as executors do, in place of a `RemoteError`."""
    _return_exceptions = False
    _aborted_by = ""

    # Waiting ------------------------------------------------------------------------------------

    @overload
    def wait(self, timeout: float | None = -1, return_when: None = None) -> bool: ...

    @overload
    def wait(self, timeout: float | None = -1, *, return_when: str) -> tuple[set[AsyncResult], set[AsyncResult]]: ...

    @overload
    def wait(self, timeout: float | None, return_when: str) -> tuple[set[AsyncResult], set[AsyncResult]]: ...

    def wait(
        self, timeout: float | None = -1, return_when: str | None = None
    ) -> bool | tuple[set[AsyncResult], set[AsyncResult]]:
        """Waits until the tasks are done. Ctrl-C aborts the tasks it is waiting for.

        Args:
            timeout: Seconds to wait; None or a negative number means forever.
            return_when: `FIRST_COMPLETED`, `FIRST_EXCEPTION` or `ALL_COMPLETED`, to learn which tasks are done.

        Returns:
            Whether all tasks are done. With `return_when`, two sets of results of one task each, done and not done.

        Raises:
            ValueError: `return_when` is not one of these.
            LinkLost: The connection is closed or was lost.
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
        """The first part known to have failed, or None."""
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
            self.abort_interrupted()
            raise
        except self.origin.client.native.LinkClosed as error:
            raise link_lost(error) from error

    def abort_interrupted(self) -> None:
        """Aborts the unfinished tasks, because Ctrl-C has ended a wait for them."""
        self._aborted_by = "Ctrl-C"
        self.origin.client.abort_interrupted(self._unfinished_seqs())

    @staticmethod
    def abort_all(results: Iterable[AsyncResult]) -> None:
        """`abort_interrupted` of several results: one request for each client."""
        seqs: dict[Client, list[int]] = {}
        for result in results:
            result._aborted_by = "Ctrl-C"
            seqs.setdefault(result.origin.client, []).extend(result._unfinished_seqs())
        for client, unfinished in seqs.items():
            client.abort_interrupted(unfinished)

    def _abort_unfinished(self, by: str) -> None:
        self._aborted_by = by
        self.origin.client.cancel_tasks(self._unfinished_seqs())

    def _unfinished_parts(self) -> list[int]:
        return [part for part in range(self.n_parts) if not self.part_done(part)]

    def _unfinished_seqs(self) -> list[int]:
        return [self._part_seq(part) for part in self._unfinished_parts()]

    def _part_seq(self, part: int) -> int:
        return self.seq + part

    def task_ranges(self) -> list[tuple[int, int]]:
        """Its tasks' numbers.

        Returns:
            The first number of each contiguous range, and how many there are.
        """
        return [(self.seq, self.n_parts)]

    def _task_name(self, part: int) -> tuple[int, int] | None:
        """How the controller identifies a task: its client's number, and its number within that client."""
        return self.origin.client.link.client_id, self._part_seq(part)

    # Values -------------------------------------------------------------------------------------

    @overload
    def get(
        self,
        timeout: float | None = None,
        return_exceptions: Literal[False] | None = None,
        return_when: str | None = None,
    ) -> Value: ...

    @overload
    def get(
        self, timeout: float | None = None, return_exceptions: bool | None = None, return_when: str | None = None
    ) -> Any: ...

    def get(
        self, timeout: float | None = None, return_exceptions: bool | None = None, return_when: str | None = None
    ) -> Any:
        """The value, or the list of values in target order. Ctrl-C aborts the tasks it is waiting for.

        Args:
            timeout: Seconds to wait; None or a negative number means forever.
            return_exceptions: Whether to return exceptions among the values instead of raising them.
            return_when: `FIRST_EXCEPTION` raises the first failure at once. With `FIRST_COMPLETED` it waits for one
                task only, and a list contains the values of the tasks that are done. `ALL_COMPLETED` is the default.

        Returns:
            The value of a single task; a list for several tasks; for a map, the list of its items' values.

        Raises:
            TimeoutError: The tasks are not done after `timeout` seconds.
            RemoteError: The task did not return. With several tasks, a `CompositeError` with an error for each that
                failed.
            LinkLost: The connection is closed or was lost before the tasks were done.
            ValueError: `return_when` is not one of these.

        Example:
            >>> result = rc[:].apply_async(lambda: 1 // engine_id)
            >>> values = result.get(return_exceptions=True)
            >>> isinstance(values[0], ZeroDivisionError), values[1:]
            (True, [1, 0, 0])
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
                    raise self._first_of([failed])
                timeout = 0.0 if timeout is not None else None
            if return_when == FIRST_COMPLETED:
                ready = self.wait_count(min(1, self.n_parts), timeout)
                parts = [part for part in parts if self.part_done(part)]
            else:
                ready = self.wait_all_done(timeout)
        except KeyboardInterrupt:
            self.abort_interrupted()
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
        outcomes = [(part, self._part_outcome(part)) for part in parts]
        failures = [(part, outcome.error) for part, outcome in outcomes if isinstance(outcome, Failure)]
        if failures and not return_exceptions:
            raise self._exception_of([error for failure in failures for error in self._errors_of(*failure)])
        return self._assemble([self._in_place(part, outcome) for part, outcome in outcomes])

    def _in_place(self, part: int, outcome: Any) -> Any:
        """What stands for a part among values and exceptions."""
        if not isinstance(outcome, Failure):
            return outcome
        items = self.outcomes_of(part, outcome.error)
        if not isinstance(items, list):
            return outcome.error
        return [item.error if isinstance(item, Failure) else item for item in items]

    def _errors_of(self, part: int, error: BaseException) -> list[BaseException]:
        """The exceptions of a part that ended with `error`: one for each item of a chunk that raised."""
        items = self.outcomes_of(part, error)
        return [item.error for item in items if isinstance(item, Failure)] if isinstance(items, list) else [error]

    def keep_outcomes(self, part: int, record: Any, buffers: list[Any]) -> None:
        """Keeps the outcomes of a chunk's items, which came with its error record."""
        chunks: ChunkOutcomes = self.__dict__.setdefault("_chunks", ChunkOutcomes(self.locate_failure))
        chunks.keep(part, record, buffers)

    def outcomes_of(self, part: int, error: BaseException) -> list[Any] | Failure | None:
        """What became of the items of a chunk that ended with `error`; see `ChunkOutcomes.of`."""
        chunks: ChunkOutcomes | None = self.__dict__.get("_chunks")
        return None if chunks is None else chunks.of(part, error)

    def _all_values(self) -> list[Any] | None:
        """All values at once, if every part has one and that is faster than one by one."""
        return None

    def _part_outcome(self, part: int) -> Any:
        """The value of a resolved part, or its `Failure`."""
        error = self.failure(part)
        return self._part_value(part) if error is None else Failure(error)

    def _part_value(self, part: int) -> Any:
        return self.value(part)

    def _exception_of(self, errors: list[BaseException]) -> BaseException:
        lost = next((error for error in errors if isinstance(error, LinkLost)), None)
        if lost is not None:  # not the outcome of a task
            return fresh(lost)
        return self._failure_of(errors)

    def _failure_of(self, errors: list[BaseException]) -> BaseException:
        """The exception to raise for the errors of tasks."""
        if self.raises_original or (self.origin.single and self.n_parts == 1):
            return self._first_of(errors)
        return composite(errors, self._name)

    def _first_of(self, errors: list[BaseException]) -> BaseException:
        """The first of `errors`, to be raised; see `fresh`."""
        error = fresh(errors[0])
        return error.as_original() if self.raises_original and isinstance(error, RemoteError) else error

    def locate_failure(self, error: BaseException, part: int) -> None:
        """Adds to the exception of a part what only its result knows."""
        if isinstance(error, RemoteError):
            error.item_index = None

    def _assemble(self, values: list[Any]) -> Any:
        return values[0] if self.origin.single else values

    @property
    def r(self) -> Value:
        """The value: `get()`."""
        return self.get()

    def get_dict(self, timeout: float | None = None) -> dict[int, Any]:
        """The values by engine id.

        Args:
            timeout: Seconds to wait; None or a negative number means forever.

        Returns:
            The value of each engine's task.

        Raises:
            ValueError: An engine ran more than one of the tasks.
            TimeoutError: The tasks are not done after `timeout` seconds.
            RemoteError: The task did not return. With several tasks, a `CompositeError`.
        """
        value: Any = self.get(timeout)
        return self._by_engine([value] if self.origin.single else value)

    def _by_engine(self, values: Iterable[Any]) -> dict[int, Any]:
        engines = [self._engine_id(part) for part in range(self.n_parts)]
        if len(set(engines)) < len(engines):
            busiest = max(engines, key=engines.count)
            raise ValueError(f"Cannot build dict, {engines.count(busiest)} jobs ran on engine #{busiest}")
        return {engine: value for engine, value in zip(engines, values, strict=True) if engine is not None}

    @property
    def result_dict(self) -> dict[int, Any]:
        """The values by engine id: `get_dict()`."""
        return self.get_dict()

    def __iter__(self) -> Iterator[Any]:
        if self.origin.single:
            raise TypeError("AsyncResults with a single result are not iterable.")
        with self._aborting_on_interrupt():
            for part in range(self.n_parts):
                self.wait_part(part, None)
                yield self._value_or_raise(part)

    def __aiter__(self) -> AsyncIterator[Any]:
        if self.origin.single:
            raise TypeError("a single result is not iterable; use `await result`")
        from broadleaf.client.results.iteration import iterate

        return iterate(self, getattr(self, "ordered", True))

    def _values_in(self, part: int) -> Any:
        return (self._value_or_raise(part),)

    def _value_or_raise(self, part: int) -> Any:
        outcome = self._part_outcome(part)
        if not isinstance(outcome, Failure):
            return outcome
        if self._return_exceptions:
            return self._in_place(part, outcome)
        raise self._exception_of(self._errors_of(part, outcome.error))

    def __len__(self) -> int:
        return self.n_parts

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, key: int | slice | str) -> Any:
        if isinstance(key, str):
            return self._metadata_values(key)
        if not isinstance(key, int | slice):
            raise TypeError(f"Invalid key type {type(key)!r}, must be 'int', 'slice', or 'str'")
        value: Any = self.get(0)
        return value[key]

    # State --------------------------------------------------------------------------------------

    def ready(self) -> bool:
        """Whether all tasks are done.

        Returns:
            True if they are, however they ended.
        """
        return self.all_done()

    def failed(self) -> bool:
        """Whether any of the tasks that are done did not return.

        Returns:
            True if so; tasks that are not done do not count.
        """
        return self.n_failed() > 0

    def successful(self) -> bool:
        """Whether all tasks returned.

        Returns:
            True if they did.

        Raises:
            RuntimeError: They are not all done.
        """
        if not self.all_done():
            raise RuntimeError("Cannot check successful() if not done.")
        return not self.failed()

    def _has_started(self) -> bool:
        if any(self.part_done(part) and self.times(part)[0] for part in range(self.n_parts)):
            return True
        return self.origin.client.hub.any_runs(
            [name for name in map(self._task_name, self._unfinished_parts()) if name]
        )

    def abort(self) -> None:
        """Aborts the tasks, whether they are queued or running. `wait` waits until that is done.

        A task that ends before the request reaches it keeps its value, whereas `cancel` discards it. Running tasks are
        interrupted. If a task does not react, its engine is killed after `interrupt_grace_s` (the option).

        Raises:
            RuntimeError: All tasks are done.
            LinkLost: The connection is closed or was lost.
        """
        if self.all_done():
            raise RuntimeError("Can't abort, I am already done!")
        self._abort_unfinished("abort()")

    @property
    def sent(self) -> bool:
        """True: arguments are copied before a submission returns, so the caller may change them."""
        return True

    def wait_for_send(self, timeout: float | None = -1) -> bool:
        """Returns at once: arguments are copied before a submission returns; see `sent`.

        Args:
            timeout: Accepted for compatibility, without effect.

        Returns:
            True.
        """
        return True

    @property
    def progress(self) -> int:
        """How many of `len(self)` tasks are done; for a map, how many items."""
        return self.n_done()

    @property
    def _name(self) -> str:
        return self.origin.method if self.origin.method != "apply" else function_name(self.function)

    def __repr__(self) -> str:
        return f"<{self._kind}{progress_in_words(self)}>"

    _kind = "AsyncResult"

    # Splitting ----------------------------------------------------------------------------------

    def split(self) -> tuple[AsyncResult, ...]:
        """One result for each task. A result of one task is split into itself.

        Returns:
            The results in target order.
        """
        if self.n_parts == 1:
            return (self,)
        known: tuple[AsyncResult, ...] | None = self.__dict__.get("_split")
        if known is None:
            known = self.__dict__["_split"] = self.origin.client.split_result(self)
        return known

    @classmethod
    def join(cls, *async_results: AsyncResult) -> AsyncResult:
        """Joins several results into one; the inverse of `split`.

        Args:
            *async_results: The results, in the order of the values.

        Returns:
            A result whose value is the list of theirs. For a single result, that result itself.

        Raises:
            ValueError: No results are given.

        Example:
            >>> view = rc.load_balanced_view()
            >>> both = ipp.AsyncResult.join(view.apply_async(abs, -1), view.apply_async(abs, -2))
            >>> both.get()
            [1, 2]
        """
        if not async_results:
            raise ValueError("Must specify at least one AsyncResult to join")
        if len(async_results) == 1:
            return async_results[0]
        return async_results[0].origin.client.join_results(async_results)

    def parts(self) -> list[tuple[AsyncResult, int]]:
        """Every part as (the submitted result it belongs to, its number in that result)."""
        return [(self, part) for part in range(self.n_parts)]

    # Metadata -----------------------------------------------------------------------------------

    @property
    def msg_ids(self) -> list[str]:
        """The ids of the tasks; `client.get_result` takes them while this result lives."""
        return self.origin.client.tasks.register(self)

    def _engine_id(self, part: int) -> int | None:
        engine = self.times(part)[3]
        if engine >= 0:
            return engine
        targets = self.origin.targets
        return targets[part] if targets is not None else None

    @property
    def status(self) -> str | list[str | None] | None:
        """How each task ended: 'ok', 'error', 'aborted', 'timeout', 'refused', 'lost'; None until it has."""
        values: str | list[str | None] | None = self._metadata_values("status")
        return values

    @property
    def engine_id(self) -> int | list[int | None] | None:
        """The engine on which each task ran or will run; None until the scheduler has chosen one."""
        values: int | list[int | None] | None = self._metadata_values("engine_id")
        return values

    def part_metadata(self, part: int) -> Metadata:
        """Everything known about one task."""
        started_ns, completed_ns, received_ns, _ = self.times(part)
        outputs, data = outputs_of(self.messages(part))
        status = self.part_status(part)
        engine = self._engine_id(part)
        client = self.origin.client
        return Metadata(
            msg_id=client.tasks.msg_id(self._part_seq(part)),
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
            stdout=self.text_since(part, STDOUT, 0)[0],
            stderr=self.text_since(part, STDERR, 0)[0],
            outputs=outputs,
            data=data,
            label=self.origin.label,
        )

    @property
    def metadata(self) -> Any:
        """Everything known about the task, as a dict with attributes; for several tasks, a list of these."""
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

    if not TYPE_CHECKING:  # otherwise any misspelled name would pass

        def __getattr__(self, key: str) -> Any:
            # Called only for names that are not found otherwise.
            if key in METADATA_KEYS:
                return self._metadata_values(key)
            known = getattr(type(self), key, None)
            if isinstance(known, property):
                # The property itself raised AttributeError, such as one from an engine: raise it again.
                return known.__get__(self)
            raise AttributeError(f"{self._kind!r} object has no attribute {key!r}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *METADATA_KEYS})

    def __reduce__(self) -> Any:
        raise TypeError("a result cannot be sent; call its get() first, or use it as a dependency (after=, follow=)")
