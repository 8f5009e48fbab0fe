"""What runs on each host of an engine set: a relay, as long as it is needed.

It reads its order (`EngineSet.join_order`) from standard input, or from the file named as its argument.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

from broadleaf.cluster import addresses
from broadleaf.cluster.fork_servers import fork_early
from broadleaf.cluster.relay import NAME_TAKEN, Relay
from broadleaf.errors import ClusterStartError
from broadleaf.state.directories import ClusterFileError

# How long an address of the controller has to answer before the tunnel is used.
_DIRECT_S = 3.0
_TWICE = (
    "host {!r} has already joined for this job: run the command that joins only once on each host, and give each host "
    "a different name"
)


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
        sys.exit(
            f"{type(error).__name__}: {_TWICE.format(socket.gethostname()) if NAME_TAKEN in str(error) else error}"
        )
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
    name = f"{order['name'] or socket.gethostname()}:{order['block'] or _block()}"
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


def _block() -> str:
    if not (block := os.environ.get("BROADLEAF_BLOCK")):
        raise ClusterStartError(
            "this host does not know which job it belongs to: BROADLEAF_BLOCK is not set here; the job's script "
            "exports it, and passes it on in its variable `join`, which must be run here unchanged"
        )
    return block


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


# A relay inside a process that another system started and keeps using, such as a Dask worker.


_RETRY_AFTER_S = 0.25
# Time on top of the cluster's timeout until the loss of a host with the same name has been noticed.
_NOTICED_S = 10.0


class Order(Mapping[str, Any]):
    """A relay's configuration (`EngineSet.join_order`). It holds a key and hides it from logs, which show arguments."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content = dict(content)

    def __getitem__(self, name: str) -> Any:
        return self._content[name]

    def __iter__(self) -> Any:
        return iter(self._content)

    def __len__(self) -> int:
        return len(self._content)

    def __repr__(self) -> str:
        return f"<Order for a relay of cluster {self['connection']['cluster_id']!r}>"


class HostedRelay:
    """A relay that this process owns, until the relay ends, `stop` is called from another thread, or the process ends.

    If it replaces one that died, it waits until the cluster has noticed the death. Raises `ClusterStartError`.
    """

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._stop_read, self._stop_write = os.pipe()
        try:
            self._relay = _joined(order)
        except BaseException:
            self._close()
            raise

    def wait(self) -> int | None:
        """Returns its exit code when it has ended; a relay that was stopped has none."""
        process = os.pidfd_open(self._relay.process.pid)
        try:
            ended, _, _ = select.select([process, self._stop_read], [], [])
        finally:
            os.close(process)
        code = self._relay.wait() if process in ended else None
        self._relay.stop()
        self._close()
        return code

    def stop(self) -> None:
        """Makes `wait` stop the relay and return."""
        with contextlib.suppress(OSError):  # it has returned
            os.write(self._stop_write, b"s")

    def _close(self) -> None:
        os.close(self._stop_read)
        os.close(self._stop_write)
        self._stop_read = self._stop_write = -1


def _joined(order: Mapping[str, Any]) -> Relay:
    give_up_at = time.monotonic() + order["connection"]["options"]["host_timeout_s"] + _NOTICED_S
    while True:
        try:
            return join(order)
        except ClusterStartError as error:
            if NAME_TAKEN not in str(error) or time.monotonic() > give_up_at:
                raise
        time.sleep(_RETRY_AFTER_S)
