"""A rank of the MPI program that movers are compared with: `MPI_Bcast`, and `MPI_Get` by every rank from the first.

Rank 0 reads a line of JSON for each broadcast, `{"way": "bcast", "parts": [1000, 10]}`, and answers with one: the
milliseconds until the last rank had all parts, and whether all have the same. Buffers persist: broadcasts are in place.
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from typing import Any

# Ranks that wait for the next line must not occupy the cores on which others are measured.
_SLEEP_S = 0.005


class Parts:
    """Buffers of given sizes on every rank, and windows over those of rank 0."""

    def __init__(self, mpi: Any, comm: Any, sizes: list[int]) -> None:
        self._mpi, self._comm = mpi, comm
        self.buffers: list[bytearray] = [bytearray(n) for n in sizes]
        shown = self.buffers if comm.rank == 0 else [bytearray() for _ in sizes]
        self.windows: list[Any] = [mpi.Win.Create(memory, 1, comm=comm) for memory in shown]
        if comm.rank == 0:
            for buffer in self.buffers:
                buffer[:] = (bytes(range(256)) * (len(buffer) // 256 + 1))[: len(buffer)]

    def renew(self, round_: int) -> None:
        """New contents on rank 0."""
        for buffer in self.buffers:
            mark = round_.to_bytes(8, "little")[: len(buffer)]
            buffer[: len(mark)] = mark

    def bcast(self) -> None:
        """All ranks receive all parts from rank 0, together."""
        for buffer in self.buffers:
            self._comm.Bcast([buffer, self._mpi.BYTE], root=0)

    def get(self) -> None:
        """Each rank reads all parts from rank 0, which does nothing."""
        if self._comm.rank == 0:
            return
        for buffer, window in zip(self.buffers, self.windows, strict=True):
            window.Lock(0, self._mpi.LOCK_SHARED)
            window.Get([buffer, self._mpi.BYTE], 0)
            window.Unlock(0)

    def checksum(self) -> int:
        """The size of all parts."""
        return sum(zlib.crc32(buffer) for buffer in self.buffers)

    def free(self) -> None:
        """Frees the windows."""
        for window in self.windows:
            window.Free()


def main() -> None:
    """Entry point."""
    from mpi4py import MPI  # pyright: ignore[reportMissingImports]

    comm: Any = MPI.COMM_WORLD
    parts, sizes = None, None
    round_ = 0
    while True:
        line = bytearray(1000)
        if comm.rank == 0:
            text = sys.stdin.readline().strip().encode()
            line[: len(text)] = text
        told = comm.Ibcast([line, MPI.BYTE], root=0)
        while not told.Test():
            time.sleep(_SLEEP_S)
        if not (text := line.rstrip(b"\0").decode()):
            break
        order = json.loads(text)
        if order["parts"] != sizes:
            if parts is not None:
                parts.free()
            sizes = order["parts"]
            parts = Parts(MPI, comm, sizes)
        assert parts is not None
        round_ += 1
        if comm.rank == 0:
            parts.renew(round_)
        comm.Barrier()
        began_ns = time.monotonic_ns()
        parts.bcast() if order["way"] == "bcast" else parts.get()
        ended_ns = time.monotonic_ns()
        comm.Barrier()
        last_ns = comm.reduce(ended_ns, op=MPI.MAX, root=0)
        sums = comm.gather(parts.checksum(), root=0)
        if comm.rank == 0:
            print(json.dumps({"ms": (last_ns - began_ns) / 1e6, "is_right": len(set(sums)) == 1}), flush=True)
    if parts is not None:
        parts.free()


if __name__ == "__main__":
    main()
