"""Why a host is gone: what the scheduler says about its job."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broadleaf.cluster.cluster import Cluster
    from broadleaf.cluster.engine_sets.base import Block

# Relays end before their jobs do, and schedulers take a while to say how a job ended. Short, because somebody waits for
# this.
_ENDING_S = 5.0
_LOOK_EVERY_S = 0.5


def why_gone(cluster: Cluster, host: str) -> str:
    """Why the block of a host has ended, in the scheduler's words; '' if it is still running, or nobody knows."""
    block = _block_of(cluster, host)
    if block is None:
        return ""
    give_up_at = time.monotonic() + (0 if block.facts.get("asked") else _ENDING_S)
    while not block.is_over:
        cluster.engines_from.look_now()
        cluster.engines_from.poll([block])
        if block.state == "pending":
            return f"it was put back into the queue ({block.reason})"
        if time.monotonic() > give_up_at:
            block.facts["asked"] = True  # one host is gone but its job is not: nobody waits for that again
            return ""
        time.sleep(_LOOK_EVERY_S)
    return block.reason


def _block_of(cluster: Cluster, host: str) -> Block | None:
    name = host.rpartition(":")[2]
    blocks = [block for one in cluster.engines.values() for block in one.blocks]
    return next((block for block in blocks if block.id in (name, name.rpartition(".")[0])), None)
