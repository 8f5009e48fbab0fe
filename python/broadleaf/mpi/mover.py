"""`mpiexec -n 4 -ppn 1 python -m broadleaf.mpi.mover --connection engine.json`: moves a cluster's payload by MPI.

One process on each host, including the controller's. Each joins the node of its host, whose memory it maps; what the
nodes want to move goes from mover to mover. It ends with its cluster.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from broadleaf import _native, standard_descriptors
from broadleaf._native import LinkClosed
from broadleaf.errors import ClusterStartError
from broadleaf.mpi.flows import Exposing, Reading, Receiving, Sending, Window
from broadleaf.state.connection import read_engine_connection
from broadleaf.state.directories import ClusterFileError, sockets_here

__all__ = ["LinkClosed", "connect"]


# How a mover reaches the node of its host.


_SOCKET = "node.sock"
_AGAIN_S = 0.1


def connect(connection: dict[str, Any], world: int, rank: int, timeout_s: float) -> _native.Mover:
    """A connection to the payload plane of this host's node; waits until the node has one.

    `connection` is the content of the cluster's `engine.json`; `world` and `rank` identify the mover. Raises
    `ClusterStartError` if the node accepts no mover, or no node is up after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        # A relay's before the controller's, for a host that has both: payload comes to the relay.
        for path in reversed(sockets_here(connection, _SOCKET)):
            text = json.dumps(connection | {"unix_path": path, "role": "engine"})
            try:
                return _native.Mover(text, world, rank)
            except _native.ConnectionRefused as error:
                raise ClusterStartError(f"the node of this host refused its mover: {error.args[1]}") from None
            except (OSError, TimeoutError):
                continue  # it belongs to another cluster, or is gone
        if time.monotonic() > deadline:
            raise ClusterStartError(
                f"no node of cluster {connection['cluster_id']} was found on this host after {timeout_s:g} s: start "
                "its relay before the mover"
            )
        time.sleep(_AGAIN_S)


# Time between two checks of messages under way: MPI notifies nobody when one is done, and waiting in MPI busy-polls.
_MIN_SLEEP_S = 20e-6
_MAX_SLEEP_S = 1e-3
_LEAVING_SLEEP_S = 0.05


class Mover:
    """This host's mover: what its node has ordered, and its progress."""

    def __init__(self, mpi: Any, comm: Any, link: Any, window: Window | None) -> None:
        self._mpi, self._comm = mpi, comm
        self._link: Any = link  # None once the node is gone
        # Objects are read from it; without one, they are sent in messages.
        self._window = window
        self._flows: dict[int, Receiving | Reading | Sending | Exposing] = {}

    def run(self) -> None:
        """Moves everything that is ordered until the node is gone."""
        poll = select.poll()
        poll.register(self._link.fileno(), select.POLLIN)
        sleep_s = _MIN_SLEEP_S
        try:
            while True:
                if self._flows:
                    is_ordered = bool(select.select([self._link.fileno()], [], [], sleep_s)[0])
                else:
                    is_ordered = bool(poll.poll())
                if is_ordered:
                    self._obey()
                is_moved = self.advance()
                sleep_s = _MIN_SLEEP_S if is_moved or is_ordered else min(2 * sleep_s, _MAX_SLEEP_S)
                while not self._link.flush():
                    select.select([], [self._link.fileno()], [])
        except LinkClosed:
            self._link = None
            for flow in self._flows.values():
                flow.stop()

    def _obey(self) -> None:
        while (command := self._link.next_command()) is not None:
            name, number, numbers, fd = command
            if name == "receive":
                self._flows[number] = self._receive(numbers, fd)
            elif name == "send":
                self._flows[number] = self._send(numbers, fd)
            elif (flow := self._flows.get(number)) is None:
                continue  # it has ended in the meantime
            elif name == "ready":
                flow.ready(numbers[0])
            elif name == "stop":
                flow.stop()
            elif name == "abandon":
                flow.abandon()

    def _receive(self, numbers: list[int], fd: int) -> Receiving | Reading:
        if self._window is not None:
            return Reading(self._window, numbers, fd)
        return Receiving(self._mpi, self._comm, numbers, fd)

    def _send(self, numbers: list[int], fd: int | None) -> Sending | Exposing:
        if self._window is not None:
            return Exposing(self._window, numbers, fd)
        return Sending(self._mpi, self._comm, numbers, fd)

    def advance(self) -> bool:
        """Moves every flow as far as possible; returns whether any moved."""
        is_moved = False
        for number, flow in list(self._flows.items()):
            if flow.advance():
                is_moved = True
                if self._link is not None and isinstance(flow, (Receiving, Reading)):
                    self._link.moved(number, flow.at)
            if flow.has_ended:
                is_moved = True
                del self._flows[number]
                if self._link is not None:
                    self._link.ended(number)
        return is_moved

    def leave(self) -> None:
        """Waits until all movers of the world leave: what they still send or await must be received."""
        leaving = self._comm.Ibarrier()
        while not leaving.Test():
            if not self.advance():
                select.select([], [], [], _LEAVING_SLEEP_S)
        if self._window is not None:
            self._window.close()


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m broadleaf.mpi.mover", description=__doc__)
    parser.add_argument("--connection", type=Path, required=True, metavar="FILE", help="the cluster's engine.json")
    arguments = parser.parse_args()
    standard_descriptors.occupy()
    try:
        connection = read_engine_connection(arguments.connection)
    except (ClusterStartError, ClusterFileError, OSError) as error:
        sys.exit(f"broadleaf: {type(error).__name__}: {error}")
    try:
        import mpi4py  # pyright: ignore[reportMissingImports]

        mpi4py.rc.threads = False
        from mpi4py import MPI  # pyright: ignore[reportMissingImports]
    except (ImportError, RuntimeError) as error:
        sys.exit(
            f"broadleaf: MPI cannot be used by {sys.executable}: {error}; install "
            "`broadleaf[mpi]` and an MPI implementation"
        )
    try:
        comm = MPI.COMM_WORLD.Dup()
        world = comm.bcast(int.from_bytes(os.urandom(8)) >> 1, root=0)
        window = Window(MPI, comm) if connection["options"]["payload"] == "rma" else None
        link = None
        try:
            link = connect(connection, world, comm.Get_rank(), connection["options"]["start_timeout_s"])
        except ClusterStartError as error:
            # The others continue without this host: its payload goes over TCP.
            print(f"broadleaf: {error}", file=sys.stderr, flush=True)
        # Like the threads that move payload over TCP.
        os.nice(connection["options"]["payload_niceness"])
        mover = Mover(MPI, comm, link, window)
        if link is not None:
            mover.run()
        mover.leave()
    except BaseException:
        # Processes that wait for this one's messages would wait forever.
        traceback.print_exc()
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)


if __name__ == "__main__":
    main()
