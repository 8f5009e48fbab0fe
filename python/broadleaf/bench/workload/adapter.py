"""The interface of an adapter. The keys of a dict are the modes: the ways in which this system can do that kind of
work.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NamedTuple

from . import tasks

# Submits n empty tasks and returns what `collect` needs; collects all their results.
Submit = tuple[Callable[[int], Any], Callable[[Any], Any]]
# Sends these arrays, one per task, and returns what `collect` needs; collects the results.
Send = tuple[Callable[[list[Any]], Any], Callable[[Any], Any]]


class Way(NamedTuple):
    """A way of giving a value to every worker."""

    #: Gives it to all workers; returns once every worker has it.
    give: Callable[[Any], Any]
    #: The checksum of what each worker has.
    check: Callable[[], list[float]]
    #: The value that the caller has before the broadcast: by default the value itself.
    prepare: Callable[[Any], Any] = lambda value: value


class Carry(NamedTuple):
    """A way of carrying values to workers, or from them."""

    #: Carries them; this is what is timed.
    go: Callable[[list[Any]], Any]
    #: All that arrived, given the values and what `go` returned; as many as there were values, or for every worker so.
    arrived: Callable[[list[Any], Any], list[Any]]
    #: What is done before.
    prepare: Callable[[list[Any]], Any] = lambda values: None
    #: What arrives for a value: by default the value itself.
    wanted: Callable[[Any], Any] = lambda value: value


class Adapter:
    """A system under test. A case for which it has no modes is recorded as skipped."""

    #: Settings that need their own start; cases that are not named run under the first.
    configs: ClassVar[dict[str, list[str]]] = {"": ["default"]}
    #: Whether `start` includes the launch of this process itself (under mpiexec).
    launched: bool = False
    #: Whether a task can wait for others.
    takes_after: bool = False
    #: Additional measurements, by case, besides those of `measure`.
    measures: ClassVar[dict[str, Callable[..., dict[str, Any]]]] = {}

    def version(self) -> str:
        raise NotImplementedError

    def start(self, workers: int, config: str) -> None:
        """Returns once every worker has run a task."""
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def submit(self, call: Callable[..., Any], *arguments: Any, after: Sequence[Any] = ()) -> Any:
        """Starts `call(*arguments)`, once all of `after` are done; a handle. Only if `takes_after`, `after` may be
        given.
        """
        raise NotImplementedError

    def collect(self, handles: list[Any]) -> list[Any]:
        """The values of handles, in order."""
        return results(handles)

    def latency(self) -> dict[str, Callable[[], Any]]:
        """One empty task, and its result."""
        return {}

    def throughput(self) -> dict[str, Submit]:
        return {}

    def map(self) -> dict[str, Callable[[int], list[int]]]:
        """`add_one` of every item of range(n), in chunks."""
        return {}

    def naps(self) -> dict[str, Callable[[list[float]], list[float]]]:
        """A `nap` task for each length; their results."""
        return {}

    def echo(self) -> dict[str, Callable[[Any, int], Any]]:
        """n queued tasks that return x; the last result."""
        return {}

    def send(self) -> dict[str, Send]:
        return {}

    def fan_out(self) -> dict[str, Callable[[], Any]]:
        """One empty call to every worker, and all results."""
        return {}

    def fan_out_queued(self) -> dict[str, Callable[[int, int], Any]]:
        """n queued empty calls to each of the first workers, and all results; for systems that count what they send."""
        return {}

    def broadcast(self) -> dict[str, Way]:
        return {}

    def carry(self, route: str) -> dict[str, Carry]:
        """The ways of a route: `apply` and `map` there and back, `send` there and only the type's name back, `push`
        into a variable of the workers, `pull` out of it, `scatter` a part of the values into that of each.
        """
        return {}

    def parallel_contexts(self) -> dict[str, Callable[[], AbstractContextManager[Any]]]:
        """Blocks in which joblib's `Parallel` runs on this system."""
        return {}

    def parallel_program(self) -> str:
        """The beginning of a separate program that uses this system through joblib, up to `timed_search`."""
        raise NotImplementedError

    def worker_pids(self) -> list[int]:
        """Process ids of the workers."""
        raise NotImplementedError

    def counters(self) -> dict[str, int]:
        """Counters of this process, for systems that have any."""
        return {}

    def after_step(self) -> None:
        """What a careful user would do between two large pieces of work."""


class PoolAdapter(Adapter):
    """An executor of the concurrent.futures kind; a subclass makes `pool`."""

    pool: Any
    chunksize = 100
    label = "submit"

    def make(self, workers: int, config: str) -> Any:
        raise NotImplementedError

    def start(self, workers: int, config: str) -> None:
        self.workers = workers
        self.pool = self.make(workers, config)
        self.pids: list[int] = self.meet()

    def meet(self) -> list[int]:
        folder = tempfile.mkdtemp()
        try:
            futures = [self.pool.submit(tasks.meet, folder, self.workers) for _ in range(self.workers)]
            return sorted({f.result() for f in futures})
        finally:
            shutil.rmtree(folder)

    def stop(self) -> None:
        self.pool.shutdown()

    def worker_pids(self) -> list[int]:
        return self.pids

    def submit(self, call: Callable[..., Any], *arguments: Any, after: Sequence[Any] = ()) -> Any:
        return self.pool.submit(call, *arguments)

    def latency(self) -> dict[str, Callable[[], Any]]:
        return {self.label: lambda: self.pool.submit(tasks.noop).result()}

    def throughput(self) -> dict[str, Submit]:
        chunks = self.chunksize
        return {
            self.label: (lambda n: [self.pool.submit(tasks.echo, "") for _ in range(n)], results),
            "map(chunksize=1)": (lambda n: self.pool.map(tasks.echo, [""] * n, chunksize=1), list),
            f"map(chunksize={chunks})": (lambda n: self.pool.map(tasks.echo, [""] * n, chunksize=chunks), list),
        }

    def map(self) -> dict[str, Callable[[int], list[int]]]:
        return {
            f"map(chunksize={self.chunksize})": lambda n: list(
                self.pool.map(tasks.add_one, range(n), chunksize=self.chunksize)
            )
        }

    def naps(self) -> dict[str, Callable[[list[float]], list[float]]]:
        return {self.label: lambda lengths: results([self.pool.submit(tasks.nap, s) for s in lengths])}

    def echo(self) -> dict[str, Callable[[Any, int], Any]]:
        return {self.label: lambda x, n: results([self.pool.submit(tasks.echo, x) for _ in range(n)])[-1]}

    def send(self) -> dict[str, Send]:
        return {self.label: (lambda xs: [self.pool.submit(len, x) for x in xs], results)}

    def carry(self, route: str) -> dict[str, Carry]:
        """With a variable of one worker."""

        def one_by_one(task: Callable[..., Any]) -> Callable[[list[Any]], list[Any]]:
            return lambda values: [self.pool.submit(task, x).result() for x in values]

        def held() -> Any:
            return self.pool.submit(tasks.held).result()

        hold = one_by_one(tasks.hold)
        return {
            "apply": {self.label: Carry(one_by_one(tasks.echo), returned)},
            "send": {self.label: Carry(one_by_one(tasks.name_of_type), returned, wanted=tasks.name_of_type)},
            "map": {"map": Carry(lambda values: list(self.pool.map(tasks.echo, values)), returned)},
            "push": {self.label: Carry(hold, lambda values, _: [held()])},
            "pull": {self.label: Carry(lambda values: [held()], returned, hold)},
            "scatter": {self.label: Carry(lambda values: hold([values]), lambda values, _: held())},
        }[route]


def returned(values: list[Any], found: Any) -> list[Any]:
    """What arrived is what the call returned."""
    return list(found)


def called_after(call: Callable[..., Any], arguments: tuple[Any, ...], *before: Any) -> Any:
    """The call, for systems in which waiting for a task means taking its value."""
    return call(*arguments)


def results(futures: Iterable[Any]) -> list[Any]:
    return [f.result() for f in futures]
