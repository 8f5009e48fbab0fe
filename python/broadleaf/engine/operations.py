"""What a client can ask an engine to do besides calling functions. All act on the engine's namespace."""

import builtins
import gc
import linecache
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from broadleaf.engine import interactive, namespace
from broadleaf.engine.output import Bundle, CellOutput, DisplayHook
from broadleaf.serialize import coroutines

if TYPE_CHECKING:
    import ast

# Number of cells whose source is kept for tracebacks and `inspect`.
KEPT_SOURCES = 1000
# Of a code object: it has an await.
_CO_COROUTINE = 0x80  # as in `inspect`, which takes longer to import than this module


class ExecuteReply(TypedDict):
    """What `execute` returns. Output reaches the client by itself, as it is written."""

    status: str
    execution_count: int
    execute_result: Bundle | None
    engine_id: int
    output: NotRequired[dict[str, Any]]
    """What the code wrote and displayed, for clients that did not run it; see `CellOutput`."""


class _Session:
    """The state of this process's interactive session."""

    def __init__(
        self, names: namespace.Namespace, replace: namespace.Replace, retire_buffers: Callable[[], None]
    ) -> None:
        self.names = names
        self.replace = replace
        self.retire_buffers = retire_buffers
        self.execution_count = 0
        self.sources: dict[str, None] = {}
        self.failed_chain: str | None = None
        self.output_of_failed: dict[str, Any] = {}


_session = _Session({}, lambda destination, source: False, lambda: None)


def install(names: namespace.Namespace, replace: namespace.Replace, retire_buffers: Callable[[], None]) -> None:
    """Makes `names` the namespace that operations act on, and resets the execution count.

    `replace` and `retire_buffers` are the engine's; see `broadleaf.engine.namespace` for the first.
    """
    global _session
    close()
    _session = _Session(names, replace, retire_buffers)


def close() -> None:
    """Cleans up after awaited code: cancels its tasks and closes its event loop."""
    coroutines.close()


def execute(code: str, silent: bool = False, chain: str | None = None) -> ExecuteReply:
    """Runs `code` in the namespace; the value of a last expression is shown as IPython would.

    Magics, `!commands` and the rest of IPython's syntax work where IPython is installed. `silent` shows nothing and
    does not count. A last line that ends in a semicolon shows nothing either. Raises what `code` raises; its traceback
    shows the code's own lines. Once code of a `chain` has raised, no more of that chain is run: it raises
    `TaskAborted`.
    """
    session = _session
    if chain is None:
        return _execute(session, code, silent)
    if chain == session.failed_chain:
        from broadleaf.errors import TaskAborted

        raise TaskAborted("not run, because an earlier cell raised an exception")
    try:
        return _execute(session, code, silent)
    except BaseException:
        session.failed_chain = chain
        raise


def _execute(session: _Session, code: str, silent: bool) -> ExecuteReply:
    if not silent:
        session.execution_count += 1
    name = _source_name(code)
    from broadleaf.engine import interactive

    tree, source = interactive.parse_cell(code, session.names, name)
    _keep_source(session, name, source)
    output = CellOutput()
    try:
        with output:
            result = _run_with_events(session, tree, source, name, silent)
    except BaseException:
        session.output_of_failed = output.content()
        raise
    reply: ExecuteReply = {
        "status": "ok",
        "execution_count": session.execution_count,
        "execute_result": result,
        "engine_id": session.names.get("engine_id", -1),
    }
    content = output.content()
    if content:
        reply["output"] = content
    return reply


def take_output_of_failed() -> dict[str, Any]:
    """The output and displays of a cell that has just raised; see `CellOutput`."""
    output, _session.output_of_failed = _session.output_of_failed, {}
    return output


def _run_with_events(session: _Session, tree: "ast.Module", source: str, name: str, silent: bool) -> Bundle | None:
    shell = interactive.existing_shell()
    if shell is None:
        return _run_cell(session, tree, source, name, silent)
    with shell.events_around(source, silent, session.execution_count):
        return _run_cell(session, tree, source, name, silent)


def _run_cell(session: _Session, tree: "ast.Module", source: str, name: str, silent: bool) -> Bundle | None:
    """Runs a cell; returns the representations of its value if it should be shown."""
    import ast

    last = tree.body[-1] if tree.body else None
    shown: ast.Expression | None = None
    if isinstance(last, ast.Expr):
        tree.body.pop()
        shown = ast.Expression(last.value)
    parts = [compile(tree, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)]
    if shown is not None:
        parts.append(compile(shown, name, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
    value = _run(session, parts)
    if shown is None or silent or source.rstrip().endswith(";"):
        return None
    return _show(session, value)


def _run(session: _Session, parts: list[CodeType]) -> Any:
    """Runs one part after the other; returns the value of the last. If any part has an await, the event loop runs in
    all of them."""
    if any(part.co_flags & _CO_COROUTINE for part in parts):
        return coroutines.run_coroutine(_run_in_loop(session, parts))
    value: Any = None
    for part in parts:
        value = eval(part, session.names)
    return value


async def _run_in_loop(session: _Session, parts: list[CodeType]) -> Any:
    value: Any = None
    for part in parts:
        value = eval(part, session.names)
        if part.co_flags & _CO_COROUTINE:
            value = await value
    return value


def _show(session: _Session, value: Any) -> Bundle | None:
    if value is not None:
        session.names["_"] = value
    sys.displayhook(value)
    return sys.displayhook.take() if isinstance(sys.displayhook, DisplayHook) else None


def _source_name(code: str) -> str:
    """A file name for a cell: the same on every engine, so that the same error has the same traceback."""
    return f"<broadleaf-{zlib.crc32(code.encode(errors='surrogatepass')):08x}>"


def _keep_source(session: _Session, name: str, code: str) -> None:
    """Makes the lines of `code` available to tracebacks as the file `name`."""
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    session.sources.pop(name, None)
    session.sources[name] = None
    if len(session.sources) > KEPT_SOURCES:
        oldest = next(iter(session.sources))
        del session.sources[oldest]
        linecache.cache.pop(oldest, None)


def push(values: Mapping[str, Any]) -> None:
    """Sets names, including dotted ones."""
    # The old values are unmapped, and the caller need not wait for that.
    _session.retire_buffers()
    names = _session.names
    for name, value in values.items():
        # The simple case is handled here: one more call is noticeable if a hundred engines share two cores.
        if "." in name:
            namespace.assign(names, name, value)
        else:
            names[name] = value


def overwrite(values: Mapping[str, Any]) -> None:
    """Overwrites the values of names in place. Raises `InPlaceMismatch`; see `broadleaf.engine.namespace`."""
    _session.retire_buffers()
    namespace.overwrite(_session.names, values, _session.replace)


def check_fit(forms: Mapping[str, Any]) -> None:
    """Raises `InPlaceMismatch` unless the names' values can be overwritten by values of these forms."""
    namespace.check_fit(_session.names, forms)


def pull(names: str | Sequence[str]) -> Any:
    """The value of one name, or the list of values of several; dotted names are followed."""
    if isinstance(names, str):
        return namespace.lookup(_session.names, names)
    return [namespace.lookup(_session.names, name) for name in names]


def clear() -> None:
    """Removes every name that the user has set, and runs the garbage collector, so that memory is free afterwards."""
    namespace.clear(_session.names)
    builtins.__dict__.pop("_", None)
    shell = interactive.existing_shell()
    if shell is not None:
        shell.init_user_ns()
    gc.collect()


def complete(text: str, position: int) -> tuple[list[str], int]:
    """Completions at `position` of the cell `text`, and where the replaced text begins."""
    return interactive.engine_shell().complete_at(text, position)


def post_mortem(number: int) -> None:
    """Opens a debugger where a task failed. Raises `LookupError` if its frames are no longer kept."""
    from broadleaf.engine import debugger, interactive

    debugger.post_mortem(interactive.kept_failed(number))
