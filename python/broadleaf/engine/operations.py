"""What a client may ask of an engine besides calling its own functions. All act on the engine's namespace."""

import ast
import builtins
import gc
import inspect
import linecache
import sys
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from types import CodeType
from typing import Any, TypedDict

from broadleaf.engine import display, namespace

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

    def __init__(self, names: namespace.Namespace) -> None:
        self.names = names
        self.execution_count = 0
        self.sources: deque[str] = deque()
        self.loop: Any = None


_session = _Session({})


def install(names: namespace.Namespace) -> None:
    """Makes `names` the namespace that operations act on, and starts counting executions anew."""
    global _session
    _session = _Session(names)


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
    _run(session, compile(tree, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
    result: display.Bundle | None = None
    if shown is not None:
        value = _run(session, compile(shown, name, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
        if not silent and not code.rstrip().endswith(";"):
            result = _show(session, value)
    return {
        "status": "ok",
        "execution_count": session.execution_count,
        "execute_result": result,
        "engine_id": session.names.get("engine_id", -1),
    }


def _run(session: _Session, compiled: CodeType) -> Any:
    value = eval(compiled, session.names)
    if compiled.co_flags & inspect.CO_COROUTINE:
        return _await(session, value)
    return value


def _await(session: _Session, coroutine: Coroutine[Any, Any, Any]) -> Any:
    import asyncio

    if session.loop is None:
        session.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(session.loop)
    return session.loop.run_until_complete(coroutine)


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
    for name, value in values.items():
        namespace.assign(_session.names, name, value)


def pull(names: str | Sequence[str]) -> Any:
    """The value of one name, or the list of values of several; dotted names are followed."""
    if isinstance(names, str):
        return namespace.lookup(_session.names, names)
    return [namespace.lookup(_session.names, name) for name in names]


def scatter(name: str, part: Any, flatten: bool = False) -> None:
    """Sets `name` to this engine's part of a sequence; with `flatten` a part of one item is that item."""
    if flatten and len(part) == 1:
        part = part[0]
    namespace.assign(_session.names, name, part)


def evaluate(expression: str) -> Any:
    """The value of `expression`."""
    return eval(expression, _session.names)


def clear() -> None:
    """Removes every name that the user has set, and runs the collector, so that memory is free after it."""
    namespace.clear(_session.names)
    builtins.__dict__.pop("_", None)
    gc.collect()
