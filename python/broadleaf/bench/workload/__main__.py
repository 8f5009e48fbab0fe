"""`python -m broadleaf.bench.workload MODULE`: serves the adapter of a module. One JSON request per line on standard
input, one JSON reply per line on standard output.

    {"do": "describe"}                                    -> {"version", "configs", "launched"}
    {"do": "start", "workers": 4, "config": "default"}    -> {"ready_s"}
    {"do": "modes", "case": "sizes", "route": "apply"}    -> {"modes"}
    {"do": "run", "case": "latency", "arguments": {...}}  -> {"values": {metric: figure}}
    {"do": "stop"}                                        -> {}

A failed request answers {"error": text} and leaves the rest to the caller.
"""

import importlib
import json
import os
import sys
import time
import traceback
from typing import Any, TextIO

from . import measure, parallel, spread
from .adapter import Adapter

MODE_TABLES = {
    "latency": "latency",
    "throughput": "throughput",
    "map": "map",
    "sleep-map": "naps",
    "straggler": "naps",
    "echo": "echo",
    "send": "send",
    "bounded": "throughput",
    "fan-out": "fan_out",
    "fan-out-cost": "fan_out_queued",
    "broadcast": "broadcast",
    "broadcast-memory": "broadcast",
    "shared-argument": "parallel_contexts",
    "grid-search": "parallel_contexts",
    "sizes": "carry",
}


def private_output() -> TextIO:
    """Our own standard output; what a library prints goes to standard error instead."""
    sys.stdout.flush()
    own = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return own


class Server:
    def __init__(self, peer: Adapter) -> None:
        self.peer = peer

    def describe(self) -> dict[str, Any]:
        return {"version": self.peer.version(), "configs": self.peer.configs, "launched": self.peer.launched}

    def start(self, workers: int, config: str) -> dict[str, Any]:
        begin = time.perf_counter()
        self.peer.start(workers, config)
        return {"ready_s": time.perf_counter() - begin}

    def modes(self, case: str, **route: str) -> dict[str, Any]:
        table = MODE_TABLES.get(case)
        return {"modes": list(getattr(self.peer, table)(**route)) if table else [""]}

    def run(self, case: str, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            measured = self.peer.measures.get(case) or (measure.MEASURES | spread.MEASURES | parallel.MEASURES)[case]
            return {"values": measured(self.peer, **arguments)}
        finally:
            self.peer.after_step()

    def stop(self) -> dict[str, Any]:
        self.peer.stop()
        return {}


def main(module: str) -> None:
    output = private_output()
    try:
        server = Server(importlib.import_module(module).Peer())
    except Exception as error:
        output.write(json.dumps({"error": f"{module}: {error!r}"}) + "\n")
        raise
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = getattr(server, request.pop("do"))(**request)
        except Exception as error:
            traceback.print_exc()
            reply = {"error": repr(error)}
        output.write(json.dumps(reply) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
