"""The time of a chain of hosts with bare sockets: no encryption, checks or engines. The lower bound for `bench hosts`.

Every host is a process that receives into its own memory and forwards each piece as soon as it has it. The last one
reports when it has everything. Run as a module, this is one of these processes.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bed.network import Host, Network


PORT = 7707
PIECE_BYTES = 64 * 1024
CONNECT_TIMEOUT_S = 30.0


def measure(network: Network, n_bytes: int, rounds: int) -> list[float]:
    """Milliseconds until the last host has `n_bytes`, sent from host 0 through all others, for each round.

    Raises RuntimeError if a process of the chain fails.
    """
    source, *hops = network.hosts
    following = [*hops[1:], source]
    children = [_start(hop, next_host, n_bytes, rounds) for hop, next_host in zip(hops, following, strict=True)]
    children.append(_start(source, hops[0], n_bytes, rounds))
    try:
        out, errors = children[-1].communicate(timeout=CONNECT_TIMEOUT_S + 60 * rounds)
        if children[-1].returncode:
            raise RuntimeError(f"the raw chain failed: {errors}")
        return [float(line) for line in out.split()]
    finally:
        for child in children:
            child.kill()
            child.communicate()


def _start(host: Host, next_host: Host, n_bytes: int, rounds: int) -> subprocess.Popen[str]:
    role = "source" if host.index == 0 else "last" if next_host.index == 0 else "hop"
    arguments = [role, host.address, next_host.address, str(n_bytes), str(rounds)]
    command = ["ip", "netns", "exec", host.namespace, sys.executable, __file__, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _connect(address: str) -> socket.socket:
    """Connects to a process that may not be listening yet."""
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    while True:
        try:
            connection = socket.create_connection((address, PORT), CONNECT_TIMEOUT_S)
            connection.settimeout(None)
            return connection
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def main(arguments: Sequence[str]) -> None:
    """One process of the chain: its role, its address, the next one's, bytes and rounds."""
    role, address, next_address, n_bytes, rounds = *arguments[:3], int(arguments[3]), int(arguments[4])
    with socket.create_server((address, PORT)) as server:
        onward = _connect(next_address)
        onward.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        inward, _ = server.accept()
    data = memoryview(bytearray(n_bytes))
    with onward, inward:
        for round_ in range(-1, rounds):  # one round to warm up
            began_ns = time.monotonic_ns()
            for at in range(0, n_bytes, PIECE_BYTES):
                piece = data[at : at + PIECE_BYTES]
                if role != "source" and inward.recv_into(piece, 0, socket.MSG_WAITALL) != len(piece):
                    raise ConnectionError("the host before this one is gone")
                if role != "last":
                    onward.sendall(piece)
            if role == "last":
                onward.sendall(b"!")
            elif role == "source":
                if not inward.recv(1):
                    raise ConnectionError("the last host is gone")
                if round_ >= 0:
                    print((time.monotonic_ns() - began_ns) / 1e6, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
