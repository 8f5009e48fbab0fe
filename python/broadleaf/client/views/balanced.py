"""The load-balanced view: whichever engine is free."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from broadleaf.client.connection.failures import link_lost
from broadleaf.client.results.async_result import AsyncResult
from broadleaf.client.results.map_results import AsyncMapResult
from broadleaf.client.tasks.dependency import is_dependency, resolve_dependency
from broadleaf.client.tasks.options import TaskOptions
from broadleaf.client.tasks.origin import Origin
from broadleaf.client.tasks.partition import as_rows, as_sequence, automatic_chunk_items, chunks
from broadleaf.client.views.base import Flag, View
from broadleaf.errors import hides_frames
from broadleaf.serialize.functions.bodies import MapChunk

if TYPE_CHECKING:
    from broadleaf.client.views.lazy_map import LazyMapIterator

__tracebackhide__ = hides_frames

Seqs = tuple[int, ...]


def _timeout(value: Any) -> float | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise TypeError(f"Invalid type for timeout: {type(value)!r}")
    if value is not None and value < 0:
        raise ValueError(f"Invalid timeout: {value}")
    return value or None


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"retries must be a number of times, not {value!r}")
    return value


def _dependency(value: Any) -> Any:
    if not is_dependency(value):
        raise ValueError(f"Invalid dependency: {value!r}")
    return value


class LoadBalancedView(View):
    """Tasks that run on whichever engine is free, with dependencies, retries, timeouts and priorities."""

    follow: Flag = Flag(None, "Tasks on whose engine these must run.", _dependency)
    after: Flag = Flag(None, "Tasks that must be done before these start.", _dependency)
    timeout: Flag = Flag(None, "Seconds a task may run, and its dependencies may take; then it is stopped.", _timeout)
    retries: Flag = Flag(0, "Times a task is tried again after it raised or its engine died.", _count)
    priority: Flag = Flag(0, "Of tasks that wait, those of higher priority start first.", int)

    _submit_one: Any
    _submit_mapped: Any
    _after: Seqs
    _follow: Seqs

    def _engines_in_words(self, targets: str) -> str:
        return f"any of {targets}" if targets else f"any engine ({len(self):,} now)"

    def on_flag_changed(self) -> None:
        self._submit_one = None

    def _prepare(self) -> None:
        """Makes the submitters for the flags as they are."""
        client = self.client
        after, after_rule = resolve_dependency(self.after, client)
        follow, follow_rule = resolve_dependency(self.follow, client)
        targets = None
        if self.targets is not None and self.targets != "all":
            targets, _ = client.resolve_targets(self.targets)
        options = client.define_options(
            TaskOptions(
                targets=targets,
                label=self.label or "",
                priority=self.priority,
                retries=self.retries,
                timeout_s=self.timeout,
                after=after_rule,
                follow=follow_rule,
            )
        )
        self._after, self._follow = after, follow
        types = client.result_types
        submitter = client.native.Submitter
        one = Origin(client, None, True, label=self.label, timeout_s=self.timeout, retries=self.retries)
        mapped = Origin(client, None, False, label=self.label, timeout_s=self.timeout, retries=self.retries)
        histories = (client.tasks.history, self._submitted)
        self._submit_mapped = submitter(client.link, types.mapped, mapped, options, 0, histories=histories)
        self._submit_one = submitter(client.link, types.single, one, options, 0, histories=histories)

    def apply_async(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AsyncResult:
        """Calls `function(*args, **kwargs)` on an engine and returns an `AsyncResult`."""
        # This is the hot path: changing a flag clears the submitter, so nothing is looked up here.
        submit = self._submit_one
        if submit is None:
            self._prepare()
            submit = self._submit_one
        try:
            if self._after or self._follow:
                return submit(function, args, kwargs, self._after, self._follow)  # type: ignore[no-any-return]
            return submit(function, args, kwargs)  # type: ignore[no-any-return]
        except self.client.native.LinkClosed as error:
            raise link_lost(error) from error

    def apply_sync(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls `function(*args, **kwargs)` on an engine and waits for the value."""
        submit = self._submit_one
        if submit is None:
            self._prepare()
            submit = self._submit_one
        try:
            result = submit(function, args, kwargs, self._after, self._follow, True)
        except self.client.native.LinkClosed as error:
            raise link_lost(error) from error
        return result.get()

    def map(
        self,
        function: Callable[..., Any],
        /,
        *sequences: Any,
        block: bool | None = None,
        chunksize: int | None = None,
        ordered: bool = True,
        return_exceptions: bool = False,
        label: str | None = None,
        track: bool | None = None,
    ) -> Any:
        """Calls `function` on each item, in chunks of `chunksize` items, each on whichever engine is free.

        Without `chunksize` (or with 0) it follows from the option `chunk_target`; see
        `partition.automatic_chunk_items`. Sequences of unequal length are cut to the shortest. With
        `ordered=False` iteration gives results as they come; `get` always gives them in order. With
        `return_exceptions` an item that raised stands as its exception in the result.
        """
        if label is not None and label != self.label:
            with self.temp_flags(label=label):
                return self.map(
                    function,
                    *sequences,
                    block=block,
                    chunksize=chunksize,
                    ordered=ordered,
                    return_exceptions=return_exceptions,
                )
        cut, n_items, items = self._cut(sequences, chunksize)
        if items == 1:
            # No chunks in this case: an item needs no list around it in either direction.
            result = self._submit_map(function, zip(*cut, strict=False), n_items, n_items, 1)
            result.bare = True
        else:
            chunk = MapChunk(function, return_exceptions)
            result = self._submit_map(chunk, chunks(cut, n_items, items), -(-n_items // items), n_items, items)
        result.ordered = ordered
        result._return_exceptions = return_exceptions
        return result.get() if (self.block if block is None else block) else result

    def map_chunks(
        self,
        function: Callable[..., Any],
        sequences: tuple[Any, ...],
        chunksize: int | None = None,
        whole_parts: bool = False,
    ) -> AsyncMapResult:
        """Calls `function` with chunks of the sequences. With `whole_parts` a chunk counts as one item."""
        cut, n_items, items = self._cut(sequences, chunksize, as_rows if whole_parts else as_sequence)
        n_chunks = -(-n_items // items)
        if whole_parts:
            return self._submit_map(function, chunks(cut, n_items, items), n_chunks, n_chunks, 1)
        return self._submit_map(function, chunks(cut, n_items, items), n_chunks, n_items, items)

    def _cut(
        self, sequences: tuple[Any, ...], chunksize: int | None, prepare: Callable[[Any], Any] = as_sequence
    ) -> tuple[list[Any], int, int]:
        """The sequences in a form that can be cut, how many items they have, and how many go into a chunk."""
        if not sequences:
            raise TypeError("must have some sequences to map onto")
        if chunksize is not None and chunksize < 0:
            raise ValueError(f"chunksize is a number of items, not {chunksize}")
        cut = [prepare(sequence) for sequence in sequences]
        n_items = min(map(len, cut))
        return cut, n_items, chunksize or automatic_chunk_items(n_items, len(self), self.client.chunk_target)

    def _submit_map(
        self, function: Callable[..., Any], calls: Iterable[tuple[Any, ...]], n_calls: int, n_items: int, items: int
    ) -> AsyncMapResult:
        """Submits one task per call, each for `items` items of `n_items`."""
        if n_calls == 0:
            from broadleaf.client.results.combined import EmptyMapResult

            return EmptyMapResult(Origin(self.client, None, False), function)
        if self._submit_one is None:
            self._prepare()
        with self.client.link_errors():
            result: AsyncMapResult = self._submit_mapped.many(function, calls, self._after, self._follow)
        result._chunk_items, result._n_items = items, n_items
        self.client.tasks.remember(result)
        return result

    def imap(
        self,
        function: Callable[..., Any],
        /,
        *sequences: Any,
        ordered: bool = True,
        max_outstanding: int | str = "auto",
        return_exceptions: bool = False,
    ) -> LazyMapIterator:
        """A lazy map over sequences that may be endless: an iterator over the values, with a `cancel` method.

        At most `max_outstanding` tasks are under way ('auto': 10 per engine; 0: no bound), so items are taken from
        the sequences only as results are taken from the iterator.
        """
        from broadleaf.client.views.lazy_map import LazyMapIterator

        if max_outstanding == "auto":
            max_outstanding = 10 * max(1, len(self))
        if not isinstance(max_outstanding, int) or max_outstanding < 0:
            raise ValueError(f"max_outstanding is a number of tasks or 'auto', not {max_outstanding!r}")
        return LazyMapIterator(self, function, sequences, ordered, max_outstanding, return_exceptions)

    def register_joblib_backend(self, name: str = "broadleaf", make_default: bool = False) -> None:
        """Makes this view a backend of joblib: `Parallel(backend=name)`."""
        from broadleaf.interop.joblib import register_joblib_backend

        register_joblib_backend(name, make_default, view=self)
