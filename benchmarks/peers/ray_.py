"""Ray: tasks, and calls of actors."""

import os
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")

import ray
from broadleaf.bench.workload import payloads, tasks
from broadleaf.bench.workload.adapter import Adapter, Send, Submit, Way, called_after

OBJECT_STORE_BYTES = 4 << 30


class Actor:
    def noop(self) -> None:
        """The empty call."""

    def pid(self) -> int:
        return os.getpid()

    def echo(self, x: Any) -> Any:
        return x

    def hold(self, x: Any) -> None:
        self.held = x

    def checksum(self) -> float:
        return payloads.checksum(self.held)


class Peer(Adapter):
    def version(self) -> str:
        return f"ray {ray.__version__}"

    def start(self, workers: int, config: str) -> None:
        ray.init(
            num_cpus=workers,
            include_dashboard=False,
            _node_ip_address="127.0.0.1",
            object_store_memory=OBJECT_STORE_BYTES,
            log_to_driver=False,
            logging_level="ERROR",
        )
        self.noop: Any
        self.echo_task: Any
        self.nap: Any
        self.length: Any
        self.noop, self.echo_task, self.nap, self.length = map(ray.remote, (tasks.noop, tasks.echo, tasks.nap, length))
        self.called: Any = ray.remote(called_after)
        # Actors reserve no processor, so that tasks can run beside them.
        actor = ray.remote(Actor)
        self.actors: list[Any] = [actor.options(num_cpus=0).remote() for _ in range(workers)]
        self.pids: list[Any] = sorted(ray.get([a.pid.remote() for a in self.actors]))
        # Tasks run in other processes than the actors; these start with the first tasks.
        ray.get([self.nap.remote(0.3) for _ in range(2 * min(workers, 4))])

    def stop(self) -> None:
        ray.shutdown()

    def worker_pids(self) -> list[int]:
        return self.pids

    takes_after = True

    def submit(self, call: Callable[..., Any], *arguments: Any, after: Sequence[Any] = ()) -> Any:
        return self.called.remote(call, arguments, *after)

    def collect(self, handles: list[Any]) -> list[Any]:
        return list(ray.get(handles))

    def latency(self) -> dict[str, Callable[[], Any]]:
        return {
            "task": lambda: ray.get(self.noop.remote()),
            "actor call": lambda: ray.get(self.actors[0].noop.remote()),
        }

    def throughput(self) -> dict[str, Submit]:
        k = len(self.actors)
        return {
            "task": (lambda n: [self.echo_task.remote("") for _ in range(n)], ray.get),
            "actors in turn": (lambda n: [self.actors[i % k].echo.remote("") for i in range(n)], ray.get),
        }

    def naps(self) -> dict[str, Callable[[list[float]], list[float]]]:
        return {"task": lambda lengths: ray.get([self.nap.remote(s) for s in lengths])}

    def echo(self) -> dict[str, Callable[[Any, int], Any]]:
        # Results stay in the object store; what comes back is read-only.
        return {"task": lambda x, n: ray.get([self.echo_task.remote(x) for _ in range(n)])[-1]}

    def fan_out(self) -> dict[str, Callable[[], Any]]:
        return {"a call of each actor": lambda: ray.get([a.noop.remote() for a in self.actors])}

    def broadcast(self) -> dict[str, Way]:
        def give(value: Any) -> None:
            reference = ray.put(value)
            ray.get([a.hold.remote(reference) for a in self.actors])

        return {"put, and a call of each actor": Way(give, lambda: ray.get([a.checksum.remote() for a in self.actors]))}

    def send(self) -> dict[str, Send]:
        return {"task": (lambda xs: [self.length.remote(x) for x in xs], ray.get)}


def length(x: Any) -> int:
    return len(x)
