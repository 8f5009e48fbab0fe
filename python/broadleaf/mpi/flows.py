"""Objects on their way between this host's mover and those of other hosts, in messages that never block.

A flow's messages have one tag and come in order. The sender may end it early with an empty message, so that the other
side knows that nothing more follows.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from typing import Any

# Maximum number of messages of one flow under way at a time.
WINDOW = 4


class Memory:
    """A range of a segment."""

    def __init__(self, fd: int, offset_bytes: int, len_bytes: int, writable: bool) -> None:
        try:
            first = offset_bytes % mmap.ALLOCATIONGRANULARITY
            access = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
            self._map = mmap.mmap(fd, first + len_bytes, mmap.MAP_SHARED, access, offset=offset_bytes - first)
        finally:
            os.close(fd)
        self._view = memoryview(self._map)[first : first + len_bytes]

    def part(self, start: int, end: int) -> memoryview:
        """The bytes from `start` to `end`."""
        return self._view[start:end]

    def exposable(self, mpi: Any) -> Any:
        """All of it as a buffer for a window. It counts as writable, because mpi4py attaches no other buffers."""
        return mpi.buffer.fromaddress(mpi.Get_address(self._view), len(self._view))


class Receiving:
    """An object received from another mover, from byte `at` on, as far as it has memory."""

    def __init__(self, mpi: Any, comm: Any, numbers: list[int], fd: int) -> None:
        self._mpi, self._comm = mpi, comm
        self._peer, self._tag, self._piece_bytes, offset, self._len_bytes, at = numbers
        self.at: int = at
        self._memory = Memory(fd, offset, self._len_bytes, writable=True)
        self._next = self._ready_bytes = self.at
        # Each with the number of bytes that are here once it has arrived.
        self._requests: deque[tuple[Any, int]] = deque()
        self._is_stopped = self._is_over = False
        self._status = mpi.Status()

    def ready(self, end_bytes: int) -> None:
        """The bytes up to there have memory."""
        self._ready_bytes = end_bytes
        self._post()

    def _post(self) -> None:
        while len(self._requests) < WINDOW and self._next < self._len_bytes and not self._is_over:
            end = min(self._next + self._piece_bytes, self._len_bytes)
            part, here = self._memory.part(self._next, end), end
            if end > self._ready_bytes:
                # What the sender had sent before it was stopped comes before its empty message.
                if not self._is_stopped or self._requests:
                    return
                part, here = memoryview(bytearray(end - self._next)), self.at
            request = self._comm.Irecv([part, self._mpi.BYTE], source=self._peer, tag=self._tag)
            self._requests.append((request, here))
            self._next = end

    def advance(self) -> bool:
        """Handles what has arrived; returns whether there was anything."""
        before = self._next, len(self._requests)
        while self._requests and self._requests[0][0].Test(self._status):
            _, here = self._requests.popleft()
            if self._status.Is_cancelled():
                continue
            if self._status.Get_count(self._mpi.BYTE) == 0:
                self.abandon()
            else:
                self.at = here
        self._post()
        return (self._next, len(self._requests)) != before

    def abandon(self) -> None:
        """Nothing more will arrive."""
        if not self._is_over:
            self._is_over = True
            for request, _ in self._requests:
                request.Cancel()

    def stop(self) -> None:
        """Its sender was told to end it, and does so with an empty message."""
        self._is_stopped = True
        self._post()

    @property
    def has_ended(self) -> bool:
        """Whether no message is under way or still to come."""
        return not self._requests and (self._is_over or self._next == self._len_bytes)


class Sending:
    """An object sent to another mover, as far as it is ready; only the empty message if `fd` is None."""

    def __init__(self, mpi: Any, comm: Any, numbers: list[int], fd: int | None) -> None:
        self._mpi, self._comm = mpi, comm
        self._peer, self._tag, self._piece_bytes, offset, self._len_bytes, self._next = numbers
        self._memory = None if fd is None else Memory(fd, offset, self._len_bytes, writable=False)
        self._ready_bytes = 0
        self._requests: deque[Any] = deque()
        self._is_stopped = False

    def ready(self, end_bytes: int) -> None:
        """The bytes up to there may be sent."""
        self._ready_bytes = end_bytes

    def advance(self) -> bool:
        """Sends what may be sent, and records what has left; returns whether there was anything."""
        is_moved = False
        while self._requests and self._requests[0].Test():
            self._requests.popleft()
            is_moved = True
        while self._memory is not None and len(self._requests) < WINDOW and not self._is_stopped:
            end = min(self._next + self._piece_bytes, self._len_bytes)
            if self._next == end or end > self._ready_bytes:
                break
            part = [self._memory.part(self._next, end), self._mpi.BYTE]
            self._requests.append(self._comm.Isend(part, dest=self._peer, tag=self._tag))
            self._next = end
            is_moved = True
        return is_moved

    def stop(self) -> None:
        """Sends nothing more than has already left, and tells the receiver."""
        if not self._is_stopped and self._next < self._len_bytes:
            self._requests.append(self._comm.Isend([bytearray(), self._mpi.BYTE], dest=self._peer, tag=self._tag))
        self._is_stopped = True

    def abandon(self) -> None:
        """Sending flows end only by `stop`."""
        self.stop()

    @property
    def has_ended(self) -> bool:
        """Whether no message is under way or still to come."""
        return not self._requests and (self._is_stopped or self._next == self._len_bytes)
