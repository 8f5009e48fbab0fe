"""A stand-in for `broadleaf._native`: engines are threads of this process. For tests of the client alone."""

from __future__ import annotations

import itertools
import json
import pickle
import threading
import time
from collections import deque
from typing import Any

from broadleaf.errors import UnmetDependency
from broadleaf.serialize.errors import dump_error
from broadleaf.serialize.functions import bodies as functions
from broadleaf.serialize.functions import namespace
from broadleaf.serialize.pickle import dump_value, load_args
from fake_requests import Requests

__version__ = "0.0.0"
OK, ERROR, CANCELLED, TIMEOUT, REFUSED, LOST = range(6)


class ConnectionRefused(Exception):
    pass


class LinkClosed(Exception):
    pass


class Task:
    def __init__(self, pending: Any, part: int, body: bytes, payload: tuple[bytes, list[Any]], options: dict[str, Any]):
        self.pending, self.part, self.body, self.payload, self.options = pending, part, body, payload, options
        self.targets: list[int] | None = None
        self.after: tuple[int, ...] = ()
        self.follow: tuple[int, ...] = ()
        self.tried: set[int] = set()
        self.cancelled = False
        self.thread: int | None = None

    @property
    def seq(self) -> int:
        return self.pending.seq + self.part


class FakeEngine:
    """One thread with a namespace."""

    def __init__(self, cluster: FakeCluster, engine_id: int) -> None:
        self.cluster, self.id = cluster, engine_id
        self.uuid = f"uuid{engine_id}"
        self.names: dict[str, Any] = {"__builtins__": __builtins__, "engine_id": engine_id}
        self.filled: dict[str, Any] = {}
        self.running: Task | None = None
        self.completed = 0

    def start(self) -> None:
        threading.Thread(target=self.loop, daemon=True).start()

    def loop(self) -> None:
        while (task := self.cluster.take(self)) is not None:
            self.run(task)
            self.running = None
            del task

    def run(self, task: Task) -> None:
        started_ns = time.time_ns()
        try:
            with self.cluster.in_namespace(self):
                function = functions.load_function(task.body)
                args, kwargs = load_args(*task.payload) if task.payload[0] else ((), {})
            # The namespace belongs to the process, so engines take turns, except for functions that are meant to
            # overlap.
            if functions.function_name(function) in ("sleep", "free"):
                value = function(*args, **kwargs)
            else:
                with self.cluster.in_namespace(self):
                    value = function(*args, **kwargs)
            with self.cluster.in_namespace(self):
                data, buffers = dump_value(value)
            outcome = (OK, data, [bytes(b) for b in buffers])
        except UnmetDependency:
            if self.cluster.retry_elsewhere(task, self):
                return
            outcome = (REFUSED, b'"UnmetEverywhere"', [])
        except EngineDeath:
            self.cluster.bury(self, task)
            return
        except BaseException as error:
            outcome = (ERROR, dump_error(error, self.id, self.uuid), [])
        if task.cancelled:
            outcome = (CANCELLED, b"", [])
        self.completed += 1
        self.cluster.resolve(task, outcome, self.id, started_ns)


class EngineDeath(BaseException):
    """Raised by a task to kill its engine."""


class FakeCluster:
    def __init__(self, n: int) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.namespace_lock = threading.RLock()
        self.queue: deque[Task] = deque()
        self.stopped = False
        self.links: list[Link] = []
        self.engines = {i: FakeEngine(self, i) for i in range(n)}
        for engine in self.engines.values():
            engine.start()

    def in_namespace(self, engine: FakeEngine) -> Any:
        return _InNamespace(self, engine)

    def take(self, engine: FakeEngine) -> Task | None:
        with self.changed:
            while not (self.stopped or engine.id not in self.engines):
                if (taken := self.next_for(engine)) is not None:
                    return taken
                # No name refers to a task, so that none is kept alive in the meantime.
                self.changed.wait()
            return None

    def next_for(self, engine: FakeEngine) -> Task | None:
        for task in list(self.queue):
            if self.may_run(task, engine):
                self.queue.remove(task)
                engine.running = task
                task.thread = threading.get_ident()
                return task
        return None

    def may_run(self, task: Task, engine: FakeEngine) -> bool:
        if task.targets is not None and engine.id not in task.targets:
            return False
        if engine.id in task.tried:
            return False
        link = task.pending.link
        if any(link.statuses.get(seq, (-1, -1))[0] == -1 for seq in task.after + task.follow):
            return False
        if task.after and any(link.statuses[seq][0] != OK for seq in task.after):
            self.queue.remove(task)
            self.resolve(task, (REFUSED, b'"ImpossibleDependency"', []), -1, 0)
            return False
        return all(link.statuses[seq][1] == engine.id for seq in task.follow)

    def retry_elsewhere(self, task: Task, engine: FakeEngine) -> bool:
        with self.changed:
            task.tried.add(engine.id)
            if set(self.engines) <= task.tried:
                return False
            self.queue.append(task)
            self.changed.notify_all()
            return True

    def bury(self, engine: FakeEngine, task: Task) -> None:
        certificate = {
            "engine": engine.id,
            "uuid": engine.uuid,
            "pid": 4711,
            "host": "here",
            "cause": {"Signal": 11},
            "last_output": "goodbye\n",
            "task_started": True,
        }
        with self.changed:
            del self.engines[engine.id]
        self.resolve(task, (LOST, json.dumps(certificate).encode(), []), engine.id, 1)
        for link in self.links:
            link.hooks.on_event("engine_down", json.dumps(certificate))

    def resolve(self, task: Task, outcome: tuple[int, bytes, list[Any]], engine: int, started_ns: int) -> None:
        with self.changed:
            pending = task.pending
            now = time.time_ns()
            pending.link.waiting.pop(task.seq, None)
            if pending._fake[task.part] is not None:
                # It was abandoned.
                self.changed.notify_all()
                return
            pending._fake[task.part] = (*outcome, (started_ns, now if started_ns else 0, now, engine))
            pending._order.append(task.part)
            pending.link.statuses[task.seq] = (outcome[0], engine)
            callbacks = []
            if len(pending._order) == len(pending._fake):
                callbacks, pending._callbacks = pending._callbacks, []
            self.changed.notify_all()
        for callback in callbacks:
            callback()


class _InNamespace:
    def __init__(self, cluster: FakeCluster, engine: FakeEngine) -> None:
        self.cluster, self.engine = cluster, engine

    def __enter__(self) -> None:
        self.cluster.namespace_lock.acquire()
        self.saved = namespace._namespace, namespace._filled
        namespace._namespace, namespace._filled = self.engine.names, self.engine.filled

    def __exit__(self, *_: object) -> None:
        namespace._namespace, namespace._filled = self.saved
        self.cluster.namespace_lock.release()


class Link(Requests):
    def __init__(self, connection: str, hooks: Any, timeout_s: float = 10.0, name: str = "") -> None:
        info = json.loads(connection)
        if "refuse" in info:
            raise ConnectionRefused(info["refuse"], "refused on request")
        self.cluster: FakeCluster = clusters[info["cluster"]]
        self.hooks = hooks
        self.live_output = False
        self.closed = False
        self.client_id = 1
        self.max_outstanding_tasks = 262_144
        self.options: list[str] = ["{}"]
        self.statuses: dict[int, tuple[int, int]] = {}
        self.waiting: dict[int, Task] = {}
        self.next_seq = 0
        self.bodies: dict[int, tuple[Any, bytes]] = {}
        self.cluster.links.append(self)

    def define_options(self, options: str) -> int:
        self.check()
        json.loads(options)
        if options not in self.options:
            self.options.append(options)
        return self.options.index(options)

    def check(self) -> None:
        if self.closed:
            raise LinkClosed("the client is closed")

    @property
    def engines_version(self) -> int:
        return len(self.cluster.engines)

    def engines(self) -> list[tuple[int, str, int, str]]:
        return [(e.id, e.uuid, 4711, "here") for e in self.cluster.engines.values()]

    def frees_engine(self) -> bool:
        return False

    def wait_for_engines(self, n: int, timeout_s: float | None) -> bool:
        self.check()
        return len(self.cluster.engines) >= n

    def request(self, request: str, timeout_s: float | None = 10.0) -> str:
        self.check()
        what = json.loads(request)
        kind, content = next(iter(what.items())) if isinstance(what, dict) else (what, None)
        return json.dumps(getattr(self, f"on_{kind.lower()}")(content))

    def _ignore(self, *_: Any) -> int:
        return 0

    define_preparation = post = flush = _ignore

    def outstanding(self) -> int:
        return len(self.waiting)

    def outstanding_seqs(self) -> list[int]:
        with self.cluster.changed:
            return sorted(self.waiting)

    def wait_all(self, timeout_s: float | None) -> bool:
        with self.cluster.changed:
            return wait_for(self.cluster.changed, lambda: not self.waiting, timeout_s)

    def wait_tasks(self, seqs: list[int], timeout_s: float | None) -> bool:
        with self.cluster.changed:
            return wait_for(self.cluster.changed, lambda: not any(seq in self.waiting for seq in seqs), timeout_s)

    def counters(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        self.closed = True


def wait_for(changed: threading.Condition, predicate: Any, timeout_s: float | None) -> bool:
    # In slices, so that signal handlers run.
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while not predicate():
        left = 0.05 if deadline is None else min(0.05, deadline - time.monotonic())
        if left <= 0:
            return False
        changed.wait(left)
    return True


class History:
    def __init__(self, limit: int) -> None:
        self.seqs_noted: deque[int] = deque(maxlen=limit)

    def __len__(self) -> int:
        return len(self.seqs_noted)

    def seqs(self) -> list[int]:
        return list(self.seqs_noted)

    def select(self, seqs: list[int]) -> list[int]:
        return [seq for seq in seqs if seq in self.seqs_noted]

    def clear(self) -> None:
        self.seqs_noted.clear()


class Submitter:
    def __init__(
        self,
        link: Link,
        result_type: Any,
        origin: Any,
        options_id: int,
        n_targets: int,
        coalesce: bool = False,
        delivery: str = "private",
        histories: tuple[History, ...] = (),
    ) -> None:
        self.histories = histories
        self.link, self.result_type, self.origin, self.n_targets = link, result_type, origin, n_targets
        self.options = json.loads(link.options[options_id])
        targets = self.options["targets"]
        self.targets = None if targets == "All" else [i for low, high in targets["Ranges"] for i in range(low, high)]
        assert not n_targets or len(self.targets) == n_targets

    def __call__(self, function: Any, args: Any, kwargs: Any, after: Any = (), follow: Any = (), _: Any = False) -> Any:
        n = self.n_targets or 1
        return self.submit(function, [(args, kwargs)] * n, after, follow)

    def many(self, function: Any, calls: Any, after: Any = (), follow: Any = ()) -> Any:
        return self.submit(function, [(tuple(call), {}) for call in calls], after, follow)

    def each(self, function: Any, calls: Any, options_ids: Any) -> Any:
        assert len(calls) == self.n_targets == len(options_ids)
        return self.submit(function, [(tuple(call), {}) for call in calls], (), ())

    def submit(self, function: Any, calls: list[Any], after: Any, follow: Any) -> Any:
        link = self.link
        link.check()
        known = link.bodies.get(id(function))
        if known is not None and known[0] is function:
            body = known[1]
        else:
            body, cacheable, _ = link.hooks.resolve_function(function, False)
            if cacheable:
                link.bodies[id(function)] = (function, body)
        payloads = []
        for args, kwargs in calls:
            data, buffers = link.hooks.dump_args(args, kwargs) if args or kwargs else (b"", [])
            payloads.append((data, [bytearray(memoryview(b).cast("B")) for b in buffers]))
        with link.cluster.changed:
            pending = self.result_type.__new__(self.result_type)
            pending._setup(link, self.origin, function, link.next_seq, len(calls))
            for seq in range(link.next_seq, link.next_seq + len(calls)):
                for history in self.histories:
                    history.seqs_noted.append(seq)
            link.next_seq += len(calls)
            for part, payload in enumerate(payloads):
                task = Task(pending, part, body, payload, self.options)
                task.targets = [self.targets[part]] if self.n_targets else self.targets
                task.after, task.follow = tuple(after), tuple(follow)
                link.waiting[task.seq] = task
                if self.n_targets and self.targets[part] not in link.cluster.engines:
                    link.cluster.resolve(task, (REFUSED, b'{"NoSuchEngine": 7}', []), -1, 0)
                else:
                    link.cluster.queue.append(task)
            link.cluster.changed.notify_all()
        return pending


class Pending:
    def _setup(self, link: Link, origin: Any, function: Any, seq: int, n: int) -> None:
        self._fields = link, origin, function, seq, time.time_ns()
        self._fake: list[Any] = [None] * n
        self._order: list[int] = []
        self._callbacks: list[Any] = []
        self._values: dict[int, Any] = {}
        self._failures: dict[int, BaseException] = {}

    link = property(lambda self: self._fields[0])
    origin = property(lambda self: self._fields[1])
    function = property(lambda self: self._fields[2])
    seq = property(lambda self: self._fields[3])
    submitted_ns = property(lambda self: self._fields[4])

    n_parts = property(lambda self: len(self._fake))

    def __len__(self) -> int:
        return len(self._fake)

    def all_done(self) -> bool:
        return len(self._order) == len(self._fake)

    def n_done(self) -> int:
        return len(self._order)

    def part_done(self, part: int) -> bool:
        return self._fake[part] is not None

    def wait_all_done(self, timeout_s: float | None) -> bool:
        return self.wait_count(len(self._fake), timeout_s)

    def wait_part(self, part: int, timeout_s: float | None) -> bool:
        changed = self.link.cluster.changed
        with changed:
            return wait_for(changed, lambda: self.part_done(part), timeout_s)

    def wait_count(self, n: int, timeout_s: float | None) -> bool:
        changed = self.link.cluster.changed
        with changed:
            return wait_for(changed, lambda: len(self._order) >= n, timeout_s)

    def completed_part(self, rank: int) -> int:
        return self._order[rank]

    def status(self, part: int) -> int:
        return -1 if self._fake[part] is None else self._fake[part][0]

    def value(self, part: int) -> Any:
        failure = self.failure(part)
        if failure is not None:
            raise failure
        if part not in self._values:
            _, data, buffers, _ = self._fake[part]
            self._values[part] = self.link.hooks.load_value(data, buffers)
        return self._values[part]

    def values(self) -> list[Any] | None:
        parts = range(self.n_parts)
        return [self.value(part) for part in parts] if all(self.failure(part) is None for part in parts) else None

    def failure(self, part: int) -> BaseException | None:
        status, data, _, times = self._fake[part]
        if status == OK:
            return None
        if part not in self._failures:
            self._failures[part] = self.link.hooks.decode_failure(status, data, times[3], self, part)
        return self._failures[part]

    def times(self, part: int) -> tuple[int, int, int, int]:
        return (0, 0, 0, -1) if self._fake[part] is None else self._fake[part][3]

    def text_since(self, part: int, stream: int, position_bytes: int) -> tuple[str, int]:
        return "", 0

    def messages(self, part: int) -> list[bytes]:
        return [pickle.dumps({"type": "published", "data": {"part": part}})]

    def written_parts(self) -> list[int]:
        return list(range(len(self)))

    def n_failed(self) -> int:
        return sum(part is not None and part[0] != OK for part in self._fake)

    def abandon(self, parts: list[int]) -> None:
        callbacks = []
        with self.link.cluster.changed:
            for part in parts:
                if self._fake[part] is None:
                    self._fake[part] = (CANCELLED, b"", [], (0, 0, time.time_ns(), -1))
                    self._order.append(part)
            if self.all_done():
                callbacks, self._callbacks = self._callbacks, []
            self.link.cluster.changed.notify_all()
        for callback in callbacks:
            callback()

    def on_done(self, callback: Any) -> None:
        with self.link.cluster.changed:
            if not self.all_done():
                self._callbacks.append(callback)
                return
        callback()

    def get_single(self, timeout_s: float | None) -> Any:
        if not self.wait_part(0, timeout_s):
            raise TimeoutError
        return self.value(0)


clusters: dict[int, FakeCluster] = {}
_numbers = itertools.count()


def start(n: int) -> dict[str, int]:
    """Starts `n` engines; returns the connection info."""
    number = next(_numbers)
    clusters[number] = FakeCluster(n)
    return {"cluster": number}


def stop(info: dict[str, int]) -> None:
    cluster = clusters.pop(info["cluster"])
    with cluster.changed:
        cluster.stopped = True
        cluster.changed.notify_all()
