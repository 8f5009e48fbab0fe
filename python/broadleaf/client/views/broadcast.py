"""The broadcast view: all of these engines at once, replies together if wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broadleaf.client.views.base import Flag
from broadleaf.client.views.direct import DirectView

if TYPE_CHECKING:
    from broadleaf.client.client import Client


class BroadcastView(DirectView):
    """A direct view that tells all its engines the same thing in one message, and can have one reply to it.

    With `is_coalescing` the replies of a call are collected on their way and arrive as one, when the last engine has
    answered: cheapest for many engines and small values. Every error is kept, and the values of the others when an
    engine dies. Without it each reply comes as soon as it is there.
    """

    flag_names = (*DirectView.flag_names, "is_coalescing")

    is_coalescing = Flag(False, "Whether the replies to a call arrive together.", bool)

    def __init__(self, client: Client, targets: Any = None, **flags: Any) -> None:
        if "coalescing" in flags:
            flags["is_coalescing"] = flags.pop("coalescing")
        super().__init__(client, targets, **flags)

    def _coalesces(self) -> bool:
        return bool(self.is_coalescing)
