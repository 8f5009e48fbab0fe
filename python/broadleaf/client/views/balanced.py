"""The load-balanced view: whichever engine is free."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, overload

from broadleaf.client.ctrl_c import ends_with_ctrl_c
from broadleaf.client.failures import link_lost
from broadleaf.client.partition import as_columns, as_rows, as_sequence, automatic_chunk_items, chunks, in_blocks
from broadleaf.client.protocols import Origin
from broadleaf.client.results.async_result import AsyncResult
from broadleaf.client.results.combined import EmptyMapResult, JoinedMapResult
from broadleaf.client.results.maps import AsyncMapResult, LazyMapIterator
from broadleaf.client.task_options import TaskOptions, is_dependency, resolve_dependency
from broadleaf.client.views.base import AsyncFunction, Flag, Function, Returned, View
from broadleaf.errors import LinkLost, hides_frames
from broadleaf.extensions import extension
from broadleaf.serialize.callables import check_map
from broadleaf.serialize.chunks import MapChunk
from broadleaf.serialize.functions import for_many_calls

if TYPE_CHECKING:
    from broadleaf._native import History
__tracebackhide__ = hides_frames

# An iterator is taken in blocks of the bytes that may be under way, divided by this: while some run, the next is made.
_BLOCKS_UNDER_WAY = 16

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
    """Tasks that run on whichever engine is free, with dependencies, retries, timeouts and priorities.

    Args:
        client: The client whose engines these are. `Client.load_balanced_view` makes such views.
        targets: The ids of the engines to choose from; None: the engines that exist when a task runs.
        **flags: Flags by name: `block`, `label`, `after`, `follow`, `timeout`, `retries`, `priority`.

    Example:
        >>> view = rc.load_balanced_view()
        >>> first = view.apply_async(pow, 2, 10)
        >>> with view.temp_flags(after=first):
        ...     second = view.apply_async(pow, 3, 2)
        >>> first.get(), second.get()
        (1024, 9)
    """

    follow: Flag = Flag(None, "Tasks on whose engine these must run.", _dependency)
    after: Flag = Flag(None, "Tasks that must be done before these start.", _dependency)
    timeout: Flag = Flag(None, "Maximum number of seconds for a task, and for its dependencies.", _timeout)
    retries: Flag = Flag(0, "Number of times a task is retried after it raises or its engine dies.", _count)
    priority: Flag = Flag(0, "Waiting tasks with a higher priority start first.", int)

    shows_output: bool = False
    """Whether what tasks write is written to this process's own streams, as pools do. Set before the first task."""
    _internal_names = frozenset(("shows_output",))

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
        shown: dict[str, Any] = {"histories": histories, "show_output": self.shows_output}
        self._submit_mapped = submitter(client.link, types.mapped, mapped, options, 0, **shown)
        self._submit_one = submitter(client.link, types.single, one, options, 0, **shown)

    @overload
    def apply_async(self, function: AsyncFunction[Returned], /, *args: Any, **kwargs: Any) -> AsyncResult[Returned]: ...

    @overload
    def apply_async(self, function: Function[Returned], /, *args: Any, **kwargs: Any) -> AsyncResult[Returned]: ...

    def apply_async(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AsyncResult[Any]:
        """Calls `function(*args, **kwargs)` on a free engine, and does not wait.

        Args:
            function: The function to call. It is sent to engines that do not have it.
            *args: Its positional arguments.
            **kwargs: Its keyword arguments.

        Returns:
            The result of the call.

        Raises:
            InvalidDependency: `after` or `follow` names a task of another client.
            TypeError: The function cannot be called.
            SerializationError: The function or an argument cannot be pickled.
            LinkLost: The connection is closed or was lost.
        """
        # This is the hot path: changing a flag drops the submitter, so nothing is looked up here.
        submit = self._submit_one
        if submit is None:
            self._prepare()
            submit = self._submit_one
        try:
            if self._after or self._follow:
                return submit(function, args, kwargs, self._after, self._follow)  # type: ignore[no-any-return]
            return submit(function, args, kwargs)  # type: ignore[no-any-return]
        except KeyboardInterrupt:
            self.client.abort_begun()
            raise
        except self.client.native.LinkClosed as error:
            raise link_lost(error) from error

    @overload
    def apply_sync(self, function: AsyncFunction[Returned], /, *args: Any, **kwargs: Any) -> Returned: ...

    @overload
    def apply_sync(self, function: Function[Returned], /, *args: Any, **kwargs: Any) -> Returned: ...

    def apply_sync(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls `function(*args, **kwargs)` on a free engine, and waits for the value.

        Args:
            function: The function to call. It is sent to engines that do not have it.
            *args: Its positional arguments.
            **kwargs: Its keyword arguments.

        Returns:
            The value that the function returned.

        Raises:
            RemoteError: The call did not return: it raised, its engine died, or it was refused, aborted or too slow.
            InvalidDependency: `after` or `follow` names a task of another client.
            TypeError: The function cannot be called.
            SerializationError: The function or an argument cannot be pickled.
            LinkLost: The connection is closed or was lost.
        """
        submit = self._submit_one
        if submit is None:
            self._prepare()
            submit = self._submit_one
        try:
            return submit(function, args, kwargs, self._after, self._follow, True).get()
        except KeyboardInterrupt:
            self.client.abort_begun()
            raise
        except self.client.native.LinkClosed as error:
            raise link_lost(error) from error

    @overload
    def map(
        self,
        function: AsyncFunction[Returned],
        /,
        *sequences: Any,
        block: Literal[True],
        chunksize: int | None = None,
        ordered: bool = True,
        return_exceptions: Literal[False] = False,
        label: str | None = None,
        track: bool | None = None,
    ) -> list[Returned]: ...

    @overload
    def map(
        self,
        function: Function[Returned],
        /,
        *sequences: Any,
        block: Literal[True],
        chunksize: int | None = None,
        ordered: bool = True,
        return_exceptions: Literal[False] = False,
        label: str | None = None,
        track: bool | None = None,
    ) -> list[Returned]: ...

    @overload
    def map(
        self,
        function: AsyncFunction[Returned],
        /,
        *sequences: Any,
        block: Literal[False],
        chunksize: int | None = None,
        ordered: bool = True,
        return_exceptions: Literal[False] = False,
        label: str | None = None,
        track: bool | None = None,
    ) -> AsyncMapResult[Returned]: ...

    @overload
    def map(
        self,
        function: Function[Returned],
        /,
        *sequences: Any,
        block: Literal[False],
        chunksize: int | None = None,
        ordered: bool = True,
        return_exceptions: Literal[False] = False,
        label: str | None = None,
        track: bool | None = None,
    ) -> AsyncMapResult[Returned]: ...

    @overload
    def map(
        self,
        function: Function[Any],
        /,
        *sequences: Any,
        block: bool | None = None,
        chunksize: int | None = None,
        ordered: bool = True,
        return_exceptions: bool = False,
        label: str | None = None,
        track: bool | None = None,
    ) -> Any: ...

    @ends_with_ctrl_c
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
        """Calls `function` on each item, in chunks, each on whichever engine is free.

        Args:
            function: The function to call with an item of each sequence.
            *sequences: Sequences or other iterables, cut to the shortest. Iterators are taken in blocks, and the next
                one is not taken while tasks of those before hold `max_outstanding_bytes` (the option): all that
                iterators yield need not fit into memory.
            block: Whether to wait for the values; by default, the view's flag `block` decides.
            chunksize: Items per task. By default, or with 0: one each for up to `chunk_target` items (the option); more
                items are cut into that many chunks, or 8 per engine if that is more, of at most 16,384 items.
            ordered: Whether iterating yields values in the order of the sequences. With False, they come as they
                arrive; `get` still returns them in order.
            return_exceptions: Whether the exception of an item that failed appears in the result.
            label: A name for the tasks, shown in metadata and status.
            track: Accepted for compatibility, without effect.

        Returns:
            An `AsyncMapResult`; with `block`, the list of values in the order of the sequences.

        Raises:
            CompositeError: With `block`: the function raised an exception for some item, or a task did not return.
            TypeError: There are no sequences, or the function cannot be called.
            ValueError: `chunksize` is negative.
            InvalidDependency: `after` or `follow` names a task of another client.
            SerializationError: The function or an item cannot be pickled.
            LinkLost: The connection is closed or was lost.
        """
        check_map(function, sequences)
        return self._map(self._map_items, function, sequences, block, chunksize, ordered, return_exceptions, label)

    @overload
    def starmap(
        self,
        function: AsyncFunction[Returned],
        items: Iterable[Iterable[Any]],
        /,
        *,
        block: Literal[True],
        chunksize: int | None = None,
        ordered: bool = True,
        return_exceptions: Literal[False] = False,
        label: str | None = None,
    ) -> list[Returned]: ...

    @overload
    def starmap(
        self,
        function: Function[Returned],
        items: Iterable[Iterable[Any]],
        /,
        *,
        block: Literal[True],
        chunksize: int | None = None,
        ordered: bool = True,
        return_exceptions: Literal[False] = False,
        label: str | None = None,
    ) -> list[Returned]: ...

    @overload
    def starmap(
        self,
        function: AsyncFunction[Returned],
        items: Iterable[Iterable[Any]],
        /,
        *,
        block: Literal[False],
        chunksize: int | None = None,
        ordered: bool = True,
        return_exceptions: Literal[False] = False,
        label: str | None = None,
    ) -> AsyncMapResult[Returned]: ...

    @overload
    def starmap(
        self,
        function: Function[Returned],
        items: Iterable[Iterable[Any]],
        /,
        *,
        block: Literal[False],
        chunksize: int | None = None,
        ordered: bool = True,
        return_exceptions: Literal[False] = False,
        label: str | None = None,
    ) -> AsyncMapResult[Returned]: ...

    @overload
    def starmap(
        self,
        function: Function[Any],
        items: Iterable[Iterable[Any]],
        /,
        *,
        block: bool | None = None,
        chunksize: int | None = None,
        ordered: bool = True,
        return_exceptions: bool = False,
        label: str | None = None,
    ) -> Any: ...

    @ends_with_ctrl_c
    def starmap(
        self,
        function: Callable[..., Any],
        items: Iterable[Iterable[Any]],
        /,
        *,
        block: bool | None = None,
        chunksize: int | None = None,
        ordered: bool = True,
        return_exceptions: bool = False,
        label: str | None = None,
    ) -> Any:
        """`map` over tuples of arguments: calls `function(*item)` for each item.

        Args:
            function: The function to call.
            items: The arguments of each call. They may differ in number; then each call is a task.
            block: As for `map`.
            chunksize: As for `map`.
            ordered: As for `map`.
            return_exceptions: As for `map`.
            label: As for `map`.

        Returns:
            An `AsyncMapResult`; with `block`, the list of values in the order of the items.

        Raises:
            CompositeError: As for `map`.
            TypeError: The function cannot be called, or an item cannot be iterated over.
            ValueError: `chunksize` is negative.
            InvalidDependency: As for `map`.
            SerializationError: As for `map`.
            LinkLost: As for `map`.

        Example:
            >>> rc.load_balanced_view().starmap(pow, [(2, 5), (3, 2)], block=True)
            [32, 9]
        """
        check_map(function, (items,))
        return self._map(self._star_items, function, (items,), block, chunksize, ordered, return_exceptions, label)

    def _map(
        self,
        submit: Callable[[Callable[..., Any], Sequence[Any], int | None], AsyncMapResult],
        function: Callable[..., Any],
        sequences: Sequence[Any],
        block: bool | None,
        chunksize: int | None,
        ordered: bool,
        return_exceptions: bool,
        label: str | None,
    ) -> Any:
        """`submit` makes one result of sequences; iterators are taken in blocks, and each makes one."""
        if label is not None and label != self.label:
            with self.temp_flags(label=label):
                return self._map(submit, function, sequences, block, chunksize, ordered, return_exceptions, None)
        if all(hasattr(sequence, "__len__") for sequence in sequences):
            result = submit(function, sequences, chunksize)
            result.ordered = ordered
            result._return_exceptions = return_exceptions
            return result.get() if (self.block if block is None else block) else result
        result = self._map_in_blocks(submit, function, sequences, chunksize)
        try:
            result.ordered = ordered
            result._return_exceptions = return_exceptions
            return result.get() if (self.block if block is None else block) else result
        except KeyboardInterrupt:
            if not result.done():
                # It came before `get` waited, or while it aborted the tasks.
                result.abort_interrupted()
            raise

    def _map_items(
        self, function: Callable[..., Any], sequences: Sequence[Any], chunksize: int | None
    ) -> AsyncMapResult:
        cut, n_items, items = self._cut(sequences, chunksize)
        if items == 1:
            # No chunks in this case: an item needs no list around it in either direction.
            return self._submit_calls(function, zip(*cut, strict=False), n_items)
        return self._submit_map(MapChunk(function), chunks(cut, n_items, items), -(-n_items // items), n_items, items)

    def _star_items(
        self, function: Callable[..., Any], sequences: Sequence[Any], chunksize: int | None
    ) -> AsyncMapResult:
        self._check_cut(sequences, chunksize)
        return self.map_calls(function, [tuple(item) for item in sequences[0]], chunksize)

    def map_calls(
        self, function: Callable[..., Any], calls: list[tuple[Any, ...]], chunksize: int | None
    ) -> AsyncMapResult:
        """Calls `function` with each of these arguments."""
        columns = as_columns(calls)
        return (
            self._map_items(function, columns, chunksize)
            if columns
            else self._submit_calls(function, calls, len(calls))
        )

    def _submit_calls(
        self, function: Callable[..., Any], calls: Iterable[tuple[Any, ...]], n_calls: int
    ) -> AsyncMapResult:
        """Submits one task for each call."""
        result = self._submit_map(function, calls, n_calls, n_calls, 1)
        result.bare = True
        return result

    def _map_in_blocks(
        self,
        submit: Callable[[Callable[..., Any], Sequence[Any], int | None], AsyncMapResult],
        function: Callable[..., Any],
        sequences: Sequence[Any],
        chunksize: int | None,
    ) -> AsyncMapResult:
        """A map over iterators, taken in blocks.

        Submitting a block waits while too much is under way, so all that the iterators yield need not fit into memory.
        """
        self._check_cut(sequences, chunksize)
        blocks: list[AsyncMapResult] = []
        n_items = 0
        try:
            for block in in_blocks(sequences, self.client.link.max_outstanding_bytes // _BLOCKS_UNDER_WAY):
                result = submit(function, block, chunksize)
                blocks.append(result)
                result.first_item = n_items
                n_items += len(result)
            return blocks[0] if len(blocks) == 1 else JoinedMapResult(blocks)
        except KeyboardInterrupt:
            self.client.abort_begun()
            AsyncResult.abort_all(blocks)
            raise
        except BaseException:
            # Nobody will have their results.
            with suppress(LinkLost):
                self.client.cancel_tasks([seq for result in blocks for seq in result._unfinished_seqs()])
            raise

    def map_chunks(
        self,
        function: Callable[..., Any],
        sequences: tuple[Any, ...],
        chunksize: int | None = None,
        whole_parts: bool = False,
    ) -> AsyncMapResult:
        """Calls `function` with chunks of the sequences. With `whole_parts`, a chunk counts as one item."""
        cut, n_items, items = self._cut(sequences, chunksize, as_rows if whole_parts else as_sequence)
        n_chunks = -(-n_items // items)
        if whole_parts:
            return self._submit_map(function, chunks(cut, n_items, items), n_chunks, n_chunks, 1)
        return self._submit_map(function, chunks(cut, n_items, items), n_chunks, n_items, items)

    def _cut(
        self, sequences: Sequence[Any], chunksize: int | None, prepare: Callable[[Any], Any] = as_sequence
    ) -> tuple[list[Any], int, int]:
        """The sequences in a form that can be cut, how many items they have, and how many go into a chunk."""
        self._check_cut(sequences, chunksize)
        cut = [prepare(sequence) for sequence in sequences]
        n_items = min(map(len, cut))
        return cut, n_items, chunksize or automatic_chunk_items(n_items, len(self), self.client.chunk_target)

    @staticmethod
    def _check_cut(sequences: Sequence[Any], chunksize: int | None) -> None:
        if not sequences:
            raise TypeError("must have some sequences to map onto")
        if chunksize is not None and chunksize < 0:
            raise ValueError(f"chunksize must be a number of items, not {chunksize}")

    def _submit_map(
        self, function: Callable[..., Any], calls: Iterable[tuple[Any, ...]], n_calls: int, n_items: int, items: int
    ) -> AsyncMapResult:
        """Submits one task per call, each for `items` items of `n_items`."""
        if n_calls == 0:
            return EmptyMapResult(Origin(self.client, None, False), function)
        if self._submit_one is None:
            self._prepare()
        with self.client.link_errors(), for_many_calls():
            result: AsyncMapResult = self._submit_mapped.many(function, calls, n_calls, self._after, self._follow)
        result._chunk_items, result._n_items = items, n_items
        self.client.tasks.remember(result)
        return result

    @overload
    def imap(
        self,
        function: AsyncFunction[Returned],
        /,
        *sequences: Any,
        ordered: bool = True,
        max_outstanding: int | str = "auto",
        return_exceptions: Literal[False] = False,
        chunksize: int = 1,
    ) -> LazyMapIterator[Returned]: ...

    @overload
    def imap(
        self,
        function: Function[Returned],
        /,
        *sequences: Any,
        ordered: bool = True,
        max_outstanding: int | str = "auto",
        return_exceptions: Literal[False] = False,
        chunksize: int = 1,
    ) -> LazyMapIterator[Returned]: ...

    @overload
    def imap(
        self,
        function: Function[Any],
        /,
        *sequences: Any,
        ordered: bool = True,
        max_outstanding: int | str = "auto",
        return_exceptions: bool,
        chunksize: int = 1,
    ) -> LazyMapIterator[Any]: ...

    def imap(
        self,
        function: Callable[..., Any],
        /,
        *sequences: Any,
        ordered: bool = True,
        max_outstanding: int | str = "auto",
        return_exceptions: bool = False,
        chunksize: int = 1,
    ) -> LazyMapIterator[Any]:
        """A lazy map over sequences that may be endless.

        Items are taken from the sequences only as values are taken from the iterator.

        Args:
            function: The function to call with an item of each sequence.
            *sequences: Sequences or other iterables; it ends with the shortest.
            ordered: Whether values come in the order of the sequences. With False, they come as they arrive.
            max_outstanding: Maximum number of unfinished tasks. 'auto': 10 per engine; 0: no bound.
            return_exceptions: Whether an item that failed yields its exception instead of a value.
            chunksize: Items per task. With more than 1, short calls cost less, and values come a chunk at a time.

        Returns:
            An iterator over the values, for `for` and `async for`, with a method `cancel`.

        Raises:
            TypeError: The function cannot be called.
            ValueError: `max_outstanding` is neither a number of tasks nor 'auto', or `chunksize` is less than 1.

        Example:
            >>> import itertools
            >>> squares = rc.load_balanced_view().imap(lambda x: x * x, itertools.count())
            >>> [next(squares) for _ in range(4)]
            [0, 1, 4, 9]
            >>> squares.cancel()
        """
        check_map(function, sequences)
        calls = zip(*sequences, strict=False)
        return self.lazy_map(function, calls, ordered, max_outstanding, return_exceptions, chunksize)

    @overload
    def imap_unordered(
        self,
        function: AsyncFunction[Returned],
        /,
        *sequences: Any,
        max_outstanding: int | str = "auto",
        return_exceptions: Literal[False] = False,
        chunksize: int = 1,
    ) -> LazyMapIterator[Returned]: ...

    @overload
    def imap_unordered(
        self,
        function: Function[Returned],
        /,
        *sequences: Any,
        max_outstanding: int | str = "auto",
        return_exceptions: Literal[False] = False,
        chunksize: int = 1,
    ) -> LazyMapIterator[Returned]: ...

    @overload
    def imap_unordered(
        self,
        function: Function[Any],
        /,
        *sequences: Any,
        max_outstanding: int | str = "auto",
        return_exceptions: bool,
        chunksize: int = 1,
    ) -> LazyMapIterator[Any]: ...

    def imap_unordered(
        self,
        function: Callable[..., Any],
        /,
        *sequences: Any,
        max_outstanding: int | str = "auto",
        return_exceptions: bool = False,
        chunksize: int = 1,
    ) -> LazyMapIterator[Any]:
        """Like `imap`, but yields values as they arrive: `imap` with `ordered=False`.

        Args:
            function: The function to call with an item of each sequence.
            *sequences: Sequences or other iterables; it ends with the shortest.
            max_outstanding: As for `imap`.
            return_exceptions: As for `imap`.
            chunksize: As for `imap`.

        Returns:
            An iterator over the values, as for `imap`.

        Raises:
            TypeError: The function cannot be called.
            ValueError: As for `imap`.

        Example:
            >>> sorted(rc.load_balanced_view().imap_unordered(abs, [-3, 1, -2]))
            [1, 2, 3]
        """
        return self.imap(
            function,
            *sequences,
            ordered=False,
            max_outstanding=max_outstanding,
            return_exceptions=return_exceptions,
            chunksize=chunksize,
        )

    def lazy_map(
        self,
        function: Callable[..., Any],
        calls: Iterable[tuple[Any, ...]],
        ordered: bool = True,
        max_outstanding: int | str = "auto",
        return_exceptions: bool = False,
        chunksize: int = 1,
        history: History | None = None,
        timeout_s: float | None = None,
    ) -> LazyMapIterator[Any]:
        """`imap` over the arguments of calls, which records its tasks in `history`, too."""
        if max_outstanding == "auto":
            max_outstanding = 10 * max(1, len(self))
        if not isinstance(max_outstanding, int) or max_outstanding < 0:
            raise ValueError(f"max_outstanding must be a number of tasks or 'auto', not {max_outstanding!r}")
        if chunksize < 1:
            raise ValueError(f"chunksize must be a number of items, not {chunksize}")
        return LazyMapIterator(
            self, function, calls, ordered, max_outstanding, return_exceptions, chunksize, history, timeout_s
        )

    def register_joblib_backend(self, name: str = "broadleaf", make_default: bool = False) -> None:
        """Registers this view as a joblib backend: `Parallel(backend=name)`.

        Args:
            name: The backend's name.
            make_default: Whether joblib uses it when no backend is named.

        Raises:
            ImportError: joblib is not installed.
        """
        extension("register with joblib")(name, make_default, view=self)
