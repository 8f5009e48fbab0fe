"""Sends of a broadcast through a tree of schedulers, in closed form.

The unit is one send. A process sends one message after another; a message has arrived when its send is over, and
whoever has it may send it on at once. `arity` is k, the branches at each scheduler, and `depth` is d, the levels below
the root, so k**d leaves; a depth of 0 is one scheduler that sends to every engine itself.

Source of the model: the page "Broadcast View" of IPython Parallel's documentation, whose text counts as `sends` does
and whose formula (`published_sends`) does not. `broadleaf.plan.tree` counts the same sends one by one.

Broadleaf sends small messages to every host and wakes a host's engines together (`broadcast_sends`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LANE_ENGINES = 8
"""So many engines of one host get a small broadcast from memory that they share, and wake up together."""


def sends(engines: int, arity: int = 2, depth: int = 1) -> int:
    """Number of sends, one after another, until the last engine has the message.

    This is a tree in which every engine is sent a message of its own; what Broadleaf sends is `broadcast_sends`.

    S = 1 + k d + ceil(N / k**d): one at the client, k at every level of schedulers, and those of one leaf, the last of
    which has the largest share.

    Args:
        engines: Number of engines, N.
        arity: Branches at each scheduler, k.
        depth: Levels below the root, d; 0 for one scheduler that sends to every engine itself.

    Returns:
        The number of sends.

    Raises:
        ValueError: There is no engine, the arity is below 2, or the depth is negative.

    Example:
        >>> ipp.plan.sends(100, arity=2, depth=5)
        15
    """
    check(engines, arity, depth)
    return 1 + arity * depth + -(-engines // leaves(arity, depth))


def smooth_sends(engines: float, arity: float = 2, depth: float = 1) -> float:
    """`sends` without rounding a leaf's share up: S = 1 + k d + N / k**d, for the curve, its optimum and its plot.

    Args:
        engines: Number of engines, N.
        arity: Branches at each scheduler, k.
        depth: Levels below the root, d.

    Returns:
        The number of sends.

    Raises:
        ValueError: There is no engine, the arity is below 2, or the depth is negative.
    """
    check(engines, arity, depth)
    return 1 + arity * depth + engines / math.pow(arity, depth)


def published_sends(engines: float, depth: float = 1) -> float:
    """The formula as IPython's page prints it, for two branches: 1 + 2**d + N / 2**d sends.

    Its middle term is the number of leaves, where the text counts two sends at each of d levels. It is smallest at
    2**d = sqrt(N), where it is 1 + 2 sqrt(N).

    Args:
        engines: Number of engines, N.
        depth: Levels below the root, d.

    Returns:
        The number of sends.

    Raises:
        ValueError: There is no engine, or the depth is negative.
    """
    check(engines, 2, depth)
    return 1 + math.pow(2, depth) + engines / math.pow(2, depth)


def direct_sends(engines: int) -> int:
    """Sends of a direct view: the client's own, N, one after another.

    A scheduler between client and engines passes each message on while the client sends the next, which adds 1.
    IPython's page adds another N, as if the scheduler waited for the last message before it sent the first.

    Args:
        engines: Number of engines, N.

    Returns:
        The number of sends.

    Raises:
        ValueError: There is no engine.
    """
    check(engines)
    return engines


def host_sends(engines: int) -> int:
    """Sends with which a host gives a small broadcast to all its engines.

    Fewer than `LANE_ENGINES` are sent it one after another. More find it in memory that they share with the host, and
    one wake-up tells all of them, which counts as one send.

    Args:
        engines: Number of engines on the host.

    Returns:
        The number of sends.

    Raises:
        ValueError: There is no engine.
    """
    check(engines)
    return engines if engines < LANE_ENGINES else 1


def broadcast_sends(engines: int, hosts: int = 0) -> int:
    """Sends of a small broadcast in Broadleaf, one after another, until the last engine has it.

    S = 1 + H + `host_sends` of the slowest host: one at the client, one from the controller to every other host, and
    those of the host that is told last, which may be the slowest. No engine passes it on.

    Args:
        engines: Number of engines, N, evenly spread over the hosts.
        hosts: Number of hosts that the engines run on besides the controller's, H; 0 if all run on the controller's.

    Returns:
        The number of sends.

    Raises:
        ValueError: There is no engine, or the number of hosts is negative or above that of engines.

    Example:
        >>> ipp.plan.broadcast_sends(100)
        2
    """
    return 1 + hosts + max(map(host_sends, _shares(engines, hosts)))


def broadcast_messages(engines: int, hosts: int = 0) -> int:
    """Messages of a small broadcast in Broadleaf in total: `broadcast_sends` with the sends of every host.

    Args:
        engines: Number of engines, evenly spread over the hosts.
        hosts: Number of hosts that the engines run on besides the controller's; 0 if all run on the controller's.

    Returns:
        The number of messages.

    Raises:
        ValueError: There is no engine, or the number of hosts is negative or above that of engines.
    """
    return 1 + hosts + sum(n_hosts * host_sends(share) for share, n_hosts in _shares(engines, hosts).items())


def messages(engines: int, arity: int = 2, depth: int = 1) -> int:
    """Messages in total, N + 1 + sum of k**i for i from 1 to d: to the root, to every other scheduler, to every engine.

    As IPython's page counts them, for any arity.

    Args:
        engines: Number of engines, N.
        arity: Branches at each scheduler, k.
        depth: Levels below the root, d.

    Returns:
        The number of messages.

    Raises:
        ValueError: There is no engine, the arity is below 2, or the depth is negative.
    """
    check(engines, arity, depth)
    return engines + sum(leaves(arity, level) for level in range(depth + 1))


def direct_messages(engines: int) -> int:
    """Messages of a direct view in total, 2 N: each passes the scheduler.

    Args:
        engines: Number of engines, N.

    Returns:
        The number of messages.

    Raises:
        ValueError: There is no engine.
    """
    check(engines)
    return 2 * engines


def binomial_rounds(engines: int) -> int:
    """Sends one after another if everyone who has the message continues to send it: ceil(log2(N + 1)).

    No scheme in which a process sends one message at a time has fewer: the number of those that have it at most doubles
    with each send.

    Args:
        engines: Number of engines, N.

    Returns:
        The number of sends.

    Raises:
        ValueError: There is no engine.
    """
    check(engines)
    return engines.bit_length()


def optimum_depth(engines: float, arity: float = 2, inner_cost: float = 1, leaf_cost: float = 1) -> float:
    """The depth, not rounded, at which k a1 d + a2 N / k**d is smallest.

    Its derivative k a1 - a2 N ln(k) / k**d is zero where k**d = (a2 / a1) N ln(k) / k: with equal costs a leaf then has
    k / ln k engines.

    Args:
        engines: Number of engines, N.
        arity: Branches at each scheduler, k.
        inner_cost: Cost of a send to a scheduler, a1, in any unit.
        leaf_cost: Cost of a send to an engine, a2, in the same unit.

    Returns:
        The depth; 0 where none helps.

    Raises:
        ValueError: There is no engine, the arity is below 2, or a cost is not above 0.
    """
    check(engines, arity)
    _check_costs(inner_cost, leaf_cost)
    return max(0.0, math.log(leaf_cost / inner_cost * engines * math.log(arity) / arity, arity))


def min_sends(engines: float, arity: float = 2) -> float:
    """`smooth_sends` at `optimum_depth`: S* = 1 + (k / ln k) (1 + ln N - ln(k / ln k)); 1 + N where no depth helps.

    k / ln k is smallest at e, so of whole numbers 3 is the best arity for many engines, and 2 and 4 tie behind it.

    Args:
        engines: Number of engines, N.
        arity: Branches at each scheduler, k.

    Returns:
        The number of sends.

    Raises:
        ValueError: There is no engine, or the arity is below 2.
    """
    check(engines, arity)
    share = arity / math.log(arity)
    if engines <= share:
        return 1.0 + engines
    return 1 + share * (1 + math.log(engines) - math.log(share))


@dataclass(frozen=True, slots=True)
class Shape:
    """A tree of schedulers, and what a message to all engines costs through it."""

    arity: int
    """Branches at each scheduler."""
    depth: int
    """Levels below the root."""
    sends: int
    """Sends, one after another, until the last engine has the message."""
    cost: float
    """The time of those sends, in the unit of the costs given; equal to `sends` where both are 1."""
    smooth_cost: float
    """The same without rounding a leaf's share up."""


def best_depth(engines: int, arity: int = 2, inner_cost: float = 1, leaf_cost: float = 1) -> Shape:
    """The whole depth with the cheapest sends; among ties, the one with the smallest smooth cost.

    The client's send costs as much as one to a scheduler.

    Args:
        engines: Number of engines.
        arity: Branches at each scheduler.
        inner_cost: Cost of a send to a scheduler, in any unit.
        leaf_cost: Cost of a send to an engine, in the same unit.

    Returns:
        The tree of that depth.

    Raises:
        ValueError: There is no engine, the arity is below 2, or a cost is not above 0.

    Example:
        >>> ipp.plan.best_depth(100).depth
        5
    """
    check(engines, arity)
    _check_costs(inner_cost, leaf_cost)
    # Past the depth at which every leaf has one engine, a level only adds sends.
    deepest = 0
    while leaves(arity, deepest) < engines:
        deepest += 1
    return min((_shape(engines, arity, depth, inner_cost, leaf_cost) for depth in range(deepest + 1)), key=_rank)


def best_shape(engines: int, inner_cost: float = 1, leaf_cost: float = 1) -> Shape:
    """The arity and depth with the cheapest sends, over all arities.

    Ties go to the smallest smooth cost, then to fewer branches. The client's send costs as much as one to a scheduler.

    Args:
        engines: Number of engines.
        inner_cost: Cost of a send to a scheduler, in any unit.
        leaf_cost: Cost of a send to an engine, in the same unit.

    Returns:
        That tree.

    Raises:
        ValueError: There is no engine, or a cost is not above 0.
    """
    check(engines)
    _check_costs(inner_cost, leaf_cost)
    found = best_depth(engines, 2, inner_cost, leaf_cost)
    arity = 3
    # A tree with a level costs at least the client's send, one level and one engine.
    while arity <= engines and inner_cost * (1 + arity) + leaf_cost <= found.cost:
        other = best_depth(engines, arity, inner_cost, leaf_cost)
        found = min(found, other, key=_rank)
        arity += 1
    return found


def check(engines: float, arity: float = 2, depth: float = 0) -> None:
    """Raises ValueError that names what is wrong: fewer than 1 engine, an arity below 2, a negative depth."""
    if engines < 1:
        raise ValueError(f"engines must be at least 1, not {engines}")
    if arity < 2:
        raise ValueError(f"arity must be at least 2, not {arity}")
    if depth < 0:
        raise ValueError(f"depth must not be negative, but is {depth}")


def _shares(engines: int, hosts: int) -> dict[int, int]:
    """By number of engines, how many hosts have as many."""
    check(engines)
    if not 0 <= hosts <= engines:
        raise ValueError(f"hosts must be from 0 to the number of engines, {engines}, not {hosts}")
    n_hosts = max(hosts, 1)
    share, n_larger = divmod(engines, n_hosts)
    found = {share: n_hosts - n_larger, share + 1: n_larger}
    return {share: n for share, n in found.items() if n}


def leaves(arity: int, depth: int) -> int:
    """Leaves of a tree: k**d."""
    return int(arity**depth)


def _shape(engines: int, arity: int, depth: int, inner_cost: float, leaf_cost: float) -> Shape:
    inner = inner_cost * (1 + arity * depth)
    share = engines / leaves(arity, depth)
    return Shape(
        arity, depth, sends(engines, arity, depth), inner + leaf_cost * math.ceil(share), inner + leaf_cost * share
    )


def _rank(shape: Shape) -> tuple[float, float]:
    return (shape.cost, shape.smooth_cost)


def _check_costs(inner_cost: float, leaf_cost: float) -> None:
    if inner_cost <= 0 or leaf_cost <= 0:
        raise ValueError(f"costs must be above 0, not {inner_cost} and {leaf_cost}")
