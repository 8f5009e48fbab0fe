"""Broadleaf: interactive parallel computing.

`import broadleaf as ipp` gives the names of IPython Parallel. Each is imported when first used.
"""

from __future__ import annotations

import atexit as _atexit
import sys as _sys
from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from broadleaf.extensions import OldPaths as _OldPaths
from broadleaf.extensions import offer as _offer
from broadleaf.interop.backends import offer_backends as _offer_backends

if TYPE_CHECKING:
    from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION
    from typing import Any

    from broadleaf import datapub as datapub
    from broadleaf import errors as error
    from broadleaf import plan as plan
    from broadleaf.client.arrays import asarray, empty, zeros
    from broadleaf.client.client import Client, get_client
    from broadleaf.client.functions import ParallelFunction, RemoteFunction, parallel, remote
    from broadleaf.client.results.async_result import AsyncResult
    from broadleaf.client.results.execute_reply import ExecuteReply
    from broadleaf.client.results.hub import AsyncHubResult
    from broadleaf.client.results.maps import AsyncMapResult, LazyMapIterator, MapIterator
    from broadleaf.client.task_options import Dependency
    from broadleaf.client.views.balanced import LoadBalancedView
    from broadleaf.client.views.broadcast import BroadcastView
    from broadleaf.client.views.direct import DirectView
    from broadleaf.client.views.executor import ViewExecutor
    from broadleaf.cluster import Cluster, ClusterManager
    from broadleaf.cluster.addresses import PlaintextWarning
    from broadleaf.cluster.cluster import ClusterStateError
    from broadleaf.cluster.elastic import ScalingError
    from broadleaf.cluster.engine_sets.base import EngineSet
    from broadleaf.cluster.engine_sets.batch import BatchSet
    from broadleaf.cluster.engine_sets.dask import OnDask
    from broadleaf.cluster.engine_sets.lsf import LSF
    from broadleaf.cluster.engine_sets.mpi import MPI
    from broadleaf.cluster.engine_sets.pbs import PBS
    from broadleaf.cluster.engine_sets.psij import PSIJ
    from broadleaf.cluster.engine_sets.ray import OnRay
    from broadleaf.cluster.engine_sets.sge import SGE
    from broadleaf.cluster.engine_sets.slurm import Slurm
    from broadleaf.cluster.engine_sets.ssh import SSH
    from broadleaf.cluster.relay import Relay
    from broadleaf.config import ConfigError
    from broadleaf.dashboard.server import DashboardError
    from broadleaf.engine.bound_kernel import bind_kernel
    from broadleaf.errors import (
        AlreadyDisplayedError,
        AuthenticationFailed,
        BroadleafError,
        ClusterConnectionError,
        ClusterStartError,
        ClusterStopping,
        CompositeError,
        DeathCertificate,
        DependencyTimeout,
        EngineError,
        ImpossibleDependency,
        InPlaceMismatch,
        InvalidDependency,
        LinkLost,
        NoEnginesRegistered,
        OverLimit,
        RemoteError,
        ResultNotKept,
        SerializationError,
        TaskAborted,
        TaskRejectError,
        TaskTimeout,
        TimeoutError,
        Undeliverable,
        UnmetDependency,
        VersionMismatch,
        collect_exceptions,
        unwrap_exception,
        wrap_exception,
    )
    from broadleaf.interop.joblib import register_joblib_backend
    from broadleaf.interop.process_pools import Pool, ProcessPoolExecutor
    from broadleaf.requests import RequestFailed
    from broadleaf.serialize.decorators import depend, dependent, interactive, require
    from broadleaf.serialize.namespace import Reference, engine_cache
    from broadleaf.serialize.picklers import use_cloudpickle, use_dill, use_pickle
    from broadleaf.serialize.values import PrePickled
    from broadleaf.state.directories import ClusterFileError

_ERRORS = "broadleaf.errors"
_HOMES = {
    "ALL_COMPLETED": "concurrent.futures",
    "AlreadyDisplayedError": _ERRORS,
    "AsyncHubResult": "broadleaf.client.results.hub",
    "AsyncMapResult": "broadleaf.client.results.maps",
    "AsyncResult": "broadleaf.client.results.async_result",
    "AuthenticationFailed": _ERRORS,
    "BatchSet": "broadleaf.cluster.engine_sets.batch",
    "BroadleafError": _ERRORS,
    "BroadcastView": "broadleaf.client.views.broadcast",
    "Client": "broadleaf.client.client",
    "Cluster": "broadleaf.cluster",
    "ClusterConnectionError": _ERRORS,
    "ClusterFileError": "broadleaf.state.directories",
    "ClusterManager": "broadleaf.cluster",
    "ClusterStartError": "broadleaf.errors",
    "ClusterStateError": "broadleaf.cluster.cluster",
    "ClusterStopping": _ERRORS,
    "CompositeError": _ERRORS,
    "ConfigError": "broadleaf.config",
    "DashboardError": "broadleaf.dashboard.server",
    "DeathCertificate": _ERRORS,
    "Dependency": "broadleaf.client.task_options",
    "DependencyTimeout": _ERRORS,
    "DirectView": "broadleaf.client.views.direct",
    "EngineError": _ERRORS,
    "EngineSet": "broadleaf.cluster.engine_sets.base",
    "ExecuteReply": "broadleaf.client.results.execute_reply",
    "FIRST_COMPLETED": "concurrent.futures",
    "FIRST_EXCEPTION": "concurrent.futures",
    "ImpossibleDependency": _ERRORS,
    "InPlaceMismatch": _ERRORS,
    "InvalidDependency": _ERRORS,
    "LazyMapIterator": "broadleaf.client.results.maps",
    "LinkLost": _ERRORS,
    "LoadBalancedView": "broadleaf.client.views.balanced",
    "MapIterator": "broadleaf.client.results.maps",
    "NoEnginesRegistered": _ERRORS,
    "OnDask": "broadleaf.cluster.engine_sets.dask",
    "OnRay": "broadleaf.cluster.engine_sets.ray",
    "OverLimit": _ERRORS,
    "ParallelFunction": "broadleaf.client.functions",
    "PlaintextWarning": "broadleaf.cluster.addresses",
    "Pool": "broadleaf.interop.process_pools",
    "PrePickled": "broadleaf.serialize.values",
    "ProcessPoolExecutor": "broadleaf.interop.process_pools",
    "Reference": "broadleaf.serialize.namespace",
    "Relay": "broadleaf.cluster.relay",
    "RemoteError": _ERRORS,
    "RemoteFunction": "broadleaf.client.functions",
    "RequestFailed": "broadleaf.requests",
    "ResultNotKept": _ERRORS,
    "LSF": "broadleaf.cluster.engine_sets.lsf",
    "MPI": "broadleaf.cluster.engine_sets.mpi",
    "PBS": "broadleaf.cluster.engine_sets.pbs",
    "PSIJ": "broadleaf.cluster.engine_sets.psij",
    "SGE": "broadleaf.cluster.engine_sets.sge",
    "SSH": "broadleaf.cluster.engine_sets.ssh",
    "ScalingError": "broadleaf.cluster.elastic",
    "SerializationError": _ERRORS,
    "Slurm": "broadleaf.cluster.engine_sets.slurm",
    "TaskAborted": _ERRORS,
    "TaskRejectError": _ERRORS,
    "TaskTimeout": _ERRORS,
    "TimeoutError": _ERRORS,
    "Undeliverable": _ERRORS,
    "UnmetDependency": _ERRORS,
    "VersionMismatch": _ERRORS,
    "ViewExecutor": "broadleaf.client.views.executor",
    "__version__": "broadleaf._native",
    "asarray": "broadleaf.client.arrays",
    "bind_kernel": "broadleaf.engine.bound_kernel",
    "collect_exceptions": _ERRORS,
    "depend": "broadleaf.serialize.decorators",
    "dependent": "broadleaf.serialize.decorators",
    "empty": "broadleaf.client.arrays",
    "engine_cache": "broadleaf.serialize.namespace",
    "get_client": "broadleaf.client.client",
    "interactive": "broadleaf.serialize.decorators",
    "parallel": "broadleaf.client.functions",
    "register_joblib_backend": "broadleaf.interop.joblib",
    "remote": "broadleaf.client.functions",
    "require": "broadleaf.serialize.decorators",
    "unwrap_exception": _ERRORS,
    "use_cloudpickle": "broadleaf.serialize.picklers",
    "use_dill": "broadleaf.serialize.picklers",
    "use_pickle": "broadleaf.serialize.picklers",
    "wrap_exception": _ERRORS,
    "zeros": "broadleaf.client.arrays",
}

__all__ = [
    "ALL_COMPLETED",
    "FIRST_COMPLETED",
    "FIRST_EXCEPTION",
    "LSF",
    "MPI",
    "PBS",
    "PSIJ",
    "SGE",
    "SSH",
    "AlreadyDisplayedError",
    "AsyncHubResult",
    "AsyncMapResult",
    "AsyncResult",
    "AuthenticationFailed",
    "BatchSet",
    "BroadcastView",
    "BroadleafError",
    "Client",
    "Cluster",
    "ClusterConnectionError",
    "ClusterFileError",
    "ClusterManager",
    "ClusterStartError",
    "ClusterStateError",
    "ClusterStopping",
    "CompositeError",
    "ConfigError",
    "DashboardError",
    "DeathCertificate",
    "Dependency",
    "DependencyTimeout",
    "DirectView",
    "EngineError",
    "EngineSet",
    "ExecuteReply",
    "ImpossibleDependency",
    "InPlaceMismatch",
    "InvalidDependency",
    "LazyMapIterator",
    "LinkLost",
    "LoadBalancedView",
    "MapIterator",
    "NoEnginesRegistered",
    "OnDask",
    "OnRay",
    "OverLimit",
    "ParallelFunction",
    "PlaintextWarning",
    "Pool",
    "PrePickled",
    "ProcessPoolExecutor",
    "Reference",
    "Relay",
    "RemoteError",
    "RemoteFunction",
    "RequestFailed",
    "ResultNotKept",
    "ScalingError",
    "SerializationError",
    "Slurm",
    "TaskAborted",
    "TaskRejectError",
    "TaskTimeout",
    "TimeoutError",
    "Undeliverable",
    "UnmetDependency",
    "VersionMismatch",
    "ViewExecutor",
    "asarray",
    "bind_kernel",
    "collect_exceptions",
    "datapub",
    "depend",
    "dependent",
    "empty",
    "engine_cache",
    "error",
    "get_client",
    "interactive",
    "parallel",
    "plan",
    "register_joblib_backend",
    "remote",
    "require",
    "unwrap_exception",
    "use_cloudpickle",
    "use_dill",
    "use_pickle",
    "wrap_exception",
    "zeros",
]


if "t" in _sys.abiflags:
    _name = "python{}.{}".format(*_sys.version_info)
    raise ImportError(f"Broadleaf does not run on {_name}t, a free-threaded build of Python: use {_name}")

_offer(
    {
        "absent engine set": "broadleaf.compat.launchers:absent_set",
        "activate magics": "broadleaf.notebook:activate",
        "backend of joblib": "broadleaf.interop.joblib:BroadleafBackend",
        "become dask": "broadleaf.interop.dask:become_dask",
        "command": "broadleaf.cli:main",
        "client arguments": "broadleaf.compat.client:translate_arguments",
        "client attribute": "broadleaf.compat.client:client_attribute",
        "client of a task": "broadleaf.client.client:get_client",
        "cluster arguments": "broadleaf.compat.cluster:split_arguments",
        "cluster attribute": "broadleaf.compat.cluster:cluster_attribute",
        "dashboard": "broadleaf.dashboard.server:Dashboard",
        "ipengine": "broadleaf.cli.ipengine:main",
        "running cell": "broadleaf.notebook.cells:running_cell",
        "register with joblib": "broadleaf.interop.joblib:register_joblib_backend",
        "magics are active": "broadleaf.notebook:is_active",
        "manager arguments": "broadleaf.compat.cluster:check_manager_arguments",
        "old name": "broadleaf.compat.paths:find_attribute",
        "old path": "broadleaf.compat.paths:find_spec",
        "profile name": "broadleaf.compat.profiles:profile_name",
        "stop dask": "broadleaf.interop.dask:stop_dask",
        "view attribute": "broadleaf.compat.client:view_attribute",
    }
)
_sys.meta_path.append(_OldPaths)

# Programs that import joblib later find the backends too.
_offer_backends()


def _close_clients() -> None:
    clients = _sys.modules.get("broadleaf.client.client")
    if clients is not None:
        clients.close_all_at_exit()


# Registered here, and so called after what the program registers: that may use its clients.
_atexit.register(_close_clients)


def __getattr__(name: str) -> Any:
    if name in ("client", "cluster", "datapub", "engine", "plan", "serialize"):
        return _import_module(f"broadleaf.{name}")
    if name == "version_info":
        return tuple(int(part) if part.isdigit() else part for part in __getattr__("__version__").split("."))
    home = _HOMES.get(name)
    if home is None:
        from broadleaf.extensions import old_attribute

        return old_attribute("broadleaf", name)
    value = globals()[name] = getattr(_import_module(home), name)
    return value


def __dir__() -> list[str]:
    special = (name for name in globals() if name.startswith("__"))
    return sorted({*special, *__all__, "__version__", "version_info"})
