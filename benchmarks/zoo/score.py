"""Runs a workload on a system and scores it against the best that any system could do."""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.zoo.systems import System
from benchmarks.zoo.workloads import Workload, critical_path_s, ideal_s


@dataclass(frozen=True, slots=True)
class Score:
    """One round, or the median round of several."""

    workload: str
    system: str
    engines: int
    n_tasks: int
    total_s: float
    ideal_s: float
    critical_path_s: float
    work_s: float
    submit_s: float
    """Time until the last task was submitted, including waits for dependencies if the system has none of its own."""

    @property
    def overhead_us(self) -> float:
        """What the system adds to the best possible time, per task, in microseconds."""
        return (self.total_s - self.ideal_s) / self.n_tasks * 1e6

    @property
    def efficiency(self) -> float:
        """The best possible time over the actual time."""
        return self.ideal_s / self.total_s

    def to_dict(self) -> dict[str, Any]:
        """All figures, ready for JSON."""
        return asdict(self) | {
            "overhead_us": self.overhead_us,
            "efficiency": self.efficiency,
            "time_per_task_us": self.total_s / self.n_tasks * 1e6,
        }


def run_round(system: System, workload: Workload, engines: int) -> Score:
    """Submits every task, and waits for all values."""
    begin = time.perf_counter()
    handles = _submit_all(system, workload) if system.adapter.takes_after else _submit_when_ready(system, workload)
    submitted = time.perf_counter()
    durations_s = system.adapter.collect(handles)
    total_s = time.perf_counter() - begin
    return Score(
        workload.name,
        system.name,
        engines,
        len(workload.tasks),
        total_s,
        ideal_s(workload.tasks, durations_s, engines),
        critical_path_s(workload.tasks, durations_s),
        sum(durations_s),
        submitted - begin,
    )


def measure(system: System, workload: Workload, engines: int, rounds: int = 3) -> Score:
    """The round with the median overhead out of `rounds`, after an uncounted one. Starts and stops the system."""
    system.start(engines)
    try:
        run_round(system, workload, engines)
        scores = [run_round(system, workload, engines) for _ in range(rounds)]
    finally:
        system.adapter.stop()
    middle = statistics.median_low([score.overhead_us for score in scores])
    return next(score for score in scores if score.overhead_us == middle)


def _submit_all(system: System, workload: Workload) -> list[Any]:
    handles: list[Any] = []
    for task in workload.tasks:
        handles.append(system.adapter.submit(workload.body, task.amount, after=[handles[i] for i in task.after]))
    return handles


def _submit_when_ready(system: System, workload: Workload) -> list[Any]:
    """For systems of futures without dependencies: a task is submitted when all that it waits for are done."""
    tasks = workload.tasks
    missing = [len(task.after) for task in tasks]
    waiting: list[list[int]] = [[] for _ in tasks]
    for index, task in enumerate(tasks):
        for before in task.after:
            waiting[before].append(index)
    handles: list[Any] = [None] * len(tasks)
    lock, all_out = threading.Lock(), threading.Event()
    left = len(tasks)
    failed: list[BaseException] = []

    def start(index: int) -> None:
        nonlocal left
        handle = system.adapter.submit(workload.body, tasks[index].amount)
        handles[index] = handle
        with lock:
            left -= 1
            if left == 0:
                all_out.set()
        if waiting[index]:
            handle.add_done_callback(lambda done: on_done(index, done))

    def on_done(index: int, done: Any) -> None:
        # A callback's exception would only be logged, and the round would wait forever.
        try:
            done.result()
            with lock:
                for after in waiting[index]:
                    missing[after] -= 1
                ready = [after for after in waiting[index] if missing[after] == 0]
            for after in ready:
                start(after)
        except BaseException as error:
            failed.append(error)
            all_out.set()

    for index in [i for i, task in enumerate(tasks) if not task.after]:
        start(index)
    all_out.wait()
    if failed:
        raise failed[0]
    return handles
