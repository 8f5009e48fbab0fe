"""Where a request came from: what all results of one view, method and target set have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broadleaf.client.client import Client


class Origin:
    """The results of one submitter share it, so a result itself does not carry these values. It must not refer to a
    view: a view has submitters, which have origins, and the native objects among them are invisible to the garbage
    collector.
    """

    __slots__ = ("client", "label", "method", "retries", "single", "targets", "timeout_s")

    def __init__(
        self,
        client: Client,
        targets: tuple[int, ...] | None,
        single: bool,
        method: str = "apply",
        label: str | None = None,
        timeout_s: float | None = None,
        retries: int | None = None,
    ) -> None:
        self.client: Client = client
        self.targets: tuple[int, ...] | None = targets
        """Engine of each part, or None when the scheduler chose."""
        self.single: bool = single
        """Whether the value is that of the one part, rather than a list."""
        self.method: str = method
        self.label: str | None = label
        self.timeout_s: float | None = timeout_s
        self.retries: int | None = retries
        """Number of times a task is retried; None for one that is sent to an engine of the user's choice."""
