"""Time to send n bytes from one client to H hosts, in closed form.

A link has a latency a (seconds per message) and a cost b (seconds per byte). A machine can send one message while it
receives one, and no more. The client is one of p = H + 1 machines. A payload sent in c segments of n / c bytes can be
passed on while the rest of it is still arriving. Sources: the models by which MPI libraries choose (MPICH's
bcast_intra_scatter_ring_allgather, Open MPI's pipelines), and arXiv 2205.10072 for the fewest rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

SEGMENT_LIMITS_BYTES = (32 * 1024, 8 * 1024 * 1024)
"""No segment is smaller, lest a link of little latency drown in headers, or larger, as credit is given in segments.

A higher lower limit costs slow links much: at 1 Gb/s, 256 KiB would double the time of 1 MB to 16 hosts.
"""


@dataclass(frozen=True, slots=True)
class Link:
    """One hop between two machines. The default is 100 us and 10 Gb/s.

    Raises:
        ValueError: The latency is negative, or a byte costs nothing.
    """

    latency_s: float = 100e-6
    """Seconds a message; at least 0."""
    seconds_per_byte: float = 0.8e-9
    """Seconds a byte; above 0."""

    def __post_init__(self) -> None:
        if not (self.latency_s >= 0 and self.seconds_per_byte > 0):
            raise ValueError(f"a link needs a latency of at least 0 and a cost per byte above 0, not {self}")

    @classmethod
    def measured(cls, latency_us: float, gbit: float) -> Link:
        """A link by what measurements of it give.

        Args:
            latency_us: Its latency in microseconds.
            gbit: Its bandwidth in Gb/s (10**9 bits a second).

        Returns:
            The link.

        Raises:
            ValueError: The latency is negative, or the bandwidth is not above 0.
        """
        if gbit <= 0:
            raise ValueError(f"bandwidth must be above 0 Gb/s, not {gbit}")
        return cls(latency_us * 1e-6, 8e-9 / gbit)

    def hop(self, n_bytes: float) -> float:
        """Time for one message: a + n b.

        Args:
            n_bytes: Its length in bytes, n.

        Returns:
            Seconds.
        """
        return self.latency_s + n_bytes * self.seconds_per_byte


@dataclass(frozen=True, slots=True)
class Transfer:
    """How long one algorithm takes until the last host has all bytes, and how it divides them."""

    algorithm: str
    """Its name in `ALGORITHMS`."""
    seconds: float
    """Time until the last host has all bytes."""
    segments: int
    """Segments that the payload is cut into."""
    segment_bytes: int
    """Bytes of a segment; the last may be smaller. The whole payload where it is not cut."""
    arity: int | None = None
    """Branches at every machine, for a k-ary tree."""


def flat_time(hosts: int, n_bytes: float, link: Link) -> float:
    """The client sends to one host after another: (p - 1) (a + n b)."""
    return hosts * link.hop(n_bytes)


def binomial_time(hosts: int, n_bytes: float, link: Link) -> float:
    """Everyone who has all bytes sends them on: ceil(log2 p) (a + n b)."""
    return hosts.bit_length() * link.hop(n_bytes)


def scatter_allgather_time(hosts: int, n_bytes: float, link: Link) -> float:
    """Van de Geijn: scatter down a binomial tree, then gather round a ring: (log2 p + p - 1) a + 2 n b (p - 1) / p."""
    machines = hosts + 1
    return (math.log2(machines) + hosts) * link.latency_s + 2 * n_bytes * hosts / machines * link.seconds_per_byte


def chain_time(hosts: int, n_bytes: float, link: Link, segments: int) -> float:
    """Each machine passes segments to the next: (p - 2 + c) (a + n b / c); at best (sqrt(n b) + sqrt((p - 2) a))**2."""
    return (hosts - 1 + segments) * link.hop(n_bytes / segments)


def kary_time(hosts: int, n_bytes: float, link: Link, segments: int, arity: int) -> float:
    """A complete tree of k branches and depth D passes segments down: k (D - 1 + c) (a + n b / c).

    Each machine but the last sends every byte k times, so at best k (sqrt(n b) + sqrt((D - 1) a))**2.
    """
    return arity * (kary_depth(hosts, arity) - 1 + segments) * link.hop(n_bytes / segments)


def round_optimal_time(hosts: int, n_bytes: float, link: Link, segments: int) -> float:
    """The fewest rounds for c segments (Traff): (c - 1 + ceil(log2 p)) (a + n b / c)."""
    return (segments - 1 + hosts.bit_length()) * link.hop(n_bytes / segments)


def min_possible_time(hosts: int, n_bytes: float, link: Link) -> float:
    """The larger of ceil(log2 p) a, messages in a row, and a + n b, all bytes over one link: both are lower bounds for
    every algorithm.
    """
    return max(hosts.bit_length() * link.latency_s, link.hop(n_bytes))


def kary_depth(hosts: int, arity: int) -> int:
    """Levels below the client of a tree filled level by level: the smallest D with 1 + k + ... + k**D >= H + 1."""
    depth, room, level = 0, 0, 1
    while room < hosts:
        level *= arity
        room += level
        depth += 1
    return depth


def best_segments(waiting: int, n_bytes: int, link: Link, limits_bytes: tuple[int, int] | None) -> int:
    """The c for which (w + c) (a + n b / c) is smallest: one of the two whole numbers at sqrt(w n b / a), w =
    `waiting`.

    At least 1, at most one per byte, and with segments within `limits_bytes`, if given, unless the payload is smaller.
    """
    max_segments, min_segments = max(1, n_bytes), 1
    if limits_bytes is not None:
        smallest, largest = limits_bytes
        max_segments = max(1, n_bytes // smallest)
        min_segments = max(1, -(-n_bytes // largest))
    if link.latency_s == 0:
        return max_segments if waiting else min_segments
    best = math.sqrt(waiting * n_bytes * link.seconds_per_byte / link.latency_s)
    candidates = {min(max(int(count), min_segments), max_segments) for count in (math.floor(best), math.ceil(best))}
    return min(sorted(candidates), key=lambda c: (waiting + c) * link.hop(n_bytes / c))


KARY_ARITIES = (2, 3, 4, 8)
"""Those tried for a k-ary tree of hosts; the fastest is taken."""

_Plan = Callable[[int, int, Link, tuple[int, int] | None], Transfer]


def _whole(name: str, time: Callable[[int, float, Link], float]) -> _Plan:
    def plan(hosts: int, n_bytes: int, link: Link, limits_bytes: tuple[int, int] | None) -> Transfer:
        return Transfer(name, time(hosts, n_bytes, link), 1, n_bytes)

    return plan


def _cut(name: str, seconds: float, segments: int, n_bytes: int, arity: int | None = None) -> Transfer:
    return Transfer(name, seconds, segments, -(-n_bytes // segments), arity)


def _chain(hosts: int, n_bytes: int, link: Link, limits_bytes: tuple[int, int] | None) -> Transfer:
    segments = best_segments(hosts - 1, n_bytes, link, limits_bytes)
    return _cut("chain", chain_time(hosts, n_bytes, link, segments), segments, n_bytes)


def _kary(hosts: int, n_bytes: int, link: Link, limits_bytes: tuple[int, int] | None) -> Transfer:
    def of(arity: int) -> Transfer:
        segments = best_segments(kary_depth(hosts, arity) - 1, n_bytes, link, limits_bytes)
        return _cut("k-ary", kary_time(hosts, n_bytes, link, segments, arity), segments, n_bytes, arity)

    return min(map(of, KARY_ARITIES), key=lambda transfer: transfer.seconds)


def _scatter_allgather(hosts: int, n_bytes: int, link: Link, limits_bytes: tuple[int, int] | None) -> Transfer:
    return _cut("scatter-allgather", scatter_allgather_time(hosts, n_bytes, link), hosts + 1, n_bytes)


def _round_optimal(hosts: int, n_bytes: int, link: Link, limits_bytes: tuple[int, int] | None) -> Transfer:
    segments = best_segments(hosts.bit_length() - 1, n_bytes, link, limits_bytes)
    return _cut("round-optimal", round_optimal_time(hosts, n_bytes, link, segments), segments, n_bytes)


_PLANS: dict[str, _Plan] = {
    "flat": _whole("flat", flat_time),
    "binomial": _whole("binomial", binomial_time),
    "k-ary": _kary,
    "chain": _chain,
    "scatter-allgather": _scatter_allgather,
    "round-optimal": _round_optimal,
}

ALGORITHMS = tuple(_PLANS)
"""Every algorithm that has a formula here."""
RUNNABLE = ("flat", "binomial", "k-ary", "chain")
"""Those made of a tree of relays, from which `choose` chooses; the others are shown for comparison."""


def transfers(
    hosts: int,
    n_bytes: int,
    link: Link | None = None,
    limits_bytes: tuple[int, int] | None = SEGMENT_LIMITS_BYTES,
    among: Sequence[str] = ALGORITHMS,
) -> list[Transfer]:
    """How long each algorithm takes, with its best segments.

    Args:
        hosts: Number of hosts besides the client's machine.
        n_bytes: The payload's length in bytes.
        link: Every hop between two machines; by default `Link()`.
        limits_bytes: Minimum and maximum length of a segment in bytes; None for no limits.
        among: Names of algorithms, of `ALGORITHMS`.

    Returns:
        A transfer for each name.

    Raises:
        ValueError: There are fewer than 1 host or 0 bytes, or an algorithm does not exist.
    """
    _check(hosts, n_bytes)
    for name in among:
        if name not in _PLANS:
            raise ValueError(f"unknown algorithm {name!r}; choose one of {', '.join(ALGORITHMS)}")
    return [_PLANS[name](hosts, n_bytes, link or Link(), limits_bytes) for name in among]


def choose(
    hosts: int,
    n_bytes: int,
    link: Link | None = None,
    limits_bytes: tuple[int, int] | None = SEGMENT_LIMITS_BYTES,
    among: Sequence[str] = RUNNABLE,
) -> Transfer:
    """The transfer that takes the least time; among ties, the first in `among`.

    Args:
        hosts: Number of hosts besides the client's machine.
        n_bytes: The payload's length in bytes.
        link: Every hop between two machines; by default `Link()`.
        limits_bytes: Minimum and maximum length of a segment in bytes; None for no limits.
        among: Names of algorithms, of `ALGORITHMS`.

    Returns:
        That transfer.

    Raises:
        ValueError: There are fewer than 1 host or 0 bytes, `among` is empty, or an algorithm does not exist.

    Example:
        >>> ipp.plan.choose(hosts=15, n_bytes=10**9).algorithm
        'chain'
        >>> ipp.plan.choose(hosts=15, n_bytes=1000).algorithm
        'binomial'
    """
    if not among:
        raise ValueError("there is no algorithm to choose from")
    return min(transfers(hosts, n_bytes, link, limits_bytes, among), key=lambda transfer: transfer.seconds)


@dataclass(frozen=True, slots=True)
class HostBytes:
    """Number of bytes that one broadcast moves, counting only payload."""

    client_out: int
    """Out of the client."""
    host_in: int
    """Into the host that receives most."""
    host_out: int
    """Out of the host that sends most."""
    network: int
    """Over all links together."""


def host_bytes(algorithm: str, hosts: int, n_bytes: int, arity: int = 2) -> HostBytes:
    """The bytes that go into and out of the client and the busiest host.

    All except scatter and gather bring every byte into each host once, H n in total; they differ in who sends it.

    Args:
        algorithm: Its name in `ALGORITHMS`.
        hosts: Number of hosts besides the client's machine, H.
        n_bytes: The payload's length in bytes, n.
        arity: Branches at every machine, for a k-ary tree.

    Returns:
        Numbers of bytes.

    Raises:
        ValueError: There are fewer than 1 host or 0 bytes, or there is no algorithm of that name.
    """
    _check(hosts, n_bytes)
    once = hosts * n_bytes
    if algorithm == "flat":
        return HostBytes(once, n_bytes, 0, once)
    if algorithm == "binomial":
        # The client is machine 0. Machine r receives from r without its lowest set bit, and sends to r + 1, r + 2, r +
        # 4 ... up to that bit. The last of the client's children may lack some children of its own; the one before has
        # them all.
        rounds = hosts.bit_length()
        max_sends = max((hosts - 2 ** (rounds - 1)).bit_length(), rounds - 2)
        return HostBytes(rounds * n_bytes, n_bytes, max_sends * n_bytes, once)
    if algorithm == "k-ary":
        own = min(arity, hosts)
        below = min(arity, max(0, hosts - arity))
        return HostBytes(own * n_bytes, n_bytes, below * n_bytes, once)
    if algorithm == "chain":
        return HostBytes(n_bytes, n_bytes, n_bytes if hosts > 1 else 0, once)
    if algorithm == "round-optimal":
        # Few rounds more than there are segments, with one segment sent in each: about one payload leaves every
        # machine.
        return HostBytes(n_bytes, n_bytes, n_bytes if hosts > 1 else 0, once)
    if algorithm == "scatter-allgather":
        return _scatter_allgather_bytes(hosts, n_bytes)
    raise ValueError(f"unknown algorithm {algorithm!r}; choose one of {', '.join(ALGORITHMS)}")


def _scatter_allgather_bytes(hosts: int, n_bytes: int) -> HostBytes:
    machines = hosts + 1
    # In pieces of n / p bytes: machine r gets its own and those of all machines below it in the binomial tree, sends
    # these on, and then p - 1 pieces round the ring.
    below = [min(machine & -machine, machines - machine) for machine in range(1, machines)]
    ring = hosts

    def size(pieces: int) -> int:
        return -(-pieces * n_bytes // machines)

    return HostBytes(
        client_out=size(hosts + ring),
        host_in=size(max(below) + ring),
        host_out=size(max(below) - 1 + ring),
        network=size(sum(below) + machines * ring),
    )


def _check(hosts: int, n_bytes: int) -> None:
    if hosts < 1:
        raise ValueError(f"hosts must be at least 1, not {hosts}")
    if n_bytes < 0:
        raise ValueError(f"the number of bytes must not be negative, but is {n_bytes}")
