"""Polls a cluster while somebody watches, and sends the frames to each watcher."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Protocol

from broadleaf.dashboard.frames import Frames, Look
from broadleaf.dashboard.log_tail import LogTail
from broadleaf.engine.written import Seen
from broadleaf.errors import BroadleafError

# Maximum number of events in an answer per second since the last one, and in the first, which fills the timeline.
_EVENTS_PER_S = 2_000
_FIRST_EVENTS = 20_000
# The minimum of this many answers counts: in the others the controller had other work to do first.
_ANSWERS = 8
_MAX_INTERVAL_S = 10.0
# If nothing was asked for so many intervals, what is drawn has a gap.
_GAP_INTERVALS = 3
# Number of frames that may wait for a slow page; beyond that they are dropped, and it gets the history again.
_QUEUE = 8
_ANEW = ""


class Control(Protocol):
    """A connection to a cluster's controller."""

    def status(self) -> dict[str, Any]:
        """Counters of controller and engines."""
        ...

    def watch(self, after: int, max_events: int) -> dict[str, Any]:
        """Events from number `after` on, the busiest functions, and transfers."""
        ...

    def written(self, engine_id: int, seen: Seen | None) -> dict[str, Any]:
        """What an engine has written since `seen`."""
        ...


class Watched(Protocol):
    """The part of a cluster that a dashboard uses."""

    cluster_id: str

    def control(self, timeout_s: float = 10.0) -> AbstractContextManager[Control]:
        """A connection for requests."""
        ...

    def log_path(self) -> Path:
        """Where the controller writes."""
        ...


class Feed:
    """The frames of one cluster. Everything happens on one event loop, except the requests, which wait for the
    cluster."""

    def __init__(self, cluster: Watched, min_interval_s: float, max_share: float) -> None:
        self._cluster = cluster
        self._min_interval_s = min_interval_s
        self._max_share = max_share
        self._frames = Frames()
        self._log = LogTail(cluster.log_path)
        self._watchers: set[asyncio.Queue[str | None]] = set()
        self._wanted = asyncio.Event()
        self._executor = ThreadPoolExecutor(1, "broadleaf-dashboard-look")
        self._control: Control | None = None
        self._connection = ExitStack()
        self._next_event = 0
        self._looked_s = self._looked_ms = 0.0
        self._expected_s = min_interval_s
        self._answers_s: deque[float] = deque(maxlen=_ANSWERS)
        self._failure: str | None = None
        self._is_closed = False

    @property
    def n_watchers(self) -> int:
        """Number of open streams."""
        return len(self._watchers)

    async def run(self) -> None:
        """Polls while there are watchers, until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._wanted.wait()
                began_s = time.monotonic()
                try:
                    frame = await loop.run_in_executor(self._executor, self._look)
                    self._failure = None
                    self._tell("look", frame)
                except (BroadleafError, TimeoutError, OSError) as error:
                    if self._failure is None:
                        self._failure = str(error)
                        self._tell("lost", {"why": self._failure})
                    await loop.run_in_executor(self._executor, self._disconnect)
                if not self._watchers:
                    self._wanted.clear()
                    await loop.run_in_executor(self._executor, self._disconnect)
                    continue
                self._expected_s = interval_s(self._min_interval_s, self._max_share, self._answers_s)
                await asyncio.sleep(max(0.0, self._expected_s - (time.monotonic() - began_s)))
        finally:
            self._executor.submit(self._disconnect)
            self._executor.shutdown()

    def close(self) -> None:
        """Ends all present and future streams."""
        self._is_closed = True
        for queue in self._watchers:
            _put(queue, None)

    async def stream(self) -> AsyncIterator[str]:
        """Server-sent events: the history, then each frame. Ends when the feed is closed."""
        if self._is_closed:
            return
        queue: asyncio.Queue[str | None] = asyncio.Queue(_QUEUE)
        self._watchers.add(queue)
        self._wanted.set()
        try:
            yield self._history()
            while (text := await queue.get()) is not None:
                yield self._history() if text == _ANEW else text
        finally:
            self._watchers.discard(queue)

    async def engine_news(self, engine_id: int, seen: Seen | None) -> dict[str, Any]:
        """What an engine has written since `seen`, or under 'failed' why that is not known."""
        control = self._control
        if control is None:
            return {"failed": "the dashboard is not connected to the cluster"}
        try:
            return await asyncio.get_running_loop().run_in_executor(None, control.written, engine_id, seen)
        except (BroadleafError, TimeoutError) as error:
            return {"failed": str(error)}

    def _history(self) -> str:
        history = {"cluster": self._cluster.cluster_id, "lost": self._failure, **self._frames.history()}
        return _event("history", history)

    def _tell(self, kind: str, frame: dict[str, Any]) -> None:
        text = _event(kind, frame)
        for queue in self._watchers:
            _put(queue, text)

    # On the executor's thread.

    def _look(self) -> dict[str, Any]:
        if self._control is None:
            self._control = self._connection.enter_context(self._cluster.control(5.0))
        at_s, now_ms = time.monotonic(), time.time() * 1e3
        max_events = _FIRST_EVENTS
        if self._next_event:
            max_events = min(_FIRST_EVENTS, round(_EVENTS_PER_S * max(1.0, at_s - self._looked_s)))
        status = self._control.status()
        news = self._control.watch(self._next_event, max_events)
        answer_s = time.monotonic() - at_s
        # The first answer has many events.
        if self._next_event:
            self._answers_s.append(answer_s)
        # Only the wall clock goes on while the machine sleeps.
        unwatched_s = max(at_s - self._looked_s, (now_ms - self._looked_ms) / 1e3)
        is_after_gap = self._looked_ms > 0 and unwatched_s > _GAP_INTERVALS * max(self._expected_s, answer_s)
        self._looked_s, self._looked_ms = at_s, now_ms
        if not self._next_event:
            # Events from before anybody watched are not missing.
            news["recorded"] = len(news["events"])
        self._next_event = news["next"]
        return self._frames.add(Look(at_s, status), now_ms, news, self._log.new_lines(), is_after_gap)

    def _disconnect(self) -> None:
        self._control = None
        self._connection.close()


def interval_s(min_s: float, max_share: float, answers_s: Iterable[float]) -> float:
    """The interval between requests, so that answers of this duration take no more than a given share of the time."""
    return min(_MAX_INTERVAL_S, max(min_s, min(answers_s, default=0.0) / max_share))


def _put(queue: asyncio.Queue[str | None], text: str | None) -> None:
    if queue.full():
        while not queue.empty():
            queue.get_nowait()
        text = None if text is None else _ANEW
    queue.put_nowait(text)


def _event(kind: str, content: dict[str, Any]) -> str:
    return f"event: {kind}\ndata: {json.dumps(content, separators=(',', ':'))}\n\n"
