"""All ways on which values and functions go to engines, and values come back."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable
from random import Random
from typing import Any

import broadleaf as ipp
import joblib

Function = Callable[..., Any]
#: What a call gave: ('value', it) or ('error', the exception).
Outcome = tuple[str, Any]
#: Waits, and returns what each call gave, on each engine if there are several.
Collect = Callable[[], list[list[Outcome]]]
Start = Callable[[ipp.Client, Random, Function, list[Any]], Collect]

_numbers = itertools.count()


def outcome(get: Callable[[], Any]) -> Outcome:
    """What a call gives."""
    try:
        return "value", get()
    except Exception as error:
        return "error", error


def _told(value: Any) -> Outcome:
    """What an item of a result with `return_exceptions` is."""
    return ("error", value) if isinstance(value, ipp.RemoteError | ipp.SerializationError) else ("value", value)


def _one_engine(client: ipp.Client, rng: Random) -> int:
    return rng.choice(client.ids)


def _each(results: list[Any]) -> Collect:
    return lambda: [[outcome(result.get)] for result in results]


def _on_all(results: list[Any]) -> Collect:
    return lambda: [list(map(_told, result.get(return_exceptions=True))) for result in results]


def _from_map(result: Any) -> Collect:
    return lambda: [[_told(value)] for value in result.get(return_exceptions=True)]


def _direct(client: ipp.Client, rng: Random, function: Function, items: list[Any]) -> Collect:
    view = client[_one_engine(client, rng)]
    return _each([view.apply_async(function, item) for item in items])


def _direct_all(client: ipp.Client, rng: Random, function: Function, items: list[Any]) -> Collect:
    return _on_all([client[:].apply_async(function, item) for item in items])


def _balanced(client: ipp.Client, rng: Random, function: Function, items: list[Any]) -> Collect:
    view = client.load_balanced_view()
    return _each([view.apply_async(function, item) for item in items])


def _balanced_sync(client: ipp.Client, rng: Random, function: Function, items: list[Any]) -> Collect:
    view = client.load_balanced_view()
    return lambda: [[outcome(lambda item=item: view.apply_sync(function, item))] for item in items]


def _keyword(client: ipp.Client, rng: Random, function: Function, items: list[Any]) -> Collect:
    view = client.load_balanced_view()
    return _each([view.apply_async(_with_keyword, function=function, item=item, more=[item]) for item in items])


def _with_keyword(*, function: Function, item: Any, more: Any) -> Any:
    assert more[0] is item or type(item) in (int, float, complex, bool, str, bytes, tuple), "one object became two"
    return function(item)


def _broadcast(coalescing: bool) -> Start:
    def start(client: ipp.Client, rng: Random, function: Function, items: list[Any]) -> Collect:
        view = client.broadcast_view(coalescing=coalescing)
        return _on_all([view.apply_async(function, item) for item in items])

    return start


def _direct_map(client: ipp.Client, rng: Random, function: Function, items: list[Any]) -> Collect:
    return _from_map(client[:].map_async(function, items, return_exceptions=True))


def _map_on_one(client: ipp.Client, rng: Random, function: Function, items: list[Any]) -> Collect:
    return _from_map(client[_one_engine(client, rng)].map_async(function, items, return_exceptions=True))


def _balanced_map(client: ipp.Client, rng: Random, function: Function, items: list[Any]) -> Collect:
    chunksize = rng.choice((None, 1, 2, 3, 100))
    return _from_map(
        client.load_balanced_view().map_async(
            function, items, chunksize=chunksize, return_exceptions=rng.random() < 0.5
        )
    )


def _map_of_rows(client: ipp.Client, rng: Random, function: Function, items: list[Any]) -> Collect:
    """Two sequences, the second of which is a generator."""
    view = client.load_balanced_view()
    result = view.map_async(
        _of_two, [function] * len(items), iter(items), chunksize=rng.choice((1, 2)), return_exceptions=True
    )
    return _from_map(result)


def _of_two(function: Function, item: Any) -> Any:
    return function(item)


def _imap(client: ipp.Client, rng: Random, function: Function, items: list[Any]) -> Collect:
    iterator = client.load_balanced_view().imap(function, items, return_exceptions=True)
    return lambda: [[_told(value)] for value in iterator]


def _executor_submit(client: ipp.Client, rng: Random, function: Function, items: list[Any]) -> Collect:
    executor = client.executor()
    futures = [executor.submit(function, item) for item in items]
    return lambda: [[outcome(future.result)] for future in futures]


def _direct_executor(client: ipp.Client, rng: Random, function: Function, items: list[Any]) -> Collect:
    executor = client[_one_engine(client, rng)].executor
    futures = [executor.submit(function, item) for item in items]
    return lambda: [[outcome(future.result)] for future in futures]


def _executor_map(client: ipp.Client, rng: Random, function: Function, items: list[Any]) -> Collect:
    iterator = client.executor().map(function, items, chunksize=rng.choice((1, 1, 2, None)), return_exceptions=True)
    return lambda: [[_told(value)] for value in iterator]


def _joblib(client: ipp.Client, rng: Random, function: Function, items: list[Any]) -> Collect:
    client.load_balanced_view().register_joblib_backend("random-cases")
    batch_size = rng.choice((1, 2, "auto"))

    def collect() -> list[list[Outcome]]:
        calls = [joblib.delayed(_outcome_there)(function, item) for item in items]
        try:
            results = joblib.Parallel(backend="random-cases", batch_size=batch_size)(calls)
        except Exception as error:
            # One that is not the function's.
            results = [("error", error)] * len(items)
        return [[found] for found in results]

    return collect


def _outcome_there(function: Function, item: Any) -> Outcome:
    """joblib raises only the first exception; these come back as values."""
    from description import describe_error

    try:
        value = function(item)
        if asyncio.iscoroutine(value):
            value = asyncio.run(value)
    except Exception as error:
        return "described error", (describe_error(error),)
    return "value", value


def _awaited(client: ipp.Client, rng: Random, function: Function, items: list[Any]) -> Collect:
    view = client.load_balanced_view()

    async def wait() -> list[Any]:
        return await asyncio.gather(*(awaited(item) for item in items))

    async def awaited(item: Any) -> Outcome:
        try:
            return "value", await view.apply_async(function, item)
        except Exception as error:
            return "error", error

    return lambda: [[found] for found in asyncio.run(wait())]


def _forget(view: ipp.DirectView, names: list[str]) -> None:
    """Deletes variables, some of which may not have got there."""
    view.execute(f"[globals().pop(name, None) for name in {names!r}]", block=True)


def _push_and_reference(client: ipp.Client, rng: Random, function: Function, items: list[Any]) -> Collect:
    view = client[:]
    names = [f"pushed_{next(_numbers)}" for _ in items]
    view.push(dict(zip(names, items, strict=True)), block=rng.random() < 0.5)
    collect = _on_all([view.apply_async(function, ipp.Reference(name)) for name in names])

    def collect_and_delete() -> list[list[Outcome]]:
        found = collect()
        _forget(view, names)
        return found

    return collect_and_delete


def _push_and_pull(client: ipp.Client, rng: Random, function: Function, items: list[Any]) -> Collect:
    """What the function makes of a value is left there, and pulled."""
    view = client[_one_engine(client, rng)]
    name = f"pulled_{next(_numbers)}"

    def collect() -> list[list[Outcome]]:
        found = []
        for item in items:
            found.append([outcome(lambda item=item: pulled(item))])
        return found

    def pulled(item: Any) -> Any:
        view.push({name: item}, block=True)
        try:
            view.apply_sync(_keep, name, function)
            return view.pull(name, block=True)
        finally:
            _forget(view, [name])

    return collect


def _keep(name: str, function: Function) -> None:
    import __main__

    value = function(vars(__main__)[name])
    if asyncio.iscoroutine(value):
        value = asyncio.run(value)
    vars(__main__)[name] = value


def _scatter_and_gather(client: ipp.Client, rng: Random, function: Function, items: list[Any]) -> Collect:
    name, dist, view = f"scattered_{next(_numbers)}", rng.choice("br"), client[:]
    view.scatter(name, items, dist, block=True)
    result = view.apply_async(_map_there, name, function)

    def collect() -> list[list[Outcome]]:
        result.get()
        gathered = view.gather(name, dist, block=True)
        _forget(view, [name])
        return [[found] for found in gathered]

    return collect


def _map_there(name: str, function: Function) -> None:
    import __main__

    vars(__main__)[name] = [_outcome_there(function, item) for item in vars(__main__)[name]]


def _partial(client: ipp.Client, rng: Random, function: Function, items: list[Any]) -> Collect:
    view = client.load_balanced_view()
    return _each([view.apply_async(functools.partial(function, item)) for item in items])


def _captured(client: ipp.Client, rng: Random, function: Function, items: list[Any]) -> Collect:
    view = client.load_balanced_view()
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("def capturing(function, item): return lambda: function(item)", names)
    return _each([view.apply_async(names["capturing"](function, item)) for item in items])


def _remote(client: ipp.Client, rng: Random, function: Function, items: list[Any]) -> Collect:
    remote = client.load_balanced_view().remote(block=False)(function)
    return _each([remote(item) for item in items])


def _parallel(client: ipp.Client, rng: Random, function: Function, items: list[Any]) -> Collect:
    parallel = client[:].parallel(block=False)(function)
    return _from_map(parallel.map(items))


def _pre_pickled(client: ipp.Client, rng: Random, function: Function, items: list[Any]) -> Collect:
    view = client.load_balanced_view()
    return _each([view.apply_async(function, ipp.PrePickled(item)) for item in items])


def _nested(client: ipp.Client, rng: Random, function: Function, items: list[Any]) -> Collect:
    """A task that passes it on to another one, on the controller's host, where tasks can be clients."""
    view = client.load_balanced_view([engine for engine, _, _, host in client.link.engines() if host != "relay"])
    return _each([view.apply_async(_pass_on, function, item) for item in items])


def _pass_on(function: Function, item: Any) -> Any:
    return ipp.get_client().executor().submit(function, item).result()


ROUTES: dict[str, Start] = {
    "direct apply": _direct,
    "direct apply to all": _direct_all,
    "balanced apply": _balanced,
    "balanced apply, at once": _balanced_sync,
    "keyword": _keyword,
    "broadcast": _broadcast(False),
    "coalescing broadcast": _broadcast(True),
    "direct map": _direct_map,
    "map on one engine": _map_on_one,
    "balanced map": _balanced_map,
    "map over functions": _map_of_rows,
    "imap": _imap,
    "executor submit": _executor_submit,
    "direct executor": _direct_executor,
    "executor map": _executor_map,
    "joblib": _joblib,
    "asyncio": _awaited,
    "push and reference": _push_and_reference,
    "push and pull": _push_and_pull,
    "scatter and gather": _scatter_and_gather,
    "partial": _partial,
    "captured": _captured,
    "remote function": _remote,
    "parallel function": _parallel,
    "pre-pickled": _pre_pickled,
    "nested": _nested,
}

#: Those that make all calls on one engine, one after the other.
IN_ORDER = ["direct apply", "direct executor", "map on one engine"]
