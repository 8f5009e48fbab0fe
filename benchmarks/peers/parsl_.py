"""Parsl's HighThroughputExecutor, with its defaults and tuned."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import parsl
from broadleaf.bench.workload import tasks
from broadleaf.bench.workload.adapter import Adapter, Send, Submit, called_after, results
from parsl import python_app
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.providers import LocalProvider


class Peer(Adapter):
    configs: ClassVar[dict[str, list[str]]] = {
        "": ["tuned"],
        "latency": ["default", "tuned"],
        "throughput": ["default", "tuned"],
    }

    def version(self) -> str:
        return f"parsl {parsl.__version__}"

    def start(self, workers: int, config: str) -> None:
        # The executor starts its own programs by name.
        os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
        self.folder: str = tempfile.mkdtemp()
        executor: dict[str, Any] = {
            "label": "htex",
            "address": "127.0.0.1",
            "max_workers_per_node": workers,
            "cores_per_worker": 0.001,
            "provider": LocalProvider(init_blocks=1, min_blocks=1, max_blocks=1),
        }
        whole: dict[str, Any] = {"run_dir": os.path.join(self.folder, "runinfo")}
        if config == "tuned":
            executor |= {"encrypted": False, "prefetch_capacity": 100, "poll_period": 1}
            whole |= {"initialize_logging": False, "strategy": "none", "garbage_collect": True}
        self.kernel: Any = parsl.load(Config(executors=[HighThroughputExecutor(**executor)], **whole))
        self.noop: Any
        self.echo_app: Any
        self.nap: Any
        self.length: Any
        self.noop, self.echo_app, self.nap, self.length, meet = map(
            python_app, (tasks.noop, tasks.echo, tasks.nap, length, tasks.meet)
        )
        self.called: Any = python_app(called_after)
        meeting = os.path.join(self.folder, "meeting")
        os.mkdir(meeting)
        self.pids: list[int] = sorted({int(p) for p in results([meet(meeting, workers) for _ in range(workers)])})

    def stop(self) -> None:
        self.kernel.cleanup()
        parsl.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def worker_pids(self) -> list[int]:
        return self.pids

    takes_after = True

    def submit(self, call: Callable[..., Any], *arguments: Any, after: Sequence[Any] = ()) -> Any:
        return self.called(call, arguments, *after)

    def latency(self) -> dict[str, Callable[[], Any]]:
        return {"app": lambda: self.noop().result()}

    def throughput(self) -> dict[str, Submit]:
        return {"app": (lambda n: [self.echo_app("") for _ in range(n)], results)}

    def naps(self) -> dict[str, Callable[[list[float]], list[float]]]:
        return {"app": lambda lengths: results([self.nap(s) for s in lengths])}

    def echo(self) -> dict[str, Callable[[Any, int], Any]]:
        return {"app": lambda x, n: results([self.echo_app(x) for _ in range(n)])[-1]}

    def send(self) -> dict[str, Send]:
        return {"app": (lambda xs: [self.length(x) for x in xs], results)}


def length(x: Any) -> int:
    return len(x)
