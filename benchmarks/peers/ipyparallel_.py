"""IPython Parallel: the direct and the load-balanced view of a local cluster."""

import os
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

os.environ["IPYTHONDIR"] = tempfile.mkdtemp(prefix="bench-ipython-")

import ipyparallel as ipp
from broadleaf.bench.workload import tasks
from broadleaf.bench.workload.adapter import Way
from broadleaf.bench.workload.views import ViewsAdapter

# A hundred engines take minutes on a slow machine; the caller gives up only after that.
START_TIMEOUT_S = 600
# The hub forgets engines whose heartbeat is late, by 30 s by default, and they never come back.
REGISTRATION = f"--IPController.registration_timeout={START_TIMEOUT_S}"
CONTROLLER_ARGUMENTS = {"default": [REGISTRATION], "hwm=0, nodb": [REGISTRATION, "--nodb", "--TaskScheduler.hwm=0"]}


class Peer(ViewsAdapter):
    configs: ClassVar[dict[str, list[str]]] = {
        "": ["default"],
        "latency": ["default", "hwm=0, nodb"],
        "throughput": ["default", "hwm=0, nodb"],
        "sleep-map": ["hwm=0, nodb"],
    }

    def version(self) -> str:
        return f"ipyparallel {ipp.__version__}"

    def start(self, workers: int, config: str) -> None:
        self.cluster: Any = ipp.Cluster(
            n=workers,
            controller_ip="127.0.0.1",
            log_level=40,
            controller_args=CONTROLLER_ARGUMENTS[config],
            engine_timeout=START_TIMEOUT_S,
        )
        self.cluster.start_cluster_sync()
        self.client: Any = self.cluster.connect_client_sync()
        self.client.wait_for_engines(workers, timeout=START_TIMEOUT_S, interactive=False)
        self.pids: list[int] = sorted(self.client[:].apply_sync(os.getpid))
        self.balanced: Any = self.client.load_balanced_view()
        self.one: Any = self.client[0]

    def after_step(self) -> None:
        """Both sides keep every result until told to forget."""
        # A coalescing view leaves the parts of ended calls among the outstanding ones, which cannot be purged.
        self.client.outstanding.clear()
        self.client.purge_everything()

    def spreading(self) -> dict[str, Any]:
        """Views of all engines by name."""
        return {
            "broadcast view, coalescing": self.client.broadcast_view(is_coalescing=True),
            "broadcast view": self.client.broadcast_view(),
            "direct view": self.client[:],
        }

    def fan_out(self) -> dict[str, Callable[[], Any]]:
        return {f"{name}, apply": partial(view.apply_sync, tasks.noop) for name, view in self.spreading().items()}

    def broadcast(self) -> dict[str, Way]:
        check = partial(self.client[:].apply_sync, ipp.interactive(tasks.held_checksum))

        def give(view: Any) -> Callable[[Any], Any]:
            return lambda value: view.push({"held": value}, block=True)

        return {name: Way(give(view), check) for name, view in self.spreading().items()}

    def map(self) -> dict[str, Callable[[int], list[int]]]:
        return {
            "load-balanced view, map(chunksize=100)": lambda n: list(
                self.balanced.map_async(tasks.add_one, range(n), chunksize=100).get()
            )
        }
