"""Random values and functions on all routes give what a process pool gives: `random_cases.py --cases 20000 --seed 1`.

Each case is a function, called with some values on one route, by a client of this host or one that is connected over
TCP, on engines of two hosts. What comes back must be what a forked `ProcessPoolExecutor` brings: the same types and
contents, and one object where there was one. What plain pickle cannot send must be as cloudpickle makes it. A case is
known by the seed and its number, and can be run again by itself: `--seed 1 --only 123`.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import io
import json
import multiprocessing
import pickle
import reprlib
import sys
import time
import traceback
import types
from collections import ChainMap
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import broadleaf as ipp
import cloudpickle
import kinds
import numpy as np
from description import (
    ERROR_FIELDS,
    anywhere,
    describe,
    describe_elsewhere,
    describe_error,
    difference,
    read_only_arrays,
    repeats,
)
from functions import Function, random_function
from routes import IN_ORDER, ROUTES, Collect, Outcome
from values import Values

#: Cases between two forks.
BATCH = 100
ENGINES_PER_HOST = 2
#: What is sent of an exception at most.
MAX_ERROR_BYTES = 1 << 20

# The same classes and functions as this program's own.
_here = types.SimpleNamespace()
exec(compile(Path(kinds.__file__).read_text(), kinds.__file__, "exec"), globals())
vars(_here).update(globals())
_KINDS = (kinds, _here)


@dataclass
class Case:
    """A function, called with some values on a route."""

    seed: int
    number: int
    route: str
    far: bool
    source: str
    function: Function
    items: list[Any]
    before: list[list[str]]

    @property
    def name(self) -> str:
        return f"--seed {self.seed} --only {self.number}"

    @property
    def rng(self) -> Random:
        """What the route decides by."""
        return Random(f"route {self.seed} {self.number}")


def make_case(seed: int, number: int, route: str | None) -> Case:
    rng = Random(f"case {seed} {number}")
    values = Values(rng, list(_KINDS))
    function, source, keeps_state = random_function(values, f"own_{seed}_{number}")
    chosen = rng.choice(IN_ORDER if keeps_state else list(ROUTES))
    items = []
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        items.append(values.any(rng.choice((0, 1, 2, 3))))
        while _pickled(items[-1]) is None:
            items[-1] = values.any(2)
    if rng.random() < 0.02:
        items = [values.unsendable()]
    return Case(seed, number, route or chosen, rng.random() < 0.3, source, function, items, list(map(describe, items)))


# What a process pool gives --------------------------------------------------------------------------

_cases: dict[int, Case] = {}


def _answer(number: int, data: bytes) -> bytes:
    """In the pool: what the function returns, pickled, or a description of what it raises."""
    try:
        value = _cases[number].function(pickle.loads(data))
        if asyncio.iscoroutine(value):
            value = asyncio.run(value)
    except Exception as error:
        alternative = _as_pool_sends_it(error)
        described = describe_error(error), causes_of(error), _takes_much(error), describe_error(alternative)
        return pickle.dumps(("described error", described))
    return _pickled(("value", value)) or pickle.dumps(("unsendable", describe_elsewhere(value)))


def _as_pool_sends_it(error: BaseException) -> BaseException:
    """The exception as it leaves a pool, where one that pickles in its own way loses notes and attributes. Where it
    cannot leave, itself.
    """
    data = _pickled(error)
    return error if data is None else pickle.loads(data)


def _takes_much(error: BaseException) -> bool:
    """Whether an exception holds more than is sent of one: then texts stand for its arguments."""
    data = _pickled((error.args, vars(error), [getattr(error, name, None) for name in ERROR_FIELDS]))
    return data is None or len(data) > MAX_ERROR_BYTES


def _pickled(value: Any) -> bytes | None:
    """As the pool pickles it, or else cloudpickle; None if neither can."""
    for pickler in (_PoolsPickler, _CloudPickler):
        try:
            stream = io.BytesIO()
            pickler(stream, pickle.HIGHEST_PROTOCOL).dump(value)
            pickle.loads(stream.getvalue())
        except Exception:
            continue
        return stream.getvalue()
    return None


def _reduce_array(array: Any) -> Any:
    """How an array is pickled, in three ways other than by NumPy itself, which forgets the byte order of one with gaps
    and by this protocol, but not by that of a pool, keeps one read-only. Broadleaf keeps the one and changes the other,
    and an array that repeats its items arrives as such.
    """
    if repeats(array) and array.itemsize:
        once = array[tuple(slice(1) if stride == 0 else slice(None) for stride in array.strides)]
        return np.broadcast_to, (once, array.shape)
    kept = array.flags.writeable and (array.flags.c_contiguous or array.flags.f_contiguous)
    return (array if kept or array.dtype.hasobject else array.copy("A")).__reduce_ex__(pickle.HIGHEST_PROTOCOL)


class _PoolsPickler(ForkingPickler):
    """The pickler of process pools."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.dispatch_table = ChainMap({np.ndarray: _reduce_array}, self.dispatch_table)


class _CloudPickler(cloudpickle.Pickler):
    dispatch_table: ClassVar[Any] = ChainMap({np.ndarray: _reduce_array}, cloudpickle.Pickler.dispatch_table)


def expected(cases: list[Case]) -> list[list[Outcome]]:
    """What a forked process pool gives for each case."""
    _cases.clear()
    _cases.update((case.number, case) for case in cases)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        futures = []
        for case in cases:
            pickles = map(_pickled, case.items)
            futures.append([pickled and pool.submit(_answer, case.number, pickled) for pickled in pickles])
        return [
            [pickle.loads(future.result(600)) if future else ("unsendable", []) for future in of_case]
            for of_case in futures
        ]


# What Broadleaf gives -------------------------------------------------------------------------------


class Clients:
    """A cluster of two hosts, and clients of this host and over TCP."""

    def __init__(self, directory: Path) -> None:
        self.cluster = ipp.Cluster(n=ENGINES_PER_HOST, listen="127.0.0.1:0")
        self.local = self.cluster.start_and_connect_sync()
        self.relay = ipp.Relay(self.cluster.relay_file, 1, name="relay")
        self.local.wait_for_engines(ENGINES_PER_HOST + 1, timeout=60)
        connection = json.loads(Path(self.cluster.connection_file).read_text())
        path = directory / "remote.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps({name: value for name, value in connection.items() if name != "unix_path"}))
        self.far = ipp.Client(str(path))
        self.far.wait_for_engines(ENGINES_PER_HOST + 1, timeout=60)

    def close(self) -> None:
        self.far.close()
        self.local.close()
        self.cluster.stop_cluster_sync()
        self.relay.stop()


def started(clients: Clients, case: Case) -> Collect:
    """Submits the calls of a case."""
    client = clients.far if case.far else clients.local
    try:
        return ROUTES[case.route](client, case.rng, case.function, case.items)
    except Exception as error:
        refused: Outcome = ("error", error)
        return lambda: [[refused] for _ in case.items]


def told(got: Outcome) -> list[str]:
    """An outcome as lines to compare: an exception as the one that the task raised."""
    kind, value = got
    if kind == "value":
        return ["value", *describe(value)]
    if kind == "described error":
        return ["error", *value[0]]
    original = value.__cause__ if isinstance(value, ipp.RemoteError) else value
    return ["error", *(describe_error(original) if original is not None else [f"no original: {value!r}"])]


def fault_of(got: Outcome, answer: Outcome) -> str:
    """In what an outcome differs from what the pool gave; '' if it does not."""
    if answer[0] == "unsendable":
        # cloudpickle cannot send it. Either it is an error, or right all the same.
        return "" if "error" in got[0] else difference(describe_elsewhere(got[1]), answer[1])
    lines, right = told(got), told(answer)
    if answer[0] == "described error" and answer[1][2] and got[0] != "described error":
        # The same type.
        lines, right = lines[:2], right[:2]
    alternative = answer[1][3] if answer[0] == "described error" else None
    if got[0] == "described error":
        # On an engine, where classes of `__main__` are not found.
        lines, right = anywhere(lines), anywhere(right)
        alternative = alternative and anywhere(alternative)
    if lines[1:] == alternative:
        return ""
    if right[1] == ": builtins.StopIteration" and lines[1:] == describe_error(StopIteration()):
        # Within a chunk of a map, what it held is lost.
        return ""
    if right[1] == ": builtins.StopIteration" and lines[1:2] == [": broadleaf.errors.RemoteError"]:
        # A task that called another one lets its error through, which is no `StopIteration`: that would end a loop.
        return ""
    return difference(lines, right)


def fault_in_type(error: ipp.RemoteError) -> str:
    """Whether an error is not also of the type that was raised, with its attributes, though the docs say so."""
    original = error.__cause__
    excluded = (StopIteration, StopAsyncIteration, concurrent.futures.CancelledError, ipp.BroadleafError)
    only_itself = (TimeoutError, SyntaxError, IndentationError, TabError)
    if not isinstance(original, Exception) or isinstance(original, excluded) or type(original) in only_itself:
        return ""
    if not isinstance(error, type(original)):
        return f"a {type(error).__name__} is no {type(original).__name__}"
    missing = [name for name in vars(original) if name not in ("__notes__",) and name not in vars(error)]
    return f"it has no attributes {missing}" if missing else ""


def faults_of(case: Case, collect: Collect, answers: list[Outcome]) -> list[str]:
    """In what a case differs from what a process pool gives."""
    try:
        outcomes = collect()
    except Exception:
        return [f"the route raised {traceback.format_exc()}"]
    faults = []
    if len(outcomes) != len(answers):
        faults.append(f"{len(outcomes)} outcomes of {len(answers)} calls")
    for i, (on_engines, answer) in enumerate(zip(outcomes, answers, strict=False)):
        for got in on_engines:
            fault = fault_of(got, answer)
            text = _traceback_text(got)
            if not fault and got[0] == "value" and read_only_arrays(got[1]):
                fault = f"read-only arrays, at {read_only_arrays(got[1])}"
            if not fault and isinstance(got[1], ipp.RemoteError):
                fault = fault_in_type(got[1])
            if not fault and got[0] == "error" and answer[0] == "described error":
                missing = [name for name in answer[1][1] if name not in text]
                fault = f"the traceback does not show {missing}" if missing else ""
            if fault:
                faults.append("\n      ".join([f"call {i}: {fault}", *text.splitlines()[-12:]]))
                break
    for i, (item, before) in enumerate(zip(case.items, case.before, strict=True)):
        fault = difference(describe(item), before)
        if fault:
            faults.append(f"the value of call {i} was changed here: {fault}")
    return faults


def _traceback_text(got: Outcome) -> str:
    """What is known of an error's origin."""
    if got[0] != "error":
        return ""
    error = got[1]
    lines = error.render_traceback() if isinstance(error, ipp.RemoteError) else traceback.format_exception(error)
    return "\n".join(lines)


def causes_of(error: BaseException) -> list[str]:
    """The types of the exceptions that its traceback shows before it."""
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return [] if before is None else [type(before).__name__, *causes_of(before)]


def run(clients: Clients, cases: list[Case]) -> dict[str, list[str]]:
    """Runs the cases, several at a time, and returns the faults of each that has some."""
    answers = expected(cases)
    found: dict[str, list[str]] = {}
    rng = Random(cases[0].number)
    at = 0
    while at < len(cases):
        together = slice(at, at + rng.choice((1, 1, 5, 20)))
        collects = [started(clients, case) for case in cases[together]]
        for case, collect, answer in zip(cases[together], collects, answers[together], strict=True):
            faults = faults_of(case, collect, answer)
            if faults:
                found[case.name] = faults
                print(f"{case.name}: {case.route}{', far' if case.far else ''}\n  {case.source!r}", flush=True)
                print(f"  values: {[_short(item) for item in case.items]}", flush=True)
                for fault in faults[:3]:
                    print(f"  {fault}", flush=True)
        at += len(collects)
    return found


def _short(item: Any) -> str:
    # A value that holds another twice, many times over, has a full text that fills the memory.
    try:
        text = reprlib.repr(item)
    except Exception as error:
        text = f"<no repr: {error!r}>"
    return f"{type(item).__name__}: {text if len(text) < 300 else text[:300] + '...'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--start", type=int, default=0, help="the number of the first case")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no more cases after this time")
    parser.add_argument("--only", type=int, help="the number of the only case to run")
    parser.add_argument("--route", choices=list(ROUTES), help="run all cases on this route")
    options = parser.parse_args()
    numbers = range(options.start, options.start + options.cases) if options.only is None else [options.only]
    print(f"{len(numbers)} cases, --seed {options.seed}", flush=True)
    began, n_run = time.monotonic(), 0
    found: dict[str, list[str]] = {}
    # In the order in which cloudpickle in the pool must know them.
    for kind in list(globals().values()):
        if isinstance(kind, type) and kind.__module__ == "__main__":
            cloudpickle.dumps(kind)
    with TemporaryDirectory() as directory:
        clients = Clients(Path(directory))
        try:
            for first in range(0, len(numbers), BATCH):
                if time.monotonic() > began + options.seconds:
                    break
                cases = [make_case(options.seed, number, options.route) for number in numbers[first : first + BATCH]]
                found.update(run(clients, cases))
                n_run += len(cases)
        finally:
            clients.close()
    print(f"{n_run} cases, {len(found)} differ")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
