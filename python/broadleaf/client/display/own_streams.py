"""What tasks of pools write, shown on this process's own streams."""

from __future__ import annotations

import codecs
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from broadleaf.client.metadata import STDOUT

if TYPE_CHECKING:
    from broadleaf._native import Link


class OwnStreams:
    """Writes to this process's standard output and error, as worker processes that share its terminal do.

    Args:
        link: The client's connection, from which the output comes.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock = threading.Lock()
        # The thread that writes.
        self._writer = 0
        # The beginnings of characters, by task and stream.
        self._unfinished: dict[tuple[int, int], bytes] = {}

    def catch_up(self) -> None:
        """Writes everything that has arrived. Returns once it is written, also if another thread is doing that."""
        this_thread = threading.get_ident()
        if self._writer == this_thread:
            # A signal's handler, or the stream itself, waits for a result.
            return
        with self._lock:
            self._writer = this_thread
            try:
                while self._link.show_next(self._write):
                    pass
            finally:
                self._writer = 0

    def _write(self, seq: int, stream: int, data: bytes) -> None:
        file = sys.stdout if stream == STDOUT else sys.stderr
        if file is None or getattr(file, "closed", False):
            return
        # Whoever has read it has ended.
        with suppress(BrokenPipeError):
            file.write(self._text(seq, stream, data))
            file.flush()

    def _text(self, seq: int, stream: int, data: bytes) -> str:
        data = self._unfinished.pop((seq, stream), b"") + data
        text, n_bytes = codecs.utf_8_decode(data, "replace", False)
        if n_bytes < len(data):
            # A task may end in the middle of a character.
            outstanding = self._link.is_outstanding
            self._unfinished = {key: rest for key, rest in self._unfinished.items() if outstanding(key[0])}
            self._unfinished[seq, stream] = data[n_bytes:]
        return text
