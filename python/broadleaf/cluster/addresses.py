"""Addresses as other hosts see them, and what to know of connections between hosts."""

from __future__ import annotations

import ipaddress
import socket
import warnings

# Addresses for documentation (RFC 5737, RFC 3849): no host has them, and nothing is sent there.
_ELSEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
_LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
_ANY_PORT = 9


class PlaintextWarning(UserWarning):
    """A cluster's TCP connections are not encrypted."""


def to_dial(listen: str) -> str:
    """The address by which others reach a listener on `listen`.

    That is `listen` itself, unless it stands for every address of this host (``0.0.0.0`` or ``::``): then it is the one
    that this host uses towards others, or the loopback address where it has no network.
    """
    try:
        if not ipaddress.ip_address(listen).is_unspecified:
            return listen
    except ValueError:
        if listen:
            return listen  # a name
    families = [socket.AF_INET6, socket.AF_INET] if ":" in listen else [socket.AF_INET]
    for family in families:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((_ELSEWHERE[family], _ANY_PORT))  # chooses a route, and sends nothing
                return str(probe.getsockname()[0])
            except OSError:
                continue
    return _LOOPBACK[families[0]]


def warn_of_plaintext() -> None:
    """Warns that with ``tls=False`` others may read and change what travels."""
    warnings.warn(
        "tls=False: connections over TCP are not encrypted. Both sides still prove their keys, but whoever is on the "
        "network between them can read everything, and can change it: that is enough to run code as you. Use it only "
        "to measure, on a network that you trust",
        PlaintextWarning,
        stacklevel=2,
    )
