"""The direct view: each of a set of engines."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Literal, overload

from broadleaf.client.ctrl_c import ends_with_ctrl_c
from broadleaf.client.failures import link_lost
from broadleaf.client.partition import as_rows, as_sequence, check_dist, join_parts, only_item, part_bounds, part_of
from broadleaf.client.protocols import Origin
from broadleaf.client.results.async_result import AsyncResult
from broadleaf.client.results.combined import EmptyMapResult
from broadleaf.client.task_options import TaskOptions
from broadleaf.client.views.base import AsyncFunction, Flag, Function, Returned, View
from broadleaf.errors import NoEnginesRegistered, hides_frames
from broadleaf.extensions import extension
from broadleaf.serialize import picklers
from broadleaf.serialize.callables import check_map
from broadleaf.serialize.chunks import MapChunk

if TYPE_CHECKING:
    from broadleaf.client.results.maps import AsyncMapResult, MapIterator


__tracebackhide__ = hides_frames

# Names of functions in `broadleaf.engine.operations`, each called with the arguments that its method here passes.
_OPERATIONS = "broadleaf.engine.operations"
# Maximum number of submitters that a view keeps; it has one for each method, target set, label and mode.
_SUBMITTERS = 64
# Kinds of calls whose replies a broadcast view may coalesce; output and parts of maps are needed as they arrive.
_COALESCED = ("applied",)


DELIVERIES = ("private", "readonly", "shared")


def check_delivery(mode: str) -> str:
    """Returns the mode if calls support it, and raises ValueError otherwise."""
    if mode not in DELIVERIES:
        raise ValueError(f"mode={mode!r} is not one of {', '.join(DELIVERIES)}")
    return mode


def frozen(targets: Any) -> Any:
    """Targets in a form that can be the key of a dict."""
    return tuple(targets) if isinstance(targets, list | range | set) else targets


class DirectView(View):
    """A view that sends each of its engines a message of its own: calls, code, and variables of the namespaces.

    `view["x"] = 1` and `view["x"]` set and get a variable; a view of one engine (`rc[0]`) gives its value, one of
    several (`rc[:]`, `rc[[0]]`) a list in the order of the targets.

    `mode` specifies what engines may do with large buffers, such as those of arrays, in arguments and pushed values.
    Each host has one copy of them: 'private' (writable; no other engine sees what an engine writes), 'readonly', or
    'shared' (all engines of a host see what any of them writes).

    Args:
        client: The client whose engines these are. `rc[...]` and `Client.direct_view` make views.
        targets: An engine's id, a list of ids, or 'all', which is looked up at each call.
        **flags: Flags by name: `block`, `mode`, `topology`, `label`, `track`.

    Example:
        >>> view = rc[:2]
        >>> view["x"] = 3
        >>> view["x"]
        [3, 3]
        >>> view.apply_sync(lambda y: x + y, 1)
        [4, 4]
    """

    mode: Flag = Flag("private", "How engines get large buffers: 'private', 'readonly' or 'shared'.", check_delivery)
    topology: Flag = Flag(
        "auto",
        "How large arguments reach several hosts: `auto`, `flat`, `binomial`, `chain`, `k-ary`, or "
        "`k-ary:3` for three branches.",
    )

    def on_flag_changed(self) -> None:
        self._in_place = InPlace()
        self._own_targets = list(self.targets) if isinstance(self.targets, list) else None
        self._submitters: dict[Any, Any] = {}
        self._engines_version = -1

    # Submission ---------------------------------------------------------------------------------

    def _coalesces(self) -> bool:
        """Whether replies arrive together."""
        return False

    def _submitter(self, method: str, kind: str, targets: Any, label: Any, mode: str | None = None) -> Any:
        """A submitter, made again when flags or engines have changed."""
        client = self.client
        version = client.link.engines_version
        if self._engines_version != version:
            self._submitters.clear()
            self._engines_version = version
        given = self.targets if targets is None else targets
        if isinstance(given, slice):
            # A slice cannot be hashed before Python 3.12.
            given = client.ids[given]
        # The view's own list needs no hash, which would make calls on long lists more expensive.
        own = targets is None and isinstance(given, list) and given == self._own_targets
        of = None if own else frozen(given)
        delivery = self.mode if mode is None else mode
        key = (method, kind, of, label, delivery)
        found = self._submitters.get(key)
        if found is None:
            if len(self._submitters) >= _SUBMITTERS:
                self._submitters.clear()
            ids, single = client.resolve_targets(given)
            found = self._submitters[key] = self._new_submitter(method, kind, ids, single, label, delivery)
        return found

    def _new_submitter(self, method: str, kind: str, ids: tuple[int, ...], single: bool, label: Any, mode: str) -> Any:
        client = self.client
        if not ids:
            raise NoEnginesRegistered("this view has no engines; wait for some with client.wait_for_engines(n)")
        coalesce = self._coalesces() and kind in _COALESCED
        options = client.define_options(
            TaskOptions(mode="Each", targets=ids, label=label or "", topology=self.topology, coalesce=coalesce)
        )
        origin = Origin(client, ids, single and kind != "mapped", method, label)
        types = client.result_types
        result_type = {
            "applied": types.single if single else types.several,
            "mapped": types.mapped,
            "executed": types.executed,
        }[kind]
        histories = (client.tasks.history, self._submitted)
        return client.native.Submitter(client.link, result_type, origin, options, len(ids), coalesce, mode, histories)

    def _submit(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        method: str = "apply",
        kind: str = "applied",
        targets: Any = None,
        label: Any = None,
        wait: bool = False,
        mode: str | None = None,
    ) -> Any:
        """Submits one call for all targets; with `wait` the caller is about to wait for the result."""
        submit = self._submitter(method, kind, targets, label if label is not None else self.label, mode)
        try:
            result = submit(function, args, kwargs, (), (), wait)
            self.client.tasks.remember(result)
        except KeyboardInterrupt:
            self.client.abort_begun()
            raise
        except self.client.native.LinkClosed as error:
            raise link_lost(error) from error
        return result

    def _submit_each(
        self,
        function: Callable[..., Any],
        calls: list[tuple[Any, ...]],
        method: str,
        kind: str,
        ids: tuple[int, ...],
        label: Any = None,
    ) -> Any:
        label = label if label is not None else self.label
        submit = self._submitter(method, kind, ids, label)
        options = [
            self.client.define_options(TaskOptions(mode="Each", targets=(engine,), label=label or "")) for engine in ids
        ]
        with self.client.link_errors():
            result = submit.each(function, calls, options)
        self.client.tasks.remember(result)
        return result

    def apply_async(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AsyncResult:
        """Calls `function(*args, **kwargs)` on each engine, and does not wait.

        Args:
            function: The function to call. It is sent to engines that do not have it.
            *args: Its positional arguments.
            **kwargs: Its keyword arguments.

        Returns:
            The result. Its value is a list in the order of the targets or, for a view of one engine, that engine's
            value.

        Raises:
            NoEnginesRegistered: The view has no engines.
            IndexError: One of its engines does not exist.
            TypeError: The function cannot be called.
            SerializationError: The function or an argument cannot be pickled.
            LinkLost: The connection is closed or was lost.
        """
        return self._submit(function, args, kwargs)  # type: ignore[no-any-return]

    def apply_sync(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls `function(*args, **kwargs)` on each engine, and waits for the value.

        Args:
            function: The function to call. It is sent to engines that do not have it.
            *args: Its positional arguments.
            **kwargs: Its keyword arguments.

        Returns:
            The value, for a view of one engine; otherwise a list of values in the order of the targets.

        Raises:
            RemoteError: The call did not return. From several engines, a `CompositeError`.
            NoEnginesRegistered: The view has no engines.
            IndexError: One of its engines does not exist.
            TypeError: The function cannot be called.
            SerializationError: The function or an argument cannot be pickled.
            LinkLost: The connection is closed or was lost.

        Example:
            >>> rc[:].apply_sync(max, 1, 2)
            [2, 2, 2, 2]
        """
        result = None
        try:
            result = self._submit(function, args, kwargs, wait=True)
            return result.get()
        except KeyboardInterrupt:
            if result is not None and not result.done():
                # It came before `get` waited, or while it aborted the tasks.
                result.abort_interrupted()
            raise

    def _operation(self, name: str) -> Callable[..., Any]:
        __import__(_OPERATIONS)
        return getattr(sys.modules[_OPERATIONS], name)  # type: ignore[no-any-return]

    def _finish(self, result: AsyncResult, block: bool | None) -> Any:
        return result.get() if (self.block if block is None else block) else result

    @ends_with_ctrl_c
    def _call(
        self, operation: str, args: tuple[Any, ...], targets: Any, block: bool | None, mode: str | None = None
    ) -> Any:
        """Calls one of the engine's operations; the value if blocking, else the result."""
        wait = self.block if block is None else block
        result = self._submit(self._operation(operation), args, {}, operation, targets=targets, wait=wait, mode=mode)
        return result.get() if wait else result

    # Code ---------------------------------------------------------------------------------------

    @ends_with_ctrl_c
    def execute(
        self,
        code: str,
        silent: bool = True,
        targets: Any = None,
        block: bool | None = None,
        label: str | None = None,
        chain: str | None = None,
    ) -> AsyncResult:
        """Runs code in each engine's namespace.

        Magics and `!commands` work as in IPython, where the engine has IPython.

        Args:
            code: Any number of statements; `await` is allowed outside functions.
            silent: Whether to display nothing. With `silent=False`, the last expression's value is displayed.
            targets: Engines to use instead of the view's own: an id, a list of ids, a slice, or 'all'.
            block: Whether to wait; by default, the view's flag `block` decides.
            label: A name for the tasks, shown in metadata and status.
            chain: A name that several executions share: once one of them has failed on an engine, that engine runs none
                of the others, and they raise `TaskAborted`.

        Returns:
            The result, done if it waited. Its values are `ExecuteReply`s.

        Raises:
            RemoteError: With `block`: the code raised an exception. From several engines, a `CompositeError`.
            TypeError: `code` is not a str.
            NoEnginesRegistered: The view has no engines.
            IndexError: One of the engines does not exist.
            LinkLost: The connection is closed or was lost.

        Example:
            >>> rc[0].execute("a = 6; a * 7", silent=False, block=True).get().data["text/plain"]
            '42'
        """
        if not isinstance(code, str):
            raise TypeError(f"execute takes code as a str, not {type(code).__name__}; apply calls a function")
        wait = self.block if block is None else block
        self.client.local_modules.update()  # the code may import modules from a newly added path
        arguments = (code, silent) if chain is None else (code, silent, chain)
        result = self._submit(self._operation("execute"), arguments, {}, "execute", "executed", targets, label, wait)
        result.code = code
        if wait:
            result.wait()
            if result.n_failed():
                result.get()
        return result  # type: ignore[no-any-return]

    def run(
        self, filename: str, targets: Any = None, block: bool | None = None, label: str | None = None
    ) -> AsyncResult:
        """Runs the text of a local file in each engine's namespace.

        Args:
            filename: The path of the file, on this host.
            targets: Engines to use instead of the view's own: an id, a list of ids, a slice, or 'all'.
            block: Whether to wait; by default, the view's flag `block` decides.
            label: A name for the tasks, shown in metadata and status.

        Returns:
            The result, as from `execute`.

        Raises:
            OSError: The file cannot be read.
            RemoteError: With `block`: the code raised an exception. From several engines, a `CompositeError`.
        """
        with open(filename) as file:
            # A last line of only blanks would be a syntax error.
            code = file.read() + "\n"
        return self.execute(code, targets=targets, block=block, label=label)

    def activate(self, suffix: str = "") -> None:
        """Makes `%px`, `%%px` and related magics act on this view. Warns outside IPython, and does nothing.

        Args:
            suffix: A suffix for the magics' names, so that several views can have their own.
        """
        extension("activate magics")(self, suffix)

    @ends_with_ctrl_c
    def complete(self, text: str, position: int, timeout: float | None = None) -> tuple[list[str], int]:
        """The completions at a position of a cell, from the view's first engine.

        Args:
            text: The cell.
            position: The cursor's position in `text`, in characters.
            timeout: Seconds to wait while the engine is busy; None means forever.

        Returns:
            The candidates, and the position in `text` where the replaced text begins.

        Raises:
            TimeoutError: The engine was busy for longer. The request is cancelled.
            RemoteError: The engine has no IPython.
        """
        ids, _ = self.client.resolve_targets(self.targets)
        result = self._submit(self._operation("complete"), (text, position), {}, "complete", targets=ids[0])
        try:
            return result.get(timeout)  # type: ignore[no-any-return]
        except TimeoutError:
            result.abort()
            raise

    # Variables ----------------------------------------------------------------------------------

    @overload
    def push(
        self,
        ns: dict[str, Any],
        targets: Any = None,
        *,
        block: Literal[True],
        track: bool | None = None,
        mode: str | None = None,
    ) -> list[None] | None: ...

    @overload
    def push(
        self,
        ns: dict[str, Any],
        targets: Any = None,
        *,
        block: Literal[False],
        track: bool | None = None,
        mode: str | None = None,
    ) -> AsyncResult[list[None] | None]: ...

    @overload
    def push(
        self,
        ns: dict[str, Any],
        targets: Any = None,
        block: bool | None = None,
        track: bool | None = None,
        mode: str | None = None,
    ) -> Any: ...

    def push(
        self,
        ns: dict[str, Any],
        targets: Any = None,
        block: bool | None = None,
        track: bool | None = None,
        mode: str | None = None,
    ) -> Any:
        """Sets variables on each engine. You may change the values once it returns.

        Args:
            ns: Values by name. Names may be dotted: `{"model.weights": w}` sets an attribute.
            targets: Engines to use instead of the view's own: an id, a list of ids, a slice, or 'all'.
            block: Whether to wait until the engines have them; by default, the view's flag `block` decides.
            track: Accepted for compatibility, without effect.
            mode: What engines may do with large buffers: 'private', 'readonly' or 'shared'; by default, the view's flag
                `mode` decides. Or 'inplace': the arrays that the names stand for on the engines keep their identity and
                address and get new contents. Arrays, SciPy's sparse matrices, and dicts, lists and tuples of them can
                be overwritten, by values of the same shapes, dtypes and orders.

        Returns:
            An `AsyncResult`; with `block`, None for each engine.

        Raises:
            InPlaceMismatch: In place: a value cannot be overwritten, or does not fit. If an engine found the mismatch,
                it is also a `RemoteError`. If anything does not fit, nothing is changed on that engine.
            RemoteError: With `block`: an engine could not accept them. From several engines, a `CompositeError`.
            SerializationError: A value cannot be pickled.
            TypeError: `ns` is not a dict.
            ValueError: The mode does not exist.
            NoEnginesRegistered: The view has no engines.

        Example:
            >>> rc[:].push({"a": 1, "b": [2, 3]}, block=True)
            [None, None, None, None]
            >>> rc[1].pull(["a", "b"], block=True)
            [1, [2, 3]]
        """
        if not isinstance(ns, dict):
            raise TypeError(f"Must be a dict, not {type(ns)}")
        if mode == "inplace":
            self._in_place.check(self, ns, targets)
            return self._call("overwrite", (ns,), targets, block, "private")
        return self._call("push", (ns,), targets, block, None if mode is None else check_delivery(mode))

    @overload
    def broadcast(
        self, value: Any, name: str, mode: str | None = None, targets: Any = None, *, block: Literal[True]
    ) -> list[None] | None: ...

    @overload
    def broadcast(
        self, value: Any, name: str, mode: str | None = None, targets: Any = None, *, block: Literal[False]
    ) -> AsyncResult[list[None] | None]: ...

    @overload
    def broadcast(
        self, value: Any, name: str, mode: str | None = None, targets: Any = None, block: bool | None = None
    ) -> Any: ...

    def broadcast(
        self, value: Any, name: str, mode: str | None = None, targets: Any = None, block: bool | None = None
    ) -> Any:
        """Sets one variable on each engine: `push` of one value.

        Args:
            value: The value.
            name: The variable's name; it may be dotted.
            mode: As for `push`.
            targets: Engines to use instead of the view's own: an id, a list of ids, a slice, or 'all'.
            block: Whether to wait until the engines have it; by default, the view's flag `block` decides.

        Returns:
            An `AsyncResult`; with `block`, None for each engine.

        Raises:
            InPlaceMismatch: As for `push`.
            RemoteError: As for `push`.
            SerializationError: The value cannot be pickled.
            ValueError: The mode does not exist.
            NoEnginesRegistered: The view has no engines.
        """
        return self.push({name: value}, targets=targets, block=block, mode=mode)

    def update(self, ns: dict[str, Any]) -> Any:
        """`push` by another name.

        Args:
            ns: Values by name.

        Returns:
            The same as `push`.
        """
        return self.push(ns)

    @overload
    def pull(self, names: str | Iterable[str], targets: Any = None, *, block: Literal[False]) -> AsyncResult[Any]: ...

    @overload
    def pull(self, names: str | Iterable[str], targets: Any = None, block: bool | None = None) -> Any: ...

    def pull(self, names: str | Iterable[str], targets: Any = None, block: bool | None = None) -> Any:
        """Gets variables from each engine.

        Args:
            names: A name, or a list of several. Names may be dotted, as in 'model.weights'.
            targets: Engines to use instead of the view's own: an id, a list of ids, a slice, or 'all'.
            block: Whether to wait for the values; by default, the view's flag `block` decides.

        Returns:
            An `AsyncResult`; with `block`, the value of each engine, or a list of values if there are several names.

        Raises:
            RemoteError: With `block`: an engine has no such variable (the error is then a `NameError` too), or its
                value cannot be pickled. From several engines, a `CompositeError`.
            TypeError: The names are not str.
            NoEnginesRegistered: The view has no engines.
        """
        if isinstance(names, list | tuple | set):
            names = list(names)
            for name in names:
                if not isinstance(name, str):
                    raise TypeError(f"keys must be str, not type {type(name)!r}")
            names = tuple(names)
        elif not isinstance(names, str):
            raise TypeError(f"names must be strs, not {names!r}")
        return self._call("pull", (names,), targets, block)

    def get(self, names: str | Iterable[str]) -> Any:
        """Like `pull`, but always waits.

        Args:
            names: A name, or a list of several.

        Returns:
            The variable's value on each engine, or a list of values if there are several names.

        Raises:
            RemoteError: As for `pull`.
            TypeError: The names are not str.
            NoEnginesRegistered: The view has no engines.
        """
        return self.pull(names, block=True)

    def __getitem__(self, name: str) -> Any:
        return self.get(name)

    def __setitem__(self, name: str, value: Any) -> None:
        # An assignment is complete when it returns, and raises if it fails.
        self.push({name: value}, block=True)

    @overload
    def clear(self, targets: Any = None, *, block: Literal[True]) -> list[None] | None: ...

    @overload
    def clear(self, targets: Any = None, *, block: Literal[False]) -> AsyncResult[list[None] | None]: ...

    @overload
    def clear(self, targets: Any = None, block: bool | None = None) -> Any: ...

    def clear(self, targets: Any = None, block: bool | None = None) -> Any:
        """Removes the user's variables from each engine.

        Args:
            targets: Engines to use instead of the view's own: an id, a list of ids, a slice, or 'all'.
            block: Whether to wait; by default, the view's flag `block` decides.

        Returns:
            An `AsyncResult`; with `block`, None for each engine.

        Raises:
            NoEnginesRegistered: The view has no engines.
            IndexError: One of the engines does not exist.
        """
        return self._call("clear", (), targets, block)

    @overload
    def scatter(
        self,
        key: str,
        seq: Any,
        dist: str = "b",
        flatten: bool = False,
        targets: Any = None,
        *,
        block: Literal[True],
        track: bool | None = None,
    ) -> None: ...

    @overload
    def scatter(
        self,
        key: str,
        seq: Any,
        dist: str = "b",
        flatten: bool = False,
        targets: Any = None,
        *,
        block: Literal[False],
        track: bool | None = None,
    ) -> AsyncResult[list[None] | None]: ...

    @overload
    def scatter(
        self,
        key: str,
        seq: Any,
        dist: str = "b",
        flatten: bool = False,
        targets: Any = None,
        block: bool | None = None,
        track: bool | None = None,
    ) -> Any: ...

    @ends_with_ctrl_c
    def scatter(
        self,
        key: str,
        seq: Any,
        dist: str = "b",
        flatten: bool = False,
        targets: Any = None,
        block: bool | None = None,
        track: bool | None = None,
    ) -> Any:
        """Sets a variable to a part of a sequence on each engine.

        Args:
            key: The variable's name; it may be dotted.
            seq: What to cut: a sequence, an array by its first axis, a data frame, an Arrow or Polars table or a sparse
                matrix by its rows. A part is of the same kind.
            dist: How to cut: 'b' for contiguous parts, larger ones first, 'r' for every n-th item.
            flatten: Whether a part of one item is set as that item.
            targets: Engines to use instead of the view's own: an id, a list of ids, a slice, or 'all'.
            block: Whether to wait until the engines have them; by default, the view's flag `block` decides.
            track: Accepted for compatibility, without effect.

        Returns:
            An `AsyncResult`; with `block`, None.

        Raises:
            RemoteError: With `block`: an engine could not accept its part. From several engines, a `CompositeError`.
            SerializationError: A part cannot be pickled.
            ValueError: `dist` is neither 'b' nor 'r'.
            NoEnginesRegistered: The view has no engines.

        Example:
            >>> rc[:].scatter("part", range(6), block=True)
            >>> rc[:].apply_sync(lambda: list(part))
            [[0, 1], [2, 3], [4], [5]]
            >>> rc[:].gather("part", block=True)
            [0, 1, 2, 3, 4, 5]
        """
        check_dist(dist)
        seq = as_rows(seq)
        ids, _ = self.client.resolve_targets(self.targets if targets is None else targets)
        calls = []
        for i in range(len(ids)):
            part = part_of(seq, i, len(ids), len(seq), dist)
            calls.append(({key: only_item(part) if flatten else part},))
        result = self._submit_each(self._operation("push"), calls, "scatter", "applied", ids)
        if self.block if block is None else block:
            result.get()
            return None
        return result

    @overload
    def gather(self, key: str, dist: str = "b", targets: Any = None, *, block: Literal[False]) -> AsyncResult[Any]: ...

    @overload
    def gather(self, key: str, dist: str = "b", targets: Any = None, block: bool | None = None) -> Any: ...

    @ends_with_ctrl_c
    def gather(self, key: str, dist: str = "b", targets: Any = None, block: bool | None = None) -> Any:
        """The inverse of `scatter`: joins the parts that a variable holds on the engines.

        Args:
            key: The variable's name; it may be dotted.
            dist: How it was cut: 'b' or 'r'.
            targets: Engines to use instead of the view's own: an id, a list of ids, a slice, or 'all'.
            block: Whether to wait for the parts; by default, the view's flag `block` decides.

        Returns:
            An `AsyncMapResult`; with `block`, a list, array, table or matrix, like the parts.

        Raises:
            CompositeError: With `block`: an engine has no such variable, or its part cannot be pickled.
            ValueError: `dist` is neither 'b' nor 'r'.
            NoEnginesRegistered: The view has no engines.
        """
        check_dist(dist)
        ids, _ = self.client.resolve_targets(self.targets if targets is None else targets)
        result = self._submit(self._operation("pull"), (key,), {}, "gather", "mapped", list(ids))
        result._n_items = len(ids)
        result._join = lambda parts: join_parts(parts, dist)
        return self._finish(result, block)

    # Maps ---------------------------------------------------------------------------------------

    @overload
    def map(
        self,
        function: AsyncFunction[Returned],
        /,
        *sequences: Any,
        block: Literal[True],
        return_exceptions: Literal[False] = False,
        label: str | None = None,
        track: bool = False,
    ) -> list[Returned]: ...

    @overload
    def map(
        self,
        function: Function[Returned],
        /,
        *sequences: Any,
        block: Literal[True],
        return_exceptions: Literal[False] = False,
        label: str | None = None,
        track: bool = False,
    ) -> list[Returned]: ...

    @overload
    def map(
        self,
        function: AsyncFunction[Returned],
        /,
        *sequences: Any,
        block: Literal[False],
        return_exceptions: Literal[False] = False,
        label: str | None = None,
        track: bool = False,
    ) -> AsyncMapResult[Returned]: ...

    @overload
    def map(
        self,
        function: Function[Returned],
        /,
        *sequences: Any,
        block: Literal[False],
        return_exceptions: Literal[False] = False,
        label: str | None = None,
        track: bool = False,
    ) -> AsyncMapResult[Returned]: ...

    @overload
    def map(
        self,
        function: Function[Any],
        /,
        *sequences: Any,
        block: bool | None = None,
        return_exceptions: bool = False,
        label: str | None = None,
        track: bool = False,
    ) -> Any: ...

    @ends_with_ctrl_c
    def map(
        self,
        function: Callable[..., Any],
        /,
        *sequences: Any,
        block: bool | None = None,
        track: bool = False,
        return_exceptions: bool = False,
        label: str | None = None,
    ) -> Any:
        """Calls `function` on each item; each engine gets one contiguous part of the sequences.

        Args:
            function: The function to call with an item of each sequence.
            *sequences: Sequences or other iterables, cut to the shortest.
            block: Whether to wait for the values; by default, the view's flag `block` decides.
            track: Accepted for compatibility, without effect.
            return_exceptions: Whether the exception of an item that failed appears in the result.
            label: A name for the tasks, shown in metadata and status.

        Returns:
            An `AsyncMapResult`; with `block`, the list of values in the order of the sequences.

        Raises:
            CompositeError: With `block`: the function raised an exception for some item.
            TypeError: There are no sequences, or the function cannot be called.
            SerializationError: The function or an item cannot be pickled.
            NoEnginesRegistered: The view has no engines.
            LinkLost: The connection is closed or was lost.

        Example:
            >>> rc[:].map(lambda x: x * x, range(8), block=True)
            [0, 1, 4, 9, 16, 25, 36, 49]
        """
        check_map(function, sequences)
        result = self.map_parts(MapChunk(function), sequences, label=label)
        result._return_exceptions = return_exceptions
        return self._finish(result, block)

    @overload
    def imap(
        self,
        function: AsyncFunction[Returned],
        /,
        *sequences: Any,
        return_exceptions: Literal[False] = False,
        **options: Any,
    ) -> MapIterator[Returned]: ...

    @overload
    def imap(
        self,
        function: Function[Returned],
        /,
        *sequences: Any,
        return_exceptions: Literal[False] = False,
        **options: Any,
    ) -> MapIterator[Returned]: ...

    @overload
    def imap(
        self,
        function: Function[Any],
        /,
        *sequences: Any,
        return_exceptions: bool,
        **options: Any,
    ) -> MapIterator[Any]: ...

    @ends_with_ctrl_c
    def imap(self, function: Callable[..., Any], /, *sequences: Any, **options: Any) -> MapIterator[Any]:
        """Like `map`, but returns an iterator over the values as they arrive, in the order of the sequences.

        Args:
            function: The function to call with an item of each sequence.
            *sequences: Sequences or other iterables, cut to the shortest. They are read to their end before this
                returns.
            **options: Options of the view's `map`, without `block`.

        Returns:
            An iterator for `for` and `async for`.

        Raises:
            TypeError: There are no sequences, the function cannot be called, or `block` is among the options.
            SerializationError: The function or an item cannot be pickled.
        """
        from broadleaf.client.results.maps import MapIterator

        return MapIterator(self.map_async(function, *sequences, **options))

    def map_parts(
        self,
        function: Callable[..., Any],
        sequences: tuple[Any, ...],
        dist: str = "b",
        label: str | None = None,
        whole_parts: bool = False,
    ) -> AsyncMapResult:
        """Calls `function` with each engine's part of the sequences; parts without items are not sent.

        With `whole_parts` a part counts as one item of the result, not as many as it has.
        """
        if not sequences:
            raise TypeError("must have some sequences to map onto")
        check_dist(dist)
        cut = as_rows if whole_parts else as_sequence
        parts = [cut(sequence) for sequence in sequences]
        n_items = min(map(len, parts))
        ids, _ = self.client.resolve_targets(self.targets)
        n_parts = min(n_items, len(ids))
        if n_parts == 0:
            if not ids:
                raise NoEnginesRegistered("this view has no engines; wait for some with client.wait_for_engines(n)")
            return EmptyMapResult(Origin(self.client, (), False, label=label), function)
        calls = [tuple(part_of(part, i, n_parts, n_items, dist) for part in parts) for i in range(n_parts)]
        result: AsyncMapResult = self._submit_each(function, calls, "apply", "mapped", ids[:n_parts], label)
        bounds = (part_bounds(n_items, i, n_parts) for i in range(n_parts))
        result._chunk_items = [1] * n_parts if whole_parts else [high - low for low, high in bounds]
        result._n_items = n_parts if whole_parts else n_items
        result._join = lambda values: join_parts(values, dist)
        return result

    # Pickling -----------------------------------------------------------------------------------

    def use_dill(self) -> Any:
        """Uses dill for objects that pickle and cloudpickle cannot pickle, here and on these engines.

        Returns:
            An `AsyncResult`; with the flag `block`, None for each engine.

        Raises:
            ImportError: Dill is not installed here.
            RemoteError: With the flag `block`: dill is missing on an engine. From several engines, a `CompositeError`.
        """
        return self._use(picklers.use_dill)

    def use_cloudpickle(self) -> Any:
        """Sends functions of `__main__` with their globals, even if the engines have globals with the same names.

        Cloudpickle is used automatically whenever plain pickle fails.

        Returns:
            An `AsyncResult`; with the flag `block`, None for each engine.
        """
        return self._use(picklers.use_cloudpickle)

    def use_pickle(self) -> Any:
        """Undoes `use_dill` and `use_cloudpickle`, here and on these engines.

        Returns:
            An `AsyncResult`; with the flag `block`, None for each engine.
        """
        return self._use(picklers.use_pickle)

    def _use(self, switch: Callable[[], None]) -> Any:
        switch()
        return self.apply(switch)

    # Imports ------------------------------------------------------------------------------------

    @property
    def importer(self) -> AbstractContextManager[None]:
        """`sync_imports()`, as a property."""
        return self.sync_imports()

    @contextmanager
    def sync_imports(self, local: bool = True, quiet: bool = False) -> Iterator[None]:
        """Makes imports in the `with` block happen here and on the engines.

        Engines do not see `as` names: use the module's own name.

        Args:
            local: Must be True: use `execute` for imports on the engines alone.
            quiet: Whether to print nothing.

        Returns:
            A context manager.

        Raises:
            NotImplementedError: `local` is False.
            ImportError: An import failed here or, at the end of the block, on the engines.

        Example:
            >>> with rc[:].sync_imports():
            ...     import math
            importing math on engine(s)
            >>> rc[:].apply_sync(lambda: math.floor(2.5))
            [2, 2, 2, 2]
        """
        if not local:
            raise NotImplementedError(
                "sync_imports imports here and on the engines; to import only on the engines "
                "use view.execute('import ...')"
            )
        caller = sys._getframe(2)
        local_import = builtins.__import__
        results: list[AsyncResult] = []
        seen: set[str] = set()

        def import_here_and_there(
            name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
        ) -> Any:
            module = local_import(name, globals, locals, fromlist, level)
            # Imports made by the imported modules do not concern the engines.
            if sys._getframe(1) is caller and level == 0:
                what = ", ".join(fromlist or ())
                statement = f"from {name} import {what}" if what else f"import {name}"
                if statement not in seen:
                    seen.add(statement)
                    if not quiet:
                        print(
                            f"importing {what} from {name} on engine(s)" if what else f"importing {name} on engine(s)"
                        )
                    results.append(self.execute(statement, block=False))
            return module

        builtins.__import__ = import_here_and_there
        try:
            try:
                yield
            finally:
                builtins.__import__ = local_import
            for result in results:
                result.get()
        except KeyboardInterrupt:
            self.client.abort_interrupted([seq for result in results for seq in result._unfinished_seqs()])
            raise


# The check before a push in place: no large payload is sent to engines that would refuse it.


# Smaller values are sent unchecked: the engines check anyway, and the question would cost as much.
_ASK_FROM_BYTES = 1 << 20
# Maximum number of cached answers.
_REMEMBERED = 64


class InPlace:
    """What engines have reported that they can overwrite. An engine whose answer was wrong or is outdated refuses by
    itself."""

    def __init__(self) -> None:
        self._fitting: dict[Any, Any] = {}

    def check(self, view: DirectView, values: dict[str, Any], targets: Any) -> None:
        """Asks the engines whether the values fit, if they are large and the answer is not known.

        Raises `InPlaceMismatch` for values that cannot be overwritten, and whatever the engines raise.
        """
        from broadleaf.serialize.values import form_of, n_bytes

        forms = {name: form_of(value, name) for name, value in values.items()}
        if sum(map(n_bytes, values.values())) < _ASK_FROM_BYTES:
            return
        ids, _ = view.client.resolve_targets(view.targets if targets is None else targets)
        key = (ids, tuple(forms))
        if self._fitting.get(key) == forms:
            return
        view._call("check_fit", (forms,), list(ids), block=True)
        if len(self._fitting) >= _REMEMBERED:
            self._fitting.clear()
        self._fitting[key] = forms
