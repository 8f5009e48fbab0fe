"""Holds every packet of a TUN device for a while: the latency that kernels without netem cannot add."""

from __future__ import annotations

import collections
import fcntl
import os
import select
import struct
import sys
import time

_TUNSETIFF = 0x400454CA
_IFF_TUN = 0x0001
_IFF_NO_PI = 0x1000
_PACKET_BYTES = 65_536


def pump(device: str, latency_s: float) -> None:
    """Returns each packet `latency_s` after it arrived, in order, forever. Prints `ready` first."""
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH14x", device.encode(), _IFF_TUN | _IFF_NO_PI))
    print("ready", flush=True)
    held: collections.deque[tuple[float, bytes]] = collections.deque()
    while True:
        wait_s = max(0.0, held[0][0] - time.monotonic()) if held else None
        select.select([tun], [], [], wait_s)
        try:
            while True:
                held.append((time.monotonic() + latency_s, os.read(tun, _PACKET_BYTES)))
        except BlockingIOError:
            pass
        now = time.monotonic()
        while held and held[0][0] <= now:
            try:
                os.write(tun, held.popleft()[1])
            except OSError:
                continue  # The device is down: the packet is lost, as on a wire.


def main() -> None:
    """Arguments: the device's name and the latency in milliseconds."""
    pump(sys.argv[1], float(sys.argv[2]) / 1000)


if __name__ == "__main__":
    main()
