"""The systems a workload can run on. Each is imported only when it is used, so only Python is needed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from broadleaf import Cluster, LoadBalancedView


class System:
    """Engines that run calls. `submit` takes the handles of calls that must be done first."""

    name: ClassVar[str]
    module: ClassVar[str]
    #: Whether `submit` accepts `after`; if not, the driver submits a task when those before it are done.
    takes_after: ClassVar[bool] = True

    def version(self) -> str:
        """Version of the library."""
        from importlib.metadata import version

        return version(self.module)

    def start(self, engines: int) -> None:
        """Returns once `engines` engines accept calls."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stops them and removes what they left."""
        raise NotImplementedError

    def submit(self, call: Callable[..., float], amount: float, after: Sequence[Any]) -> Any:
        """Starts `call(amount)` once all of `after` are done; a handle."""
        raise NotImplementedError

    def collect(self, handles: list[Any]) -> list[float]:
        """The values, in order."""
        return [handle.result() for handle in handles]


class Broadleaf(System):
    """A cluster of this machine, through its load-balanced view. Options come from the environment."""

    name = module = "broadleaf"

    def version(self) -> str:
        import broadleaf

        return str(broadleaf.__version__)

    def start(self, engines: int) -> None:
        import broadleaf

        self.cluster: Cluster = broadleaf.Cluster(n=engines)
        client = self.cluster.start_and_connect_sync()
        self.view: LoadBalancedView = client.load_balanced_view()

    def stop(self) -> None:
        self.view.client.close()
        self.cluster.stop_cluster_sync()

    def submit(self, call: Callable[..., float], amount: float, after: Sequence[Any]) -> Any:
        if not after:
            return self.view.apply_async(call, amount)
        with self.view.temp_flags(after=list(after)):
            return self.view.apply_async(call, amount)

    def collect(self, handles: list[Any]) -> list[float]:
        return [handle.get() for handle in handles]


class _Pool(System):
    """Anything that is a `concurrent.futures.Executor`."""

    takes_after: ClassVar[bool] = False
    pool: Executor

    def stop(self) -> None:
        self.pool.shutdown()

    def submit(self, call: Callable[..., float], amount: float, after: Sequence[Any]) -> Any:
        return self.pool.submit(call, amount)


class ProcessPool(_Pool):
    """`concurrent.futures.ProcessPoolExecutor`."""

    name: ClassVar[str] = "ppe"
    module: ClassVar[str] = "concurrent.futures"

    def version(self) -> str:
        return sys.version.split()[0]

    def start(self, engines: int) -> None:
        from concurrent.futures import ProcessPoolExecutor

        self.pool: Executor = ProcessPoolExecutor(engines)


class Threads(_Pool):
    """`concurrent.futures.ThreadPoolExecutor`."""

    name: ClassVar[str] = "threads"
    module: ClassVar[str] = "concurrent.futures"

    def version(self) -> str:
        return sys.version.split()[0]

    def start(self, engines: int) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self.pool: Executor = ThreadPoolExecutor(engines)


class Loky(_Pool):
    """`loky.ProcessPoolExecutor`."""

    name = module = "loky"

    def start(self, engines: int) -> None:
        import loky

        self.pool: Executor = loky.ProcessPoolExecutor(engines)


class Dask(System):
    """dask.distributed on one-thread processes."""

    name: ClassVar[str] = "dask"
    module: ClassVar[str] = "distributed"

    def start(self, engines: int) -> None:
        from distributed import Client, LocalCluster

        self.folder: str = tempfile.mkdtemp(prefix="zoo-dask-")
        self.cluster: Any = LocalCluster(
            n_workers=engines, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None,
            silence_logs="ERROR", memory_limit=0, local_directory=self.folder,
        )  # fmt: skip
        self.client: Any = Client(self.cluster)
        self.client.wait_for_workers(engines, timeout=120)

    def stop(self) -> None:
        self.client.close()
        self.cluster.close(timeout=60)
        shutil.rmtree(self.folder, ignore_errors=True)

    def submit(self, call: Callable[..., float], amount: float, after: Sequence[Any]) -> Any:
        return self.client.submit(_call_after, call, amount, *after, pure=False)

    def collect(self, handles: list[Any]) -> list[float]:
        return list(self.client.gather(handles))


class Ray(System):
    """Ray tasks that need one processor each."""

    name = module = "ray"

    def start(self, engines: int) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        ray.init(num_cpus=engines, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False,
                 logging_level="ERROR", object_store_memory=256 << 20)  # fmt: skip
        self.ray: Any = ray
        self.call_after: Any = ray.remote(_call_after)

    def stop(self) -> None:
        self.ray.shutdown()

    def submit(self, call: Callable[..., float], amount: float, after: Sequence[Any]) -> Any:
        return self.call_after.remote(call, amount, *after)

    def collect(self, handles: list[Any]) -> list[float]:
        return list(self.ray.get(handles))


class Parsl(System):
    """Parsl's HighThroughputExecutor with its defaults, on one node."""

    name = module = "parsl"

    def start(self, engines: int) -> None:
        import parsl
        from parsl.config import Config
        from parsl.executors import HighThroughputExecutor
        from parsl.providers import LocalProvider

        # The executor starts its own programs by name.
        os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
        self.folder: str = tempfile.mkdtemp(prefix="zoo-parsl-")
        executor = HighThroughputExecutor(
            label="htex", address="127.0.0.1", max_workers_per_node=engines, cores_per_worker=1e-3,
            provider=LocalProvider(init_blocks=1, min_blocks=1, max_blocks=1),
        )  # fmt: skip
        self.kernel: Any = parsl.load(Config(executors=[executor], run_dir=self.folder))
        self.app: Any = parsl.python_app(_call_after)

    def stop(self) -> None:
        import parsl

        self.kernel.cleanup()
        parsl.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def submit(self, call: Callable[..., float], amount: float, after: Sequence[Any]) -> Any:
        return self.app(call, amount, *after)


class IPythonParallel(System):
    """IPython Parallel's load-balanced view."""

    name = module = "ipyparallel"

    def start(self, engines: int) -> None:
        self.folder: str = tempfile.mkdtemp(prefix="zoo-ipython-")
        os.environ["IPYTHONDIR"] = self.folder
        import ipyparallel

        self.cluster: Any = ipyparallel.Cluster(n=engines, controller_ip="127.0.0.1", log_level=40, engine_timeout=120)
        self.client: Any = self.cluster.start_and_connect_sync()
        self.view: Any = self.client.load_balanced_view()

    def stop(self) -> None:
        self.client.close()
        self.cluster.stop_cluster_sync()
        shutil.rmtree(self.folder, ignore_errors=True)

    def submit(self, call: Callable[..., float], amount: float, after: Sequence[Any]) -> Any:
        with self.view.temp_flags(after=list(after) or None):
            return self.view.apply_async(call, amount)

    def collect(self, handles: list[Any]) -> list[float]:
        return [handle.get() for handle in handles]


def _call_after(call: Callable[..., float], amount: float, *before: float) -> float:
    """For systems in which waiting for a task means taking its value."""
    return call(amount)


SYSTEMS: dict[str, type[System]] = {
    system.name: system
    for system in (Broadleaf, ProcessPool, Threads, Loky, Dask, Ray, Parsl, IPythonParallel)
}  # fmt: skip


def available() -> list[str]:
    """Names of the systems that can be imported here."""
    return [name for name, system in SYSTEMS.items() if importlib.util.find_spec(system.module)]


def make_system(name: str) -> System:
    """The system `name`; `ValueError` says which there are, or that its library is missing."""
    if name not in SYSTEMS:
        raise ValueError(f"no system is called {name!r}; there are {', '.join(SYSTEMS)}")
    if name not in available():
        raise ValueError(f"{name} is not installed here; run this in an environment that has {SYSTEMS[name].module!r}")
    return SYSTEMS[name]()
