"""The tree of schedulers itself, and its sends counted one by one.

`broadleaf.plan.cost` has formulas; this has none. Its counts are what the formulas are tested against.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from broadleaf.plan.cost import check, leaves

CLIENT = "client"
"""The sender of the first message."""


@dataclass(frozen=True, slots=True)
class Send:
    """One message: who sends it, to whom, and how many sends were over before it arrived, including itself.

    Schedulers are ("scheduler", number), by level from the root, number 0; engines are ("engine", number).
    """

    sender: str | tuple[str, int]
    receiver: tuple[str, int]
    arrives: int


@dataclass(frozen=True, slots=True)
class Tree:
    """Engines below a tree of schedulers.

    Every scheduler gets the message, even one whose leaves have no engine, as in IPython's model.

    Raises:
        ValueError: There is no engine, the arity is below 2, or the depth is negative.

    Example:
        >>> ipp.plan.Tree(engines=100, arity=2, depth=5).serial_sends() == ipp.plan.sends(100, 2, 5)
        True
    """

    engines: int
    """Number of engines."""
    arity: int = 2
    """Branches at each scheduler."""
    depth: int = 1
    """Levels below the root; 0 for one scheduler that sends to every engine itself."""

    def __post_init__(self) -> None:
        check(self.engines, self.arity, self.depth)

    @property
    def leaves(self) -> int:
        """How many schedulers send to engines."""
        return leaves(self.arity, self.depth)

    @property
    def schedulers(self) -> int:
        """How many schedulers there are."""
        return sum(leaves(self.arity, level) for level in range(self.depth + 1))

    @property
    def first_leaf(self) -> int:
        """The number of the first scheduler that sends to engines; those after it do too."""
        return self.schedulers - self.leaves

    def children(self, scheduler: int) -> range:
        """The schedulers below a scheduler, in the order in which they get the message.

        Args:
            scheduler: Its number, from the root (0) level by level.

        Returns:
            Their numbers; none below a leaf.
        """
        if scheduler >= self.first_leaf:
            return range(0)
        first = scheduler * self.arity + 1
        return range(first, first + self.arity)

    def engines_of(self, scheduler: int) -> range:
        """The engines of a leaf, in the order in which they get the message.

        Shares differ by at most one; the last is among the largest.

        Args:
            scheduler: The leaf's number, from the root (0) level by level.

        Returns:
            Their numbers; empty for a scheduler that is not a leaf.
        """
        leaf = scheduler - self.first_leaf
        if leaf < 0:
            return range(0)
        return range(leaf * self.engines // self.leaves, (leaf + 1) * self.engines // self.leaves)

    def sends(self) -> Iterator[Send]:
        """Every message of one broadcast.

        A sender starts when its own message has arrived, and sends one message at a time.

        Yields:
            Each message.
        """
        root = Send(CLIENT, ("scheduler", 0), 1)
        waiting = deque([root])
        yield root
        while waiting:
            told = waiting.popleft()
            number = told.receiver[1]
            arrives = told.arrives
            for child in self.children(number):
                arrives += 1
                send = Send(told.receiver, ("scheduler", child), arrives)
                waiting.append(send)
                yield send
            for engine in self.engines_of(number):
                arrives += 1
                yield Send(told.receiver, ("engine", engine), arrives)

    def arrivals(self) -> dict[int, int]:
        """When each engine gets its message.

        Returns:
            By engine the number of sends that were over, one after another, when it came.
        """
        return {send.receiver[1]: send.arrives for send in self.sends() if send.receiver[0] == "engine"}

    def serial_sends(self) -> int:
        """The counted number of sends that the last engine waits for.

        Returns:
            Their number.
        """
        return max(self.arrivals().values())

    def messages(self) -> int:
        """The messages of one broadcast, counted.

        Returns:
            Their number.
        """
        return sum(1 for _ in self.sends())
