"""Why engines on the controller's host did not start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from broadleaf.errors import BroadleafError, ClusterStartError, EngineError

if TYPE_CHECKING:
    from broadleaf.cluster.cluster import Cluster


@contextmanager
def start_errors(cluster: Cluster, up: Callable[[], Sequence[int]]) -> Iterator[None]:
    """Turns exceptions from waiting for engines into `ClusterStartError`; `up` returns the engines that are up."""
    try:
        yield
    except TimeoutError:
        raise missing_engines(cluster, up()) from None
    except EngineError as error:
        raise ClusterStartError(str(error)) from None


def missing_engines(cluster: Cluster, up: Sequence[int]) -> ClusterStartError:
    """The error for a cluster of which only the engines in `up` started in time."""
    missing = [engine_id for engine_id in range(cluster.n) if engine_id not in up]
    reason = _why_not_started(cluster, missing)
    log = cluster.log_path(missing[0]) if missing else cluster.log_path()
    text = log.read_text(errors="replace")[-4096:] if log.exists() else ""
    timeout_s: float = cluster.settings["start_timeout_s"]
    return ClusterStartError(f"only {len(up)} of {cluster.n} engines came up within {timeout_s:g} s{reason}", text)


def _why_not_started(cluster: Cluster, missing: Sequence[int]) -> str:
    """The operating system's message if no process could be created for an engine."""
    try:
        engines = {entry["engine"]: entry for entry in cluster.status_sync()["engines"]}
    except (BroadleafError, TimeoutError, OSError):
        return ""
    deaths = [(engine_id, engines.get(engine_id, {}).get("last_death")) for engine_id in missing]
    reasons = [(one, death["last_output"]) for one, death in deaths if death and death["cause"] == "not_started"]
    return f": engine {reasons[0][0]} could not be started: {reasons[0][1]}" if reasons else ""
