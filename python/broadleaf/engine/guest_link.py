"""The connection of a rank to the fork server of its host: where they meet, and what they say to each other."""

from __future__ import annotations

import _socket  # not `socket`, whose enumerations and selectors are a tenth of what a rank imports
import json
import os
from typing import Any, Self

SOCKET = "guests.sock"
MAX_BYTES = 1 << 17

_ANSWER_S = 10.0
_DESCRIPTOR_BYTES = 4
_MAX_DESCRIPTORS = 5


class GuestLink:
    """The rank's end of the connection."""

    def __init__(self, connected: _socket.socket) -> None:
        self._socket = connected

    @classmethod
    def dial(cls, path: str, server_public_key: str) -> Self | None:
        """A connection to the fork server at `path`, if it serves the cluster with this key; else None."""
        dialled = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET | _socket.SOCK_CLOEXEC)
        dialled.settimeout(_ANSWER_S)
        try:
            # A path may be longer than the name of a socket.
            directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                dialled.connect(f"/proc/self/fd/{directory}/{os.path.basename(path)}")
            finally:
                os.close(directory)
            link = cls(dialled)
            link.send({"hello": server_public_key})
            if dialled.recv(64) == b"welcome":
                return link
        except OSError:
            pass
        dialled.close()
        return None

    def send(self, message: dict[str, Any]) -> None:
        """Sends a message."""
        self._socket.send(json.dumps(message).encode())

    def receive(self, timeout_s: float) -> tuple[dict[str, Any], list[int]]:
        """The next message, with the descriptors that came with it, which no child inherits.

        Raises `TimeoutError` if none arrives within `timeout_s`, and `ConnectionError` if the fork server has gone.
        """
        self._socket.settimeout(timeout_s)
        room = _socket.CMSG_SPACE(_MAX_DESCRIPTORS * _DESCRIPTOR_BYTES)
        text, controls, _, _ = self._socket.recvmsg(MAX_BYTES, room, _socket.MSG_CMSG_CLOEXEC)
        if not text:
            raise ConnectionError("the cluster has stopped or does not need this rank")
        descriptors: list[int] = []
        for level, kind, data in controls:
            if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS):
                descriptors += memoryview(data).cast("i")
        message: dict[str, Any] = json.loads(text)
        return message, descriptors
