"""What is sent to pages: a frame for each update of a cluster, and the history for pages opened later.

A frame is an object of JSON. Facts about engines and tasks are in columns, so 1,000 engines take about 50 kB. Times are
in milliseconds since 1970, as in a browser, unless a name says otherwise.
"""

from __future__ import annotations

import socket
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from broadleaf.dashboard.host_meter import Counts, HostMeter, counts_here, counts_of
from broadleaf.errors import DeathCertificate
from broadleaf.errors.kinds import error_rows
from broadleaf.tables import resident_bytes

# Changes between two updates of a cluster, per second.


@dataclass(frozen=True)
class Rates:
    """What has changed between two updates, per second."""

    tasks_per_s: float
    bytes_per_s: float
    busy_percent: float
    """Mean share of the time that tasks took, over all engines."""


@dataclass(frozen=True)
class Look:
    """A cluster's status, and the time of the request in seconds of the monotonic clock."""

    at_s: float
    status: dict[str, Any]

    def since(self, before: Look) -> Rates:
        """Rates between the previous update and this one."""
        seconds = self.at_s - before.at_s
        now, then = self.status, before.status
        done = sum(now["controller"]["resolved"].values()) - sum(then["controller"]["resolved"].values())
        received = max(0, now["links"]["bytes_in"] - then["links"]["bytes_in"])
        shares = self.busy_shares(before)
        busy = min(100.0, 100 * sum(shares.values()) / len(shares)) if shares else 0.0
        return Rates(done / seconds, received / seconds, busy)

    def busy_shares(self, before: Look) -> dict[int, float]:
        """The share of the time between the updates that each engine's tasks took."""
        seconds = self.at_s - before.at_s
        taken_before = {engine["engine"]: _taken_ns(engine) for engine in before.status["engines"]}
        return {
            engine["engine"]: max(0, _taken_ns(engine) - taken_before.get(engine["engine"], _taken_ns(engine)))
            / 1e9
            / seconds
            for engine in self.status["engines"]
        }


def _taken_ns(engine: Mapping[str, Any]) -> int:
    """The time that an engine's tasks have taken so far, including the one that it runs."""
    running = engine["running"]
    taken_ns: int = engine["busy_ns"] + (running["for_ns"] if running else 0)
    return taken_ns


# Number of updates, tasks and lines that a page gets when it is opened.
HISTORY_LOOKS = 1_800
HISTORY_TASKS = 20_000
HISTORY_LINES = 500
# Number of deaths in a frame, latest first.
_DEATHS = 100
# How far back the throughput before the first update goes.
_PAST_S = 300
_NO_TASK = ""
_TASK_KINDS = {"task": 0, "failed_task": 1}
_COLUMNS = ("id", "state", "host", "pid", "outstanding", "queued", "completed", "mean_us", "restarts", "window")


class Frames:
    """Makes frames from a cluster's counters and events, and remembers what a new page needs."""

    def __init__(self) -> None:
        self._before: Look | None = None
        self._memory: dict[int, int | None] = {}
        self._memory_at_s = -1e9
        self._latest: dict[str, Any] | None = None
        self._progress = Progress()
        self._meters: defaultdict[str, HostMeter] = defaultdict(HostMeter)
        self.series: deque[list[float | None]] = deque(maxlen=HISTORY_LOOKS)
        """For each update: time, tasks and errors per second, bytes per second, percent busy, waiting, running."""
        self.tasks: deque[list[Any]] = deque(maxlen=HISTORY_TASKS)
        """Ended tasks: engine, start, milliseconds, function's name, whether it failed, and what is known of its way:
        milliseconds from its receipt by the controller and from its sending to its start, and bytes in and out."""
        self.lines: deque[list[Any]] = deque(maxlen=HISTORY_LINES)
        """Lines of the log and of events: time, None for a line of the log, and text."""

    def history(self) -> dict[str, Any]:
        """What a page is sent first."""
        return {
            "series": list(self.series),
            "tasks": task_columns(self.tasks),
            "lines": list(self.lines),
            "look": self._latest,
        }

    def add(
        self,
        look: Look,
        now_ms: float,
        news: Mapping[str, Any],
        log_lines: Sequence[str],
        is_after_gap: bool = False,
    ) -> dict[str, Any]:
        """The frame of an update. `now_ms` is the wall clock, `news` is the controller's answer to `watch`.

        `is_after_gap` says that nothing was asked for a while. A mean over that time would look like a figure of now,
        so what is drawn for it are the tasks that the events tell of, and nothing where they do not go back so far.
        """
        status, before = look.status, (None if is_after_gap else self._before) or look
        rates = look.since(before) if look is not before and look.at_s > before.at_s else None
        shares = look.busy_shares(before) if rates is not None else {}
        errors = status["controller"]["resolved"]["error"] - before.status["controller"]["resolved"]["error"]
        self._before = look
        # What relays tell is from just after the request before this one.
        measured = [] if is_after_gap else news["hosts"]
        if is_after_gap:
            self._meters.clear()
        cluster = cluster_totals(status)
        point: list[float | None] = [round(now_ms), None, None, None, None, cluster["waiting"], cluster["running"]]
        if rates is not None:
            errors_per_s = errors / (look.at_s - before.at_s)
            figures = (rates.tasks_per_s, errors_per_s, rates.bytes_per_s, rates.busy_percent)
            point[1:5] = [round(figure, 1) for figure in figures]
        tasks, lines = split_events(news)
        points = [point] if rates is not None else [*self._unwatched(tasks, now_ms, news), point]
        self.series.extend(points)
        lines += [[None, line] for line in log_lines]
        self.tasks.extend(tasks)
        self.lines.extend(lines)
        if look.at_s - self._memory_at_s >= _memory_interval_s(len(status["engines"])):
            self._memory = {e["engine"]: resident_bytes(e["pid"], e["host"]) for e in status["engines"] if e["up"]}
            self._memory_at_s = look.at_s
        memory = self._memory | {int(engine): n for host in measured for engine, n in host["engines"].items()}
        engines = engine_columns(status, shares, memory)
        self._latest = {
            "at": round(now_ms),
            "point": point,
            "cluster": cluster,
            "hosts": host_rows(status, engines, self._how_busy(look.at_s, measured)),
            "engines": engines,
            "deaths": death_rows(status),
            "functions": sorted((f for f in news["functions"] if f["tasks"]), key=lambda f: -f["total_ns"]),
            "errors": error_rows(news["failures"], now_ms / 1e3),
            "progress": self._progress.rows(news["functions"], look.at_s),
            "transfers": news["transfers"],
        }
        untold = news["recorded"] - len(news["events"])
        return {**self._latest, "points": points, "tasks": task_columns(tasks), "untold": untold, "lines": lines}

    def _how_busy(self, at_s: float, measured: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Figures of this host, and of those whose relays have told them, by name."""
        counts: dict[str, Counts | None] = {host["name"]: counts_of(host) for host in measured}
        # It knows itself best.
        counts[socket.gethostname()] = counts_here(at_s)
        for gone in self._meters.keys() - counts:
            del self._meters[gone]
        return {name: self._meters[name].read(now) for name, now in counts.items()}

    def _unwatched(
        self, tasks: Sequence[list[Any]], now_ms: float, news: Mapping[str, Any]
    ) -> list[list[float | None]]:
        """Points for the time since the previous update, if there was one, or before the first."""
        if not self.series:
            return past_throughput(tasks, now_ms)
        last_ms = self.series[-1][0] or 0.0
        is_complete = news["recorded"] == len(news["events"])
        past = past_throughput(tasks, now_ms, last_ms if is_complete else None)
        # Lines end here.
        gap: list[float | None] = [last_ms + 1, None, None, None, None, None, None]
        return [gap, *(point for point in past if (point[0] or 0.0) > last_ms + 1)]


# How far back the rate of a function's tasks goes.
_RATE_S = 10.0


class Progress:
    """How far the tasks of each function have come that has unfinished ones, since it had none.

    A function's tasks are those of a map, or of several at a time. Those that ended before the first update are
    counted if the first update finds unfinished ones.
    """

    def __init__(self) -> None:
        # By function: tasks that had ended before the first unfinished one, and ends seen lately with their times.
        self._before: dict[int, int] = {}
        self._lately: dict[int, deque[tuple[float, int]]] = {}
        self._idle: dict[int, int] = {}

    def rows(self, functions: Sequence[Mapping[str, Any]], at_s: float) -> list[dict[str, Any]]:
        """A row for each function with unfinished tasks: done and total, tasks per second, seconds left if known."""
        rows = []
        known = {function["tag"] for function in functions}
        for table in (self._before, self._lately, self._idle):
            for tag in [tag for tag in table if tag not in known]:
                del table[tag]
        for function in functions:
            tag, ended, unfinished = function["tag"], function["tasks"], function["unfinished"]
            if not unfinished:
                self._idle[tag] = ended
                self._before.pop(tag, None)
                self._lately.pop(tag, None)
                continue
            done = ended - self._before.setdefault(tag, self._idle.get(tag, 0))
            lately = self._lately.setdefault(tag, deque())
            lately.append((at_s, ended))
            while len(lately) > 2 and at_s - lately[1][0] > _RATE_S:
                lately.popleft()
            seconds = at_s - lately[0][0]
            per_s = (ended - lately[0][1]) / seconds if seconds > 0 else None
            rows.append({
                "name": function["name"], "done": done, "total": done + unfinished, "failed": function["errors"],
                "per_s": per_s, "left_s": unfinished / per_s if per_s else None,
            })  # fmt: skip
        return sorted(rows, key=lambda row: -row["total"])


def _memory_interval_s(n_engines: int) -> float:
    """Seconds between two readings of the engines' memory: at 10 us per engine, they take a thousandth of the time."""
    return max(2.0, n_engines * 10e-6 * 1000)


def cluster_totals(status: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of the whole cluster: what `broadleaf status` shows in its first line, and memory."""
    controller, node = status["controller"], status["node"]
    engines = status["engines"]
    return {
        "id": status["cluster_id"],
        "uptime_s": round(status["uptime_s"], 1),
        # The connection that asks is also a client.
        "clients": max(0, controller["clients"] - 1),
        "submitted": controller["submitted"],
        "resolved": controller["resolved"],
        "waiting": controller["waiting"] + controller["ready"] + controller["pinned"],
        "running": sum(engine["running"] is not None for engine in engines),
        "up": sum(engine["up"] for engine in engines),
        "engines": len(engines),
        "retried": controller["retried"],
        "kept_bytes": controller["kept_bytes"],
        "segment_bytes": node["segment_bytes"] + node["own_bytes"],
        "objects_out": node["objects_out"],
    }


def engine_columns(
    status: Mapping[str, Any], shares: Mapping[int, float], memory: Mapping[int, int | None]
) -> dict[str, list[Any]]:
    """The state of each engine: one list per fact, in the order of the ids."""
    columns: dict[str, list[Any]] = {name: [] for name in (*_COLUMNS, "busy_percent", "memory_bytes", "task", "for_ms")}
    for engine in status["engines"]:
        running = engine["running"]
        row = (
            engine["engine"], engine["state"], _host_of(engine), engine["pid"], engine["outstanding"], engine["queued"],
            engine["completed"], round(engine["mean_task_ns"] / 1e3, 1), engine["restarts"], engine["window"],
            min(100, round(100 * shares.get(engine["engine"], 0.0))), memory.get(engine["engine"]),
            running["function"] if running else None, round(running["for_ns"] / 1e6) if running else None,
        )  # fmt: skip
        for column, value in zip(columns.values(), row, strict=True):
            column.append(value)
    return columns


def _host_of(engine: Mapping[str, Any]) -> str:
    """Where it is, or where it died."""
    host: str = engine["host"] or (engine["last_death"] or {}).get("host", "")
    return host


def host_rows(
    status: Mapping[str, Any], engines: Mapping[str, Sequence[Any]], how_busy: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Each host: its engines together, its link to the controller, and how busy it is, where that is known."""
    rows: dict[str, dict[str, Any]] = {}
    for link in status["hosts"]:
        rows[link["name"]] = {
            "host": link["host"], "round_trip_us": round(link["round_trip_ns"] / 1e3),
            "bytes_per_s": link["bytes_per_s"], "received_bytes": link["fetched"]["wire_bytes"],
        }  # fmt: skip
    totals: dict[str, list[Any]] = {}
    for name, state, busy, memory, restarts in zip(
        *(engines[c] for c in ("host", "state", "busy_percent", "memory_bytes", "restarts")), strict=True
    ):
        if not name:
            continue
        total = totals.setdefault(name, [0, 0, 0, None, 0])
        total[0] += 1
        total[1] += state == "up"
        total[2] += busy
        total[3] = total[3] if memory is None else (total[3] or 0) + memory
        total[4] += restarts
    for name, (n, up, busy, memory_bytes, restarts) in totals.items():
        row = rows.setdefault(name, {"host": 0})
        row.update(engines=n, up=up, busy_percent=round(busy / n), memory_bytes=memory_bytes, restarts=restarts)
        row.update(how_busy.get(name, {}))
    return sorted(({"name": name, **row} for name, row in rows.items()), key=lambda row: row["host"])


def death_rows(status: Mapping[str, Any]) -> list[dict[str, Any]]:
    """How engines died, latest first."""
    dead = [engine for engine in status["engines"] if engine["last_death"]]
    dead.sort(key=lambda engine: engine["last_death"]["ago_s"])
    rows = []
    for engine in dead[:_DEATHS]:
        death = dict(engine["last_death"])
        ago_s = death.pop("ago_s")
        certificate = DeathCertificate(engine["engine"], **death)
        rows.append({
            "engine": certificate.engine_id, "pid": certificate.pid, "host": certificate.host, "ago_s": round(ago_s),
            "reason": certificate.reason, "asked_for": certificate.cause == "stopped", "state": engine["state"],
            "last_output": certificate.last_output, "advice": certificate.advice,
        })  # fmt: skip
    return rows


def split_events(news: Mapping[str, Any]) -> tuple[list[list[Any]], list[list[Any]]]:
    """The tasks among the events, and a line of text for each of the others."""
    names = news["names"]
    tasks, lines = [], []
    for kind, at_ns, end_ns, a, low, high, *more in news["events"]:
        failed = _TASK_KINDS.get(kind)
        if failed is None:
            lines.append([round(at_ns / 1e6, 3), _event_text(kind, a, low)])
        else:
            name = names.get(str(high), _NO_TASK)
            received_ns, sent_ns, in_bytes, out_bytes = more[0] if more else (None,) * 4
            way = [None if ns is None else round(ns / 1e6, 3) for ns in (received_ns, sent_ns)]
            length_ms = round(max(0, end_ns - at_ns) / 1e6, 4)
            tasks.append([a, round(at_ns / 1e6, 3), length_ms, name, failed, *way, in_bytes, out_bytes])
    return tasks, lines


def past_throughput(
    tasks: Sequence[list[Any]], now_ms: float, since_ms: float | None = None
) -> list[list[float | None]]:
    """Points for the seconds before an update that nothing came before, as far as its tasks go back; only the tasks
    are known for them. With `since_ms`, these are all tasks since then."""
    ends_s = [int((start + length) // 1e3) for _, start, length, *_ in tasks]
    if not ends_s and since_ms is None:
        return []
    now_s = int(now_ms // 1e3)
    done = Counter(ends_s)
    failed = Counter(end for end, task in zip(ends_s, tasks, strict=True) if task[4])
    # The first second may lack tasks, which the ring has lost or which an earlier update had.
    first_s = min(ends_s) if since_ms is None else int(since_ms // 1e3)
    seconds = range(max(first_s + 1, now_s - _PAST_S), now_s)
    return [[second * 1000 + 1000, done[second], failed[second], None, None, None, None] for second in seconds]


def _event_text(kind: str, a: int, b: int) -> str:
    words = {
        "client_up": f"client {a} connected",
        "client_down": f"client {a} left",
        "engine_up": f"engine {a} came up (pid {b})",
        "engine_down": f"engine {a} is gone",
        "refused": "a connection was refused",
        "malformed": "a peer sent bytes that are not a message, and was disconnected",
        "request": f"client {a} sent a request",
        "host_silent": f"host {a} does not answer",
        "host_back": f"host {a} answers again",
        "resumed": "a broken connection was resumed",
    }
    return words.get(kind, kind)


def task_columns(tasks: Sequence[list[Any]] | deque[list[Any]]) -> dict[str, Any]:
    """Tasks as columns, in which each name is listed once, and each start is the time since the first."""
    first = min((task[1] for task in tasks), default=0)
    names: dict[str, int] = {}
    return {
        "since": first,
        "engine": [task[0] for task in tasks],
        "start": [round(task[1] - first, 3) for task in tasks],
        "ms": [task[2] for task in tasks],
        "name": [names.setdefault(task[3], len(names)) for task in tasks],
        "failed": [task[4] for task in tasks],
        "received": [task[5] for task in tasks],
        "sent": [task[6] for task in tasks],
        "in": [task[7] for task in tasks],
        "out": [task[8] for task in tasks],
        "names": list(names),
    }
