"""A cluster's counters in Prometheus' text format: https://prometheus.io/docs/instrumenting/exposition_formats/."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

NANOSECOND = 1e-9


@dataclass(frozen=True)
class Metric:
    """One figure of a status: where to find it, its name, and its meaning.

    Names follow Prometheus' rules: base units, and `_total` for what only rises until the controller is restarted.
    """

    key: str
    name: str
    kind: Literal["counter", "gauge"]
    help: str
    labels: Mapping[str, str] = field(default_factory=dict)
    scale: float = 1
    less: float = 0
    """Subtracted from the figure."""


_RESOLVED = "Tasks that have ended, by outcome."
_TASKS = "Tasks in the controller now, by what they wait for."
_LINK_BYTES = "Bytes that have gone through the connections open now, including headers."
_LINK_FRAMES = "Frames that have gone through the connections open now."
_SHARED_BYTES = "Shared memory that the controller maps, by who made it."
_SHARED_SEGMENTS = "Segments of shared memory that the controller maps, by who made them."
_OBJECTS = "Large arguments on their way between hosts now."

CLUSTER = (
    Metric("uptime_s", "broadleaf_uptime_seconds", "gauge", "Time since the controller started."),
    Metric("controller.clients", "broadleaf_clients", "gauge",
           "Clients connected now, except the one that asks for this.", less=1),
    Metric("controller.submitted", "broadleaf_tasks_submitted_total", "counter", "Tasks submitted."),
    *(
        Metric(f"controller.resolved.{outcome}", "broadleaf_tasks_resolved_total", "counter", _RESOLVED,
               {"outcome": outcome})
        for outcome in ("ok", "error", "lost", "cancelled", "timeout", "refused", "unmet")
    ),
    Metric("controller.discarded", "broadleaf_tasks_discarded_total", "counter",
           "Tasks whose client left before their result arrived."),
    Metric("controller.assigned", "broadleaf_tasks_assigned_total", "counter",
           "Number of times that a task was sent to an engine."),
    Metric("controller.retried", "broadleaf_tasks_retried_total", "counter",
           "Number of times that a task was restarted after an error or its engine's death."),
    Metric("controller.steals", "broadleaf_steals_total", "counter",
           "Tasks asked back from a busy engine for an idle one."),
    Metric("controller.revoked", "broadleaf_steals_won_total", "counter",
           "Tasks that came back from a busy engine for an idle one."),
    Metric("controller.waiting", "broadleaf_tasks", "gauge", _TASKS, {"state": "waiting_for_tasks"}),
    Metric("controller.ready", "broadleaf_tasks", "gauge", _TASKS, {"state": "waiting_for_any_engine"}),
    Metric("controller.pinned", "broadleaf_tasks", "gauge", _TASKS, {"state": "waiting_for_one_engine"}),
    Metric("controller.offered", "broadleaf_tasks", "gauge", _TASKS, {"state": "on_an_engine"}),
    Metric("controller.live", "broadleaf_tasks_known", "gauge", "Tasks that the controller holds now, in any state."),
    Metric("controller.functions", "broadleaf_functions", "gauge", "Functions that the controller holds for engines."),
    Metric("controller.function_bytes", "broadleaf_function_bytes", "gauge", "Size of those functions."),
    Metric("controller.kept_tasks", "broadleaf_kept_results", "gauge", "Ended tasks kept for other clients."),
    Metric("controller.kept_bytes", "broadleaf_kept_results_bytes", "gauge", "Size of those results."),
    Metric("controller.ignored", "broadleaf_records_ignored_total", "counter",
           "Records dropped because they named something unknown: from a faulty or outdated peer."),
    Metric("node.peers", "broadleaf_connections", "gauge",
           "Open connections of the controller, including those of engines."),
    Metric("node.wakeups", "broadleaf_wakeups_total", "counter", "Number of times that the controller's loop woke up."),
    Metric("node.segments", "broadleaf_shared_memory_segments", "gauge", _SHARED_SEGMENTS, {"maker": "peer"}),
    Metric("node.own_segments", "broadleaf_shared_memory_segments", "gauge", _SHARED_SEGMENTS, {"maker": "controller"}),
    Metric("node.segment_bytes", "broadleaf_shared_memory_bytes", "gauge", _SHARED_BYTES, {"maker": "peer"}),
    Metric("node.own_bytes", "broadleaf_shared_memory_bytes", "gauge", _SHARED_BYTES, {"maker": "controller"}),
    Metric("node.own_warm_bytes", "broadleaf_shared_memory_free_bytes", "gauge",
           "Free shared memory that the controller keeps for reuse."),
    Metric("node.lane_bytes", "broadleaf_lane_bytes", "gauge",
           "Shared memory that the host's engines wait for broadcasts in."),
    *(
        Metric(f"node.waiting_connections.{budget}", "broadleaf_waiting_connections", "gauge",
               "Connections that have not identified themselves yet.", {"from": budget})
        for budget in ("local", "known", "strangers")
    ),
    Metric("node.waiting_connections.limit", "broadleaf_waiting_connections_limit", "gauge",
           "Maximum number of unidentified connections of each kind."),
    Metric("node.waiting_connections.displaced", "broadleaf_connections_displaced_total", "counter",
           "Unidentified connections that were closed to make room for later ones."),
    Metric("node.descriptors", "broadleaf_descriptors", "gauge", "Files that the controller has open: connections, and "
           "shared memory."),
    Metric("node.objects_in", "broadleaf_transfers", "gauge", _OBJECTS, {"direction": "in"}),
    Metric("node.objects_out", "broadleaf_transfers", "gauge", _OBJECTS, {"direction": "out"}),
    Metric("links.bytes_in", "broadleaf_link_bytes", "gauge", _LINK_BYTES, {"direction": "in"}),
    Metric("links.bytes_out", "broadleaf_link_bytes", "gauge", _LINK_BYTES, {"direction": "out"}),
    Metric("links.frames_in", "broadleaf_link_frames", "gauge", _LINK_FRAMES, {"direction": "in"}),
    Metric("links.frames_out", "broadleaf_link_frames", "gauge", _LINK_FRAMES, {"direction": "out"}),
    Metric("links.reads", "broadleaf_link_reads", "gauge", "Reads from the sockets of the connections open now."),
    Metric("links.writes", "broadleaf_link_writes", "gauge", "Writes to the sockets of the connections open now."),
)  # fmt: skip

ENGINE = (
    Metric("up", "broadleaf_engine_up", "gauge", "1 while the engine can be given tasks, else 0."),
    Metric("outstanding", "broadleaf_engine_tasks", "gauge",
           "Tasks sent to the engine that have not ended, including the one that is running."),
    Metric("queued", "broadleaf_engine_tasks_waiting", "gauge", "Tasks that wait for this engine alone."),
    Metric("completed", "broadleaf_engine_tasks_completed_total", "counter", "Tasks that have ended on the engine."),
    Metric("window", "broadleaf_engine_prefetch_tasks", "gauge", "Maximum number of tasks sent ahead to the engine."),
    Metric("mean_task_ns", "broadleaf_engine_mean_task_seconds", "gauge",
           "Mean time of the engine's recent tasks, 0 before the first.", scale=NANOSECOND),
    Metric("busy_ns", "broadleaf_engine_busy_seconds_total", "counter", "Time that the engine's tasks have taken.",
           scale=NANOSECOND),
    Metric("restarts", "broadleaf_engine_restarts_total", "counter",
           "Number of times that the engine was restarted."),
    Metric("idle_s", "broadleaf_engine_idle_seconds", "gauge", "Time that the engine has been idle."),
    Metric("holds_data", "broadleaf_engine_holds_data", "gauge",
           "1 if clients may have left data on the engine, else 0."),
)  # fmt: skip

HOST = (
    Metric("round_trip_ns", "broadleaf_host_round_trip_seconds", "gauge",
           "Latest round trip between the controller and the host's relay.", scale=NANOSECOND),
    Metric("bytes_per_s", "broadleaf_host_bytes_per_second", "gauge", "Measured bandwidth to the host."),
    Metric("fetched.objects", "broadleaf_host_fetched_objects_total", "counter",
           "Large arguments that the host has fetched."),
    Metric("fetched.wire_bytes", "broadleaf_host_fetched_bytes_total", "counter",
           "Bytes of large arguments that the host has received."),
    Metric("fetched.resumptions", "broadleaf_host_fetch_resumptions_total", "counter",
           "Fetches that were continued from another host."),
    Metric("fetched.resumed_at_bytes", "broadleaf_host_fetch_resumed_bytes", "gauge",
           "Maximum number of bytes that had already arrived when a fetch was continued."),
    Metric("fetched.corrupt_chunks", "broadleaf_host_fetch_corrupt_chunks_total", "counter",
           "Pieces that did not pass their check and were fetched again."),
    Metric("fetched.last_ns", "broadleaf_host_last_fetch_seconds", "gauge", "Time that the latest fetch took.",
           scale=NANOSECOND),
    Metric("draining", "broadleaf_host_draining", "gauge", "1 while the host is being released, else 0."),
    Metric("ends_in_s", "broadleaf_host_ends_in_seconds", "gauge", "Time until the host's batch job ends."),
)  # fmt: skip


def exposition(status: Mapping[str, Any]) -> str:
    """The figures of a status, labelled by cluster, engine and host."""
    cluster = {"cluster": str(status["cluster_id"])}
    lines = list(_lines(CLUSTER, [(cluster, status)]))
    engines = [({**cluster, "engine": str(engine["engine"])}, engine) for engine in status["engines"]]
    lines += _lines(ENGINE, engines)
    lines += _lines(HOST, [({**cluster, "host": str(host["name"])}, host) for host in status.get("hosts", ())])
    return "\n".join(lines) + "\n"


def _lines(metrics: Iterable[Metric], subjects: list[tuple[dict[str, str], Mapping[str, Any]]]) -> Iterator[str]:
    families: dict[str, list[str]] = {}
    meanings: dict[str, Metric] = {}
    for metric in metrics:
        for labels, subject in subjects:
            value = _value(subject, metric.key)
            if value is None:
                continue
            meanings.setdefault(metric.name, metric)
            shown = ",".join(f'{name}="{_escaped(text)}"' for name, text in {**labels, **metric.labels}.items())
            number = max(0.0, float(value) - metric.less) * metric.scale
            families.setdefault(metric.name, []).append(f"{metric.name}{{{shown}}} {number:.15g}")
    for name, samples in families.items():
        yield f"# HELP {name} {meanings[name].help}"
        yield f"# TYPE {name} {meanings[name].kind}"
        yield from samples


def _value(subject: Mapping[str, Any], key: str) -> float | None:
    found: Any = subject
    for part in key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    return found if isinstance(found, bool | int | float) else None


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
