"""Objects on their way between movers by one-sided calls: the receiver reads them from the sender's memory.

Both ends have the interface of `flows`. The sender exposes its memory, and says in words with the flow's tag where that
is and how far it may be read. The receiver reads whole messages of it, and answers with an empty word once it reads no
more; until then the memory stays exposed. The sender's last word says that all may be read, or that nothing follows.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections import deque
from typing import Any

# Objects on their way between this host's mover and those of other hosts, in messages that never block.
#
# A flow's messages have one tag and come in order. The sender may end it early with an empty message, so that the
# other side knows that nothing more follows.


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


# In a word, instead of the end of what may be read: nothing more follows.
_STOPPED = -1


class Window:
    """The memory that movers of this world read from each other, and how they talk about it."""

    def __init__(self, mpi: Any, comm: Any) -> None:
        self.mpi: Any = mpi
        # What the two ends say may have the same tag, because each end numbers its own flows.
        self.words: Any = comm.Dup()
        self.answers: Any = comm.Dup()
        self.memory: Any = mpi.Win.Create_dynamic(mpi.INFO_NULL, comm)
        self.memory.Lock_all(mpi.MODE_NOCHECK)
        # Over TCP a rank locks by asking another, which has to be in MPI at that time.
        comm.Barrier()

    def close(self) -> None:
        """Ends it; all movers of the world have to."""
        self.memory.Unlock_all()
        self.memory.Free()
        self.words.Free()
        self.answers.Free()


class Reading:
    """An object read from another mover's memory, from byte `at` on, as far as it has memory here."""

    def __init__(self, window: Window, numbers: list[int], fd: int) -> None:
        self._window = window
        self._peer, self._tag, self._piece_bytes, offset, self._len_bytes, at = numbers
        self.at: int = at
        self._memory = Memory(fd, offset, self._len_bytes, writable=True)
        self._next = self._ready_bytes = self._readable_bytes = at
        # Each with the number of bytes that are here once it has arrived.
        self._requests: deque[tuple[Any, int]] = deque()
        self._is_stopped = self._is_abandoned = False
        self._address = 0
        self._word = array("q", [0, 0])
        self._incoming: Any = self._next_word()
        self._answer: Any = None

    def _next_word(self) -> Any:
        return self._window.words.Irecv([self._word, self._window.mpi.BYTE], source=self._peer, tag=self._tag)

    def ready(self, end_bytes: int) -> None:
        """The bytes up to there have memory."""
        self._ready_bytes = end_bytes

    def advance(self) -> bool:
        """Gets what may be read, and handles what has come; returns whether there was anything."""
        is_moved = self._listen()
        while self._requests and self._requests[0][0].Test():
            _, self.at = self._requests.popleft()
            is_moved = True
        if is_moved:
            # Other movers may read it from this one.
            self._window.memory.Sync()
        while len(self._requests) < WINDOW and not self._is_stopped:
            end = min(self._next + self._piece_bytes, self._len_bytes)
            if self._next == end or end > min(self._readable_bytes, self._ready_bytes):
                break
            part = [self._memory.part(self._next, end), self._window.mpi.BYTE]
            there = [self._address + self._next, end - self._next, self._window.mpi.BYTE]
            self._requests.append((self._window.memory.Rget(part, self._peer, there), end))
            self._next = end
            is_moved = True
        reads_no_more = not self._requests and (self._is_stopped or self.at == self._len_bytes)
        if reads_no_more and self._incoming is None and self._answer is None and not self._is_abandoned:
            nothing = [bytearray(), self._window.mpi.BYTE]
            self._answer = self._window.answers.Isend(nothing, dest=self._peer, tag=self._tag)
            is_moved = True
        return is_moved

    def _listen(self) -> bool:
        if self._incoming is None or not self._incoming.Test():
            return False
        self._address, end_bytes = self._word
        if end_bytes == _STOPPED:
            self._is_stopped = True
        else:
            self._readable_bytes = end_bytes
        is_last = self._is_abandoned or end_bytes in (_STOPPED, self._len_bytes)
        self._incoming = None if is_last else self._next_word()
        return True

    def abandon(self) -> None:
        """Nobody sends it."""
        self._is_stopped = self._is_abandoned = True
        if self._incoming is not None:
            self._incoming.Cancel()

    def stop(self) -> None:
        """Its sender was told to end it, and says so."""
        self._is_stopped = True

    @property
    def has_ended(self) -> bool:
        """Whether nothing is under way or still to come."""
        is_told = self._is_abandoned or (self._answer is not None and self._answer.Test())
        return not self._requests and self._incoming is None and bool(is_told)


class Exposing:
    """An object that another mover reads, as far as it is ready; only the last word if `fd` is None."""

    def __init__(self, window: Window, numbers: list[int], fd: int | None) -> None:
        self._window = window
        self._peer, self._tag, _, offset, self._len_bytes, self._said_bytes = numbers
        self._ready_bytes = self._said_bytes
        self._word = array("q", [0, 0])
        self._exposed: Any = None
        if fd is not None:
            self._memory = Memory(fd, offset, self._len_bytes, writable=False)
            self._exposed = self._memory.exposable(window.mpi)
            window.memory.Attach(self._exposed)
            self._word[0] = window.mpi.Get_address(self._exposed)
        self._outgoing: Any = None
        self._is_stopped = self._has_said_all = False
        nothing = [bytearray(), window.mpi.BYTE]
        self._answer: Any = window.answers.Irecv(nothing, source=self._peer, tag=self._tag)

    def ready(self, end_bytes: int) -> None:
        """The bytes up to there may be read."""
        self._ready_bytes = end_bytes

    def advance(self) -> bool:
        """Says what may be read; returns whether there was anything to do."""
        is_moved = False
        if self._outgoing is not None and self._outgoing.Test():
            self._outgoing, is_moved = None, True
        if self._outgoing is None and not self._has_said_all:
            if self._is_stopped:
                self._say(_STOPPED)
            elif self._ready_bytes > self._said_bytes:
                self._said_bytes = self._ready_bytes
                self._say(self._ready_bytes)
        if self._answer is not None and self._answer.Test():
            self._answer, is_moved = None, True
            if self._exposed is not None:
                self._window.memory.Detach(self._exposed)
        return is_moved

    def _say(self, end_bytes: int) -> None:
        self._word[1] = end_bytes
        self._has_said_all = end_bytes in (_STOPPED, self._len_bytes)
        self._outgoing = self._window.words.Isend([self._word, self._window.mpi.BYTE], dest=self._peer, tag=self._tag)

    def stop(self) -> None:
        """Nothing more may be read than is being read."""
        self._is_stopped = True

    def abandon(self) -> None:
        """Exposed objects end only by `stop`."""
        self.stop()

    @property
    def has_ended(self) -> bool:
        """Whether the other mover reads no more."""
        return self._answer is None and self._outgoing is None and self._has_said_all
