"""The cluster behind the fake of the native module: engines are threads of this process, with a namespace each."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from typing import Any

from broadleaf.errors import UnmetDependency
from broadleaf.serialize import functions, namespace
from broadleaf.serialize.chunks import dump_result, report
from broadleaf.serialize.errors import dump_error
from broadleaf.serialize.values import load_args

OK, ERROR, CANCELLED, TIMEOUT, REFUSED, LOST = range(6)


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
            # The namespace is the process's, so engines take turns, but for functions that are meant to overlap.
            if functions.function_name(function) in ("free", "held"):
                value = function(*args, **kwargs)
            else:
                with self.cluster.in_namespace(self):
                    value = function(*args, **kwargs)
            with self.cluster.in_namespace(self):
                data, buffers = dump_result(value)
            outcome = (OK, data, [bytes(b) for b in buffers])
        except UnmetDependency as error:
            if self.cluster.retry_elsewhere(task, self):
                return
            reason = {"UnmetEverywhere": f"engine {self.id}: {error}"}
            outcome = (REFUSED, json.dumps(reason).encode(), [])
        except EngineDeath:
            self.cluster.bury(self, task)
            return
        except BaseException as error:
            told = report(error, ())
            record = dump_error(told.error, self.id, self.uuid, item=told.item, outcomes=told.outcomes)
            outcome = (ERROR, record, [bytes(b) for b in told.buffers])
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
        self.links: list[Any] = []
        self.engines = {i: FakeEngine(self, i) for i in range(n)}
        self.deaths: list[str] = []
        for engine in self.engines.values():
            engine.start()

    def in_namespace(self, engine: FakeEngine) -> Any:
        return _InNamespace(self, engine)

    def take(self, engine: FakeEngine) -> Task | None:
        with self.changed:
            while not (self.stopped or engine.id not in self.engines):
                if (taken := self.next_for(engine)) is not None:
                    return taken
                # Without a name for any task, so that none is kept alive meanwhile.
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
        if any(link.statuses[seq][0] != OK for seq in task.after + task.follow):
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
            self.deaths.append(json.dumps(certificate))
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


def wait_for(changed: threading.Condition, predicate: Any, timeout_s: float | None) -> bool:
    # In slices, so that signal handlers run.
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while not predicate():
        left = 0.05 if deadline is None else min(0.05, deadline - time.monotonic())
        if left <= 0:
            return False
        changed.wait(left)
    return True
