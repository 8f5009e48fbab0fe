"""A simulated cluster: 1,000 engines' counters and events, as a controller would report them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from broadleaf.engine.written import Seen
from broadleaf.requests import RequestFailed

_TASKS = [("simulate", 0.9, 0.75), ("reduce_block", 0.25, 0.2), ("load_chunk", 0.08, 0.05)]
"""Functions: name, mean seconds, share of all tasks."""


def _error(ename: str, evalue: str, item: str, line: int, source: str) -> dict[str, Any]:
    file = "/home/ada/study/model.py"
    trace = (
        f'Traceback (most recent call last):\n  File "{file}", line {line}, in step\n    {source}\n{ename}: {evalue}'
    )
    told = {"ename": ename, "evalue": evalue, "traceback": trace, "item": item, "item_index": line % 3}
    return {**told, "file": file, "line": line, "source": source}


_ERRORS = [
    _error("FloatingPointError", "overflow in step 812", "{'seed': 41, 'dt': 0.5}", 88, "state = step(state, dt)"),
    _error("ValueError", "blocks of shapes (4, 3) and (5, 3)", "(array of float64, shape (4, 3), ...)", 131, "a + b"),
    _error("FileNotFoundError", "[Errno 2] No such file: 'chunk-0412.npy'", "'chunk-0412.npy'", 12, "numpy.load(path)"),
]


class SimulatedCluster:
    """Engines on hosts that run tasks of three functions; some are dead.

    Its past is `past_s` long; after that, its time is that of this machine. `idle` engines run nothing.
    """

    cluster_id = "simulated"

    def __init__(
        self, n: int = 1000, per_host: int = 50, *, dead: tuple[int, ...] = (), idle: bool = False, past_s: int = 60
    ) -> None:
        self.n = n
        self.per_host = per_host
        self.dead = set(dead)
        self.idle = idle
        self._random = Random(1)
        self._look = 0
        self._now_ns = time.time_ns() - past_s * 1_000_000_000
        self._busy_ns = [0] * n
        self._done = [0] * n
        self._until_ns = [self._now_ns + int(self._random.random() * 1e9) for _ in range(n)]
        self._start_ns = [self._now_ns] * n
        self._task = [0] * n
        self._errors = 0
        self._times = [[0, 0, 0, 0] for _ in _TASKS]
        self._events: list[list[Any]] = []
        self._told = 0
        self.log = Path("/nonexistent")
        self.n_looks = 0
        self.n_connected = 0
        self.unreadable: dict[int, Exception] = {}
        """What requests for the output of these engines raise."""

    def log_path(self) -> Path:
        """No log."""
        return self.log

    def written(self, engine_id: int, seen: Seen | None) -> dict[str, Any]:
        """As `ControlLink.written`, of an engine that has written nothing."""
        if engine_id >= self.n:
            raise RequestFailed(f"no such engine: {engine_id}")
        if engine_id in self.unreadable:
            raise self.unreadable[engine_id]
        return {"pid": 20_000 + engine_id, "is_new": seen is None, "output": None, "log": None}

    @contextmanager
    def control(self, timeout_s: float = 10.0) -> Iterator[SimulatedCluster]:
        """Itself."""
        self.n_connected += 1
        try:
            yield self
        finally:
            self.n_connected -= 1

    def _catch_up(self) -> None:
        end_ns = time.time_ns()
        for engine in range(self.n if not self.idle else 0):
            if engine in self.dead:
                continue
            while self._until_ns[engine] < end_ns:
                kind = self._random.choices(range(3), [share for *_, share in _TASKS])[0]
                start_ns = self._until_ns[engine] + int(self._random.expovariate(1 / 0.02) * 1e9)
                length_ns = int(_TASKS[kind][1] * self._random.lognormvariate(0, 0.4) * 1e9)
                failed = self._random.random() < 0.002
                self._start_ns[engine] = start_ns
                self._until_ns[engine] = start_ns + length_ns
                self._task[engine] = kind
                self._busy_ns[engine] += length_ns
                self._done[engine] += 1
                self._errors += failed
                times = self._times[kind]
                times[0] += 1
                times[1] += failed
                times[2] += length_ns
                times[3] = max(times[3], length_ns)
                way = [900_000_000, 20_000_000, 240, 8_000]
                event = ["failed_task" if failed else "task", start_ns, start_ns + length_ns, engine, 0, kind + 1, way]
                self._events.append(event)
        self._now_ns = end_ns
        # As in a ring, the newest remain.
        self._events = sorted(self._events, key=lambda event: event[2])[-40_000:]

    def _waiting(self) -> int:
        return 0 if self.idle else max(0, 40_000 - sum(self._done) // 3)

    def status(self) -> dict[str, Any]:
        """As `ControlLink.status`."""
        self._catch_up()
        self.n_looks += 1
        done = sum(self._done)
        resolved = {"ok": done - self._errors, "error": self._errors, "cancelled": 0, "timeout": 0, "refused": 0}
        resolved |= {"lost": len(self.dead), "unmet": 0}
        waiting = self._waiting()
        return {
            "cluster_id": self.cluster_id,
            "pid": 1,
            "uptime_s": 7_443.0 + self.n_looks,
            "controller": {
                "clients": 3, "submitted": done + waiting, "resolved": resolved, "waiting": 0, "ready": waiting,
                "pinned": 0, "retried": 0, "kept_bytes": 3_900_000,
            },
            "node": {"segment_bytes": 812_000_000, "own_bytes": 64_000_000, "objects_out": 1},
            "links": {"bytes_in": done * 1_800},
            "hosts": [
                {"host": h, "name": f"node{h:02}", "round_trip_ns": 190_000 + 7_000 * h, "bytes_per_s": 1.1e9,
                 "fetched": {"wire_bytes": 4_200_000_000}}
                for h in range(1, self.n_hosts)
            ],
            "engines": [self._engine(engine) for engine in range(self.n)],
        }  # fmt: skip

    @property
    def n_hosts(self) -> int:
        """Hosts, including the controller's own."""
        return -(-self.n // self.per_host)

    def _engine(self, engine: int) -> dict[str, Any]:
        dead = engine in self.dead
        runs = not dead and not self.idle and self._until_ns[engine] > self._now_ns
        # A task's time is counted when it has ended.
        not_ended_ns = self._until_ns[engine] - self._start_ns[engine] if self._until_ns[engine] > self._now_ns else 0
        busy_ns = max(0, self._busy_ns[engine] - not_ended_ns)
        running = {"function": _TASKS[self._task[engine]][0], "for_ns": max(0, self._now_ns - self._start_ns[engine])}
        host = f"node{engine // self.per_host:02}"
        death = {
            "cause": "out_of_memory" if engine % 2 else "signal", "code": None if engine % 2 else 11, "uuid": "",
            "pid": 20_000 + engine, "host": host, "ago_s": 41.0 + engine % 7,
            "last_output": "numpy: cannot allocate 12.4 GiB\n" if engine % 2 else "",
        }  # fmt: skip
        return {
            "engine": engine, "up": not dead, "state": "gone" if dead else "up", "pid": 20_000 + engine, "host": host,
            "outstanding": 2 if runs else 0, "queued": 0, "completed": self._done[engine], "window": 2,
            "mean_task_ns": self._busy_ns[engine] // max(1, self._done[engine]), "busy_ns": busy_ns,
            "restarts": int(engine % 311 == 310), "last_death": death if dead else None,
            "running": running if runs else None,
        }  # fmt: skip

    def watch(self, after: int, max_events: int) -> dict[str, Any]:
        """As `ControlLink.watch`."""
        events, self._events = self._events, []
        end_ns = self._now_ns
        # A task is reported when it has ended.
        coming = [event for event in events if event[2] > self._now_ns]
        ended = [event for event in events if event[2] <= self._now_ns]
        self._events = coming
        self._told += len(ended)
        return {
            "next": self._told,
            "recorded": len(ended),
            "events": ended[-max_events:],
            "names": {str(kind + 1): name for kind, (name, *_) in enumerate(_TASKS)},
            "functions": [
                {
                    "name": _TASKS[kind][0],
                    "tag": kind + 1,
                    "tasks": n,
                    "errors": bad,
                    "total_ns": total,
                    "max_ns": longest,
                    "unfinished": self._waiting() if kind == 0 else 0,
                }
                for kind, (n, bad, total, longest) in enumerate(self._times)
                if n
            ],
            "failures": [
                {
                    "function": _TASKS[kind][0],
                    "tag": kind + 1,
                    "tasks": bad,
                    "items": 3 * bad,
                    "engine": 7 * kind,
                    "first_ns": self._start_ns[0],
                    "last_ns": end_ns,
                    "text": json.dumps(_ERRORS[kind]),
                }
                for kind, (_, bad, *_) in enumerate(self._times)
                if bad
            ],
            "hosts": [],
            "transfers": [] if self.idle or self.n_hosts == 1 else self._transfers(),
        }

    def _transfers(self) -> list[dict[str, Any]]:
        share = min(1.0, (self.n_looks % 20) / 12)
        return [self._transfer(2, 256_000_000, share, 3), self._transfer(1, 1_200_000_000, 1.0, 95)]

    def _transfer(self, number: int, len_bytes: int, share: float, ago_s: int) -> dict[str, Any]:
        stops = []
        for host in range(self.n_hosts):
            depth = 0 if host == 0 else 1 + (host > 3) + (host > 12)
            have = 1.0 if host == 0 else min(1.0, share * 4 - depth)
            stops.append({
                "host": host, "parent": max(0, (host - 1) // 3), "have_bytes": int(max(0.0, have) * len_bytes),
                "gone": False, "took_ns": int(depth * len_bytes / 1.1) if have >= 1 and host else None,
            })  # fmt: skip
        return {
            "object": number, "len_bytes": len_bytes, "shape": "tree of arity 3", "ago_ns": int(ago_s * 1e9),
            "stops": stops,
        }  # fmt: skip
