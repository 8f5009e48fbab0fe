"""A stand-in for `broadleaf._native`, for tests of the client alone; `test_native_conformance` compares the two."""

from __future__ import annotations

import itertools
import json
import time
from collections import deque
from typing import Any

from fake_cluster import CANCELLED, LOST, OK, REFUSED, EngineDeath, FakeCluster, Task, wait_for
from fake_requests import Requests

__all__ = ["ConnectionRefused", "EngineDeath", "History", "Link", "LinkClosed", "Pending", "Submitter", "start", "stop"]
__version__ = "0.0.0"


def lasts(function: Any, cacheable: Any) -> bool:
    return cacheable is True or (function.__code__, function.__defaults__) == cacheable


class ConnectionRefused(Exception):
    pass


class LinkClosed(Exception):
    pass


class Link(Requests):
    def __init__(
        self, connection: str, hooks: Any, timeout_s: float = 10.0, name: str = "", goes_on: bool = False
    ) -> None:
        info = json.loads(connection)
        if "refuse" in info:
            raise ConnectionRefused(info["refuse"], "refused on request")
        self.cluster: FakeCluster = clusters[info["cluster"]]
        self.hooks = hooks
        self.live_output = False
        self.closed = False
        self.client_id = 1
        self.max_outstanding_tasks = 262_144
        self.max_outstanding_bytes = 256 << 20
        self.options: list[str] = ["{}"]
        self.statuses: dict[int, tuple[int, int]] = {}
        self.waiting: dict[int, Task] = {}
        self.next_seq = 0
        self.bodies: dict[int, tuple[Any, bytes, Any]] = {}
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

    def deaths_after(self, n: int) -> tuple[int, list[str]]:
        return len(self.cluster.deaths), self.cluster.deaths[n:]

    def frees_engine(self) -> bool:
        return False

    def wait_for_engines(self, n: int, timeout_s: float | None) -> bool:
        self.check()
        return len(self.cluster.engines) >= n

    def request(self, request: str, timeout_s: float | None = 10.0, content: bytes | None = None) -> str:
        self.check()
        what = json.loads(request)
        kind, content = next(iter(what.items())) if isinstance(what, dict) else (what, None)
        answer = getattr(self, f"on_{kind.lower()}", None)
        if answer is None:
            raise ValueError(f"unknown request {kind}")
        return json.dumps(answer(content))

    def _ignore(self, *_: Any) -> int:
        return 0

    post = flush = start_call = leave_behind = _ignore

    def begun(self) -> tuple[int, int]:
        return 0, 0

    def outstanding(self) -> int:
        return len(self.waiting)

    def outstanding_seqs(self) -> list[int]:
        with self.cluster.changed:
            return sorted(self.waiting)

    def wait_for(self, is_done: Any, timeout_s: float | None) -> bool:
        with self.cluster.changed:
            return wait_for(self.cluster.changed, is_done, timeout_s)

    def wait_all(self, timeout_s: float | None) -> bool:
        return self.wait_for(lambda: not self.waiting, timeout_s)

    def wait_tasks(self, seqs: list[int], timeout_s: float | None) -> bool:
        return self.wait_for(lambda: not any(seq in self.waiting for seq in seqs), timeout_s)

    def counters(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        with self.cluster.changed:
            self.closed = True
            left = list(self.waiting.values())
        for task in left:
            with self.cluster.changed:
                if task in self.cluster.queue:
                    self.cluster.queue.remove(task)
            self.cluster.resolve(task, (LOST, b"", []), -1, 0)

    close_at_exit = close


class History:
    def __init__(self, limit: int) -> None:
        self.seqs_noted: deque[int] = deque(maxlen=limit)

    def record(self, first: int, n: int) -> None:
        self.seqs_noted.extend(range(first, first + n))

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
        show_output: bool = False,  # tasks write nothing here
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

    def many(self, function: Any, calls: Any, n_calls: int, after: Any = (), follow: Any = ()) -> Any:
        calls = [(tuple(call), {}) for call in itertools.islice(calls, n_calls)]
        if len(calls) < n_calls:
            raise ValueError(f"it gave {len(calls)} of {n_calls} calls")
        if not calls:
            raise ValueError("a request needs at least one call")
        return self.submit(function, calls, after, follow)

    def each(self, function: Any, calls: Any, options_ids: Any) -> Any:
        if len(calls) < len(options_ids):
            raise ValueError(f"it gave {len(calls)} of {len(options_ids)} calls")
        assert len(calls) == self.n_targets
        return self.submit(function, [(tuple(call), {}) for call in calls], (), ())

    def submit(self, function: Any, calls: list[Any], after: Any, follow: Any) -> Any:
        link = self.link
        link.check()
        known = link.bodies.get(id(function))
        if known is not None and known[0] is function and lasts(function, known[2]):
            body = known[1]
        else:
            body, cacheable, _ = link.hooks.resolve_function(function, False)
            if cacheable:
                link.bodies[id(function)] = (function, body, cacheable)
        payloads = []
        for args, kwargs in calls:
            data, buffers = link.hooks.dump_args(args, kwargs) if args or kwargs else (b"", [])
            payloads.append((data, [bytearray(memoryview(b).cast("B")) for b in buffers]))
        with link.cluster.changed:
            pending = self.result_type.__new__(self.result_type)
            pending._setup(link, self.origin, function, link.next_seq, len(calls))
            for history in self.histories:
                history.record(link.next_seq, len(calls))
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

    def returned(self) -> list[Any] | None:
        return self.values() if self.all_done() else None

    def failure(self, part: int) -> BaseException | None:
        status, data, buffers, times = self._fake[part]
        if status == OK:
            return None
        if part not in self._failures:
            self._failures[part] = self.link.hooks.decode_failure(status, data, buffers, times[3], self, part)
        return self._failures[part]

    def times(self, part: int) -> tuple[int, int, int, int]:
        return (0, 0, 0, -1) if self._fake[part] is None else self._fake[part][3]

    def cpu_ns(self, part: int) -> int:
        started_ns, completed_ns, _, _ = self.times(part)
        return completed_ns - started_ns

    def text_since(self, part: int, stream: int, position_bytes: int) -> tuple[str, int]:
        return "", 0

    def messages(self, part: int) -> list[bytes]:
        return []

    def written_parts(self) -> list[int]:
        return []

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
