"""The descriptors 0, 1 and 2 of this process."""

from __future__ import annotations

import os


def occupy() -> None:
    """Opens `/dev/null` for those that are closed.

    The next socket or pipe would get their numbers, and take for its own what the C library, or a program that is
    started here, writes to standard output or error.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)  # as standard descriptors are
    os.close(descriptor)
