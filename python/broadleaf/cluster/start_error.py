"""The error for a cluster that does not start."""

from __future__ import annotations

from broadleaf.errors import BroadleafError


class ClusterStartError(BroadleafError):
    """A cluster, or a part of it, does not start.

    Args:
        message: What did not start, on which host, and why.
        log: The end of what its processes wrote; empty if they wrote nothing. It is part of the exception's text.
    """

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log

    def __str__(self) -> str:
        message = str(self.args[0])
        if not self.log.strip():
            return message
        return message + "\nThe end of its log:\n" + "\n".join("  | " + line for line in self.log.splitlines())
