"""What runs on each host of an engine set: a relay, as long as it is needed.

It reads its order (`EngineSet.join_order`) from standard input, or from the file named as its argument.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any

from broadleaf.cluster import addresses
from broadleaf.cluster.hosts.fork_servers.plan import fork_early
from broadleaf.cluster.hosts.relay import Relay
from broadleaf.errors import ClusterStartError
from broadleaf.state.directories import ClusterFileError

# How long an address of the controller has to answer before the tunnel is used.
_DIRECT_S = 3.0


def main() -> None:
    """Runs a relay until its cluster stops, it is told to end, or the reader of its output is gone.

    SIGTERM and SIGUSR1 tell it that the host will be ended: its engines finish what they run. After SIGTERM they have
    `drain_s` seconds for it; a second SIGTERM ends them.
    """
    fork_early()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        relay = join(_read_order())
    except (ClusterStartError, ClusterFileError, OSError, ValueError, KeyError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        sys.exit(1)
    try:
        _heed_notice(relay)
        _tell(f"host {relay.name} has joined with {relay.n} engines")
        _wait(relay)
    except KeyboardInterrupt:
        pass
    finally:
        relay.stop()


def join(order: Mapping[str, Any]) -> Relay:
    """A relay on this host, as ordered. Raises `ClusterStartError`, `ClusterFileError`, OSError, ValueError and
    KeyError."""
    name = f"{order['name'] or socket.gethostname()}:{order['block'] or os.environ['BROADLEAF_BLOCK']}"
    n = order["n"] or tasks_of_this_node(os.environ)
    controller = _through_tunnel(order)
    return Relay(
        order["connection"],
        n or None,
        name=name,
        controller=controller,
        outbound_only=controller is not None,
        client_file=order["client"],
        ends_at=float(os.environ.get("BROADLEAF_ENDS_AT") or 0) or None,
    )


def _through_tunnel(order: Mapping[str, Any]) -> str | None:
    """The local end of the tunnel, or None if there is no tunnel or the controller can be reached without it."""
    if not order["tunnel_port"]:
        return None
    connection = order["connection"]
    try:
        addresses.first_reachable(connection["addresses"], connection["tcp"]["port"], _DIRECT_S)
    except OSError:
        return f"127.0.0.1:{order['tunnel_port']}"
    return None


def tasks_of_this_node(environment: Mapping[str, str]) -> int:
    """Number of tasks that Slurm gave the job on this host, as its script passed them on
    (``BROADLEAF_TASKS_PER_NODE="4(x2),3"``); 0 if it did not."""
    text, node = environment.get("BROADLEAF_TASKS_PER_NODE", ""), int(environment.get("SLURM_NODEID", "0"))
    for part in filter(None, text.split(",")):
        tasks, _, times = part.partition("(x")
        node -= int(times.rstrip(")") or 1)
        if node < 0:
            return int(tasks)
    return 0


def _read_order() -> dict[str, Any]:
    if len(sys.argv) > 1:
        with open(sys.argv[1]) as file:
            text = file.read()
    else:
        text = sys.stdin.read()
    order: dict[str, Any] = json.loads(text)
    return order


def _wait(relay: Relay) -> None:
    process = os.pidfd_open(relay.process.pid)
    try:
        ended = select.poll()
        ended.register(process, select.POLLIN)
        ended.register(1, 0)  # an error event: the connection that started this is gone
        ended.poll()
    finally:
        os.close(process)


def _heed_notice(relay: Relay) -> None:
    def on_notice(number: int, _frame: object) -> None:
        relay.give_notice(relay.drain_s)
        if number == signal.SIGTERM:
            signal.signal(signal.SIGTERM, _interrupt)
            signal.setitimer(signal.ITIMER_REAL, relay.drain_s or 1e-6)  # 0 would be never

    signal.signal(signal.SIGALRM, _interrupt)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, on_notice)


def _tell(text: str) -> None:
    try:
        os.write(1, f"broadleaf: {text}\n".encode())
    except OSError:
        raise KeyboardInterrupt from None  # nobody is listening any more


def _interrupt(_signal_number: int, _frame: object) -> None:
    raise KeyboardInterrupt
