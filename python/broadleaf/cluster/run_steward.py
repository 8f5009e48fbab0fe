"""The program of a steward's process, which `steward_process` starts."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from broadleaf.cluster.cluster import Cluster
from broadleaf.cluster.scaling import Aim
from broadleaf.cluster.steward import Steward, StewardProcess
from broadleaf.errors import BroadleafError


def main() -> None:
    """Entry point: the argument is the cluster's file, and standard input contains the order."""
    order: dict[str, Any] = json.load(sys.stdin)
    try:
        cluster = Cluster.from_file(sys.argv[1])
        own = StewardProcess(cluster.cluster_dir)
        with own.held():
            steward = Steward(
                cluster,
                Aim(**order["aim"]),
                one_at_a_time=order["one_at_a_time"],
                within_s=order["within_s"],
                on_paused=own.tell,
            )
            signal.signal(signal.SIGTERM, lambda *_: steward.end())
            own.tell("")
            steward.run(awaits_engines=order["aim"]["maximum"] > 0, on_ready=_tell_ready)
            if not cluster.running:
                cluster.cancel_blocks()  # pending blocks would come up for nobody
    except BlockingIOError:
        sys.exit("the cluster has another steward")
    except (BroadleafError, TimeoutError, OSError) as error:
        sys.exit(f"{type(error).__name__}: {error}")


def _tell_ready() -> None:
    print("ready", flush=True)
    # Whoever reads this is about to leave: later messages belong in the log.
    os.dup2(2, 1)
