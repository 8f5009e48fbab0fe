"""Addresses as other hosts see them, and warnings about connections between hosts."""

from __future__ import annotations

import errno
import ipaddress
import os
import select
import socket
import time
import warnings
from collections.abc import Mapping, Sequence

# Addresses for documentation (RFC 5737, RFC 3849): no host has them, and nothing is sent there.
_ELSEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
_LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
_ANY_PORT = 9
_SIOCGIFADDR = 0x8915  # from <linux/sockios.h>


class PlaintextWarning(UserWarning):
    """A cluster's TCP connections are not encrypted."""


class Unreachable(OSError):
    """Nothing accepts connections at any of some addresses; `failures` says of each why not."""

    def __init__(self, port: int, failures: Mapping[str, str]) -> None:
        said = ", ".join(f"{host}:{port} ({why})" for host, why in failures.items())
        super().__init__(f"the controller cannot be reached from {socket.gethostname()}: tried {said}")
        self.failures: dict[str, str] = dict(failures)


def to_dial(listen: str) -> str:
    """The address by which others reach a listener on `listen`.

    That is `listen` itself, unless it means every address of this host (``0.0.0.0`` or ``::``). Then it is the one that
    this host uses towards others, or the loopback address if it has no network.
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
                probe.connect((_ELSEWHERE[family], _ANY_PORT))  # chooses a route but sends nothing
                return str(probe.getsockname()[0])
            except OSError:
                continue
    return _LOOPBACK[families[0]]


def warn_of_plaintext() -> None:
    """Warns that with ``tls=False`` others may read and change what travels."""
    warnings.warn(
        "tls=False: connections over TCP are not encrypted. Both sides still prove their keys, but anyone on the "
        "network between them can read and change everything, which is enough to run code as you. Use it only for "
        "measurements, on a network that you trust",
        PlaintextWarning,
        stacklevel=2,
    )


def all_to_dial(listen: str) -> list[str]:
    """Every address by which others may reach a listener on `listen`, the likeliest first."""
    likeliest = to_dial(listen)
    try:
        if not ipaddress.ip_address(listen).is_unspecified:
            return [likeliest]
    except ValueError:
        return [likeliest]
    loopback = [address for address in _of_interfaces() if ipaddress.ip_address(address).is_loopback]
    others = [address for address in _of_interfaces() if address not in loopback]
    return list(dict.fromkeys([likeliest, *others, *loopback]))


def of_interface(name: str) -> str:
    """The IPv4 address of a network interface; "" means all. Raises ValueError, which lists the existing interfaces."""
    if not name:
        return "0.0.0.0"
    import fcntl
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            reply = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            known = ", ".join(interface for _, interface in socket.if_nameindex())
            raise ValueError(f"no network interface {name!r} has an IPv4 address; known: {known}") from None
    return socket.inet_ntoa(reply[20:24])


def to_listen(host: str) -> str:
    """The address to listen on for `host`: that of the network interface with this name, if there is one.

    Raises ValueError for an interface without an IPv4 address.
    """
    return of_interface(host) if host in (name for _, name in socket.if_nameindex()) else host


def _of_interfaces() -> list[str]:
    found = []
    for _, name in socket.if_nameindex():
        try:
            found.append(of_interface(name))
        except ValueError:
            continue  # it has no address
    return found


def first_reachable(hosts: Sequence[str], port: int, timeout_s: float) -> str:
    """The first of `hosts` at which something accepts connections on `port`; all are tried at once.

    Raises `Unreachable`.
    """
    dialled: dict[socket.socket, str] = {}
    failures: dict[str, str] = {}
    waiting = select.poll()
    sockets: dict[int, socket.socket] = {}
    deadline = time.monotonic() + timeout_s
    try:
        for host in hosts:
            _begin_dialling(host, port, dialled, failures)
        for one in dialled:
            sockets[one.fileno()] = one
            waiting.register(one, select.POLLOUT)
        while sockets and (left_s := deadline - time.monotonic()) > 0:
            for number, _ in waiting.poll(left_s * 1000):
                one = sockets.pop(number)
                waiting.unregister(number)
                code = one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code == 0:
                    return dialled[one]
                failures[dialled[one]] = os.strerror(code)
    finally:
        for one in dialled:
            one.close()
    raise Unreachable(port, {host: failures.get(host, f"no answer within {timeout_s:g} s") for host in hosts})


def _begin_dialling(host: str, port: int, dialled: dict[socket.socket, str], failures: dict[str, str]) -> None:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        one = socket.socket(family, kind, protocol)
    except OSError as error:
        failures[host] = error.strerror or str(error)
        return
    one.setblocking(False)
    code = one.connect_ex(address)
    if code not in (0, errno.EINPROGRESS):
        failures[host] = os.strerror(code)
        one.close()
        return
    dialled[one] = host
