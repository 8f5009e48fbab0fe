"""What a client may ask of an engine besides calling its own functions. All act on the engine's namespace."""

import ast
import builtins
import gc
import inspect
import linecache
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import CodeType
from typing import Any, TypedDict

from broadleaf.engine import display, in_place, namespace

# Cells whose source is kept for tracebacks and `inspect`.
KEPT_SOURCES = 1000


class ExecuteReply(TypedDict):
    """What `execute` returns; output and errors travel by the task that called it."""

    status: str
    execution_count: int
    execute_result: display.Bundle | None
    engine_id: int


class _Session:
    """The state of this process's interactive session."""

    def __init__(
        self, names: namespace.Namespace, replace: in_place.Replace, retire_buffers: Callable[[], None]
    ) -> None:
        self.names = names
        self.replace = replace
        self.retire_buffers = retire_buffers
        self.execution_count = 0
        self.sources: deque[str] = deque()
        self.runner: Any = None


_session = _Session({}, lambda destination, source: False, lambda: None)


def install(names: namespace.Namespace, replace: in_place.Replace, retire_buffers: Callable[[], None]) -> None:
    """Makes `names` the namespace that operations act on, and starts counting executions anew.

    `replace` and `retire_buffers` are the engine's; see `broadleaf.engine.in_place` for the first.
    """
    global _session
    close()
    _session = _Session(names, replace, retire_buffers)


def close() -> None:
    """Ends what awaited code has left behind: its tasks are cancelled and its event loop is closed."""
    runner, _session.runner = _session.runner, None
    if runner is not None:
        runner.close()


def execute(code: str, silent: bool = False) -> ExecuteReply:
    """Runs `code` in the namespace; the value of a last expression is shown as IPython would.

    `silent` shows nothing and does not count. A last line that ends in a semicolon shows nothing either.
    Raises what `code` raises; its traceback shows the code's own lines.
    """
    session = _session
    if not silent:
        session.execution_count += 1
    name = _keep_source(session, code)
    tree = ast.parse(code, name)
    last = tree.body[-1] if tree.body else None
    shown: ast.Expression | None = None
    if isinstance(last, ast.Expr):
        tree.body.pop()
        shown = ast.Expression(last.value)
    parts = [compile(tree, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)]
    if shown is not None:
        parts.append(compile(shown, name, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
    value = _run(session, parts)
    result: display.Bundle | None = None
    if shown is not None and not silent and not code.rstrip().endswith(";"):
        result = _show(session, value)
    return {
        "status": "ok",
        "execution_count": session.execution_count,
        "execute_result": result,
        "engine_id": session.names.get("engine_id", -1),
    }


def _run(session: _Session, parts: list[CodeType]) -> Any:
    """Runs one part after the other; the value of the last. With an await in any, a loop runs in all."""
    if any(part.co_flags & inspect.CO_COROUTINE for part in parts):
        return _await(session, _run_in_loop(session, parts))
    value: Any = None
    for part in parts:
        value = eval(part, session.names)
    return value


async def _run_in_loop(session: _Session, parts: list[CodeType]) -> Any:
    value: Any = None
    for part in parts:
        value = eval(part, session.names)
        if part.co_flags & inspect.CO_COROUTINE:
            value = await value
    return value


def _await(session: _Session, coroutine: Coroutine[Any, Any, Any]) -> Any:
    if session.runner is None:
        import asyncio

        session.runner = asyncio.Runner()
    loop = session.runner.get_loop()
    task = loop.create_task(coroutine)
    try:
        return loop.run_until_complete(task)
    except BaseException:
        task.cancel()  # interrupted, it would go on beside whatever is awaited next
        raise


def _show(session: _Session, value: Any) -> display.Bundle | None:
    if value is not None:
        session.names["_"] = value
    sys.displayhook(value)
    return sys.displayhook.take() if isinstance(sys.displayhook, display.DisplayHook) else None


_n_sources = 0


def _keep_source(session: _Session, code: str) -> str:
    """Makes the lines of `code` known to tracebacks; returns the file name that stands for it."""
    global _n_sources
    _n_sources += 1
    name = f"<broadleaf-{_n_sources}>"
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    session.sources.append(name)
    if len(session.sources) > KEPT_SOURCES:
        linecache.cache.pop(session.sources.popleft(), None)
    return name


def push(values: Mapping[str, Any]) -> None:
    """Sets names, dotted ones included."""
    # What they had before is unmapped, and the caller need not wait for that.
    _session.retire_buffers()
    names = _session.names
    for name, value in values.items():
        # The plain case here: a call more is felt where a hundred engines share two cores.
        if "." in name:
            namespace.assign(names, name, value)
        else:
            names[name] = value


def overwrite(values: Mapping[str, Any]) -> None:
    """Gives names' values new contents in place. Raises `InPlaceMismatch`; see `broadleaf.engine.in_place`."""
    _session.retire_buffers()
    in_place.overwrite(_session.names, values, _session.replace)


def check_fit(forms: Mapping[str, Any]) -> None:
    """Raises `InPlaceMismatch` unless names' values can be overwritten by ones of these forms."""
    in_place.check_fit(_session.names, forms)


def pull(names: str | Sequence[str]) -> Any:
    """The value of one name, or the list of values of several; dotted names are followed."""
    if isinstance(names, str):
        return namespace.lookup(_session.names, names)
    return [namespace.lookup(_session.names, name) for name in names]


def clear() -> None:
    """Removes every name that the user has set, and runs the collector, so that memory is free after it."""
    namespace.clear(_session.names)
    builtins.__dict__.pop("_", None)
    gc.collect()
