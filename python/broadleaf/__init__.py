"""Broadleaf: interactive parallel computing.

`import broadleaf as ipp` gives the names of IPython Parallel. Each is imported when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION

    from broadleaf import datapub as datapub
    from broadleaf import errors as error
    from broadleaf import plan as plan
    from broadleaf.client.arrays import asarray, empty, zeros
    from broadleaf.client.client import Client
    from broadleaf.client.dependency import Dependency
    from broadleaf.client.execute_reply import ExecuteReply
    from broadleaf.client.hub_results import AsyncHubResult
    from broadleaf.client.map_results import AsyncMapResult
    from broadleaf.client.remote_functions import ParallelFunction, RemoteFunction, parallel, remote
    from broadleaf.client.results import AsyncResult
    from broadleaf.client.views.balanced import LoadBalancedView
    from broadleaf.client.views.broadcast import BroadcastView
    from broadleaf.client.views.direct import DirectView
    from broadleaf.client.views.lazy_map import LazyMapIterator
    from broadleaf.cluster import Cluster, ClusterManager
    from broadleaf.cluster.relay import Relay
    from broadleaf.errors import (
        AlreadyDisplayedError,
        AuthenticationFailed,
        ClusterConnectionError,
        ClusterStopping,
        CompositeError,
        DeathCertificate,
        DependencyTimeout,
        EngineError,
        ImpossibleDependency,
        InPlaceMismatch,
        InvalidDependency,
        IPythonError,
        KernelError,
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
        UnmetDependency,
        VersionMismatch,
        collect_exceptions,
        unwrap_exception,
        wrap_exception,
    )
    from broadleaf.interop.concurrent import ViewExecutor
    from broadleaf.interop.joblib import register_joblib_backend
    from broadleaf.serialize.interactive import interactive
    from broadleaf.serialize.pickle import PrePickled, use_cloudpickle, use_dill, use_pickle
    from broadleaf.serialize.reference import Reference
    from broadleaf.serialize.requirements import depend, dependent, require

_ERRORS = "broadleaf.errors"
_HOMES = {
    "ALL_COMPLETED": "concurrent.futures",
    "AlreadyDisplayedError": _ERRORS,
    "AsyncHubResult": "broadleaf.client.hub_results",
    "AsyncMapResult": "broadleaf.client.map_results",
    "AsyncResult": "broadleaf.client.results",
    "AuthenticationFailed": _ERRORS,
    "BroadcastView": "broadleaf.client.views.broadcast",
    "Client": "broadleaf.client.client",
    "Cluster": "broadleaf.cluster",
    "ClusterConnectionError": _ERRORS,
    "ClusterManager": "broadleaf.cluster",
    "ClusterStopping": _ERRORS,
    "CompositeError": _ERRORS,
    "DeathCertificate": _ERRORS,
    "Dependency": "broadleaf.client.dependency",
    "DependencyTimeout": _ERRORS,
    "DirectView": "broadleaf.client.views.direct",
    "EngineError": _ERRORS,
    "ExecuteReply": "broadleaf.client.execute_reply",
    "FIRST_COMPLETED": "concurrent.futures",
    "FIRST_EXCEPTION": "concurrent.futures",
    "IPythonError": _ERRORS,
    "ImpossibleDependency": _ERRORS,
    "InPlaceMismatch": _ERRORS,
    "InvalidDependency": _ERRORS,
    "KernelError": _ERRORS,
    "LazyMapIterator": "broadleaf.client.views.lazy_map",
    "LinkLost": _ERRORS,
    "LoadBalancedView": "broadleaf.client.views.balanced",
    "NoEnginesRegistered": _ERRORS,
    "OverLimit": _ERRORS,
    "ParallelFunction": "broadleaf.client.remote_functions",
    "PrePickled": "broadleaf.serialize.pickle",
    "Reference": "broadleaf.serialize.reference",
    "Relay": "broadleaf.cluster.relay",
    "RemoteError": _ERRORS,
    "RemoteFunction": "broadleaf.client.remote_functions",
    "ResultNotKept": _ERRORS,
    "SerializationError": _ERRORS,
    "TaskAborted": _ERRORS,
    "TaskRejectError": _ERRORS,
    "TaskTimeout": _ERRORS,
    "TimeoutError": _ERRORS,
    "UnmetDependency": _ERRORS,
    "VersionMismatch": _ERRORS,
    "ViewExecutor": "broadleaf.interop.concurrent",
    "__version__": "broadleaf._native",
    "asarray": "broadleaf.client.arrays",
    "collect_exceptions": _ERRORS,
    "depend": "broadleaf.serialize.requirements",
    "dependent": "broadleaf.serialize.requirements",
    "empty": "broadleaf.client.arrays",
    "interactive": "broadleaf.serialize.interactive",
    "parallel": "broadleaf.client.remote_functions",
    "register_joblib_backend": "broadleaf.interop.joblib",
    "remote": "broadleaf.client.remote_functions",
    "require": "broadleaf.serialize.requirements",
    "unwrap_exception": _ERRORS,
    "use_cloudpickle": "broadleaf.serialize.pickle",
    "use_dill": "broadleaf.serialize.pickle",
    "use_pickle": "broadleaf.serialize.pickle",
    "wrap_exception": _ERRORS,
    "zeros": "broadleaf.client.arrays",
}

__all__ = [
    "ALL_COMPLETED",
    "FIRST_COMPLETED",
    "FIRST_EXCEPTION",
    "AlreadyDisplayedError",
    "AsyncHubResult",
    "AsyncMapResult",
    "AsyncResult",
    "AuthenticationFailed",
    "BroadcastView",
    "Client",
    "Cluster",
    "ClusterConnectionError",
    "ClusterManager",
    "ClusterStopping",
    "CompositeError",
    "DeathCertificate",
    "Dependency",
    "DependencyTimeout",
    "DirectView",
    "EngineError",
    "ExecuteReply",
    "IPythonError",
    "ImpossibleDependency",
    "InPlaceMismatch",
    "InvalidDependency",
    "KernelError",
    "LazyMapIterator",
    "LinkLost",
    "LoadBalancedView",
    "NoEnginesRegistered",
    "OverLimit",
    "ParallelFunction",
    "PrePickled",
    "Reference",
    "Relay",
    "RemoteError",
    "RemoteFunction",
    "ResultNotKept",
    "SerializationError",
    "TaskAborted",
    "TaskRejectError",
    "TaskTimeout",
    "TimeoutError",
    "UnmetDependency",
    "VersionMismatch",
    "ViewExecutor",
    "asarray",
    "collect_exceptions",
    "datapub",
    "depend",
    "dependent",
    "empty",
    "error",
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


def __getattr__(name: str) -> Any:
    if name == "error":
        return import_module(_ERRORS)
    if name in ("datapub", "plan"):
        return import_module(f"broadleaf.{name}")
    if name == "version_info":
        return tuple(int(part) if part.isdigit() else part for part in __getattr__("__version__").split("."))
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'broadleaf' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
