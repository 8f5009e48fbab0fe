"""The zoo's workloads: which tasks there are, and which must wait for which."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.zoo import bodies

BODIES: dict[str, Callable[..., float]] = {
    "sleep": bodies.sleep,
    "cpu": bodies.cpu,
    "memory": bodies.memory,
    "io": bodies.io,
}
SHAPES = ("bag", "chain", "fan-in")
WORKLOADS = (*BODIES, *SHAPES)


@dataclass(frozen=True, slots=True)
class Task:
    """One task: the amount its body is called with, and the tasks (by index, all earlier) it waits for."""

    amount: float
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Workload:
    """Tasks of one body in the order they are submitted, each after those it waits for."""

    name: str
    body: Callable[..., float]
    tasks: tuple[Task, ...]


@dataclass(frozen=True, slots=True)
class Size:
    """How big a workload is. `duration_s` is for the bodies sleep and cpu, `n_bytes` for memory and io.

    `width` is the number of parallel chains; `arity` how many tasks each task of a fan-in waits for; `spread` the
    standard deviation of the logarithm of a bag's amounts.
    """

    n_tasks: int = 200
    duration_s: float = 0.01
    n_bytes: int = 1 << 20
    width: int = 4
    arity: int = 4
    spread: float = 1.0
    seed: int = 1


def make(name: str, size: Size, body: str = "sleep") -> Workload:
    """The workload `name`. The names of bodies give equal, independent tasks; the shapes have tasks of `body`.

    Raises `ValueError` that names what does not exist or is impossible.
    """
    if name in BODIES:
        body, shape = name, "equal"
    elif name in SHAPES:
        shape = name
    else:
        raise ValueError(f"no workload is called {name!r}; there are {', '.join(WORKLOADS)}")
    if body not in BODIES:
        raise ValueError(f"no body is called {body!r}; there are {', '.join(BODIES)}")
    if size.n_tasks < 1 or size.width < 1 or size.arity < 2:
        raise ValueError(f"a workload needs at least one task, one chain and an arity of 2: {size}")
    amount = _amount(body, size)
    match shape:
        case "chain":
            tasks = [Task(amount, (i - size.width,) if i >= size.width else ()) for i in range(size.n_tasks)]
        case "fan-in":
            tasks = _fan_in(amount, size)
        case "bag":
            tasks = [Task(_whole(body, part)) for part in _spread(amount, size)]
        case _:
            tasks = [Task(amount)] * size.n_tasks
    return Workload(name, BODIES[body], tuple(tasks))


def critical_path_s(tasks: Sequence[Task], durations_s: Sequence[float]) -> float:
    """The longest sum of durations along tasks that wait for each other."""
    finish: list[float] = []
    for task, duration_s in zip(tasks, durations_s, strict=True):
        finish.append(duration_s + max((finish[i] for i in task.after), default=0.0))
    return max(finish, default=0.0)


def ideal_s(tasks: Sequence[Task], durations_s: Sequence[float], engines: int) -> float:
    """The lower bound for any system on `engines` engines: the critical path, or all work evenly divided."""
    return max(critical_path_s(tasks, durations_s), math.fsum(durations_s) / engines)


def _amount(body: str, size: Size) -> float:
    if body == "cpu":
        return bodies.steps_for(size.duration_s)
    return size.duration_s if body == "sleep" else size.n_bytes


def _whole(body: str, amount: float) -> float:
    return amount if body == "sleep" else max(1, round(amount))


def _spread(amount: float, size: Size) -> list[float]:
    """Lognormal amounts whose mean is exactly `amount`, the same for the same seed."""
    chance = random.Random(size.seed)
    parts = [math.exp(chance.gauss(0.0, size.spread)) for _ in range(size.n_tasks)]
    scale = amount * size.n_tasks / math.fsum(parts)
    return [part * scale for part in parts]


def _fan_in(amount: float, size: Size) -> list[Task]:
    """A tree of `n_tasks` leaves in which every inner task waits for up to `arity` of the level below."""
    tasks = [Task(amount)] * size.n_tasks
    level = list(range(size.n_tasks))
    while len(level) > 1:
        above = []
        for i in range(0, len(level), size.arity):
            above.append(len(tasks))
            tasks.append(Task(amount, tuple(level[i : i + size.arity])))
        level = above
    return tasks
