"""Small functions and classes of IPython Parallel that programs import: addresses, dates, futures, mappings, parts."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from functools import cache
from itertools import islice
from threading import Lock
from typing import Any

from broadleaf.client.partition import is_array, join_parts
from broadleaf.text import warn_once

# Addresses as IPython Parallel's programs write them: ``tcp://host:port``, ``ipc://path``.


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


# Times with their time zone, and how messages hold them as text.


utc = UTC
_ISO_8601 = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}.*")


def utcnow() -> datetime:
    """Now, in UTC."""
    return datetime.now(UTC)


def ensure_timezone(moment: datetime) -> datetime:
    """`moment` with a time zone: the local one, if it has none."""
    return moment.astimezone() if moment.tzinfo is None else moment


def compare_datetimes(a: datetime, b: datetime) -> int:
    """-1, 0 or 1 as `a` is before, at or after `b`; a time without a zone is local."""
    a, b = ensure_timezone(a), ensure_timezone(b)
    return (a > b) - (a < b)


def extract_dates(value: Any) -> Any:
    """`value` with every text that is an ISO 8601 time converted to a time."""
    if isinstance(value, dict):
        return {key: extract_dates(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [extract_dates(item) for item in value]
    if isinstance(value, str) and _ISO_8601.fullmatch(value):
        try:
            return ensure_timezone(datetime.fromisoformat(value))
        except ValueError:
            return value
    return value


# Futures of several tasks.


class MessageFuture(Future[Any]):
    """A future of the message with the id `msg_id`."""

    def __init__(self, msg_id: str, header: Any = None, *, track: bool = False) -> None:
        super().__init__()
        self.msg_id = msg_id
        self.header: dict[str, Any] = header or {"msg_type": "unknown"}


def multi_future(children: Sequence[Future[Any]]) -> Future[list[Any]]:
    """A future of the results of all `children`, in their order, or of the first exception among them."""
    whole: Future[list[Any]] = Future()
    unfinished = set(children)
    lock = Lock()

    def on_done(child: Future[Any]) -> None:
        with lock:
            unfinished.discard(child)
            if unfinished or whole.done():
                return
            failures = [failed for each in children if (failed := each.exception()) is not None]
            if failures:
                whole.set_exception(failures[0])
            else:
                whole.set_result([each.result() for each in children])

    if not children:
        whole.set_result([])
    for child in children:
        child.add_done_callback(on_done)
    return whole


# Dictionaries with additional features.


class Namespace(dict[str, Any]):
    """A dict whose keys are attributes too. Raises `NameError` for missing keys."""

    def __getattr__(self, key: str) -> Any:
        if key in self:
            return self[key]
        raise NameError(key)

    def __setattr__(self, key: str, value: Any) -> None:
        if hasattr(dict, key):
            raise KeyError(f"Cannot override dict keys {key!r}")
        self[key] = value


class ReverseDict(dict[Any, Any]):
    """A dict that also finds a key by its value."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._keys = {value: key for key, value in self.items()}

    def __getitem__(self, key: Any) -> Any:
        try:
            return super().__getitem__(key)
        except KeyError:
            return self._keys[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        if key in self._keys:
            raise KeyError(f"Can't have key {key!r} on both sides!")
        super().__setitem__(key, value)
        self._keys[value] = key

    def pop(self, key: Any) -> Any:  # type: ignore[override]
        """Removes a key and returns its value."""
        value = super().pop(key)
        self._keys.pop(value)
        return value

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of a key, or the key of a value, or `default`."""
        try:
            return self[key]
        except KeyError:
            return default


def int_keys(mapping: Mapping[str, Any]) -> dict[Any, Any]:
    """A copy in which keys that are the text of a number become that number, as they were before JSON."""
    result: dict[Any, Any] = {}
    for key, value in mapping.items():
        number = int(key) if isinstance(key, str) and key.lstrip("-").isdigit() else key
        if number != key and number in mapping:
            raise KeyError(f"already have key {number!r}")
        result[number] = value
    return result


# Cutting a sequence into as many parts as there are engines.


class Map:
    """Contiguous parts; the first ones are one item longer if the lengths differ."""

    def getPartition(self, seq: Any, p: int, q: int, n: int | None = None) -> Any:
        """Part `p` of `q` of the first `n` items of `seq`, or of all."""
        length = len(seq) if n is None else n
        if not 0 <= p < q:
            raise ValueError(f"must have 0 <= p < q, but have p={p},q={q}")
        size, longer = divmod(length, q)
        low = p * size + min(p, longer)
        high = low + size + (p < longer)
        try:
            return seq[low:high]
        except TypeError:
            return list(islice(seq, low, high))

    def joinPartitions(self, listOfPartitions: list[Any]) -> Any:
        """The sequence of which these are all parts."""
        return join_parts(listOfPartitions, "b")


class RoundRobinMap(Map):
    """Parts that take items in turn."""

    def getPartition(self, seq: Any, p: int, q: int, n: int | None = None) -> Any:
        """Part `p` of `q` of the first `n` items of `seq`, or of all."""
        return seq[p : len(seq) if n is None else n : q]

    def joinPartitions(self, listOfPartitions: list[Any]) -> Any:
        """The sequence of which these are all parts."""
        return join_parts(listOfPartitions, "r")


def mappable(obj: Any) -> bool:
    """Whether this is a list, a tuple or an array."""
    return isinstance(obj, list | tuple) or is_array(obj)
