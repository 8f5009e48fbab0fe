"""A rank of the MPI program that movers are compared with: broadcasts from rank 0 to all, collective and one-sided.

Rank 0 first says what it runs on, in a line of JSON. It then reads a line for each broadcast,
`{"way": "Bcast", "parts": [1000, 10]}`, and answers with one: the milliseconds until the last rank had all parts, and
whether all have the same. Buffers persist: broadcasts are in place.
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any

# Ranks that wait for the next line must not occupy the cores on which others are measured.
_SLEEP_S = 0.005
# As movers do: the default of `mpi_message_bytes`, and messages of an object that are under way at a time.
_PIECE_BYTES = 262_144
_WINDOW = 4


class Parts:
    """Buffers of given sizes on every rank, each in a window that other ranks read and write."""

    def __init__(self, mpi: Any, comm: Any, sizes: list[int]) -> None:
        self._mpi, self._comm = mpi, comm
        self.buffers: list[bytearray] = [bytearray(n) for n in sizes]
        self.windows: list[Any] = [mpi.Win.Create(memory, 1, comm=comm) for memory in self.buffers]
        self.ways: dict[str, Callable[[], None]] = {
            "Bcast": self.bcast, "Get": self.get, "Put": self.put,
            "Isend along a chain": self.send_along_chain, "Get along a chain": self.get_along_chain,
        }  # fmt: skip
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

    def put(self) -> None:
        """Rank 0 writes all parts to each other rank, which does nothing."""
        if self._comm.rank != 0:
            return
        for buffer, window in zip(self.buffers, self.windows, strict=True):
            window.Lock_all()
            for rank in range(1, self._comm.size):
                window.Put([buffer, self._mpi.BYTE], rank)
            window.Unlock_all()

    def send_along_chain(self) -> None:
        """Each rank sends all parts to the rank after it, piece by piece, as movers do."""
        rank, is_last = self._comm.rank, self._comm.rank + 1 == self._comm.size
        for tag, memory in enumerate(self.buffers):
            buffer, n_bytes = memoryview(memory), len(memory)
            at = asked = n_bytes if rank == 0 else 0
            sent = n_bytes if is_last else 0
            coming: deque[tuple[Any, int]] = deque()
            going: deque[Any] = deque()
            while at < n_bytes or sent < n_bytes or going:
                while asked < n_bytes and len(coming) < _WINDOW:
                    part = buffer[asked : asked + _PIECE_BYTES]
                    asked += len(part)
                    coming.append((self._comm.Irecv([part, self._mpi.BYTE], source=rank - 1, tag=tag), asked))
                while coming and coming[0][0].Test():
                    at = coming.popleft()[1]
                while sent < at and len(going) < _WINDOW:
                    part = buffer[sent : min(sent + _PIECE_BYTES, at)]
                    sent += len(part)
                    going.append(self._comm.Isend([part, self._mpi.BYTE], dest=rank + 1, tag=tag))
                while going and going[0].Test():
                    going.popleft()

    def get_along_chain(self) -> None:
        """Each rank reads all parts of the rank before it, each piece as soon as that rank has it."""
        for tag, (buffer, window) in enumerate(zip(self.buffers, self.windows, strict=True)):
            if self._comm.rank == 0:
                self._tell_next(len(buffer), tag)
            else:
                window.Lock(self._comm.rank - 1, self._mpi.LOCK_SHARED)
                self._get_from_previous(memoryview(buffer), window, tag)
                window.Unlock(self._comm.rank - 1)

    def _get_from_previous(self, buffer: memoryview, window: Any, tag: int) -> None:
        parent = self._comm.rank - 1
        at, asked, known, n_bytes = 0, 0, 0, len(buffer)
        requests: deque[tuple[Any, int]] = deque()
        while at < n_bytes:
            while known < n_bytes and self._comm.Iprobe(source=parent, tag=tag):
                word = bytearray(8)
                self._comm.Recv([word, self._mpi.BYTE], source=parent, tag=tag)
                known = int.from_bytes(word)
            while asked < known and len(requests) < _WINDOW:
                end = min(asked + _PIECE_BYTES, known)
                requests.append((window.Rget([buffer[asked:end], self._mpi.BYTE], parent, asked), end))
                asked = end
            while requests and requests[0][0].Test():
                at = requests.popleft()[1]
                window.Sync()
                self._tell_next(at, tag)

    def _tell_next(self, end_bytes: int, tag: int) -> None:
        if self._comm.rank + 1 < self._comm.size:
            self._comm.Send([end_bytes.to_bytes(8), self._mpi.BYTE], dest=self._comm.rank + 1, tag=tag)

    def checksum(self) -> int:
        """The sum of the checksums of all parts."""
        return sum(zlib.crc32(buffer) for buffer in self.buffers)

    def free(self) -> None:
        """Frees the windows."""
        for window in self.windows:
            window.Free()


def main() -> None:
    """Entry point."""
    import mpi4py  # pyright: ignore[reportMissingImports]
    from mpi4py import MPI  # pyright: ignore[reportMissingImports]

    comm: Any = MPI.COMM_WORLD
    if comm.rank == 0:
        library = " ".join(MPI.Get_library_version().split("\n")[0].split())
        print(json.dumps({"version": f"{mpi4py.__version__}, {library}"}), flush=True)
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
        parts.ways[order["way"]]()
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
