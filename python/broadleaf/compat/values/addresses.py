"""Addresses as IPython Parallel's programs write them: ``tcp://host:port``, ``ipc://path``."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from broadleaf.text import warn_once

_TRANSPORTS = ("tcp", "pgm", "epgm", "ipc", "inproc")
_HOST_NAME = re.compile(r"([\w\d]([\w\d\-]{0,61}[\w\d])?\.)*[\w\d]([\w\d\-]{0,61}[\w\d])?")
_ANY_INTERFACE = ("0.0.0.0", "*")
_LOOPBACK = "127.0.0.1"


def is_url(url: str) -> bool:
    """Whether this is an address with a known transport."""
    transport, separator, _ = url.partition("://")
    return bool(separator) and transport.lower() in _TRANSPORTS


def validate_url(url: str) -> bool:
    """True for a well-formed address. Raises `TypeError` if it is not text, otherwise `AssertionError`."""
    if not isinstance(url, str):
        raise TypeError(f"url must be a string, not {type(url)!r}")
    transport, separator, address = url.lower().partition("://")
    if not separator or "://" in address:
        raise AssertionError(f"Invalid url: {url!r}")
    if transport not in _TRANSPORTS:
        raise AssertionError(f"Invalid protocol: {transport!r}")
    if transport == "tcp":
        host, colon, port = address.partition(":")
        if not colon or not (host == "*" or _HOST_NAME.fullmatch(host)):
            raise AssertionError(f"Invalid url: {url!r}")
        if not port.isdigit():
            raise AssertionError(f"Invalid port {port!r} in url: {url!r}")
    return True


def validate_url_container(container: str | Mapping[Any, Any] | Iterable[Any]) -> None:
    """`validate_url` of every address in nested collections."""
    if isinstance(container, str):
        validate_url(container)
        return
    for element in container.values() if isinstance(container, Mapping) else container:
        validate_url_container(element)


def split_url(url: str) -> tuple[str, str, str]:
    """Transport, host and port of an address. Raises `AssertionError` if any of the three is missing."""
    transport, _, address = url.partition("://")
    parts = address.split(":")
    if "://" not in url or len(parts) != 2:
        raise AssertionError(f"Invalid url: {url!r}")
    return transport, parts[0], parts[1]


def is_ip(location: str) -> bool:
    """Whether this is an IPv4 address rather than a name."""
    return bool(re.fullmatch(r"(\d+\.){3}\d+", location))


@cache
def ip_for_host(host: str) -> str:
    """The host's first address; if none can be found, its name, with a warning."""
    try:
        return socket.gethostbyname_ex(host)[2][0]
    except (OSError, IndexError) as error:
        warn_once(f"no address is known for {host}: {error}")
        return host


@cache
def _own_addresses() -> frozenset[str]:
    """Addresses to which this machine's name resolves."""
    try:
        return frozenset(socket.gethostbyname_ex(socket.gethostname())[2]) | {_LOOPBACK}
    except OSError:
        return frozenset((_LOOPBACK,))


def disambiguate_ip_address(ip: str, location: str | None = None) -> str:
    """An address to connect to, given that `ip` may mean every interface; `location` is the host that listens there."""
    if ip not in _ANY_INTERFACE:
        return ip
    if not location or location == socket.gethostname():
        return _LOOPBACK
    address = location if is_ip(location) else ip_for_host(location)
    return _LOOPBACK if address in _own_addresses() else address


def disambiguate_url(url: str, location: str | None = None) -> str:
    """`url` with its host replaced by one to connect to; addresses that are not TCP stay unchanged."""
    try:
        transport, ip, port = split_url(url)
    except AssertionError:
        return url
    return f"{transport}://{disambiguate_ip_address(ip, location)}:{port}"


def select_random_ports(n: int) -> list[int]:
    """`n` different TCP ports that nothing listens on now."""
    sockets = []
    try:
        for _ in range(n):
            listener = socket.socket()
            sockets.append(listener)
            listener.bind(("", 0))
        return [listener.getsockname()[1] for listener in sockets]
    finally:
        for listener in sockets:
            listener.close()
