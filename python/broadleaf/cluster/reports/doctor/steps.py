"""All steps, in the order in which a relay takes them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broadleaf.cluster.reports.doctor import connection as of_file
from broadleaf.cluster.reports.doctor import host
from broadleaf.cluster.reports.doctor.finding import Finding
from broadleaf.errors import BroadleafError

if TYPE_CHECKING:
    from broadleaf.cluster.cluster import Cluster
    from broadleaf.cluster.engine_sets import Block

_LOG_LINES = 6


def examine_connection(path: str | Path) -> list[Finding]:
    """Tries from this host what a relay or a client does that connects with this file."""
    content, findings = of_file.read(Path(path))
    findings += [host.python(), host.package(), host.memory(), host.descriptors()]
    if content is None:
        steps = ["same version", "same minor", *of_file.NETWORK_STEPS]
        return findings + [_not_tried(step, "connection file") for step in steps]
    findings += of_file.versions(content)
    findings += of_file.network(content)
    tried = {finding.step for finding in findings}
    if findings[-1].result == "failed":
        findings += [_not_tried(step, findings[-1].step) for step in of_file.NETWORK_STEPS if step not in tried]
    return findings


def _not_tried(step: str, failed: str) -> Finding:
    return Finding(step, "not tried", f"needs {failed!r}")


def examine_cluster(cluster: Cluster) -> list[Finding]:
    """The same for a running cluster of this host; also shows the state of its blocks and engines."""
    is_remote = cluster.settings["listen"] != ""
    findings = examine_connection(cluster.relay_file if is_remote else cluster.connection_file)
    try:
        status = cluster.status_sync()
        blocks = cluster.blocks()
    except (BroadleafError, TimeoutError, OSError) as error:
        advice = "`broadleaf logs` shows what the controller has written; `broadleaf stop` ends what is left"
        return [*findings, Finding("controller", "failed", f"it does not answer: {error}", advice)]
    findings += [_of_block(cluster, block) for block in blocks]
    wanted = [engine for engine in status["engines"] if engine["up"] or not _was_stopped(engine)]
    return [*findings, _of_engines([str(engine["state"]) for engine in wanted], blocks)]


def _was_stopped(engine: Mapping[str, Any]) -> bool:
    death = engine["last_death"]
    return death is not None and death["cause"] == "stopped"


def _of_block(cluster: Cluster, block: Block) -> Finding:
    hosts = ", ".join(name.partition(":")[0] for name in block.hosts)
    if block.state == "pending":
        advice = f"it waits up to {cluster.engines_from.queue_timeout_s:g} s; `broadleaf status` shows how it goes on"
        return Finding(block.id, "warning", block.reason or "it is pending", advice)
    if block.state == "failed":
        lines = [line.strip() for line in cluster.engines_from.log(block).splitlines() if line.strip()]
        said = "; ".join(lines[-_LOG_LINES:])
        return Finding(block.id, "failed", block.reason, f"its log ends: {said}" if said else "it has written nothing")
    if block.state == "ended":
        return Finding(block.id, "ok", block.reason or "it has ended")
    if not block.hosts:
        advice = "run `broadleaf doctor --connection FILE` on its host, with this cluster's engine.json"
        return Finding(block.id, "warning", "it runs, and none of its hosts has joined", advice)
    left = "" if block.deadline is None else f", {max(0, round(block.deadline - time.time())):,} s left"
    return Finding(block.id, "ok", f"{hosts}: {len(block.engines)} engines{left}")


def _of_engines(states: Sequence[str], blocks: Sequence[Block]) -> Finding:
    down = [state for state in states if state not in ("up", "draining")]
    found = f"{len(states) - len(down)} of {len(states)} up"
    if not states and not blocks:
        return Finding("engines", "warning", "the cluster has none", "start some: `broadleaf scale N`, or a relay")
    if down:
        advice = "`broadleaf status` says how they died, `broadleaf logs --engine N` what they wrote"
        return Finding("engines", "warning", f"{found}; others are {', '.join(sorted(set(down)))}", advice)
    return Finding("engines", "ok", found)
